"""`python -m benchmarks.outage`: how the archive and its faults affect readers of the tail.

The benchmark times a record's way from producer to consumer in five situations, in turn, round
after round: without other load; while the store hangs and consumers of the archive wait for it;
while 16 consumers replay the archive from a folder; while 16 consumers replay the same records from
the broker's own tiered storage, a folder on the same disk; and while 16 consumers replay the
archive from an S3 server.

Then the S3 server is killed, paused, slowed down and made to send corrupt bytes, while consumers
replay and the archiver copies. The tail must continue, archived reads must come back, and every
record that is read is checked.

Consumers of the archive have the lowest priority on this machine, because in production they run on
others. The proxy, the broker and the store have normal priority.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from rich.console import Console

from benchmarks.contestants import DIRECT, FETCHPROXY, FetchproxyServer
from benchmarks.fault_relay import NO_FAULT, Fault, FaultRelay
from benchmarks.frame import Outcome, Part, Size, child, in_turn
from benchmarks.growing import GROWING, RECORD_BYTES, Growing
from benchmarks.numbered_records import fill
from benchmarks.outage_figures import (
    CALM,
    HANGING,
    PHASES,
    REPLAYING,
    REPLAYING_S3,
    REPLAYS,
    TIERED,
    UNDER_LOAD,
    Latencies,
    Measured,
    Recovery,
    rows_of,
)
from benchmarks.replayed_topics import MIB, create_tiered, move_to_tier, tiered_kafka
from benchmarks.replayers import Replayed, ReplayerProcess
from benchmarks.report import percentile
from lab import limited
from lab.errors import PartFailed
from lab.kafka import KafkaServer
from lab.s3 import S3Server

HISTORY = "benchmark-history"
TIERED_HISTORY = "benchmark-tiered-history"  # the same records
PARTITIONS = 4
REPLAYING_CONSUMERS = 16

SEGMENT_BYTES = 16 * MIB
SETTINGS = {
    # Less memory than the archive has bytes, so readers depend on the store, as with years of data.
    "remote_fetch.chunk_cache_bytes_max": str(32 * MIB),
    "archive.segment_bytes_max": str(SEGMENT_BYTES),
    # Faults last seconds here, so the waits for their end are as short.
    "limits.reading.corrupt_retry_ms": "5000",
    "archive.segment_age_max_ms": "2000",
    "limits.console.archive_refresh_interval_ms": "1000",
}
_BUCKET = "benchmark"
_WARM_UP_SAMPLES = 20
_QUIET_S = 1.0  # readers that get nothing for this long depend on a store that hangs
_START_S = 60.0
_FAULT_MIN_S = 5.0
_BACK_MAX_S = 90.0
_BACK_RECORDS = 1000  # more than a consumer may still have in its queue
_PROJECT = Path(__file__).parents[1]

Load = AbstractContextManager[ReplayerProcess | None]


def latencies_ms(
    kafka: KafkaServer, proxy: FetchproxyServer, samples: int
) -> dict[str, list[float]]:
    """Milliseconds by way. Raises CalledProcessError if a record does not arrive within 30 s."""
    ways = [(DIRECT, kafka.bootstrap), (FETCHPROXY, proxy.bootstrap)]
    described = json.dumps([(name, bootstrap, _tail(name)) for name, bootstrap in ways])
    latencies: dict[str, list[float]] = child(
        "benchmarks.latency_probe", kafka.bootstrap, str(samples), described
    )
    return latencies


def _tail(way: str) -> str:
    return f"benchmark-tail-{way}"


@dataclass(slots=True)
class Bench:
    """The servers: a broker, a store, and archived topics that the broker no longer has.

    `archive`: a folder that is another store with the same records.
    """

    kafka: KafkaServer
    s3: S3Server
    archive: Path
    records: int  # of each partition of the history
    samples: int
    console: Console
    measured: Measured = field(default_factory=Measured)

    def prepare(self) -> None:
        """Raises PartFailed."""
        for way in (DIRECT, FETCHPROXY):
            self.kafka.create_topic(_tail(way))
        self.s3.create_bucket(_BUCKET)
        endless = {"retention.ms": "-1", "retention.bytes": "-1"}
        self.kafka.create_topic(GROWING, 1, endless)
        self.kafka.create_topic(HISTORY, PARTITIONS, endless)
        self._fill(HISTORY, 0, self.records)
        for store in (self.s3.store_url(_BUCKET), self.archive.as_uri()):
            self.fetchproxy("archive", store, "--once", "--bootstrap", self.kafka.bootstrap,
                            "--archive", HISTORY)  # fmt: skip
        admin = AdminClient({"bootstrap.servers": self.kafka.bootstrap})
        ends = [TopicPartition(HISTORY, each, self.records) for each in range(PARTITIONS)]
        for deleted in admin.delete_records(ends).values():
            deleted.result(timeout=60.0)
        create_tiered(self.kafka, TIERED_HISTORY, PARTITIONS, SEGMENT_BYTES)
        self._fill(TIERED_HISTORY, 0, self.records)
        ends = [self.records] * PARTITIONS
        move_to_tier(
            self.kafka,
            TIERED_HISTORY,
            ends,
            lambda: self._fill(TIERED_HISTORY, self.records, self.records + 1),
        )

    def _fill(self, topic: str, begin: int, end: int) -> None:
        fill(self.kafka.bootstrap, topic, PARTITIONS, end, RECORD_BYTES, begin)

    def fetchproxy(self, command: str, store: str, *arguments: str) -> None:
        """Raises PartFailed with its output unless it succeeds."""
        whole = [*limited.command(SETTINGS), command, "--store", store, *arguments]
        whole += limited.options(SETTINGS)
        result = subprocess.run(
            whole, env={**os.environ, **self.s3.environment}, cwd=_PROJECT,
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if result.returncode:
            raise PartFailed(f"fetchproxy {command}: {(result.stdout + result.stderr)[-2000:]}")

    def proxy(self, endpoint_url: str, archived: str | None = None) -> FetchproxyServer:
        """A proxy on the archive in the S3 server."""
        settings = SETTINGS if archived is None else {**SETTINGS, "archive.topics": archived}
        endpoint = quote(endpoint_url, safe="")
        store = f"s3://{_BUCKET}/?endpoint_url={endpoint}&region={self.s3.region}"
        return FetchproxyServer(self.kafka.bootstrap, settings, store, self.s3.environment)

    @contextmanager
    def replayers(
        self, count: int, bootstrap: str, topic: str = HISTORY
    ) -> Iterator[ReplayerProcess]:
        """Yields after each of them has a record."""
        sizes = (PARTITIONS, self.records, RECORD_BYTES, count)
        with ReplayerProcess([bootstrap, topic, *map(str, sizes)]) as replaying:
            replaying.wait_until(
                lambda done: len(done.records) == count and all(done.records),
                "every consumer of the archive has a record",
                _START_S,
            )
            yield replaying

    # -- rounds ----------------------------------------------------------------------------------
    def compare(self, rounds: int) -> None:
        """Times the tail without load, while the store hangs and while 16 consumers replay."""
        near = FetchproxyServer(self.kafka.bootstrap, SETTINGS, self.archive.as_uri())
        with self.proxy(self.s3.endpoint_url) as far, near:
            readers = REPLAYING_CONSUMERS
            broker = self.kafka.bootstrap
            phases: dict[str, tuple[FetchproxyServer, Callable[[], Load]]] = {
                CALM: (near, nullcontext),
                HANGING: (far, lambda: self._hanging(far)),
                REPLAYING: (near, lambda: self.replayers(readers, near.bootstrap)),
                TIERED: (near, lambda: self.replayers(readers, broker, TIERED_HISTORY)),
                REPLAYING_S3: (far, lambda: self.replayers(readers, far.bootstrap)),
            }
            for number in range(rounds + 1):  # round 0 warms up
                label = f"round {number} of {rounds}" if number else "warm-up"
                self.console.print(f"{label}: p99 ms, {DIRECT} and {FETCHPROXY}")
                for phase in in_turn(PHASES, number):
                    proxy, load = phases[phase]
                    latencies = self._timed(proxy, phase, load(), counts=number > 0)
                    figures = (
                        f"{percentile(latencies[way], 99):.2f}" for way in (DIRECT, FETCHPROXY)
                    )
                    self.console.print(f"  {phase}: {', '.join(figures)}")

    def _timed(
        self,
        proxy: FetchproxyServer,
        phase: str,
        load: Load,
        *,
        counts: bool,
    ) -> Latencies:
        """Times the tail beside `load`: milliseconds by way."""
        with load as replaying:
            before = replaying.latest() if replaying else None
            latencies = latencies_ms(
                self.kafka, proxy, self.samples if counts else _WARM_UP_SAMPLES
            )
            after = replaying.latest() if replaying else None
        if counts:
            self.measured.add(phase, latencies)
        if counts and phase in REPLAYS and before and after:
            speeds = self.measured.replayed_mb_per_s.setdefault(phase, [])
            speeds.append(_mb_per_s(before, after))
        if counts and phase == REPLAYING:
            longest_s = proxy.metric("fetchproxy_event_loop_longest_seconds")
            self.measured.longest_turns_ms.append(longest_s * 1000)
            cpu_s = proxy.metric("fetchproxy_event_loop_cpu_longest_seconds")
            self.measured.cpu_longest_turns_ms.append(cpu_s * 1000)
        return latencies

    @contextmanager
    def _hanging(self, proxy: FetchproxyServer) -> Iterator[ReplayerProcess]:
        with self.replayers(PARTITIONS, proxy.bootstrap) as replaying:
            self.s3.pause()
            try:
                _wait_until_quiet(replaying)
                yield replaying
            finally:
                self.s3.resume()

    # -- faults ----------------------------------------------------------------------------------
    def go_through_faults(self) -> None:
        """Raises PartFailed if a reader sees wrong records or archived reads stay away."""
        with ExitStack() as stack:
            relay = stack.enter_context(FaultRelay(self.s3.port))
            proxy = stack.enter_context(self.proxy(relay.endpoint_url, GROWING))
            growing = stack.enter_context(Growing(self.kafka.bootstrap))
            replaying = stack.enter_context(self.replayers(PARTITIONS, proxy.bootstrap))
            self.measured.add(UNDER_LOAD, latencies_ms(self.kafka, proxy, self.samples))
            faults: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
                "killed": (self.s3.kill, self.s3.start),
                "paused": (self.s3.pause, self.s3.resume),
                "slow": (
                    lambda: relay.set(Fault(delay_ms=1000, bytes_per_s=256 * 1024)),
                    lambda: relay.set(NO_FAULT),
                ),
                "corrupt": (
                    lambda: relay.set(Fault(corrupt=True)),
                    lambda: relay.set(NO_FAULT),
                ),
            }
            for name, (begin, end) in faults.items():
                self._fault(name, begin, end, proxy, replaying)
            self.measured.corrupt_chunks = proxy.metric("fetchproxy_corrupt_chunks_total")
            if not self.measured.corrupt_chunks:
                raise PartFailed("the store sent corrupt bytes and nobody found any")
            self.measured.checked = sum(replaying.latest().records)
            self._catch_up(proxy, growing)
        self.fetchproxy("verify", self.s3.store_url(_BUCKET))

    def _fault(
        self,
        name: str,
        begin: Callable[[], None],
        end: Callable[[], None],
        proxy: FetchproxyServer,
        replaying: ReplayerProcess,
    ) -> None:
        begin()
        begun = time.monotonic()
        try:
            latencies = latencies_ms(self.kafka, proxy, self.samples)
            time.sleep(max(0.0, begun + _FAULT_MIN_S - time.monotonic()))
        finally:
            end()
        ended = replaying.latest()
        back = replaying.wait_until(
            lambda done: _further(done.records, ended.records, _BACK_RECORDS),
            f"archived reads come back after the store was {name}",
            _BACK_MAX_S,
        )
        # Waits for the end of the pass that was running, and for one complete pass.
        replaying.wait_until(
            lambda done: _further(done.passes, ended.passes, 2),
            f"all of the archive is read after the store was {name}",
            _BACK_MAX_S,
        )
        recovery = Recovery(latencies, ended.at_s - begun, back.at_s - ended.at_s)
        self.measured.recoveries[name] = recovery
        self.console.print(
            f"store {name} for {recovery.lasted_s:.1f} s: "
            f"p99 ms {percentile(latencies[FETCHPROXY], 99):.2f}, "
            f"archived reads back after {recovery.back_s:.1f} s"
        )

    def _catch_up(self, proxy: FetchproxyServer, growing: Growing) -> None:
        """Waits until the archiver has copied all that was produced. Raises PartFailed."""
        produced = growing.stop()
        whole = PARTITIONS * self.records + produced
        deadline = time.monotonic() + _BACK_MAX_S
        while (archived := proxy.metric("fetchproxy_archive_end_offset")) != whole:
            if time.monotonic() > deadline:
                raise PartFailed(f"{archived:.0f} records are archived, not {whole}")
            time.sleep(0.5)
        self.measured.archived_meanwhile = produced


def _wait_until_quiet(replaying: ReplayerProcess) -> None:
    last, since = replaying.latest(), time.monotonic()
    deadline = since + _START_S
    while time.monotonic() - since < _QUIET_S:
        now = replaying.latest()
        if now.records != last.records:
            last, since = now, time.monotonic()
        if since > deadline:
            raise PartFailed("the store hangs and its readers go on")
        time.sleep(0.05)


def _further(now: list[int], before: list[int], by: int) -> bool:
    return all(a >= b + by for a, b in zip(now, before, strict=True))


def _mb_per_s(before: Replayed, after: Replayed) -> float:
    records = sum(after.records) - sum(before.records)
    return records * RECORD_BYTES / 1e6 / (after.at_s - before.at_s)


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    records = options.mib * MIB // RECORD_BYTES // PARTITIONS
    with ExitStack() as running:
        folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="outage-")))
        archive = folder / "archive"
        archive.mkdir()
        kafka = running.enter_context(tiered_kafka(folder))
        s3 = running.enter_context(S3Server())
        bench = Bench(kafka, s3, archive, records, options.samples, console)
        console.print(f"writing and archiving {options.mib} MiB")
        bench.prepare()
        bench.compare(options.rounds)
        bench.go_through_faults()
    return Outcome(rows_of(bench.measured), {"settings": SETTINGS})


PART = Part(
    name="outage",
    title="The tail beside the archive: medians of the rounds, ratios within a round",
    description=__doc__,
    sizes=(
        Size("rounds", 5, 1, "rounds of the three comparisons"),
        Size("samples", 400, 20, "records timed at the tail, each time and way"),
        Size("mib", 256, 64, "in the archive that is replayed"),
    ),
    measure=measure,
)

if __name__ == "__main__":
    sys.exit(PART.main())
