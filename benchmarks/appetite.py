"""How fast a stock librdkafka client reads records while it catches up.

The client reads from the broker directly, through the proxy without pacing and through the proxy
with pacing. It reads the relayed tail and the archive. The upper limit is a client that is set
never to pause and that reads from the broker directly.

Each way through a proxy has a new proxy, which knows nothing of the client yet.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from benchmarks.contestants import DIRECT, FETCHPROXY, FetchproxyServer
from benchmarks.filling import Shape, fill
from benchmarks.frame import Outcome, Part, Size, child, in_turn
from benchmarks.replayed_topics import archived_topic
from benchmarks.report import Row, ratios, row
from benchmarks.stock_reader import CONSUME, NEVER_PAUSES, POLL
from lab.kafka import KafkaServer
from lab.kafka_cluster import KafkaCluster

UNPACED = "fetchproxy, not paced"
LIMIT = "direct, the client never pauses"
TAIL, ARCHIVE = "tail", "archive"
_OFF = {"gateway.pace_by_appetite": "false"}
SMALL = Shape(100, "none")
# The first part is this fraction of all records: 1 / _FIRST_PART.
_FIRST_PART = 2
# If records are larger than this, fewer are read, so that the bytes stay the same.
_MANY_BYTES = 300
Key = tuple[str, str, str]  # (what is read and how, the way, "first" or "later")


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    rates: dict[Key, list[float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="appetite-") as folder,
        KafkaServer(data_dir=Path(folder) / "kafka") as kafka,
    ):
        archive = Path(folder) / "archive"
        archive.mkdir()
        for shape, partitions, calls in _cases(options):
            console.print(f"{shape}, {partitions} partitions", markup=False)
            # A pause lasts a second. With few records, its place alone would decide the result.
            records = options.records * _MANY_BYTES // max(shape.record_bytes, _MANY_BYTES)
            size = records * shape.record_bytes
            name = f"{shape.record_bytes}-{shape.compression}-{partitions}"
            kafka.create_topic(f"tail-{name}", partitions)
            fill(kafka.bootstrap, f"tail-{name}", partitions, records, shape)
            store = archive.as_uri()
            archived_topic(kafka, f"old-{name}", shape, partitions, size, store)
            for number in range(options.rounds):
                for call in calls:
                    what = f"{shape}, {partitions} partitions, {call}"
                    for way in in_turn(_WAYS, number):
                        _read(kafka, store, way, name, what, call, records, partitions, rates)
    if not options.quick:
        _read_three_brokers(options, console, rates)
    return Outcome(_rows(rates))


def _read_three_brokers(
    options: argparse.Namespace, console: Console, rates: dict[Key, list[float]]
) -> None:
    """Reads with one consumer that has a connection to each broker."""
    what = f"{SMALL}, {_SPREAD} partitions of three brokers, {CONSUME}"
    console.print(what, markup=False)
    with tempfile.TemporaryDirectory(prefix="appetite-") as folder, KafkaCluster() as kafka:
        kafka.create_topic("tail-spread", [[1 + each % 3] for each in range(_SPREAD)])
        fill(kafka.bootstrap, "tail-spread", _SPREAD, options.records, SMALL)
        store = Path(folder).as_uri()
        for number in range(options.rounds):
            for way in in_turn(_WAYS[:4], number):
                _read(kafka, store, way, "spread", what, CONSUME, options.records, _SPREAD, rates)


_SPREAD = 9
_WAYS = (
    (TAIL, LIMIT),
    (TAIL, DIRECT),
    (TAIL, UNPACED),
    (TAIL, FETCHPROXY),
    (ARCHIVE, UNPACED),
    (ARCHIVE, FETCHPROXY),
)


def _cases(options: argparse.Namespace) -> list[tuple[Shape, int, tuple[str, ...]]]:
    if options.quick:
        return [(SMALL, 8, (CONSUME,))]
    small = [(SMALL, partitions, (CONSUME, POLL)) for partitions in (1, 8, 50)]
    others = (Shape(50, "none"), Shape(300, "none"), Shape(100, "zstd"))
    large = (Shape(1024, "none"), Shape(10 * 1024, "none"))
    return small + [(shape, 8, (CONSUME,)) for shape in (*others, *large)]


def _read(
    kafka: KafkaServer | KafkaCluster,
    store: str,
    way: tuple[str, str],
    name: str,
    what: str,
    call: str,
    records: int,
    partitions: int,
    rates_by_key: dict[Key, list[float]],
) -> None:
    path, server = way
    topic = f"{'tail' if path == TAIL else 'old'}-{name}"
    arguments = [topic, str(records), str(records // _FIRST_PART), str(partitions)]
    if server in (DIRECT, LIMIT):
        arguments += [NEVER_PAUSES] if server == LIMIT else []
        rates = child("benchmarks.stock_reader", call, kafka.bootstrap, *arguments)
    else:
        settings = _OFF if server == UNPACED else {}
        with FetchproxyServer(kafka.bootstrap, settings, store) as proxy:
            rates = child("benchmarks.stock_reader", call, proxy.bootstrap, *arguments)
    for part, rate in rates.items():
        rates_by_key.setdefault((f"{what}, {path}", server, part), []).append(rate / 1000)


def _rows(rates_by_key: dict[Key, list[float]]) -> Sequence[Row]:
    rows = [
        row(f"{what}: {server}, {part} half", "k records/s", rates)
        for (what, server, part), rates in rates_by_key.items()
    ]
    for (what, server, part), rates in rates_by_key.items():
        if server != FETCHPROXY:
            continue
        at = what.rpartition(", ")[0]
        direct = ratios(rates, rates_by_key[f"{at}, {TAIL}", DIRECT, part])
        small = what.startswith(f"{SMALL},")
        at_least = (3.0 if part == "first" else 5.0) if small else None
        rows.append(row(f"{what}, {part} half: paced / direct", "x", direct, at_least=at_least))
        off = ratios(rates, rates_by_key[what, UNPACED, part])
        rows.append(row(f"{what}, {part} half: paced / not paced", "x", off, at_least=0.97))
        limit = ratios(rates, rates_by_key[f"{at}, {TAIL}", LIMIT, part])
        rows.append(row(f"{what}, {part} half: paced / never pauses", "x", limit))
    return rows


PART = Part(
    "appetite",
    "Stock librdkafka that catches up, records a second",
    __doc__ or "",
    [
        Size("rounds", 2, 1, "of all ways in turn"),
        Size("records", 4_000_000, 400_000, "of up to 300 bytes; fewer of larger ones"),
    ],
    measure,
)

if __name__ == "__main__":
    sys.exit(PART.main())
