"""`python -m lab setup [PART…]` sets up real parts before their use; `status` shows the cache.

With the parts ready, a test run spends its time on tests. `setup` names each part that it cannot
set up, with the reason. The exit status is then 1 only if `$FETCHPROXY_REQUIRE_PARTS` (comma
separated) lists that part.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

from lab import cache
from lab.errors import PartMissing
from lab.parts import PARTS, is_cached


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    setup = commands.add_parser("setup", help="download and build parts into the cache")
    setup.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    commands.add_parser("status", help="show what the cache holds")
    options = parser.parse_args(arguments)
    if options.command == "status":
        return print_status()
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]}: choose from {', '.join(PARTS)}")
    required = os.environ.get("FETCHPROXY_REQUIRE_PARTS", "").split(",")
    return set_up(options.parts or list(PARTS), {name.strip() for name in required})


def set_up(names: list[str], required: set[str]) -> int:
    status = 0
    for name in names:
        started = time.monotonic()
        try:
            line = PARTS[name].set_up()
        except PartMissing as missing:
            print(f"{name:13} MISSING  {missing}", file=sys.stderr, flush=True)
            if name in required:
                status = 1
        else:
            print(f"{name:13} ready    {line} ({time.monotonic() - started:.1f} s)", flush=True)
    return status


def print_status() -> int:
    print(f"cache: {cache.root()}")
    for part in PARTS.values():
        state = "ready" if is_cached(part) else "not set up"
        print(f"{part.name:13} {state:11} {part.purpose}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
