"""A running node finds an index damaged: `verify --repair` makes it again, and it is read."""

from __future__ import annotations

import asyncio

import pytest
from planted_archive import PlantedArchive, batch
from served_archive import serve_archive
from test_archive_only_mirror import STORAGE_ERROR, read
from test_repair import repair

from fetchproxy.observability.health import Kind
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.segments.object_keys import SegmentFile


@pytest.mark.remedy("segment_damaged")
@pytest.mark.parametrize("lost", [True, False])
async def test_a_damaged_index_is_made_again(lost: bool) -> None:
    planted = PlantedArchive()
    await planted.add([batch(0), batch(10)])
    key = planted.key(planted.segments[0], SegmentFile.INDEX)
    sound = await planted.store.get(key)
    if lost:
        await planted.store.delete(key)
    else:
        await planted.store.put(key, sound[:-1])
    clock = asyncio.get_running_loop().time
    # The segment has two chunks: one of a single chunk needs no index.
    chunk_bytes = planted.segments[0].segment_size_bytes - 1
    reading = ReadingLimits(corrupt_retry_ms=3_000, chunk_bytes=chunk_bytes)
    async with serve_archive(planted, reading=reading) as served:
        client = await served.client()
        while await read(client, 0) != (STORAGE_ERROR, b""):  # it is read twice before
            pass
        health = planted.storage.health
        assert [one.kind for one in health.conditions(clock())] == [Kind.SEGMENT_DAMAGED]
        await repair(planted)
        assert await planted.store.get(key) == sound
        while not (await read(client, 0))[1]:  # the node looks again after `corrupt_retry_ms`
            pass
        assert not list(health.conditions(clock()))
