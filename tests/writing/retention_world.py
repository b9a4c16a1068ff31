"""An archive in memory on a virtual clock, and expirer processes over it. Not a test."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from failing_store import FailingStore
from memory_metadata_log import MemoryMetadataLog
from planted_archive import TP, PlantedArchive, batch
from virtual_loop import run_virtual

from fetchproxy.config.schema import ArchiveConfig, MetadataConfig
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicBasedRemoteLogMetadataManager, metadata_partition
from fetchproxy.model import RemoteLogSegmentMetadata, RemoteLogSegmentState
from fetchproxy.segments.records import encode_message
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import ObjectStore
from fetchproxy.writing.deletion.expirer import Expirer
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.published_conditions import PublishedConditions
from lab.limited import section_and_limits

State = RemoteLogSegmentState

HOUR_MS = 3_600_000
START_MS = 1_700_000_000_000  # wall clock at loop time 0
QUICK: dict[str, Any] = {
    "retention_clock_settle_ms": 0,
    "retention_check_interval_ms": 10_000,
    "retention_grace_ms": 60_000,
    "retention_step_grace_ms": 0,
    "copy_max_ms": 30_000,
    "orphan_check_interval_ms": 100_000_000,
}


class SlowMetadataLog(MemoryMetadataLog):
    """As a real log, it takes a moment: reads before and after a write differ in time."""

    async def append(self, partition: int, value: bytes) -> int:
        await asyncio.sleep(0.001)
        return await super().append(partition, value)


@dataclass
class World:
    """An archive and its processes: each `start` is a new process."""

    manager: str = "store"  # or "topic": the place of the metadata
    store: FailingStore = field(default_factory=FailingStore)
    log: MemoryMetadataLog = field(default_factory=SlowMetadataLog)
    skew_ms: int = 0  # offset of the wall clock
    topic_config: Mapping[str, str] | None = None

    def __post_init__(self) -> None:
        self.planted = PlantedArchive(self.store, recorded=False)
        self.published_conditions = PublishedConditions()  # those of the last process

    def wall_clock_ms(self) -> int:
        return START_MS + self.skew_ms + round(1000 * asyncio.get_running_loop().time())

    async def plant(self, count: int, age_ms: int = 0, step_ms: int = HOUR_MS) -> None:
        """Plant segments of ten offsets: the newest is `age_ms` old, each other `step_ms` older."""
        for number in range(count):
            at_ms = self.wall_clock_ms() - age_ms - (count - 1 - number) * step_ms
            await self.add(10 * number, timestamp=at_ms - 9)

    async def plant_after(self, first: int, count: int) -> None:
        """Plant `count` segments that are two days old, from the segment number `first` on."""
        for number in range(first, first + count):
            await self.add(10 * number, timestamp=self.wall_clock_ms() - 48 * HOUR_MS)

    async def add(
        self, base: int, timestamp: int | None = None, **changes: Any
    ) -> RemoteLogSegmentMetadata:
        """Add one segment; `changes`: changes to its metadata."""
        added = await self.planted.add([batch(base, timestamp=timestamp)])
        metadata = replace(added, **changes)
        await self.planted.restate(metadata)
        number = metadata_partition(TP, len(self.log.logs))
        begun = replace(metadata, state=State.COPY_SEGMENT_STARTED)
        for event in (begun, metadata):
            await self.log.append(number, encode_message(event))
        return metadata

    async def start(
        self,
        opened: AsyncExitStack,
        store: ObjectStore | None = None,
        **changes: Any,
    ) -> tuple[Expirer, RemoteLogMetadataManager]:
        storage = RemoteStorage(store or self.store, "archive")
        self.published_conditions = PublishedConditions(storage.objects)
        config = MetadataConfig()
        rlmm: RemoteLogMetadataManager
        if self.manager == "store":
            rlmm = await opened.enter_async_context(
                StoreBackedRemoteLogMetadataManager(storage, config)
            )
        else:
            rlmm = await opened.enter_async_context(
                TopicBasedRemoteLogMetadataManager(self.log, storage, config, self.wall_clock_ms)
            )
        archive, limits = section_and_limits(ArchiveConfig, WritingLimits, **{**QUICK, **changes})
        expirer = Expirer(
            archive,
            storage.rsm,
            storage.objects,
            rlmm,
            topic_config=lambda _: self.topic_config,
            wall_clock_ms=self.wall_clock_ms,
            published_conditions=self.published_conditions,
            limits=limits,
        )
        return expirer, rlmm

    def headlines(self) -> list[str]:
        """The conditions that the last process reports."""
        return [str(condition) for condition in self.published_conditions.health.conditions(0.0)]

    def bases(self) -> list[int]:
        """Base offsets of the segments with at least one object left."""
        names = (key.rpartition("/")[2] for key in self.store.objects())
        return sorted({int(name[:20]) for name in names if name[20:21] == "-"})

    def log_starts(self) -> list[int]:
        names = (key.rpartition("/")[2] for key in self.store.objects())
        return sorted(int(name[:20]) for name in names if name.endswith(".log-start-offset"))


def virtually(
    test: Callable[[World, AsyncExitStack], Awaitable[None]], manager: str = "store"
) -> None:
    async def main() -> None:
        async with AsyncExitStack() as opened:
            await test(World(manager), opened)

    run_virtual(main)


async def turns(expirer: Expirer, seconds: int, step_s: int = 1) -> None:
    for _ in range(0, seconds, step_s):
        await expirer.expire(TP)
        await asyncio.sleep(step_s)
