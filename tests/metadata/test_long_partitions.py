"""A partition of very many segments is read without holding the loop."""

from __future__ import annotations

import asyncio

from longest_turns import longest_turn
from memory_object_store import MemoryObjectStore
from segment_values import TP, segment

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.segments.description import encode_segment
from fetchproxy.storage.remote_storage import RemoteStorage

SEGMENTS = 8_000
TURN_MAX_S = 0.05


def manager(storage: RemoteStorage) -> StoreBackedRemoteLogMetadataManager:
    return StoreBackedRemoteLogMetadataManager(storage, MetadataConfig(), collects=True)


async def read(rlmm: StoreBackedRemoteLogMetadataManager) -> int:
    views = await rlmm.refresh_topic(TP.topic_id, asyncio.get_running_loop().time())
    return len(views[TP.partition].segments)


async def test_a_long_partition_is_read_in_short_turns() -> None:
    """Object by object, and then by another process from their collected metadata."""
    store = MemoryObjectStore()
    storage = RemoteStorage(store, "archive")
    for number in range(SEGMENTS):
        metadata = segment(number + 1, 10 * number, 10 * number + 9)
        key = storage.objects.segment_metadata_key(metadata)
        store._objects[key] = encode_segment(metadata), number
    async with manager(storage) as first, longest_turn() as longest:
        assert await read(first) == SEGMENTS
        assert longest[0] < TURN_MAX_S
        async with asyncio.timeout(60):
            while len(store._objects) == SEGMENTS:  # noqa: ASYNC110 - the store has no events
                await asyncio.sleep(0.01)
    async with manager(storage) as second, longest_turn() as longest:
        assert await read(second) == SEGMENTS
    assert longest[0] < TURN_MAX_S
