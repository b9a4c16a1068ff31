"""`python -m rehearsal`: exit code 1 if a check fails; prints the seed."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from confluent_kafka import KafkaException

from lab.errors import PartFailed, PartMissing
from lab.kafka_versions import KAFKA_VERSION
from rehearsal.drill import Drill, Rehearsal

_SEEDS = 1_000_000


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m rehearsal", description=__doc__)
    parser.add_argument("--partitions", type=int, default=100, help="of all topics together")
    parser.add_argument("--groups", type=int, default=10)
    parser.add_argument("--kafka", default=KAFKA_VERSION, metavar="VERSION")
    parser.add_argument("--seconds", type=float, default=20.0, help="least time under load")
    parser.add_argument("--records-per-s", type=int, default=1_000)
    parser.add_argument(
        "--seed", type=int, default=None, help="decides when the cluster is killed; default: random"
    )
    parser.add_argument("--folder", type=Path, default=None, help="for the archive and the logs")
    options = parser.parse_args(arguments)
    if options.partitions < 5:
        parser.error("--partitions: at least 5, of which the transactions have three")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    seed = random.SystemRandom().randrange(_SEEDS) if options.seed is None else options.seed
    folder = options.folder or Path(tempfile.mkdtemp(prefix="fetchproxy-drill-"))
    began_at = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began_at:7.1f}  {text}", flush=True)

    drill = Drill(
        partitions=options.partitions,
        groups=options.groups,
        version=options.kafka,
        seed=seed,
        seconds=options.seconds,
        records_per_s=options.records_per_s,
    )
    say(f"seed {seed}; archive and logs in {folder}")
    try:
        results = Rehearsal(drill, folder, say).play()
    except PartMissing as missing:
        say(f"cannot begin: {missing}")
        return 1
    except (PartFailed, KafkaException) as failed:
        say(f"failed: {failed}; again with SEED={seed}")
        return 1
    for check in results:
        print(check.line())
    verdicts = [check.ok for check in results if check.ok is not None]
    failures = verdicts.count(False)
    say(f"{len(verdicts) - failures} of {len(verdicts)} checks passed, seed {seed}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
