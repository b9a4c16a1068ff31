"""A whole archiver in the test's loop, and an independent reader of its archive. Not a test.

The reader shares only the batch walk with the proxy's own read path.
"""

from __future__ import annotations

import asyncio
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fetchproxy_protocol.record_batch import check_crc, walk

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ArchiveConfig, ClusterConfig, MetadataConfig
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    AbortedTxn,
    ByteRange,
    IsolationLevel,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.segments.side_files import decode_aborted, decode_epochs
from fetchproxy.storage.packed_logs import NO_ENCRYPTION, AtRest
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.storage.stores.object_store import ObjectStore
from fetchproxy.writing.index_refresh import open_local_indexes
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.remote_log_manager import RemoteLogManager, open_log_dirs
from fetchproxy.writing.status import PartitionArchiveStatus
from lab.limited import section_and_limits

# Short intervals, so that a test waits for work and never for a timer.
QUICK: dict[str, Any] = {
    "segment_age_max_ms": 200,
    "rlm_process_interval_ms": 20,
    "rlm_retry_interval_ms": 50,
    "discovery_interval_ms": 200,
    "retention_clock_settle_ms": 0,
    "retention_grace_ms": 0,
}


def wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass
class Archive:
    """The store side: the archiver writes to it and the checks read from it."""

    storage: RemoteStorage
    rlmm: StoreBackedRemoteLogMetadataManager

    async def view(self, tp: TopicIdPartition) -> PartitionView:
        return await self.rlmm.refresh(tp, asyncio.get_running_loop().time())

    async def object(self, segment: RemoteLogSegmentMetadata, file: SegmentFile) -> bytes:
        if file is SegmentFile.LOG and segment.packed:
            whole = ByteRange(0, segment.segment_size_bytes)
            return bytes(await self.storage.rsm.fetch_log_segment(segment, whole))
        if file is SegmentFile.LOG:
            path = self.storage.rsm.object_key(segment, file)
            return await self.storage.store.get(path)
        return await self.storage.rsm.fetch_index(segment, file)

    async def batches(self, tp: TopicIdPartition) -> bytes:
        """The bytes of all finished segments, each checked against its metadata and its index."""
        whole = b""
        for segment in (await self.view(tp)).segments:
            log = await self.object(segment, SegmentFile.LOG)
            assert len(log) == segment.segment_size_bytes
            headers = list(walk(log))
            assert headers[-1].end == len(log)
            assert headers[-1].last_offset == segment.end_offset
            assert all(check_crc(log, header) for header in headers)
            assert segment.max_timestamp_ms == max(h.max_timestamp for h in headers)
            index = RemoteLogIndex.parse(await self.object(segment, SegmentFile.INDEX))
            assert index.object_key == self.storage.rsm.object_key(segment, SegmentFile.LOG)
            index.check_covers(segment.end_offset, len(log))
            epochs = decode_epochs(await self.object(segment, SegmentFile.EPOCHS))
            # Messages of the formats v0 and v1 had no epoch.
            last_epoch = epochs[-1].epoch if epochs else -1
            assert last_epoch == headers[-1].partition_leader_epoch
            whole += log
        return whole

    async def aborted(self, segment: RemoteLogSegmentMetadata) -> tuple[AbortedTxn, ...]:
        return decode_aborted(await self.object(segment, SegmentFile.TXN))


@asynccontextmanager
async def open_archive(
    store: Path | ObjectStore, at_rest: AtRest = NO_ENCRYPTION
) -> AsyncIterator[Archive]:
    if isinstance(store, Path):
        store = FilesystemObjectStore(store, create=True)
    async with (
        RemoteStorage(store, at_rest=at_rest) as storage,
        StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
    ):
        yield Archive(storage, rlmm)


@asynccontextmanager
async def running_archiver(
    bootstrap: str, archive: Archive, topics: str, **changes: Any
) -> AsyncIterator[tuple[RemoteLogManager, Cluster]]:
    config, limits = section_and_limits(
        ArchiveConfig, WritingLimits, topics=topics, **{**QUICK, **changes}
    )
    # Patient with a busy machine; a test that kills its broker waits this long for an error.
    brokers = ClusterConfig(bootstrap=bootstrap, request_max_ms=12_000)
    async with (
        Cluster(brokers, continued=archive.storage.objects.continued) as cluster,
        open_local_indexes(config, archive.storage.rsm, limits) as local_indexes,
        asyncio.TaskGroup() as tasks,
    ):
        manager = RemoteLogManager(
            config,
            cluster,
            archive.storage,
            archive.rlmm,
            wall_clock_ms=wall_clock_ms,
            uuid_factory=uuid.uuid4,
            rng=random.Random(1),
            local_indexes=local_indexes,
            limits=limits,
            log_dirs=open_log_dirs(config),
        )
        running = tasks.create_task(manager.run())
        try:
            yield manager, cluster
        finally:
            running.cancel()


async def until(
    manager: RemoteLogManager, condition: Callable[[list[PartitionArchiveStatus]], bool]
) -> None:
    await until_true(lambda: condition(manager.status()))


async def until_true(condition: Callable[[], bool]) -> None:
    """The time limit is generous: it ends a hung test and measures nothing."""
    async with asyncio.timeout(300):
        while not condition():  # noqa: ASYNC110 - what is waited for knows no events
            await asyncio.sleep(0.02)


def archived_up_to(
    topic: str, ends: dict[int, int]
) -> Callable[[list[PartitionArchiveStatus]], bool]:
    def check(statuses: list[PartitionArchiveStatus]) -> bool:
        ends_by_partition = {s.tp.partition: s.archive_end for s in statuses if s.tp.topic == topic}
        return all(
            ends_by_partition.get(partition) == end for partition, end in ends.items() if end
        )

    return check


async def broker_batches(
    cluster: Cluster, tp: TopicIdPartition, start: int, end: int, bytes_max: int = 1 << 20
) -> bytes:
    """Raw batches as the broker serves them, from `start` to the batch that ends at `end` - 1."""
    whole, position = b"", start
    while position < end:
        fetched = await cluster.fetch(
            tp,
            position,
            bytes_max=bytes_max,
            wait_max_ms=100,
            isolation=IsolationLevel.READ_UNCOMMITTED,
        )
        assert fetched.error_code == 0
        for header in walk(fetched.records):
            if header.base_offset >= end:
                break
            whole += bytes(fetched.records[header.position : header.end])
            position = header.last_offset + 1
    return whole


async def tps(cluster: Cluster, topic: str) -> list[TopicIdPartition]:
    info = await cluster.topic_by_name(topic, max_age_ms=0)
    return [TopicIdPartition(info.topic_id, topic, p) for p in sorted(info.leaders)]
