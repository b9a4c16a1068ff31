"""`python -m benchmarks [PART …]` runs the named parts, or all of them, one after the other."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Sequence

from benchmarks.frame import Part

# Parts run in this order.
PARTS = (
    "tail",
    "replay",
    "fanin",
    "outage",
    "archive",
    "connections",
    "hostile",
    "metadata",
    "workers",
)


def part(name: str) -> Part:
    module = importlib.import_module(f"benchmarks.{name}").PART
    assert isinstance(module, Part)
    return module


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--quick", action="store_true", help="a smoke run: the figures mean little")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.parts if name not in PARTS]
    if unknown:
        parser.error(f"unknown part {unknown[0]}: choose from {', '.join(PARTS)}")
    failed = []
    began = time.monotonic()
    for name in options.parts or PARTS:
        # Each part is a process of its own, so memory that it leaves behind does not affect the
        # next part.
        command = [sys.executable, "-m", f"benchmarks.{name}"]
        if subprocess.run(command + ["--quick"] * options.quick, check=False).returncode:
            failed.append(name)
        print(f"{name}: {(time.monotonic() - began) / 60:.1f} min since the start", flush=True)
    if failed:
        print(f"not measured, or not completely: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
