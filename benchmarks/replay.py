"""`python -m benchmarks.replay`: the cost of a replay, compared with Kafka's own tiered storage.

The same records are in the remote tier of a Kafka broker (LocalTieredStorage, a folder) and in
fetchproxy's archive (a folder). A librdkafka consumer and a client that only counts bytes read both
in turn, round after round. The archive's files are also read raw. Then the archive is in an S3
server that answers every request 50 ms late, and is compared with raw parallel range reads of the
same objects through the same relay. Ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks import goals
from benchmarks.contestants import FETCHPROXY, FetchproxyServer
from benchmarks.drain import PLAINTEXT, STOCK
from benchmarks.filling import Shape
from benchmarks.frame import Outcome, Part, Size, child, in_turn
from benchmarks.process_usage import CpuMeter, resident_mib_max
from benchmarks.remote_replay import RemoteReplay, far_rows, replay_from_afar
from benchmarks.replayed_topics import (
    MIB,
    ReplayedTopic,
    archived_topic,
    log_objects,
    tiered_kafka,
    tiered_topic,
)
from benchmarks.report import Row, goal_rows, ratios, row
from lab.errors import PartMissing
from lab.kafka import KafkaServer
from lab.kafka_versions import KAFKA_NEWEST, KAFKA_VERSION

TIERED = "Kafka's tiered storage"
PARTITIONS = 8
SEEK_TOPIC = "replay-seek"
SEEK_SEGMENT_BYTES = 8 * MIB
# The shape in the table of goals. Results of other shapes are shown beside it.
MAIN = Shape(1024, "none")
_STORE_BYTES = "kafka_server_brokertopicmetrics_remotefetchbytes_total"
_LIBRDKAFKA = "librdkafka, {}"
_ONE, _EIGHT = "raw client, 1 connection", "raw client, 8 connections"
_SINGLE = "raw client, 1 connection, one partition in a fetch"
_RAW = {_ONE: (1, PARTITIONS), _EIGHT: (8, PARTITIONS), _SINGLE: (1, 1)}


@dataclass(frozen=True, slots=True)
class Side:
    """`pids`: the processes that serve this side, without the client."""

    name: str
    bootstrap: str
    topic: ReplayedTopic
    pids: dict[str, int]


@dataclass(frozen=True, slots=True)
class Run:
    """One replay. `size`: bytes of values for a consumer, of record batches for the raw clients.
    `cpu`: seconds by process."""

    seconds: float
    size: int
    cpu: dict[str, float]

    @property
    def mb_per_s(self) -> float:
        return self.size / 1e6 / self.seconds

    def cpu_per_gb(self, process: str) -> float:
        return self.cpu[process] / (self.size / 1e9)


@dataclass(slots=True)
class Measured:
    """One entry a round. `runs`: by shape, reader and side."""

    runs: dict[tuple[Shape, str, str], list[Run]] = field(default_factory=dict)
    range_reads: dict[Shape, list[float]] = field(default_factory=dict)  # MB/s
    # Bytes read from the store / bytes that fetchproxy served. 0 means that all of them were still
    # in its memory from the round before.
    store_share: dict[Shape, list[float]] = field(default_factory=dict)
    far: RemoteReplay | None = None
    resident_mib: dict[str, float] = field(default_factory=dict)


def readers_of(shape: Shape) -> list[str]:
    """All readers for the shape of the goals, and the two extremes for other shapes."""
    if shape != MAIN:
        return [_LIBRDKAFKA.format(STOCK), _EIGHT]
    return [*(_LIBRDKAFKA.format(each) for each in PLAINTEXT), *_RAW]


def replay_once(reader: str, side: Side) -> Run:
    meter = CpuMeter(side.pids)
    if reader in _RAW:
        connections, partitions_max = _RAW[reader]
        arguments = {
            "bootstrap": side.bootstrap,
            "topic": side.topic.name,
            "ends": side.topic.ends,
            "connections": connections,
            "partitions_max": partitions_max,
        }
        outcome = child("benchmarks.raw_fetch", json.dumps(arguments))
        size = outcome["bytes"]
    else:
        consumer = reader.removeprefix(_LIBRDKAFKA.format(""))
        topic = side.topic
        place = [side.bootstrap, topic.name, str(PARTITIONS), str(topic.records)]
        outcome = child("benchmarks.drain", consumer, *place)
        size = topic.value_bytes
    return Run(outcome["seconds"], size, {**meter.spent(), "client": outcome["cpu_seconds"]})


def range_reads_once(objects: Sequence[tuple[Path, int]]) -> float:
    """MB/s of the archive's files, read by two threads in parts as large as fetchproxy's."""
    arguments = {
        "objects": [(str(path), size) for path, size in objects],
        "concurrency": 2,
        "part_bytes": 4 * MIB,
    }
    outcome = child("benchmarks.range_reads", stdin=json.dumps(arguments))
    return float(outcome["bytes"] / 1e6 / outcome["seconds"])


def measured_rounds(
    sides: Sequence[Side],
    proxy: FetchproxyServer,
    archive: Path,
    rounds: int,
    measured: Measured,
    console: Console,
) -> None:
    """The rounds of one shape."""
    shape = sides[0].topic.shape
    objects = log_objects(archive, sides[1].topic.name)
    served = sum(size for _, size in objects) * len(readers_of(shape))
    for number in range(rounds + 1):  # round 0 warms up: page cache, connections, Java's compiler
        read_before = proxy.metric(_STORE_BYTES)
        runs = {
            (shape, reader, side.name): replay_once(reader, side)
            for reader in readers_of(shape)
            for side in in_turn(sides, number)
        }
        raw = range_reads_once(objects)
        label = f"round {number} of {rounds}" if number else "warm-up"
        console.print(f"{shape}, {label}, MB/s")
        for reader in readers_of(shape):
            speeds = (f"{s.name} {runs[shape, reader, s.name].mb_per_s:.0f}" for s in sides)
            console.print(f"  {reader}: {', '.join(speeds)}", markup=False)
        if number:
            for key, run in runs.items():
                measured.runs.setdefault(key, []).append(run)
            measured.range_reads.setdefault(shape, []).append(raw)
            share = (proxy.metric(_STORE_BYTES) - read_before) / served
            measured.store_share.setdefault(shape, []).append(share)


def rows_of(measured: Measured, shapes: Sequence[Shape]) -> list[Row]:
    rows = _goals_met(measured) if MAIN in shapes else []
    if measured.far is not None:
        rows += far_rows(measured.far)
    for shape in shapes:
        for reader in readers_of(shape):
            rows += _speed_rows(measured, shape, reader)
        label = f"{shape}, raw range reads of the archive's files"
        rows.append(row(label, "MB/s", measured.range_reads[shape]))
        label = f"{shape}, bytes read from the store / served"
        rows.append(row(label, "x", measured.store_share[shape]))
    for shape in shapes:
        for reader in readers_of(shape):
            rows += _cpu_rows(measured, shape, reader)
    for name, mib_max in measured.resident_mib.items():
        rows.append(row(f"memory at most, {name}", "MiB", [mib_max]))
    return rows


def _goals_met(measured: Measured) -> list[Row]:
    def faster(reader: str) -> list[float]:
        proxy_rates, tiered_rates = (
            [each.mb_per_s for each in measured.runs[MAIN, reader, side]]
            for side in (FETCHPROXY, TIERED)
        )
        return ratios(proxy_rates, tiered_rates)

    # The consumer that users run and both raw clients, added up within a round.
    readers = [_LIBRDKAFKA.format(STOCK), _ONE, _EIGHT]
    proxy = _cpu_of_rounds([measured.runs[MAIN, each, FETCHPROXY] for each in readers], "proxy")
    broker = _cpu_of_rounds([measured.runs[MAIN, each, TIERED] for each in readers], "broker")
    return [
        *goal_rows(goals.REPLAY_LIBRDKAFKA, faster(_LIBRDKAFKA.format(STOCK))),
        *goal_rows(goals.REPLAY_RAW, faster(_ONE), faster(_EIGHT)),
        *goal_rows(goals.REPLAY_CPU, ratios(proxy, broker)),
    ]


def _cpu_of_rounds(readers: Sequence[Sequence[Run]], process: str) -> list[float]:
    """Seconds per GB of all readers together, with one figure a round."""
    return [
        sum(run.cpu[process] for run in runs) / (sum(run.size for run in runs) / 1e9)
        for runs in zip(*readers, strict=True)
    ]


def _speed_rows(measured: Measured, shape: Shape, reader: str) -> list[Row]:
    speeds = {
        side: [each.mb_per_s for each in measured.runs[shape, reader, side]]
        for side in (TIERED, FETCHPROXY)
    }
    label = f"{shape}, {reader}"
    rows = [row(f"{label}, {side}", "MB/s", each) for side, each in speeds.items()]
    quotient = ratios(speeds[FETCHPROXY], speeds[TIERED])
    return [*rows, row(f"{label}, {FETCHPROXY} / {TIERED}", "x", quotient)]


def _cpu_rows(measured: Measured, shape: Shape, reader: str) -> list[Row]:
    rows = []
    for side in (TIERED, FETCHPROXY):
        runs = measured.runs[shape, reader, side]
        for process in runs[0].cpu:
            name = f"{shape}, {reader}, {side}: CPU of the {process}"
            rows.append(row(name, "s/GB", [each.cpu_per_gb(process) for each in runs]))
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shapes", nargs="+", type=Shape.parse, metavar="BYTES[:CODEC]",
        default=[MAIN, Shape(100, "none"), Shape(64 * 1024, "lz4")],
        help="records; with 1024 uncompressed among them the goals are judged "
        "(default: 1024 100 65536:lz4)",
    )  # fmt: skip
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="settings",
        help="for fetchproxy",
    )  # fmt: skip
    parser.add_argument(
        "--kafka", default=KAFKA_VERSION, choices=[KAFKA_VERSION, KAFKA_NEWEST],
        help=f"the version that has the tiered storage (default: {KAFKA_VERSION})",
    )  # fmt: skip
    parser.add_argument(
        "--no-s3", action="store_true", help="leave out what is read from an S3 server"
    )


def _sides(
    kafka: KafkaServer, proxy: FetchproxyServer, archive: Path, shape: Shape, mib: int
) -> list[Side]:
    name = f"{shape.record_bytes}-{shape.compression}"
    size = mib * MIB
    tiered = tiered_topic(kafka, f"tiered-{name}", shape, PARTITIONS, size)
    archived = archived_topic(kafka, f"archived-{name}", shape, PARTITIONS, size, archive.as_uri())
    both = {"proxy": proxy.pid, "broker": kafka.pid}
    return [
        Side(TIERED, kafka.bootstrap, tiered, {"broker": kafka.pid}),
        Side(FETCHPROXY, proxy.bootstrap, archived, both),
    ]


def _from_s3(
    kafka: KafkaServer,
    archive: Path,
    archived: ReplayedTopic,
    options: argparse.Namespace,
    console: Console,
) -> RemoteReplay:
    # Segments are small, so that there are enough of them for the seeks.
    size = (options.seeks + 2) * SEEK_SEGMENT_BYTES
    store = archive.as_uri()
    sought = archived_topic(
        kafka, SEEK_TOPIC, MAIN, 1, size, store, segment_bytes=SEEK_SEGMENT_BYTES
    )
    topics = (archived, sought)
    settings = dict(text.split("=", 1) for text in options.settings)
    return replay_from_afar(
        kafka.bootstrap, archive, topics, settings, options.rounds, options.seeks, console
    )


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    settings = dict(text.split("=", 1) for text in options.settings)
    measured = Measured()
    archived: dict[Shape, ReplayedTopic] = {}
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="replay-")))
        archive = folder / "archive"
        archive.mkdir()
        kafka = running.enter_context(tiered_kafka(folder, options.kafka))
        proxy = running.enter_context(FetchproxyServer(kafka.bootstrap, settings, archive.as_uri()))
        for shape in options.shapes:
            mib = options.mib if shape == MAIN else options.mib_other
            # At least as much as fetchproxy's memory holds, so that every round reads the store.
            mib *= 1 if shape.compression == "none" else 2
            console.print(f"writing {mib} MiB twice: {shape}")
            sides = _sides(kafka, proxy, archive, shape, mib)
            measured_rounds(sides, proxy, archive, options.rounds, measured, console)
            archived[shape] = sides[1].topic
        measured.resident_mib["fetchproxy"] = resident_mib_max(proxy.pid)
        measured.resident_mib["Kafka"] = resident_mib_max(kafka.pid)
        lacking = []
        if not options.no_s3 and MAIN in options.shapes:
            try:
                measured.far = _from_s3(kafka, archive, archived[MAIN], options, console)
            except PartMissing as missing:
                lacking.append(f"replay from an S3 server: {missing}")
    facts = {
        "settings": settings,
        "shapes": [str(each) for each in options.shapes],
        "kafka": options.kafka,
    }
    return Outcome(rows_of(measured, options.shapes), facts, lacking)


PART = Part(
    "replay",
    "Replay: medians of the rounds, ratios within a round",
    __doc__,
    [
        Size("rounds", 5, 1, "after a warm-up"),
        Size("mib", 1024, 16, "of records of 1 KiB, twice"),
        Size("mib-other", 384, 16, "of records of each other shape, twice"),
        Size("seeks", 30, 3, "cold ones, to a segment each"),
    ],
    measure,
    add_options,
)

if __name__ == "__main__":
    sys.exit(PART.main())
