from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from memory_object_store import MemoryObjectStore

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import ObjectNotFound
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.storage.archive_identity import ArchiveIdentity
from fetchproxy.storage.archive_objects import LISTED_AT_ONCE
from fetchproxy.storage.remote_storage import RemoteStorage, open_store


def sample(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def segment_metadata(tp: TopicIdPartition, segment: UUID, start: int) -> RemoteLogSegmentMetadata:
    return RemoteLogSegmentMetadata(
        segment_id=RemoteLogSegmentId(tp, segment),
        start_offset=start,
        end_offset=start,
        max_timestamp_ms=0,
        event_timestamp_ms=0,
        segment_leader_epochs=(EpochStart(0, start),),
        segment_size_bytes=1,
        state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        has_aborted_txns=False,
    )


async def test_operations_are_timed_and_failures_counted() -> None:
    count = "fetchproxy_store_request_seconds_count"
    errors = "fetchproxy_store_request_errors_total"
    count_before = sample(count, operation="get_segment_metadata")
    failed = sample(errors, operation="get_segment_metadata", error="ObjectNotFound")
    async with RemoteStorage(MemoryObjectStore()) as storage:
        with pytest.raises(ObjectNotFound):
            await storage.objects.get_segment_metadata("absent")
    assert sample(count, operation="get_segment_metadata") == count_before + 1
    assert sample(errors, operation="get_segment_metadata", error="ObjectNotFound") == failed + 1


async def test_what_succeeds_is_no_error(tmp_path: Path) -> None:
    count = "fetchproxy_store_request_seconds_count"
    count_before = sample(count, operation="list_partitions")
    async with open_store(tmp_path.as_uri(), StoreConfig(), create=True) as storage:
        await storage.identity.state(ArchiveIdentity())
        assert await storage.objects.list_partitions() == []
    assert sample(count, operation="list_partitions") == count_before + 1


async def test_a_long_listing_leaves_the_event_loop_to_others() -> None:
    rng = Random(1)
    tp = TopicIdPartition(UUID(int=1), "t", 0)
    segments = 4 * LISTED_AT_ONCE
    async with RemoteStorage(MemoryObjectStore()) as storage:
        for number in range(segments):
            metadata = segment_metadata(tp, UUID(int=rng.getrandbits(128)), number)
            await storage.objects.put_segment_metadata(metadata, b"{}")
        turns = turns_taken = 0

        async def others() -> None:
            nonlocal turns
            while turns_taken < segments:
                await asyncio.sleep(0)
                turns += 1

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(others())
            await asyncio.sleep(0)
            most, last = 0, 0
            at = turns
            async for _ in storage.objects.list_partition(tp):
                turns_taken += 1
                if turns != at:
                    most, last, at = max(most, turns_taken - last), turns_taken, turns
        assert 0 < most <= LISTED_AT_ONCE + 1
