"""One archiver's view of the shared store and metadata log: slow, failing, wrong or frozen.

Each simulated archiver reaches the one store and the one log through its own doors. Besides the
faults of `faulty_store`, a response may be lost after the request has taken effect. A frozen
process (as after SIGSTOP) neither begins nor ends anything until it is thawed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

from faulty_store import Faults, FaultyObjectStore
from memory_metadata_log import MemoryMetadataLog

from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.errors import StorageUnavailable
from fetchproxy.metadata.metadata_topic import LogChunk
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, ObjectStore, StoredObject


@dataclass(slots=True)
class Weather:
    """`lost_share`: the share of all writes that are done and then reported as failed."""

    faults: Faults
    lost_share: float = 0.0


class Door:
    """One process's connection to the outside: all of it stops when the process is frozen."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.weather = Weather(Faults())
        self.lost_responses = 0
        self._open = asyncio.Event()
        self._open.set()

    @property
    def frozen(self) -> bool:
        return not self._open.is_set()

    def freeze(self) -> None:
        self._open.clear()

    def thaw(self) -> None:
        self._open.set()

    async def passed(self) -> None:
        await self._open.wait()

    async def responded(self, what: str) -> None:
        """After a write has taken effect, decide whether its caller learns of it."""
        await self._open.wait()
        if self.rng.random() < self.weather.lost_share:
            self.lost_responses += 1
            raise StorageUnavailable(f"{what}: done, but the answer is lost")


class ArchiversStore(FaultyObjectStore):
    def __init__(self, inner: ObjectStore, door: Door) -> None:
        super().__init__(inner, door.rng)
        self._door = door

    async def put(self, key: str, content: bytes) -> None:
        await super().put(key, content)
        await self._door.responded(key)

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        await super().put_file(key, path, settled=settled)
        await self._door.responded(key)

    async def delete(self, key: str) -> None:
        await super().delete(key)
        await self._door.responded(key)

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        content = await super().get(key, bytes_max)
        await self._door.passed()
        return content

    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        content = await super().get_range(key, byte_range)
        await self._door.passed()
        return content

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        entries = [entry async for entry in super().list(prefix, start_after)]
        await self._door.passed()
        for entry in entries:
            yield entry

    async def _suffer(self, key: str) -> None:
        await self._door.passed()
        self.faults = self._door.weather.faults
        await super()._suffer(key)
        await self._door.passed()


class ArchiversMetadataLog:
    """The shared metadata log as one archiver reaches it, through its door."""

    def __init__(self, inner: MemoryMetadataLog, door: Door) -> None:
        self._inner = inner
        self._door = door

    async def open(self) -> TopicInfo:
        await self._suffer("open")
        return await self._inner.open()

    async def append(self, partition: int, value: bytes) -> int:
        await self._suffer("append")
        offset = await self._inner.append(partition, value)
        await self._door.responded("append")
        return offset

    async def bounds(self, partition: int) -> tuple[int, int]:
        await self._suffer("bounds")
        bounds = await self._inner.bounds(partition)
        await self._door.passed()
        return bounds

    async def read(self, partition: int, from_offset: int) -> LogChunk:
        await self._suffer("read")
        chunk = await self._inner.read(partition, from_offset)
        await self._door.passed()
        return chunk

    async def _suffer(self, what: str) -> None:
        await self._door.passed()
        faults, rng = self._door.weather.faults, self._door.rng
        if faults.latency_s_max:
            await asyncio.sleep(rng.uniform(faults.latency_s_min, faults.latency_s_max))
        fate = rng.random()
        if fate < faults.hanging_share:
            await asyncio.get_running_loop().create_future()
        if fate < faults.hanging_share + faults.failing_share:
            raise StorageUnavailable(f"metadata log: {what}: as the seed has it")
        await self._door.passed()
