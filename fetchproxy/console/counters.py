"""Figures for the console, read off the metrics: what is counted once is not counted twice."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics import MetricWrapperBase

from fetchproxy.console.status import CacheStatus, RelayStatus, RemoteReadsStatus
from fetchproxy.observability import metrics


def relay(connections_max: int) -> RelayStatus:
    return RelayStatus(
        connections=_total(metrics.CONNECTIONS),
        connections_max=connections_max,
        to_broker_bytes=_total(metrics.RELAYED_BYTES, direction="to_broker"),
        to_client_bytes=_total(metrics.RELAYED_BYTES, direction="to_client"),
    )


def remote_reads() -> RemoteReadsStatus:
    return RemoteReadsStatus(
        in_flight=_total(metrics.REMOTE_READS_IN_FLIGHT),
        queued=_total(metrics.REMOTE_LOG_READER_TASK_QUEUE_SIZE),
        waiting=_total(metrics.PURGATORY_ENTRIES),
        read_bytes=_total(metrics.REMOTE_FETCH_BYTES),
        backoffs=_total(metrics.BACKOFFS),
        catches=_total(metrics.CATCHES),
        held_stale=_total(metrics.CATCH_OUTCOMES, outcome="held_stale"),
        passed_on=_total(metrics.CATCH_OUTCOMES, outcome="passed_on"),
        held_partitions=_total(metrics.HELD_PARTITIONS),
        led_on=_total(metrics.READERS_LED_ON),
        offsets_skipped=_total(metrics.OFFSETS_SKIPPED),
        corrupt_chunks=_total(metrics.CORRUPT_CHUNKS),
    )


def cache(bytes_max: int) -> CacheStatus:
    return CacheStatus(
        bytes=_total(metrics.CHUNK_CACHE_BYTES),
        bytes_max=bytes_max,
        hits=_total(metrics.CHUNK_CACHE_HITS),
        misses=_total(metrics.CHUNK_CACHE_MISSES),
        evictions=_total(metrics.CHUNK_CACHE_EVICTIONS),
    )


def _total(metric: MetricWrapperBase, **labels: str) -> int:
    """Of a counter or a gauge, over all children that have these labels."""
    return int(sum(_values(metric, labels)))


def _values(metric: MetricWrapperBase, labels: dict[str, str]) -> Iterator[float]:
    for family in metric.collect():
        for sample in family.samples:
            if labels.items() <= sample.labels.items():
                yield sample.value


def held_readers() -> tuple[str, ...]:
    """A headline, where there are any."""
    count = _total(metrics.HELD_PARTITIONS)
    if not count:
        return ()
    of = "1 partition" if count == 1 else f"{count} partitions"
    return (
        f"readers of {of} wait for the archiver: the brokers have deleted what they ask for, and "
        "it is not archived yet",
    )
