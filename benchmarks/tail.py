"""`python -m benchmarks.tail`: what a tail read costs through fetchproxy.

The same topic of the same broker is read directly, through Kroxylicious and through fetchproxy, in
turn, round after round; ratios are taken within a round, so that what else the machine does in the
meantime hits all alike. Exit status 0 when the figures could be taken, whether goals are met or
not: a busy machine must not fail a build.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import KafkaException, Producer
from rich.console import Console

from benchmarks import report
from benchmarks.contestants import DIRECT, FETCHPROXY, KROXYLICIOUS, Contestant, contestants
from benchmarks.drain import CONSUMERS
from benchmarks.process_usage import cpu_seconds, resident_mib_max
from benchmarks.report import Row, percentile, row
from lab.errors import PartMissing
from lab.kafka import KafkaServer

RESULTS = Path(__file__).parent / "results" / "tail.json"
TOPIC = "benchmark-tail"
PARTITIONS = 4
RECORD_BYTES = 1024
MIB = 1024 * 1024

# The goals of the tail path.
THROUGHPUT_TO_DIRECT_MIN = 1.0
THROUGHPUT_TO_KROXYLICIOUS_MIN = 0.8
ADDED_P50_MS_MAX = 0.2


@dataclass(frozen=True, slots=True)
class Drain:
    """One reading of the whole topic; CPU in seconds, `proxy_cpu` None on the direct way."""

    mb_per_s: float
    client_cpu: float
    broker_cpu: float
    proxy_cpu: float | None


@dataclass(slots=True)
class Measured:
    """By contestant, for `drains` by consumer and contestant: one entry a round."""

    drains: dict[tuple[str, str], list[Drain]] = field(default_factory=dict)
    latencies_ms: dict[str, list[list[float]]] = field(default_factory=dict)
    resident_mib: dict[str, float] = field(default_factory=dict)


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Incompressible records in batches as large as a broker takes. Raises KafkaException."""
    settings = {"batch.size": 1_000_000, "linger.ms": 100, "batch.num.messages": 100_000}
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, **settings})
    source = random.Random(1)
    values = [source.randbytes(RECORD_BYTES) for _ in range(4096)]
    for number in range(records):
        value = values[number % len(values)]
        partition = number // 900 % PARTITIONS  # a batch's worth at a time
        while True:
            try:
                producer.produce(topic, value, partition=partition)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(120.0):
        raise KafkaException("the broker does not take the benchmark's records")


def drain_once(kafka: KafkaServer, consumer: str, way: Contestant, records: int) -> Drain:
    before = _cpu_of(kafka, way)
    arguments = [consumer, way.bootstrap, TOPIC, str(PARTITIONS), str(records)]
    outcome = _child("benchmarks.drain", *arguments)
    broker, proxy = (now - then for now, then in zip(_cpu_of(kafka, way), before, strict=True))
    mb = records * RECORD_BYTES / 1e6
    return Drain(
        mb / outcome["seconds"],
        outcome["cpu_seconds"],
        broker,
        None if way.pid is None else proxy,
    )


def _cpu_of(kafka: KafkaServer, way: Contestant) -> tuple[float, float]:
    return cpu_seconds(kafka.pid), 0.0 if way.pid is None else cpu_seconds(way.pid)


def latency_once(
    kafka: KafkaServer, ways: Sequence[Contestant], samples: int
) -> dict[str, list[float]]:
    described = json.dumps([(way.name, way.bootstrap, _latency_topic(way)) for way in ways])
    found: dict[str, list[float]] = _child(
        "benchmarks.latency_probe", kafka.bootstrap, str(samples), described
    )
    return found


def _latency_topic(way: Contestant) -> str:
    return f"benchmark-latency-{way.name}"


def _child(module: str, *arguments: str) -> dict:  # type: ignore[type-arg]  # what JSON gives
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    )
    outcome: dict = json.loads(done.stdout)  # type: ignore[type-arg]
    return outcome


def measure(
    kafka: KafkaServer, ways: Sequence[Contestant], options: argparse.Namespace, console: Console
) -> Measured:
    records = options.mib * MIB // RECORD_BYTES
    kafka.create_topic(TOPIC, PARTITIONS)
    for way in ways:
        kafka.create_topic(_latency_topic(way))
    console.print(f"writing {options.mib} MiB in records of {RECORD_BYTES} bytes")
    fill(kafka.bootstrap, TOPIC, records)
    measured = Measured(
        drains={(consumer, way.name): [] for consumer in CONSUMERS for way in ways},
        latencies_ms={way.name: [] for way in ways},
    )
    for number in range(options.rounds + 1):
        # Round 0 warms up: page cache, connections, Java's compiler. Later rounds begin with
        # another contestant each, since who comes first is often the slower one.
        turn = number % len(ways)
        ordered = [*ways[turn:], *ways[:turn]]
        drains = {
            (consumer, way.name): drain_once(kafka, consumer, way, records)
            for consumer in CONSUMERS
            for way in ordered
        }
        latencies = latency_once(kafka, ordered, options.samples)
        console.print(_progress(number, options.rounds, drains, latencies))
        if number:
            for key, each in drains.items():
                measured.drains[key].append(each)
            for name, samples in latencies.items():
                measured.latencies_ms[name].append(samples)
    for way in ways:
        if way.pid is not None:
            measured.resident_mib[way.name] = resident_mib_max(way.pid)
    return measured


def _progress(
    number: int,
    rounds: int,
    drains: dict[tuple[str, str], Drain],
    latencies: dict[str, list[float]],
) -> str:
    label = f"round {number} of {rounds}" if number else "warm-up"
    parts = []
    for consumer in CONSUMERS:
        speeds = (f"{key[1]} {d.mb_per_s:.0f}" for key, d in drains.items() if key[0] == consumer)
        parts.append(f"MB/s, {consumer} consumer: {', '.join(speeds)}")
    p50s = (f"{name} {percentile(each, 50):.2f}" for name, each in latencies.items())
    return f"{label}\n  " + "\n  ".join([*parts, f"p50 ms: {', '.join(p50s)}"])


def rows_of(measured: Measured, mib: int) -> list[Row]:
    gigabytes = mib * MIB / 1e9
    rows = []
    for (consumer, name), drains in measured.drains.items():
        speeds = [each.mb_per_s for each in drains]
        rows.append(row(f"throughput, {consumer} consumer, {name}", "MB/s", speeds))
    for consumer in CONSUMERS:
        rows += _ratio_rows(measured, consumer)
    for process in ("proxy_cpu", "client_cpu", "broker_cpu"):
        for (consumer, name), drains in measured.drains.items():
            used = [getattr(each, process) for each in drains]
            if None not in used:
                label = f"CPU of the {process.removesuffix('_cpu')}, {consumer} consumer, {name}"
                rows.append(row(label, "s/GB", [seconds / gigabytes for seconds in used]))
    for name, rounds in measured.latencies_ms.items():
        for percent in (50, 99):
            values = [percentile(samples, percent) for samples in rounds]
            rows.append(row(f"latency p{percent} {name}", "ms", values))
    rows += _added_rows(measured)
    for name, mib_max in measured.resident_mib.items():
        rows.append(row(f"memory at most, {name}", "MiB", [mib_max]))
    return rows


def _ratio_rows(measured: Measured, consumer: str) -> list[Row]:
    ours = measured.drains[consumer, FETCHPROXY]
    goals = {DIRECT: THROUGHPUT_TO_DIRECT_MIN, KROXYLICIOUS: THROUGHPUT_TO_KROXYLICIOUS_MIN}
    rows = []
    for other, goal in goals.items():
        theirs = measured.drains.get((consumer, other))
        if theirs is not None:
            ratios = [a.mb_per_s / b.mb_per_s for a, b in zip(ours, theirs, strict=True)]
            name = f"throughput, {consumer} consumer, {FETCHPROXY} / {other}"
            rows.append(row(name, "x", ratios, at_least=goal))
    return rows


def _added_rows(measured: Measured) -> list[Row]:
    rows = []
    direct = measured.latencies_ms[DIRECT]
    for name, rounds in measured.latencies_ms.items():
        if name == DIRECT:
            continue
        for percent in (50, 99):
            added = [
                percentile(through, percent) - percentile(without, percent)
                for through, without in zip(rounds, direct, strict=True)
            ]
            goal = ADDED_P50_MS_MAX if (name, percent) == (FETCHPROXY, 50) else None
            rows.append(row(f"latency p{percent} added by {name}", "ms", added, at_most=goal))
    return rows


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tail", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smoke run: the figures mean little")
    parser.add_argument("--rounds", type=int, default=None, help="5; with --quick 1")
    parser.add_argument("--mib", type=int, default=None, help="of records; 1024, with --quick 8")
    parser.add_argument(
        "--samples", type=int, default=None, help="latencies per round; 400, with --quick 5"
    )
    parser.add_argument(
        "--without", action="append", default=[], choices=[KROXYLICIOUS], help="leave this out"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="settings",
        help="for fetchproxy",
    )  # fmt: skip
    parser.add_argument(
        "--results", type=Path, default=None, help=f"JSON; {RESULTS.name}, with --quick none"
    )
    options = parser.parse_args(arguments)
    for name, full, quick in (("rounds", 5, 1), ("mib", 1024, 8), ("samples", 400, 5)):
        if getattr(options, name) is None:
            setattr(options, name, quick if options.quick else full)
    if options.results is None and not options.quick:
        options.results = RESULTS
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    settings = dict(text.split("=", 1) for text in options.settings)
    machine = report.machine()  # before the benchmark's own load
    try:
        with (
            KafkaServer() as kafka,
            contestants(kafka, frozenset(options.without), settings) as (ways, absent),
        ):
            for line in absent:
                console.print(f"not compared: {line}", markup=False)
            measured = measure(kafka, ways, options, console)
    except PartMissing as missing:
        console.print(f"cannot measure: {missing}", markup=False)
        return 1
    rows = rows_of(measured, options.mib)
    console.print(report.table("Tail reads: medians of the rounds, ratios within a round", rows))
    if options.results is not None:
        facts = {
            "benchmark": "tail",
            "date": datetime.now(UTC).date().isoformat(),
            "machine": machine,
            "rounds": options.rounds,
            "mib": options.mib,
            "not_compared": absent,
            "settings": settings,
        }
        report.write(options.results, facts, rows)
        console.print(f"written to {options.results}", markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
