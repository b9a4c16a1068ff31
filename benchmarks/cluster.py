"""`python -m benchmarks.cluster`: how long a lost cluster takes to come back, and what its recovery
point costs.

- By partitions: `make drill-cluster` with more and more of them. The time to the first record of a
  group, the restore's own time, and how far the shown recovery point was from what the kill took.
- By archive: the same topics, restored from an archive and from one of a hundred times as many
  segments.
- The recovery point: what an archiver with a journal needs of CPU and requests beyond one without,
  under the same load.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from shutil import copytree

from confluent_kafka import Producer
from rich.console import Console

from benchmarks.frame import Outcome, Part, Size, in_turn
from benchmarks.process_usage import cpu_seconds
from benchmarks.report import Row, ratios, row
from lab.errors import PartFailed
from lab.kafka import KafkaServer
from lab.kafka_cluster import KafkaCluster
from lab.kafka_versions import KAFKA_VERSION
from rehearsal.checks import FIRST_RECORD_MAX_S, POINT_TOLERANCE_S
from rehearsal.clients import QUIET
from rehearsal.drill import Drill, Rehearsal
from rehearsal.processes import Archiver, Command, run

_PARTITIONS = (100, 1_000, 5_000)
_RECOVERY_PARTITIONS = (100, 1_000, 10_000)
_QUICK_PARTITIONS = (12,)
_ARCHIVED_TOPIC = "drill-archived"
_ARCHIVED_PARTITIONS = 20
_RECORD_BYTES = 1_500  # above the least size of a segment
_TIMES_LARGER = 100
_LARGER_MAX = 1.1
_RECOVERY_POINT_MS = 2_000
_REQUESTS_PER_S_MAX = 2.0  # in an interval of 2 s one write, and at most three deletions
_REQUESTS = "fetchproxy_store_request_seconds_count"
_WITHOUT, _WITH = "without a journal", "with a journal"
_TOPIC_PARTITIONS = 100
_SETTLING_S = 20.0


# --- by partitions --------------------------------------------------------------------------------


def _by_partitions(options: argparse.Namespace, console: Console) -> list[Row]:
    rows = []
    for partitions in _QUICK_PARTITIONS if options.quick else _PARTITIONS:
        played = [
            _rehearsed(partitions, options.groups, seed, console) for seed in range(options.rounds)
        ]
        goal = FIRST_RECORD_MAX_S if partitions <= 1_000 else None
        rows += [
            row(f"first record of a group, {partitions:,} partitions", "s",
                [one.times["first record"] for one in played], at_most=goal),
            row(f"cluster restore, {partitions:,} partitions", "s",
                [one.times["restore"] for one in played]),
            row(f"recover-journal, {partitions:,} partitions", "s",
                [one.times["recover-journal"] for one in played]),
            row(f"age of the shown recovery point, {partitions:,} partitions", "s",
                [one.times["shown age"] for one in played]),
            row(f"what the kill took beyond the shown point, {partitions:,} partitions", "s",
                [one.times["true age"] - one.times["shown age"] for one in played],
                at_most=POINT_TOLERANCE_S),
        ]  # fmt: skip
    return rows


def _rehearsed(partitions: int, groups: int, seed: int, console: Console) -> Rehearsal:
    """Raises PartFailed if a check fails, but not for the time of a busy machine."""
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        drill = Drill(partitions=partitions, groups=groups, version=KAFKA_VERSION, seed=seed)
        rehearsal = Rehearsal(drill, Path(folder), lambda line: console.print(line, markup=False))
        results = rehearsal.play()
    faults = [one.line() for one in results if one.ok is False and "goal" not in one.figure]
    if faults:
        raise PartFailed(f"{partitions} partitions, seed {seed}: {'; '.join(faults)}")
    return rehearsal


# --- by archive -----------------------------------------------------------------------------------


def _by_archive(options: argparse.Namespace, console: Console) -> list[Row]:
    """The two archives have the same state of the same cluster, and the same ends."""
    with tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder:
        stores = _two_archives(Path(folder), options.segments)
        seconds: dict[str, list[float]] = {name: [] for name in stores}
        for number in range(options.rounds + 1):
            for name in in_turn(tuple(stores), number):
                took = _restored(Path(folder) / f"{name}-{number}", stores[name])
                console.print(f"restore from the {name} archive: {took:.1f} s")
                if number:  # round 0 warms up
                    seconds[name].append(took)
    return [
        row(
            f"restore from {_TIMES_LARGER} × the segments : the same",
            "x",
            ratios(seconds["large"], seconds["small"]),
            at_most=_LARGER_MAX,
        ),
        row(f"restore from {options.segments * _TIMES_LARGER:,} segments a partition", "s",
            seconds["large"]),
        row(f"restore from {options.segments:,} segments a partition", "s", seconds["small"]),
    ]  # fmt: skip


def _two_archives(folder: Path, segments: int) -> Mapping[str, Path]:
    """Both end at the same offsets: the large one has a segment for each record, the small one a
    hundredth of them.
    """
    small, large = folder / "small", folder / "large"
    records = segments * _TIMES_LARGER
    with KafkaServer(heap="512m") as kafka:
        kafka.create_topic(_ARCHIVED_TOPIC, _ARCHIVED_PARTITIONS)
        # A batch for each record, since a segment holds whole batches.
        producer = Producer(
            {"bootstrap.servers": kafka.bootstrap, "batch.num.messages": 1, **QUIET}
        )
        for number in range(records * _ARCHIVED_PARTITIONS):
            partition = number % _ARCHIVED_PARTITIONS
            producer.produce(_ARCHIVED_TOPIC, bytes(_RECORD_BYTES), partition=partition)
            producer.poll(0)
            while len(producer) > 10_000:
                producer.poll(0.1)
        producer.flush()
        for store, segment_bytes in ((large, 1_024), (small, _RECORD_BYTES * _TIMES_LARGER)):
            words = ["archive", "--once", "--bootstrap", kafka.bootstrap, "--create"]
            words += ["--store", store.as_uri(), "--topics", _ARCHIVED_TOPIC]
            words += ["--set", f"archive.segment_bytes_max={segment_bytes}"]
            _require(run([*words, "--set", "log.level=warning"], folder))
    return {"small": small, "large": large}


def _restored(folder: Path, store: Path) -> float:
    folder.mkdir()
    own_store = folder / "store"
    copytree(store, own_store)
    with KafkaCluster() as cluster:
        words = ["cluster", "restore", "--store", own_store.as_uri()]
        words += ["--bootstrap", cluster.bootstrap, "--json"]
        return _require(run(words, folder)).seconds


def _require(command: Command) -> Command:
    if command.exit_code:
        raise PartFailed(f"exit code {command.exit_code}: {command.errors[-2000:]}")
    return command


# --- the recovery point ---------------------------------------------------------------------------


@dataclass(slots=True)
class _Costs:
    """Of one archiver under load: CPU in cores, requests to the store a second."""

    cores: list[float] = field(default_factory=list)
    requests_per_s: list[float] = field(default_factory=list)


def _of_recovery_point(options: argparse.Namespace, console: Console) -> list[Row]:
    rows = []
    for partitions in _QUICK_PARTITIONS if options.quick else _RECOVERY_PARTITIONS:
        costs = _costs(partitions, options, console)
        more = [w - wo for w, wo in zip(costs[_WITH].requests_per_s,
                                        costs[_WITHOUT].requests_per_s, strict=True)]  # fmt: skip
        rows.append(
            row(f"requests that the journal adds, {partitions:,} partitions", "requests/s", more,
                at_most=_REQUESTS_PER_S_MAX)
        )  # fmt: skip
        for name, one in costs.items():
            rows.append(row(f"archiver {name}: CPU, {partitions:,} partitions", "cores", one.cores))
            rows.append(
                row(f"archiver {name}: requests to the store, {partitions:,} partitions",
                    "requests/s", one.requests_per_s)
            )  # fmt: skip
    return rows


def _costs(partitions: int, options: argparse.Namespace, console: Console) -> Mapping[str, _Costs]:
    costs = {_WITHOUT: _Costs(), _WITH: _Costs()}
    with (
        tempfile.TemporaryDirectory(prefix="bench-cluster-") as folder,
        KafkaServer(heap="1g", start_timeout_s=600.0) as kafka,
    ):
        places = _topics(kafka, partitions)
        for number in range(options.rounds):
            for name in in_turn((_WITHOUT, _WITH), number):
                archive = Path(folder) / f"{number}-{name.partition(' ')[0]}"
                cores, per_s = _under_load(kafka, archive, places, name == _WITH, options)
                costs[name].cores.append(cores)
                costs[name].requests_per_s.append(per_s)
                console.print(
                    f"{partitions:,} partitions, {name}: {cores:.2f} cores, {per_s:.1f} requests/s"
                )
    return costs


def _topics(kafka: KafkaServer, partitions: int) -> list[tuple[str, int]]:
    places = []
    for first in range(0, partitions, _TOPIC_PARTITIONS):
        name, number = f"drill-{first:05}", min(_TOPIC_PARTITIONS, partitions - first)
        kafka.create_topic(name, number)
        places += [(name, partition) for partition in range(number)]
    return places


def _under_load(
    kafka: KafkaServer,
    folder: Path,
    places: Sequence[tuple[str, int]],
    journals: bool,
    options: argparse.Namespace,
) -> tuple[float, float]:
    """Cores and requests a second of an archiver that copies no segment meanwhile."""
    folder.mkdir()
    settings = {
        "archive.recovery_point_ms": _RECOVERY_POINT_MS if journals else 0,
        "archive.segment_age_max_ms": "1h",
        "archive.cluster_state_interval_ms": 0,
    }
    archiver = Archiver(kafka.bootstrap, folder / "store", folder, settings)
    archiver.start()
    try:
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 20, **QUIET})
        numbers = count()
        _produce(producer, places, options.records_per_s, _SETTLING_S, numbers)
        requests, cpu = archiver.metric(_REQUESTS), cpu_seconds(archiver.pid)
        began_at = time.monotonic()
        _produce(producer, places, options.records_per_s, options.seconds, numbers)
        seconds = time.monotonic() - began_at
        cpu_s = cpu_seconds(archiver.pid) - cpu
        return cpu_s / seconds, (archiver.metric(_REQUESTS) - requests) / seconds
    finally:
        archiver.stop()


def _produce(
    producer: Producer,
    places: Sequence[tuple[str, int]],
    per_s: int,
    seconds: float,
    numbers: count[int],
) -> None:
    began_at, written = time.monotonic(), 0
    while (passed := time.monotonic() - began_at) < seconds:
        while written < passed * per_s:
            topic, partition = places[next(numbers) % len(places)]
            producer.produce(topic, bytes(200), partition=partition)
            written += 1
        producer.poll(0.02)
    producer.flush()


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    parts = {
        "partitions": _by_partitions,
        "archive": _by_archive,
        "recovery-point": _of_recovery_point,
    }
    rows = []
    for name, part in parts.items():
        if options.only in (None, name):
            rows += part(options, console)
    return Outcome(rows, {"kafka": KAFKA_VERSION})


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=("partitions", "archive", "recovery-point"), default=None)


PART = Part(
    name="cluster",
    title="A lost cluster: its restore, and what its recovery point costs",
    description=__doc__,
    sizes=(
        Size("rounds", 3, 1, "of each figure"),
        Size("groups", 50, 2, "of consumers"),
        Size("segments", 10, 1, "a partition of the smaller archive"),
        Size("seconds", 60, 5, "of load, for the cost of the recovery point"),
        Size("records-per-s", 2_000, 100, "written meanwhile"),
    ),
    measure=measure,
    add_options=_add_options,
)

if __name__ == "__main__":
    sys.exit(PART.main())
