"""A segment of one chunk is read without its index, unless the log differs from its metadata."""

from __future__ import annotations

import asyncio

from generated_archive import Batch
from read_side import BATCH_BYTES, ReadSide, batches, fetched, read_side
from test_timestamp_lookup import batch
from virtual_loop import run_virtual

from fetchproxy.errors import CorruptSegment
from fetchproxy.segments.object_keys import SegmentFile


def files_read(side: ReadSide) -> list[str]:
    return [
        key.rpartition(".")[2] for key, _ in side.store.reads if key.endswith((".log", ".index"))
    ]


def content(stored: list[Batch]) -> bytes:
    return b"".join(one.content for one in stored)


async def bytes_from(side: ReadSide, offset: int) -> bytes:
    result = (await fetched(side, offset, wait_s=5)).results()[0]
    assert result.error is None
    return b"".join(result.records)


def test_a_look_up_and_a_fetch_take_one_read() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = [batch(0, [100, 110], 0), batch(2, [120], 0)]
            await side.segment(stored)
            assert await side.purgatory.first_offset_at_or_after(side.tp, 105) == (1, 110, 0)
            assert await bytes_from(side, 2) == stored[1].content
            assert files_read(side) == ["log"]

    run_virtual(main)


def test_a_segment_that_fills_its_chunk_needs_no_index_a_longer_one_does() -> None:
    async def main() -> None:
        for count, expected in ((4, ["log"]), (5, ["index", "log"])):
            async with read_side() as side:
                stored = batches(side.rng, 0, count)
                await side.segment(stored)
                side.purgatory._memory.chunk_bytes = 4 * BATCH_BYTES
                assert await bytes_from(side, 0) == content(stored[:4])
                assert files_read(side) == expected

    run_virtual(main)


def test_where_the_log_begins_elsewhere_the_index_says_so_once() -> None:
    async def main() -> None:
        for start_offset in (3, 12):  # in a hole, and inside the first batch
            async with read_side() as side:
                stored = batches(side.rng, 10, 3)
                await side.segment(stored, start_offset=start_offset)
                assert await bytes_from(side, 12) == content(stored)
                assert files_read(side) == ["log", "index"]
                side.purgatory._memory.chunks.clear()
                assert await bytes_from(side, 12) == content(stored)
                assert files_read(side) == ["log", "index", "log"]

    run_virtual(main)


def test_a_lost_index_is_not_missed() -> None:
    async def main() -> None:
        async with read_side() as side:
            stored = batches(side.rng, 0, 3)
            metadata = await side.segment(stored)
            key = side.storage.rsm.object_key(metadata, SegmentFile.INDEX)
            await side.store.inner.delete(key)
            assert await bytes_from(side, 0) == content(stored)

    run_virtual(main)


def test_damage_is_damage_still() -> None:
    async def main() -> None:
        async with read_side() as side:
            first, second = batches(side.rng, 0, 2)
            changed_base = bytes([0, 0, 0, 0, 0, 0, 0, 5]) + first.content[8:]
            changed_byte = first.content[:-1] + bytes([first.content[-1] ^ 1])
            for log in (changed_base, changed_byte, first.content[:-1], b""):
                metadata = await side.segment([first, second])
                if log is not changed_byte:
                    log = log + second.content
                await side.store.inner.put(side.log_key(metadata), log)
                await asyncio.sleep(1)
                fetch = await fetched(side, 0, wait_s=5)
                assert isinstance(fetch.results()[0].error, CorruptSegment)
                await side.storage.rsm.delete_log_segment_data(metadata)
                await asyncio.sleep(1)

    run_virtual(main)
