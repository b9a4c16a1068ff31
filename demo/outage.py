"""The outage: the store goes away while a reader of old records is mid-way.

The reader has to wait without an error and without losing its place. The tail must not be affected.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from demo import records
from demo.archive_store import ArchiveStore
from demo.checks import CheckFailed, ReadCheck, require
from demo.live_tail import Latency, LiveTail
from demo.narration import Narrator
from demo.proxy import Proxy
from demo.readers import FROM_THE_BEGINNING, STALLED_S, assign, confluent_consumer, poll_confluent

_MIDWAY_RECORDS = records.RECORDS // 4
_OUTAGE_S = 4.0
_HELD_S = 1.5
_HELD_MAX_S = 20.0
# Allows for noise on a busy machine: latencies below these are fine, whatever they were before.
_P50_HARMLESS_MS = 50.0
_P99_HARMLESS_MS = 250.0
_UNCHANGED_FACTOR = 3.0


class RemoteReader:
    """A confluent-kafka consumer in a thread. Reads from offset 0; waits mid-way for `go_on`."""

    def __init__(self, bootstrap: str) -> None:
        self.check = ReadCheck("the reader of old records", FROM_THE_BEGINNING)
        self.last_at = 0.0
        self._bootstrap = bootstrap
        self._midway = threading.Event()
        self._go_on = threading.Event()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="remote reader", daemon=True)

    def read_to_midway(self) -> None:
        self._thread.start()
        self._wait(self._midway.is_set)

    def go_on(self) -> None:
        self._go_on.set()

    def wait_until_finished(self, meanwhile: Callable[[], None]) -> None:
        self._wait(lambda: self.check.finished, meanwhile)
        self._thread.join(STALLED_S)
        self.raise_failure()

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._stop.set()
        self._go_on.set()
        if self._thread.is_alive():
            self._thread.join(30)

    def _wait(
        self, ready: Callable[[], bool], meanwhile: Callable[[], None] = lambda: None
    ) -> None:
        deadline = time.perf_counter() + STALLED_S
        while not ready():
            self.raise_failure()
            require(
                time.perf_counter() < deadline,
                f"{self.check.reader} gets on",
                f"it stands at {self.check.records:,} records after {STALLED_S:.0f} s",
            )
            meanwhile()
            time.sleep(0.05)

    def _run(self) -> None:
        # A small receive queue, so that the client has not already read ahead the store's records.
        consumer, errors = confluent_consumer(
            self._bootstrap,
            **{
                "queued.max.messages.kbytes": 1024,
                "max.partition.fetch.bytes": 256 * 1024,
                "fetch.queue.backoff.ms": 10,
            },
        )
        try:
            assign(consumer, FROM_THE_BEGINNING)
            while not self.check.finished and not self._stop.is_set():
                for record in poll_confluent(consumer, self.check.reader, timeout_s=0.1):
                    self.check.take(*record)
                    self.last_at = time.perf_counter()
                if self.check.records >= _MIDWAY_RECORDS and not self._midway.is_set():
                    self._midway.set()
                    self._go_on.wait()
            require(not errors, f"{self.check.reader} reads without an error", str(errors))
        except Exception as failure:  # noqa: BLE001 - raised again in the main thread
            self._failure = failure
        finally:
            consumer.close()


@dataclass(frozen=True, slots=True)
class OutageFigures:
    tail: Latency
    outage_s: float
    held_at_records: int
    resumed_after_s: float


def go_through_outage(
    proxy: Proxy, store: ArchiveStore, tail: LiveTail, before: Latency, tell: Narrator
) -> OutageFigures:
    """Raises CheckFailed. When this returns, the store is back."""
    reader = RemoteReader(proxy.bootstrap)
    try:
        reader.read_to_midway()
        tell.say(f"A confluent-kafka consumer has read {reader.check.records:,} old records.")
        tell.say(f"[bold]{store.take_away()}[/]")
        away_at = time.perf_counter()
        reader.go_on()
        during = _watch_tail(reader, tail, away_at, tell)
        _require_unchanged(before, during)
        tell.good(f"New records still reach their consumer: {during} (before: {before}).")
        held_at = _require_held(reader, proxy, tell)
        sentence = store.bring_back()
        back_at = time.perf_counter()
        tell.say(f"[bold]{sentence}[/]")
        resumed_after_s = _finish(reader, held_at, back_at, tell)
        return OutageFigures(during, back_at - away_at, held_at, resumed_after_s)
    finally:
        reader.stop()


def _watch_tail(reader: RemoteReader, tail: LiveTail, away_at: float, tell: Narrator) -> Latency:
    with tell.bar("old records read, store away", records.RECORDS) as show:
        during = tail.measure(lambda: show(reader.check.records))
        while time.perf_counter() < away_at + _OUTAGE_S:
            show(reader.check.records)
            time.sleep(0.05)
    return during


def _require_unchanged(before: Latency, during: Latency) -> None:
    detail = f"{during} during the outage, {before} before"
    p50_max = max(_UNCHANGED_FACTOR * before.p50_ms, _P50_HARMLESS_MS)
    p99_max = max(_UNCHANGED_FACTOR * before.p99_ms, _P99_HARMLESS_MS)
    unchanged = during.p50_ms <= p50_max and during.p99_ms <= p99_max
    require(unchanged, "the tail does not notice the outage", detail)


def _require_held(reader: RemoteReader, proxy: Proxy, tell: Narrator) -> int:
    """Waits until the reader has used up the caches; returns its records. Raises CheckFailed."""
    claim = "the reader of old records is held back while the store is away"
    deadline = time.perf_counter() + _HELD_MAX_S
    while (silent_s := time.perf_counter() - reader.last_at) < _HELD_S:
        reader.raise_failure()
        require(time.perf_counter() < deadline, claim, "it still gets records")
        time.sleep(0.05)
    require(not reader.check.finished, claim, "it has read everything")
    held_at = reader.check.records
    tell.good(
        f"The reader of old records waits at {held_at:,} of {records.RECORDS:,}: no error, "
        f"nothing skipped, silent for {silent_s:.1f} s."
    )
    store_status = proxy.status()["store"]
    require(store_status["up"] is False, "the console shows the outage", str(store_status))
    tell.say(f"The console shows the store failing for {store_status['failing_seconds']:.1f} s.")
    reader.raise_failure()
    return held_at


def _finish(reader: RemoteReader, held_at: int, back_at: float, tell: Narrator) -> float:
    resumed_at: list[float] = []

    with tell.bar("old records read, store back", records.RECORDS) as show:

        def watch() -> None:
            if reader.check.records > held_at and not resumed_at:
                resumed_at.append(time.perf_counter())
            show(reader.check.records)

        reader.wait_until_finished(watch)
        watch()
    if not resumed_at:
        raise CheckFailed("the reader of old records goes on", "it has finished without a record")
    tell.good(
        f"It went on {resumed_at[0] - back_at:.1f} s later by itself and finished: all "
        f"{reader.check.records:,} records, each once and in order."
    )
    return resumed_at[0] - back_at
