"""`python -m benchmarks.tail`: the cost of a tail read through fetchproxy.

The same topic of the same broker is read directly, through Kroxylicious and through fetchproxy, in
turn, round after round. Ratios are taken within a round, so that other load on the machine affects
all alike. By TLS, it is read through both proxies, which encrypt for the consumer alone.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from confluent_kafka import KafkaException, Producer
from rich.console import Console

from benchmarks import goals
from benchmarks.bare_relay import BareRelay
from benchmarks.certificate import certificate
from benchmarks.contestants import (
    BARE_RELAY,
    DIRECT,
    FETCHPROXY,
    KROXYLICIOUS,
    Contestant,
    contestants,
)
from benchmarks.drain import PLAINTEXT, STOCK, TLS
from benchmarks.frame import Outcome, Part, Size, child, in_turn
from benchmarks.process_usage import cpu_seconds, resident_mib_max
from benchmarks.report import Row, goal_rows, ratios, row
from benchmarks.tail_latency import (
    Latencies,
    goals_met,
    latency_rounds,
    latency_rows,
    latency_topic,
)
from lab.kafka import KafkaServer

TOPIC = "benchmark-tail"
PARTITIONS = 4
RECORD_BYTES = 1024
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Drain:
    """One read of the whole topic. CPU is in seconds; `proxy_cpu` is None on the direct way."""

    mb_per_s: float
    client_cpu: float
    broker_cpu: float
    proxy_cpu: float | None


@dataclass(slots=True)
class Measured:
    """One entry a round. `drains`: by consumer and contestant; `latencies`: by form and way."""

    drains: dict[tuple[str, str], list[Drain]] = field(default_factory=dict)
    latencies: Latencies = field(default_factory=dict)  # milliseconds
    resident_mib: dict[str, float] = field(default_factory=dict)


def fill(bootstrap: str, topic: str, records: int) -> None:
    """Incompressible records in batches as large as a broker takes. Raises KafkaException."""
    settings = {"batch.size": 1_000_000, "linger.ms": 100, "batch.num.messages": 100_000}
    producer = Producer({"bootstrap.servers": bootstrap, "acks": 1, **settings})
    source = random.Random(1)
    values = [source.randbytes(RECORD_BYTES) for _ in range(4096)]
    for number in range(records):
        value = values[number % len(values)]
        partition = number // 900 % PARTITIONS  # the records of one batch
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
    outcome = child("benchmarks.drain", *arguments)
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


def measured_rounds(
    kafka: KafkaServer,
    ways: Sequence[Contestant],
    tls_ways: Sequence[Contestant],
    options: argparse.Namespace,
    console: Console,
) -> Measured:
    """`tls_ways`: those whose clients speak TLS."""
    records = options.mib * MIB // RECORD_BYTES
    kafka.create_topic(TOPIC, PARTITIONS)
    console.print(f"writing {options.mib} MiB in records of {RECORD_BYTES} bytes")
    fill(kafka.bootstrap, TOPIC, records)
    by_consumer = {**dict.fromkeys(PLAINTEXT, ways), TLS: tls_ways}
    measured = Measured(
        drains={
            (consumer, way.name): [] for consumer in by_consumer for way in by_consumer[consumer]
        }
    )
    for number in range(options.rounds + 1):
        # Round 0 warms up: page cache, connections, Java's compiler.
        drains = {
            (consumer, way.name): drain_once(kafka, consumer, way, records)
            for consumer, all_ways in by_consumer.items()
            for way in in_turn(all_ways, number)
        }
        console.print(_progress(number, options.rounds, drains))
        for key, each in drains.items() if number else ():
            measured.drains[key].append(each)
    for way in ways:
        if way.pid is not None:
            measured.resident_mib[way.name] = resident_mib_max(way.pid)
    return measured


def _progress(number: int, rounds: int, drains: dict[tuple[str, str], Drain]) -> str:
    label = f"round {number} of {rounds}" if number else "warm-up"
    parts = []
    for consumer in (*PLAINTEXT, TLS):
        speeds = (f"{key[1]} {d.mb_per_s:.0f}" for key, d in drains.items() if key[0] == consumer)
        parts.append(f"MB/s, {consumer} consumer: {', '.join(speeds)}")
    return f"{label}\n  " + "\n  ".join(parts)


def rows_of(measured: Measured, mib: int) -> list[Row]:
    gigabytes = mib * MIB / 1e9
    rows = _goals_met(measured)
    for (consumer, name), drains in measured.drains.items():
        speeds = [each.mb_per_s for each in drains]
        rows.append(row(f"throughput, {consumer} consumer, {name}", "MB/s", speeds))
    for consumer in (*PLAINTEXT, TLS):
        rows += _ratio_rows(measured, consumer)
    for process in ("proxy_cpu", "client_cpu", "broker_cpu"):
        for (consumer, name), drains in measured.drains.items():
            used = [getattr(each, process) for each in drains]
            if None not in used:
                label = f"CPU of the {process.removesuffix('_cpu')}, {consumer} consumer, {name}"
                rows.append(row(label, "s/GB", [seconds / gigabytes for seconds in used]))
    rows += latency_rows(measured.latencies)
    for name, mib_max in measured.resident_mib.items():
        rows.append(row(f"memory at most, {name}", "MiB", [mib_max]))
    return rows


def _goals_met(measured: Measured) -> list[Row]:
    """The lines of the table of goals, for the stock consumer that users run. Goals relative to
    Kroxylicious are left out if it was not measured."""
    rows = []
    if (STOCK, KROXYLICIOUS) in measured.drains:
        speeds = {
            name: [each.mb_per_s for each in measured.drains[STOCK, name]]
            for name in (DIRECT, KROXYLICIOUS, FETCHPROXY)
        }
        # The better of the two is the one with the lower ratio; like all ratios, it is taken within
        # rounds.
        by_other = [ratios(speeds[FETCHPROXY], speeds[name]) for name in (DIRECT, KROXYLICIOUS)]
        rows += goal_rows(goals.TAIL_THROUGHPUT, min(by_other, key=median))
        cpu = {
            name: [each.proxy_cpu or 0.0 for each in measured.drains[STOCK, name]]
            for name in (KROXYLICIOUS, FETCHPROXY)
        }
        rows += goal_rows(goals.TAIL_CPU, ratios(cpu[FETCHPROXY], cpu[KROXYLICIOUS]))
    return rows + goals_met(measured.latencies)


def _ratio_rows(measured: Measured, consumer: str) -> list[Row]:
    rows = []
    for figure, unit in (("mb_per_s", "throughput"), ("proxy_cpu", "CPU of the proxy")):
        proxy_figures = [
            getattr(each, figure) for each in measured.drains.get((consumer, FETCHPROXY), ())
        ]
        for other in (DIRECT, KROXYLICIOUS):
            other_figures = [
                getattr(each, figure) for each in measured.drains.get((consumer, other), ())
            ]
            if other_figures and None not in other_figures:
                name = f"{unit}, {consumer} consumer, {FETCHPROXY} / {other}"
                rows.append(row(name, "x", ratios(proxy_figures, other_figures)))
    return rows


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--without", action="append", default=[], choices=[KROXYLICIOUS], help="leave this out"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="settings",
        help="for fetchproxy",
    )  # fmt: skip


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    settings = dict(text.split("=", 1) for text in options.settings)
    relay = BareRelay()
    without = frozenset(options.without)
    with (
        tempfile.TemporaryDirectory() as folder,
        KafkaServer(relay.told_by_kafka()) as kafka,
        contestants(kafka, without, settings) as (ways, absent),
    ):
        for line in absent:
            console.print(f"not compared: {line}", markup=False)
        pem = certificate(Path(folder))
        with contestants(kafka, without, settings, pem) as (tls_ways, _):
            measured = measured_rounds(kafka, ways, tls_ways, options, console)
        with relay:
            with_relay = [*ways, Contestant(BARE_RELAY, relay.bootstrap, relay.pid)]
            for way in with_relay:
                kafka.create_topic(latency_topic(way.name))
            sizes = (options.samples, options.samples_alone, options.samples_in_pairs)
            rounds = options.latency_rounds
            measured.latencies = latency_rounds(kafka, with_relay, rounds, *sizes, console)
    left_out = [f"{name}: left out as asked" for name in options.without]
    facts = {"settings": settings, "left_out": left_out}
    return Outcome(rows_of(measured, options.mib), facts, absent)


PART = Part(
    "tail",
    "Tail reads: medians of the rounds, ratios within a round",
    __doc__,
    [
        Size("rounds", 5, 1, "after a warm-up"),
        Size("mib", 640, 64, "of records of 1 KiB"),
        Size("latency-rounds", 9, 1, "of latencies, after a warm-up"),
        Size("samples", 300, 5, "latencies of each way in a round, in turn"),
        Size("samples-alone", 400, 5, "the same, each way for itself"),
        Size("samples-in-pairs", 1500, 5, "the same, directly and through fetchproxy in turn"),
    ],
    measure,
    add_options,
)

if __name__ == "__main__":
    sys.exit(PART.main())
