"""A real metadata log behind a door: it counts calls, and a test can hold it or make it fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from memory_metadata_log import MemoryMetadataLog

from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.errors import ConfigError, RemoteStorageError
from fetchproxy.metadata.metadata_topic import LogChunk


def _open_door() -> asyncio.Event:
    door = asyncio.Event()
    door.set()
    return door


@dataclass
class Script:
    """Shared by the logs of all instances. Every read is counted and then waits at `door`."""

    bounds_asked: list[int] = field(default_factory=list)
    values_read: int = 0
    fault: ConfigError | None = None
    error: RemoteStorageError | None = None
    append_error: RemoteStorageError | None = None
    responses_lost: int = 0  # this many appends are done, and then fail
    before_open: Callable[[], Awaitable[None]] | None = None  # called once, at the next open
    before_append: Callable[[], Awaitable[None]] | None = None
    door: asyncio.Event = field(default_factory=_open_door)

    def check(self) -> None:
        if self.error is not None:
            raise self.error


class ScriptedMetadataLog:
    def __init__(self, inner: MemoryMetadataLog, script: Script) -> None:
        self._inner = inner
        self._script = script

    async def open(self) -> TopicInfo:
        before, self._script.before_open = self._script.before_open, None
        if before is not None:
            await before()
        if self._script.fault is not None:
            raise self._script.fault
        self._script.check()
        return await self._inner.open()

    async def append(self, partition: int, value: bytes) -> int:
        script = self._script
        before, script.before_append = script.before_append, None
        if before is not None:
            await before()
        script.check()
        if script.append_error is not None:
            raise script.append_error
        offset = await self._inner.append(partition, value)
        if script.responses_lost > 0:
            script.responses_lost -= 1
            raise RemoteStorageError("the answer was lost")
        return offset

    async def bounds(self, partition: int) -> tuple[int, int]:
        self._script.bounds_asked.append(partition)
        self._script.check()
        # The answer is as of the request, however late it arrives.
        bounds_read = await self._inner.bounds(partition)
        await self._script.door.wait()
        self._script.check()
        return bounds_read

    async def read(self, partition: int, from_offset: int) -> LogChunk:
        self._script.check()
        chunk = await self._inner.read(partition, from_offset)
        self._script.values_read += len(chunk.values)
        return chunk
