"""Measures the time from a record's producer to a consumer that waits at the end of the log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka import TopicPartition as Position

from demo import records
from demo.checks import CheckFailed
from demo.readers import CLIENT_LOG, confluent_consumer

_SAMPLES = 150
_PAUSE_S = 0.01
_LOST_S = 15.0


@dataclass(frozen=True, slots=True)
class Latency:
    p50_ms: float
    p99_ms: float

    def __str__(self) -> str:
        return f"p50 {self.p50_ms:.1f} ms, p99 {self.p99_ms:.1f} ms"


class LiveTail:
    """One producer and one consumer at the end of the live topic, both at `bootstrap`."""

    def __init__(self, bootstrap: str, fetch_wait_ms: int) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "linger.ms": 0}, logger=CLIENT_LOG
        )
        settings = {"fetch.wait.max.ms": fetch_wait_ms, "fetch.error.backoff.ms": 5}
        self._consumer, self._errors = confluent_consumer(bootstrap, **settings)
        self._count_sent = 0

    def measure(self, between: Callable[[], None] = lambda: None) -> Latency:
        """Measures one record after the other, `between` after each. Raises CheckFailed."""
        self._to_the_end()
        seconds = []
        for _ in range(_SAMPLES):
            seconds.append(self._round_trip())
            between()
            time.sleep(_PAUSE_S)
        seconds.sort()
        return Latency(1e3 * seconds[_SAMPLES // 2], 1e3 * seconds[_SAMPLES * 99 // 100])

    def close(self) -> None:
        self._producer.flush(5)
        self._consumer.close()

    def _to_the_end(self) -> None:
        place = Position(records.LIVE_TOPIC, 0)
        _, end = self._consumer.get_watermark_offsets(place, timeout=15)
        self._consumer.assign([Position(records.LIVE_TOPIC, 0, end)])
        self._round_trip()  # so that connections and metadata are not measured

    def _round_trip(self) -> float:
        self._count_sent += 1
        text = b"live %d" % self._count_sent
        begun_at = time.perf_counter()
        self._producer.produce(records.LIVE_TOPIC, text, partition=0)
        self._producer.poll(0)
        while time.perf_counter() - begun_at < _LOST_S:
            message = self._consumer.poll(0.5)
            if message is None:
                continue
            if message.error() is not None:
                raise CheckFailed("the tail works at all times", str(message.error()))
            if message.value() != text:
                raise CheckFailed("the tail is in order", f"{message.value()!r}, not {text!r}")
            return time.perf_counter() - begun_at
        errors = f"; the client reports {self._errors}" if self._errors else ""
        raise CheckFailed(
            "the tail works at all times", f"a new record did not come in {_LOST_S:.0f} s{errors}"
        )
