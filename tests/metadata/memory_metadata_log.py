"""A metadata topic in memory, for the contract suites and the simulation."""

from __future__ import annotations

import asyncio
from uuid import UUID

from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.metadata.metadata_topic import LogChunk


class MemoryMetadataLog:
    """All its readers and writers share one instance."""

    def __init__(self, partitions: int = 3, values_per_read: int = 2, log_id: int = 77) -> None:
        leaders = dict.fromkeys(range(partitions), (0, 0))
        self._topic = TopicInfo(UUID(int=log_id), "__remote_log_metadata", True, leaders)
        self.logs: list[list[bytes]] = [[] for _ in range(partitions)]
        self.starts = [0] * partitions
        self._values_per_read = values_per_read

    async def open(self) -> TopicInfo:
        await asyncio.sleep(0)
        return self._topic

    async def append(self, partition: int, value: bytes) -> int:
        await asyncio.sleep(0)
        self.logs[partition].append(value)
        offset = len(self.logs[partition]) - 1
        await asyncio.sleep(0)
        return offset

    async def bounds(self, partition: int) -> tuple[int, int]:
        bounds_read = self.starts[partition], len(self.logs[partition])
        await asyncio.sleep(0)
        return bounds_read

    async def read(self, partition: int, from_offset: int) -> LogChunk:
        await asyncio.sleep(0)
        end = min(from_offset + self._values_per_read, len(self.logs[partition]))
        values_read = self.logs[partition][from_offset:end]
        return LogChunk(tuple(enumerate(values_read, from_offset)), max(end, from_offset))
