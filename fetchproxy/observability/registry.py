"""The one registry of metrics, and how they are declared on it. Declares none itself.

Names are Kafka's own where Kafka has the metric (KIP-405 and KIP-963, as a JMX exporter spells
them: domain, type, name, without the rate suffix), so that existing alerts go on working; the rest
begin with `fetchproxy_`.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics_core import Metric

# A `_created` series per counter doubles a scrape and nobody reads it.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)  # process_cpu_seconds_total, process_resident_memory_bytes …


_TAKING_OVER = Lock()  # two readers at once must not take the same over


class Tally:
    """Counts by `tally.total += n`, without the calls and the lock of the library's counter.

    It counts the pieces that are relayed. One thread counts; any thread may read."""

    __slots__ = ("taken", "total")

    def __init__(self) -> None:
        self.total = 0
        self.taken = 0  # of it, what the counter has


class TalliedCounter(Counter):
    """A counter that takes over what its tallies have counted whenever it is read."""

    _tallies: tuple[tuple[Counter, Tally], ...] = ()

    def tally(self, **labels: str) -> Tally:
        found = Tally()
        self._tallies = (*self._tallies, (self.labels(**labels) if labels else self, found))
        return found

    def collect(self) -> Iterable[Metric]:
        with _TAKING_OVER:
            for counter, tally in self._tallies:
                total = tally.total
                counter.inc(total - tally.taken)
                tally.taken = total
        return super().collect()


def counter(name: str, help_text: str, *labels: str, values: Iterable[str] = ()) -> Counter:
    """`values` of its one label begin at 0: `increase()` does not see a first count otherwise."""
    found = Counter(name, help_text, labels, registry=REGISTRY)
    for value in values:
        found.labels(value)
    return found


def tallied_counter(name: str, help_text: str, *labels: str) -> TalliedCounter:
    return TalliedCounter(name, help_text, labels, registry=REGISTRY)


def gauge(name: str, help_text: str, *labels: str) -> Gauge:
    return Gauge(name, help_text, labels, registry=REGISTRY)
