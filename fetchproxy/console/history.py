"""The last hours of a process in figures: one sample a minute, in bounded memory.

They show whether a figure rises, also to an operator who has no Prometheus.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

# Six hours: a night's shift sees what the evening began. A sample takes about 600 bytes, so all of
# them take some 200 KiB.
SAMPLES_MAX = 360
SAMPLE_INTERVAL_MS = 60_000
# Of these all workers have the same; the others are sums over the workers.
OF_THE_ARCHIVE = frozenset(("lag_offsets", "lost_offsets", "archive_bytes", "errors"))


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """What is counted at one moment. The first five are states, the rest counters that only rise.
    None: not known.
    """

    lag_offsets: int | None = None
    lost_offsets: int | None = None
    archive_bytes: int | None = None
    connections: int = 0
    waiting_fetches: int = 0
    errors: int = 0
    archived_bytes: int = 0
    tail_bytes: int = 0
    written_bytes: int = 0
    history_bytes: int = 0
    store_bytes: int = 0
    store_retries: int = 0
    throttle_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Sample:
    """`at_ms`: epoch time. Rates are averages since the previous sample; null: unknown.

    Sums over all partitions: `lag_offsets` (not archived yet), `lost_offsets` (lost for good) and
    `archive_bytes` (in the archive). `connections`: client connections. `waiting_fetches`: fetches
    that wait for archived records. `errors`: conditions with this level. `archived_bytes_per_s`:
    copied to the store. `tail_bytes_per_s`: relayed from brokers to clients. `written_bytes_per_s`:
    relayed from clients to brokers. `history_bytes_per_s`: archived records sent to clients.
    `store_bytes_per_s`: what the store sent for them. `store_retries_per_minute`: retries after an
    error of the store. `throttled_clients`: how many clients, on average, had to wait.
    """

    at_ms: int
    lag_offsets: int | None = None
    lost_offsets: int | None = None
    archive_bytes: int | None = None
    connections: int | None = None
    waiting_fetches: int | None = None
    errors: int | None = None
    archived_bytes_per_s: float | None = None
    tail_bytes_per_s: float | None = None
    written_bytes_per_s: float | None = None
    history_bytes_per_s: float | None = None
    store_bytes_per_s: float | None = None
    store_retries_per_minute: float | None = None
    throttled_clients: float | None = None


@dataclass(eq=False, slots=True)
class History:
    """`clock_ms`: epoch time, for people; `now`: loop time (s), for rates."""

    clock_ms: Callable[[], int]
    _samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))
    _before: tuple[float, ProcessFigures] | None = None

    def add(self, figures: ProcessFigures, now: float) -> None:
        """The oldest sample goes if there are SAMPLES_MAX."""
        self._samples.append(sample_of(figures, self._before, now, self.clock_ms()))
        self._before = now, figures

    def samples(self) -> tuple[Sample, ...]:
        """The oldest first."""
        return tuple(self._samples)


def sample_of(
    figures: ProcessFigures, before: tuple[float, ProcessFigures] | None, now: float, at_ms: int
) -> Sample:
    """`before`: the figures of the sample before, and its loop time (s)."""

    def per_second(name: str) -> float | None:
        if before is None or now <= before[0]:
            return None
        risen: float = getattr(figures, name) - getattr(before[1], name)
        return round(max(risen, 0) / (now - before[0]), 3)

    retries_per_s = per_second("store_retries")
    return Sample(
        at_ms=at_ms,
        lag_offsets=figures.lag_offsets,
        lost_offsets=figures.lost_offsets,
        archive_bytes=figures.archive_bytes,
        connections=figures.connections,
        waiting_fetches=figures.waiting_fetches,
        errors=figures.errors,
        archived_bytes_per_s=per_second("archived_bytes"),
        tail_bytes_per_s=per_second("tail_bytes"),
        written_bytes_per_s=per_second("written_bytes"),
        history_bytes_per_s=per_second("history_bytes"),
        store_bytes_per_s=per_second("store_bytes"),
        store_retries_per_minute=None if retries_per_s is None else round(retries_per_s * 60, 3),
        throttled_clients=per_second("throttle_seconds"),
    )


def merged_samples(worker_samples: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Samples of several workers as those of one process, by the minute; each list has the oldest
    first. The archive's figures are the first worker's.
    """
    samples_by_minute: dict[int, dict[str, Any]] = {}
    for samples in worker_samples:
        for sample in samples:
            totals = samples_by_minute.get(minute := sample["at_ms"] // SAMPLE_INTERVAL_MS)
            samples_by_minute[minute] = sample if totals is None else _sum_of(totals, sample)
    return [samples_by_minute[minute] for minute in sorted(samples_by_minute)][-SAMPLES_MAX:]


def _sum_of(sample: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    totals = dict(sample)
    for name, more in other.items():
        if name != "at_ms" and name not in OF_THE_ARCHIVE and more is not None:
            totals[name] = more if totals[name] is None else totals[name] + more
    return totals
