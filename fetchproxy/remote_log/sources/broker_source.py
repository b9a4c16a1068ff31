"""Reads the log through the Fetch protocol, read_committed, so that the aborted list comes along.

Works with any broker. It checks each batch's CRC-32C, as what goes into the archive is expected to
come out of it in years; the work is done in a thread, because the tail's relay shares the loop.
"""

from __future__ import annotations

import asyncio

from fetchproxy.cluster.client import Cluster, FetchedPartition
from fetchproxy.errors import ClusterUnavailable, CorruptSegment, LogTruncated
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.remote_log.sources.api import LogGap, LogRead, LogSource
from protocol.errors import WireError
from protocol.record_batch import BatchHeader, check_crc, walk


class BrokerSource(LogSource):
    """`wait_max_ms`: how long a broker may hold a fetch that finds nothing; 0 asks and returns."""

    def __init__(self, cluster: Cluster, wait_max_ms: int = 0) -> None:
        self._cluster = cluster
        self._wait_max_ms = wait_max_ms

    async def log_start_offset(self, tip: TopicIdPartition) -> int:
        now = asyncio.get_running_loop().time()
        return (await self._cluster.log_edges(tip, not_older_than=now)).log_start_offset

    async def read(self, tip: TopicIdPartition, position: int, bytes_max: int) -> LogRead | LogGap:
        fetched = await self._cluster.fetch(
            tip,
            position,
            bytes_max=bytes_max,
            wait_max_ms=self._wait_max_ms,
            isolation=IsolationLevel.READ_COMMITTED,
        )
        if fetched.error_code != 0:
            return await self._out_of_range(tip, position)
        return await asyncio.to_thread(_checked, tip, fetched)

    async def _out_of_range(self, tip: TopicIdPartition, position: int) -> LogGap:
        """Below or above? The error does not say, so ask, and never judge by an older answer."""
        now = asyncio.get_running_loop().time()
        edges = await self._cluster.log_edges(tip, not_older_than=now)
        if position < edges.log_start_offset:
            return LogGap(edges.log_start_offset)
        if position > edges.high_watermark:
            raise LogTruncated(
                f"{tip} ends at offset {edges.high_watermark}, archived up to {position}"
            )
        # Out of range a moment ago, in range now: a new leader, or a log that has just grown.
        raise ClusterUnavailable(f"{tip}: offset {position} was out of range and is no more")


def _checked(tip: TopicIdPartition, fetched: FetchedPartition) -> LogRead:
    records = memoryview(fetched.records)
    stable = fetched.last_stable_offset
    headers: list[BatchHeader] = []
    try:
        for header in walk(records):
            if header.last_offset >= stable:
                break
            if not check_crc(records, header):
                raise CorruptSegment(f"{tip}: batch at offset {header.base_offset} fails its CRC")
            headers.append(header)
    except WireError as error:
        raise CorruptSegment(f"{tip}: the broker's batches are malformed: {error}") from None
    return LogRead(
        records=records,
        headers=tuple(headers),
        aborted=fetched.aborted,
        log_start_offset=fetched.log_start_offset,
        last_stable_offset=stable,
    )
