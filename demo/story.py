"""The acts of the demo, in order. Each does one thing, reports it and checks the report."""

from __future__ import annotations

import shlex
import statistics
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from demo import records
from demo.archive_store import ArchiveStore
from demo.checks import require
from demo.live_tail import Latency, LiveTail
from demo.narration import Narrator, quote
from demo.outage import OutageFigures, go_through_outage
from demo.producer import produce_and_archive
from demo.proxy import Proxy
from demo.readers import (
    FROM_THE_BEGINNING,
    Speed,
    earliest_offsets,
    errors_at_offset_0,
    read_with_confluent,
    read_with_kafka_python,
)
from demo.upstream import Upstream

_TAIL_ROUNDS = 3


@dataclass(frozen=True, slots=True)
class TailFigures:
    """`direct_mb_per_s`, `proxy_mb_per_s`: medians of the interleaved rounds."""

    direct_mb_per_s: float
    proxy_mb_per_s: float
    direct: Latency
    proxy: Latency


class Story:
    def __init__(
        self, upstream: Upstream, store: ArchiveStore, folder: Path, tell: Narrator
    ) -> None:
        self._upstream = upstream
        self._store = store
        self._folder = folder
        self._tell = tell

    def play(self) -> None:
        """Raises CheckFailed for the first claim that does not hold."""
        proxy = Proxy(self._upstream.bootstrap, self._store, self._folder)
        with ExitStack() as running:
            with self._tell.waiting("Starting fetchproxy"):
                self._upstream.create_topics()
                running.enter_context(proxy)
            self._introduce(proxy)
            self._fill(proxy)
            self._show_forgotten(proxy)
            replays = self._read_everything(proxy)
            tail = self._measure_tail(proxy)
            outage = self._outage(proxy, tail)
            self._verify(proxy)
            self._close(proxy, replays, tail, outage)

    def _introduce(self, proxy: Proxy) -> None:
        tell = self._tell
        tell.say(f"Kafka       {self._upstream.bootstrap}  ({self._upstream.name})")
        tell.say(f"Archive     {quote(self._store.url)}  ({self._store.name})")
        tell.say(f"fetchproxy  {proxy.bootstrap}  (a client's bootstrap.servers)")
        tell.say(f"Console     {proxy.console_url}  (open it while this runs)")
        tell.say(f"[dim]$ fetchproxy {quote(shlex.join(proxy.arguments))} --set …[/]")

    def _fill(self, proxy: Proxy) -> None:
        tell = self._tell
        tell.act(f"Produce {records.RECORDS:,} records on {records.PARTITIONS} partitions")
        tell.say("A producer writes through fetchproxy, whose archiver copies to the archive.")
        totals = {"on the broker": records.RECORDS, "in the archive": records.RECORDS}
        with tell.bars(totals) as show:
            produce_and_archive(proxy, self._upstream.lead_records_max, show)
        segments, size = _archive_size(proxy)
        tell.good(f"All of it is archived: {segments} segments, {size / 1e6:.0f} MB.")

    def _show_forgotten(self, proxy: Proxy) -> None:
        tell = self._tell
        tell.act("The broker has forgotten the beginning")
        tell.say(self._upstream.forget(proxy.archived_ends(records.TOPIC)))
        responses = errors_at_offset_0(self._upstream.bootstrap)
        out_of_range = [
            p for p, response in responses.items() if "offset out of range" in response.lower()
        ]
        require(
            len(out_of_range) == records.PARTITIONS,
            "a direct read of offset 0 gets OffsetOutOfRange on every partition",
            str(responses),
        )
        partitions = ", ".join(map(str, sorted(out_of_range)))
        tell.good(f"Asked directly for offset 0 of partitions {partitions}: OffsetOutOfRange.")
        there = earliest_offsets(self._upstream.bootstrap)
        here = earliest_offsets(proxy.bootstrap)
        tell.say(f"Earliest offsets on the broker:      {_offsets(there)}")
        tell.good(f"Earliest offsets through fetchproxy: {_offsets(here)}")
        require(here == FROM_THE_BEGINNING, "the proxy's earliest offset is 0", _offsets(here))

    def _read_everything(self, proxy: Proxy) -> dict[str, Speed]:
        tell = self._tell
        tell.act("Read everything through fetchproxy, from offset 0 to the live end")
        tell.say("Stock clients that would fail rather than skip (auto.offset.reset none, error).")
        speeds: dict[str, Speed] = {}
        for client, read_all in (
            ("kafka-python", read_with_kafka_python),
            ("confluent-kafka", read_with_confluent),
        ):
            with tell.bar(client, records.RECORDS) as show:
                speeds[client] = read_all(proxy.bootstrap, FROM_THE_BEGINNING, show)
            tell.good(
                f"{client}: {records.RECORDS:,} records, each once, in order, key and value as "
                f"produced: {speeds[client].mb_per_s:.0f} MB/s."
            )
        remote_reads = proxy.status()["remote_reads"]
        require(
            remote_reads["read_bytes"] > 0, "old records come from the archive", str(remote_reads)
        )
        read_mb = remote_reads["read_bytes"] / 1e6
        tell.say(f"For these two fetchproxy has read {read_mb:.0f} MB from the archive.")
        return speeds

    def _measure_tail(self, proxy: Proxy) -> TailFigures:
        tell = self._tell
        tell.act("The tail: what the broker still has is relayed")
        live = earliest_offsets(self._upstream.bootstrap)
        speeds: dict[str, list[float]] = {"direct": [], "proxy": []}
        live_records = records.RECORDS - sum(live.values())
        with tell.bar("live records, in turns", 2 * _TAIL_ROUNDS * live_records) as show:
            for turn in range(2 * _TAIL_ROUNDS):
                way, bootstrap = (
                    ("proxy", proxy.bootstrap) if turn % 2 else ("direct", self._upstream.bootstrap)
                )
                before = turn * live_records

                def progress(done: int, before: int = before) -> None:
                    show(before + done)

                speed = read_with_confluent(bootstrap, live, progress)
                speeds[way].append(speed.mb_per_s)
        direct, through = (statistics.median(speeds[way]) for way in ("direct", "proxy"))
        tell.say(f"confluent-kafka: {direct:.0f} MB/s directly, {through:.0f} through fetchproxy.")
        latencies = [
            _latency(bootstrap, self._upstream.fetch_wait_ms)
            for bootstrap in (self._upstream.bootstrap, proxy.bootstrap)
        ]
        tell.say("From a producer to a consumer that waits at the end:")
        tell.say(f"  directly            {latencies[0]}")
        tell.say(f"  through fetchproxy  {latencies[1]}")
        return TailFigures(direct, through, *latencies)

    def _outage(self, proxy: Proxy, before: TailFigures) -> OutageFigures:
        self._tell.act("The store goes away and comes back")
        tail = LiveTail(proxy.bootstrap, self._upstream.fetch_wait_ms)
        try:
            return go_through_outage(proxy, self._store, tail, before.proxy, self._tell)
        finally:
            tail.close()

    def _verify(self, proxy: Proxy) -> None:
        tell = self._tell
        tell.act("Check the archive itself")
        for topic in (records.TOPIC, records.LIVE_TOPIC):
            proxy.wait_until_archived(topic)
        tell.say(f"[dim]$ fetchproxy verify --store {quote(shlex.quote(self._store.url))}[/]")
        result = proxy.verify()
        output = (result.stdout or result.stderr or "").strip()
        require(result.returncode == 0, "fetchproxy verify finds no fault", output)
        tell.good(quote(output))

    def _close(
        self, proxy: Proxy, replays: dict[str, Speed], tail: TailFigures, outage: OutageFigures
    ) -> None:
        segments, size = _archive_size(proxy)
        rows = [("tail read", _speed(tail.direct_mb_per_s), _speed(tail.proxy_mb_per_s))]
        rows += [
            (f"replay, {client}", "OffsetOutOfRange", _speed(speed.mb_per_s))
            for client, speed in replays.items()
        ]
        rows += [
            ("produce to consume, p50 / p99", _brief(tail.direct), _brief(tail.proxy)),
            ("  while the store was away", "", _brief(outage.tail)),
            ("outage", "", f"{outage.outage_s:.1f} s"),
            ("  replay went on after", "", f"{outage.resumed_after_s:.1f} s"),
            ("archive", "", f"{size / 1e6:.1f} MB, {segments} segments"),
        ]
        self._tell.table(
            f"{self._upstream.name}, archive in {self._store.name}",
            ("", "directly", "through fetchproxy"),
            rows,
        )


def _latency(bootstrap: str, fetch_wait_ms: int) -> Latency:
    tail = LiveTail(bootstrap, fetch_wait_ms)
    try:
        return tail.measure()
    finally:
        tail.close()


def _archive_size(proxy: Proxy) -> tuple[int, int]:
    """Segments and bytes of the demo's topic."""
    partitions = proxy.partitions(records.TOPIC).values()
    return (
        sum(each["segments"] for each in partitions),
        sum(each["size_bytes"] for each in partitions),
    )


def _offsets(by_partition: dict[int, int]) -> str:
    return ", ".join(f"{offset:,}" for _, offset in sorted(by_partition.items()))


def _speed(mb_per_s: float) -> str:
    return f"{mb_per_s:.0f} MB/s"


def _brief(latency: Latency) -> str:
    return f"{latency.p50_ms:.1f} / {latency.p99_ms:.1f} ms"
