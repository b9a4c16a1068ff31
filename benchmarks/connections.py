"""`python -m benchmarks.connections`: the cost of many connections and of many partitions.

A separate process holds the idle connections. The growth of the proxy's memory is divided by their
number; behind each of them the proxy has a connection to the broker.

Small fetches go over 100 and over 1,000 connections in turn, and over 1,000 connections on which no
fetch equals the one before it. The CPU time of the proxy and of the relay is divided by the number
of fetches. The same bytes are read in turn from a topic and from one with ten times the partitions.
The result is the share of the rate that remains when the load is spread wider.

The same fetches go to the broker itself and through a relay that only passes bytes: no proxy on one
thread of asyncio can be faster than that relay. Last, many partitions are looked up at once, with
the store 40 ms away: see `look_ups`.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from benchmarks import look_ups
from benchmarks.bare_relay import BareRelay
from benchmarks.certificate import certificate
from benchmarks.contestants import BARE_RELAY, DIRECT, FETCHPROXY, FetchproxyServer
from benchmarks.drain import UNPAUSED
from benchmarks.filling import Shape, fill
from benchmarks.frame import Outcome, Part, Size, child, in_turn
from benchmarks.goals import (
    DIFFERENT_FETCH_CPU,
    IDLE_CONNECTIONS,
    IDLE_TLS_CONNECTIONS,
    SMALL_FETCH_CPU,
    SMALL_FETCHES,
    SPREAD,
)
from benchmarks.process_usage import open_files, resident_mib
from benchmarks.report import Row, goal_rows, ratios, row
from fetchproxy.runtime.open_files import clients_that_fit
from lab.errors import PartFailed
from lab.kafka import KafkaServer

MIB = 1024 * 1024
SMALL = "benchmark-small"
PARTITIONS, PARTITIONS_WIDE = 10, 100
CONNECTIONS, CONNECTIONS_WIDE = 100, 1000
SHAPE, SMALL_SHAPE = Shape(1024, "none"), Shape(100, "none")

_WARM_CONNECTIONS = 100  # made before the first measurement, so one-time memory is not counted
_SETTLE_S = 6.0  # freed memory goes back to the system every 5 s
_PROJECT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Idle:
    """`kib`, `files`: of the proxy, for each of `count` idle connections."""

    count: int = 0
    kib: float = 0.0
    files: float = 0.0


@dataclass(slots=True)
class Measured:
    """Rates by (contestant, connections or partitions), with an entry for each round."""

    requests_per_s: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    # Of the proxy or relay, by (contestant, whether all fetches differ), over 1,000 connections.
    cpu_us: dict[tuple[str, bool], list[float]] = field(default_factory=dict)
    mb_per_s: dict[tuple[str, int], list[float]] = field(default_factory=dict)
    idle: Idle = field(default_factory=lambda: Idle())
    idle_tls: Idle = field(default_factory=lambda: Idle())


def rows_of(measured: Measured) -> list[Row]:
    requests, speeds = measured.requests_per_s, measured.mb_per_s

    def spread(
        rates: dict[tuple[str, int], list[float]], name: str, wide: int, narrow: int
    ) -> list[float]:
        return ratios(rates[name, wide], rates[name, narrow])

    rows = goal_rows(IDLE_CONNECTIONS, [measured.idle.kib])
    rows += [
        row("idle connections held", "", [measured.idle.count]),
        row("sockets of the proxy for each", "", [measured.idle.files]),
    ]
    rows += goal_rows(IDLE_TLS_CONNECTIONS, [measured.idle_tls.kib])
    rows.append(row("idle TLS connections held", "", [measured.idle_tls.count]))
    rows += goal_rows(
        SPREAD,
        spread(requests, FETCHPROXY, CONNECTIONS_WIDE, CONNECTIONS),
        spread(speeds, FETCHPROXY, PARTITIONS_WIDE, PARTITIONS),
    )
    rows += small_fetch_rows(requests)
    rows += fetch_cpu_rows(measured.cpu_us)
    rows += [
        row(
            f"requests/s over {CONNECTIONS_WIDE} : {CONNECTIONS} connections, {DIRECT}",
            "x",
            spread(requests, DIRECT, CONNECTIONS_WIDE, CONNECTIONS),
        ),
        row(
            f"throughput of {PARTITIONS_WIDE} : {PARTITIONS} partitions, {DIRECT}",
            "x",
            spread(speeds, DIRECT, PARTITIONS_WIDE, PARTITIONS),
        ),
    ]
    for (name, count), rates in requests.items():
        rows.append(row(f"small fetches over {count} connections, {name}", "1/s", rates))
    for (name, count), rates in speeds.items():
        rows.append(row(f"throughput of {count} partitions, {name}", "MB/s", rates))
    return rows


def small_fetch_rows(requests: dict[tuple[str, int], list[float]]) -> list[Row]:
    """The share of the broker's rate through each proxy, and of the bare relay's rate."""
    direct = requests[DIRECT, CONNECTIONS_WIDE]
    rows = goal_rows(SMALL_FETCHES, ratios(requests[FETCHPROXY, CONNECTIONS_WIDE], direct))
    for count in (CONNECTIONS_WIDE, CONNECTIONS):
        for way, baseline in ((BARE_RELAY, DIRECT), (FETCHPROXY, BARE_RELAY)):
            request_ratios = ratios(requests[way, count], requests[baseline, count])
            rows.append(
                row(
                    f"small fetches over {count} connections, {way} : {baseline}",
                    "x",
                    request_ratios,
                )
            )
    return rows


def fetch_cpu_rows(cpu_us: dict[tuple[str, bool], list[float]]) -> list[Row]:
    """Microseconds of CPU for each small fetch: fetchproxy's, and the bare relay's beside it."""
    rows = goal_rows(SMALL_FETCH_CPU, cpu_us[FETCHPROXY, False])
    rows += goal_rows(DIFFERENT_FETCH_CPU, cpu_us[FETCHPROXY, True])
    for differ, which in ((False, "a small fetch"), (True, "a small fetch unlike the one before")):
        rows.append(row(f"CPU of {which}, {BARE_RELAY}", "µs", cpu_us[BARE_RELAY, differ]))
    return rows


# -- idle ----------------------------------------------------------------------------------------
def raise_files_max() -> int:
    """Raises the soft limit to the hard one, for this process and those it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextmanager
def open_connections(bootstrap: str, count: int, *more: str) -> Iterator[None]:
    """Holds `count` idle connections. Raises PartFailed."""
    command = [sys.executable, "-m", "benchmarks.many_connections", bootstrap, SMALL, str(count)]
    with subprocess.Popen(
        [*command, "0", *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_PROJECT
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        try:
            line = client.stdout.readline()
            if not line or json.loads(line)["connections"] != count:
                raise PartFailed(f"{count} idle connections could not be made")
            yield
        finally:
            client.stdin.close()


def measure_idle(kafka: KafkaServer, count: int, pem: Path | None = None) -> Idle:
    """Uses a proxy of its own. The kernel's socket memory is not the process's and not counted.

    `pem`: a certificate and its key; the clients then speak TLS.
    """
    settings = {} if pem is None else {"gateway.tls_certificate_file": str(pem)}
    more = () if pem is None else ("--tls",)
    count = clients_that_fit(raise_files_max(), count)
    with (
        FetchproxyServer(kafka.bootstrap, settings) as proxy,
        open_connections(proxy.bootstrap, _WARM_CONNECTIONS, *more),
    ):
        time.sleep(_SETTLE_S)
        kib, files = resident_mib(proxy.pid) * 1024, open_files(proxy.pid)
        further = count - _WARM_CONNECTIONS
        with open_connections(proxy.bootstrap, further, *more):
            time.sleep(_SETTLE_S)
            kib = (resident_mib(proxy.pid) * 1024 - kib) / further
            return Idle(count, kib, (open_files(proxy.pid) - files) / further)


# -- spread --------------------------------------------------------------------------------------
def measure_spread(kafka: KafkaServer, options: argparse.Namespace, console: Console) -> Measured:
    records = options.mib * MIB // SHAPE.record_bytes
    for partitions in (PARTITIONS, PARTITIONS_WIDE):
        topic = kafka.create_topic(_topic(partitions), partitions)
        fill(kafka.bootstrap, topic, partitions, records, SHAPE)
    measured = Measured()
    with (
        FetchproxyServer(kafka.bootstrap) as proxy,
        BareRelay(int(kafka.bootstrap.rpartition(":")[2])) as relay,
    ):
        proxied, control = (FETCHPROXY, proxy.bootstrap), (DIRECT, kafka.bootstrap)
        ways = (proxied, control, (BARE_RELAY, relay.bootstrap))
        servers = {FETCHPROXY: proxy.pid, BARE_RELAY: relay.pid}
        for number in range(options.rounds + 1):  # round 0 warms up
            for count in in_turn((CONNECTIONS, CONNECTIONS_WIDE), number):
                for name, bootstrap in in_turn(ways, number):
                    load = _small_fetches(bootstrap, count, options.seconds, servers.get(name, 0))
                    if not number:
                        continue
                    measured.requests_per_s.setdefault((name, count), []).append(load.per_s)
                    if count == CONNECTIONS_WIDE and name in servers:
                        measured.cpu_us.setdefault((name, False), []).append(load.server_us)
            for name, bootstrap in in_turn((proxied, (BARE_RELAY, relay.bootstrap)), number):
                load = _small_fetches(
                    bootstrap, CONNECTIONS_WIDE, options.seconds, servers[name], "--differ"
                )
                if number:
                    measured.cpu_us.setdefault((name, True), []).append(load.server_us)
            # The broker itself is read only in every second round: it shows just the machine's
            # part.
            for name, bootstrap in in_turn([proxied, control], number) if number % 2 else [proxied]:
                for partitions in in_turn((PARTITIONS, PARTITIONS_WIDE), number):
                    rate = _mb_per_s(bootstrap, partitions, records)
                    if number:
                        measured.mb_per_s.setdefault((name, partitions), []).append(rate)
            console.print(f"round {number} of {options.rounds}" if number else "warm-up")
    return measured


def _topic(partitions: int) -> str:
    return f"benchmark-{partitions}-partitions"


@dataclass(frozen=True, slots=True)
class _SmallFetches:
    per_s: float
    server_us: float  # CPU of the server for each


def _small_fetches(
    bootstrap: str, connections: int, seconds: int, server_pid: int, *more: str
) -> _SmallFetches:
    """`server_pid` 0: the CPU of the server is not measured."""
    arguments = (bootstrap, SMALL, str(connections), str(seconds), str(server_pid), *more)
    outcome = child("benchmarks.many_connections", *arguments)
    requests = outcome["requests"]
    return _SmallFetches(
        requests / outcome["seconds"], 1e6 * outcome["server_cpu_seconds"] / requests
    )


def _mb_per_s(bootstrap: str, partitions: int, records: int) -> float:
    arguments = (UNPAUSED, bootstrap, _topic(partitions), str(partitions), str(records))
    return float(
        records * SHAPE.record_bytes / 1e6 / child("benchmarks.drain", *arguments)["seconds"]
    )


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    with KafkaServer(heap="384m") as kafka:
        kafka.create_topic(SMALL)
        fill(kafka.bootstrap, SMALL, 1, 1, SMALL_SHAPE)
        measured = measure_spread(kafka, options, console)
        console.print("idle connections")
        measured.idle = measure_idle(kafka, options.connections)
        with tempfile.TemporaryDirectory() as folder:
            pem = certificate(Path(folder))
            measured.idle_tls = measure_idle(kafka, options.tls_connections, pem)
        looked_up = look_ups.measure(
            kafka, options.partitions, options.cluster_partitions, options.rounds, console
        )
    facts = {"files_max": resource.getrlimit(resource.RLIMIT_NOFILE)[1]}
    return Outcome([*rows_of(measured), *look_ups.rows_of(looked_up)], facts)


PART = Part(
    name="connections",
    title="Many connections, many partitions: medians of the rounds, ratios within a round",
    description=__doc__,
    sizes=(
        Size("rounds", 5, 1, "rounds of small fetches and of throughput"),
        Size("seconds", 2, 1, "of small fetches, each time"),
        Size("mib", 256, 16, "in each of the two topics"),
        Size("connections", 10_000, 300, "idle ones; as many as the limit of open files allows"),
        Size("tls-connections", 1_000, 200, "the same, by TLS"),
        Size("partitions", 2_000, 50, "looked up at once, of an archived topic and of another"),
        Size("cluster_partitions", 10_000, 250, "of all topics, when that is done again"),
    ),
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(PART.main())
