"""`python -m chaos --minutes 30 --seed N`: exit code 1 on any violation; prints the seed."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from chaos.conductor import Conductor
from chaos.plan import make_plan
from lab.errors import PartFailed, PartMissing


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None, help="of an earlier run; default: any")
    parser.add_argument("--folder", type=Path, default=None, help="for the logs")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    seed = random.SystemRandom().randrange(1_000_000) if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fetchproxy-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:7.1f}  {text}", flush=True)

    say(f"seed {seed}, {options.minutes:g} minutes; logs in {folder}")
    plan = make_plan(seed, options.minutes * 60)
    say(f"metadata.manager = {plan.metadata_manager}, {len(plan.rounds)} rounds")
    conductor = Conductor(plan, folder, say, options.minutes * 60)
    try:
        conductor.play()
    except PartMissing as missing:
        say(f"cannot begin: {missing}")
        return 1
    except PartFailed as failed:
        conductor.faults.append(str(failed))
        say(f"  VIOLATION {failed}")
    if conductor.faults:
        say(f"failed: {len(conductor.faults)} violations; again with SEED={seed}; logs in {folder}")
        return 1
    say(f"passed: seed {seed}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
