"""Which checks run on the event loop, and which in a thread."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from fetchproxy_protocol.record_batch import HEADER_BYTES
from generated_archive import make_batch
from read_side import QUICK, changed, fetched, read_side

from fetchproxy.reading import segment_loads
from fetchproxy.reading.segment_loads import CHECK_INLINE_BYTES_MAX
from fetchproxy.segments.object_keys import SegmentFile


@pytest.mark.parametrize(("over", "beside"), [(0, False), (1, True)])
async def test_a_batch_too_long_for_one_step_is_checked_in_a_thread(
    over: int, beside: bool
) -> None:
    async with read_side(changed(chunk_cache_bytes_max=2 * CHECK_INLINE_BYTES_MAX)) as side:
        noise = bytes(CHECK_INLINE_BYTES_MAX + over - HEADER_BYTES)
        large = make_batch(0, 10, noise)
        assert len(large.content) == CHECK_INLINE_BYTES_MAX + over
        await side.segment([large])
        fetch = await fetched(side, 3, wait_s=30)
        assert fetch.results()[0].records[0] == large.content
        threads = {thread.name.rpartition("_")[0] for thread in threading.enumerate()}
        assert ("asyncio" in threads) is beside


async def test_damage_in_a_batch_checked_in_a_thread_is_found() -> None:
    async with read_side() as side:
        large = make_batch(0, 10, bytes(CHECK_INLINE_BYTES_MAX))
        metadata = await side.segment([large])
        damaged = large.content[:-1] + b"!"
        await side.store.inner.put(side.log_key(metadata), damaged)
        fetch = await fetched(side, 3, wait_s=5)
        assert side.log_reads() == 2
        assert not fetch.results() or fetch.results()[0].size_bytes == 0


@pytest.mark.parametrize(("noise_bytes", "reads"), [(70_000, 1), (10, 2)])
async def test_an_index_as_long_as_its_segment_explains_is_read_once(
    monkeypatch: pytest.MonkeyPatch, noise_bytes: int, reads: int
) -> None:
    """Another one is read a second time, alone."""
    monkeypatch.setattr(segment_loads, "INDEX_RESERVED_BYTES", 100)
    async with read_side(limits=replace(QUICK, chunk_bytes=200)) as side:
        noise = bytes(noise_bytes)
        metadata = await side.segment([make_batch(10 * n, 10, noise) for n in range(6)])
        assert (await fetched(side, 3, wait_s=30)).results()[0].records
        index_key = side.storage.rsm.object_key(metadata, SegmentFile.INDEX)
        assert [key for key, _ in side.store.reads].count(index_key) == reads
