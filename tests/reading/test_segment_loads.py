"""Which checks run on the event loop, and which in a thread."""

from __future__ import annotations

import asyncio
import threading
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace

import pytest
from fetchproxy_protocol.record_batch import HEADER_BYTES
from generated_archive import make_batch
from read_side import BATCH_BYTES, QUICK, ReadSide, batches, changed, fetched, read_side

from fetchproxy.config.schema import MiB
from fetchproxy.errors import ObjectTooLarge
from fetchproxy.model import IsolationLevel
from fetchproxy.reading import segment_loads
from fetchproxy.reading.segment_loads import CHECK_INLINE_BYTES_MAX
from fetchproxy.reading.segment_reader import NeedAborted
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.stores.object_store import (
    OBJECT_BYTES_MAX,
    ObjectStore,
    WrappedObjectStore,
)


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


# --- long lists of aborted transactions ---
LISTS = 4


class LongLists(WrappedObjectStore):
    """Notes the long lists that are read at once; with `together`, waits for so many."""

    def __init__(self, inner: ObjectStore, together: int = 1) -> None:
        super().__init__(inner)
        self.reading = self.reading_max = 0
        self._together = asyncio.Barrier(together)

    def around(self, verb: str, key: str | None = None) -> AbstractAsyncContextManager[object]:
        return nullcontext(lambda: None)

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        if not key.endswith(".txn") or bytes_max <= segment_loads.INDEX_RESERVED_BYTES:
            return await self.inner.get(key, bytes_max)
        self.reading += 1
        self.reading_max = max(self.reading_max, self.reading)
        try:
            await self._together.wait()
            return await self.inner.get(key, bytes_max)
        finally:
            self.reading -= 1


async def committed_reads(side: ReadSide, lists: LongLists, count: int = 500) -> None:
    """Fetches of segments of which each has a list of 34 bytes for each transaction."""
    for n in range(LISTS):
        aborted = [(producer, 40 * n + 5, 40 * n + 20) for producer in range(count)]
        await side.segment(batches(side.rng, 40 * n, 4), aborted=aborted)
    side.store.inner = lists
    committed = IsolationLevel.READ_COMMITTED
    fetches = [
        side.watch(side.request(40 * n, BATCH_BYTES, committed), wait_s=60) for n in range(LISTS)
    ]
    async with asyncio.timeout(30):
        for fetch in fetches:
            await fetch.completed.wait()
            assert fetch.results()[0].txns == count
    assert (side.purgatory._pool.budget.bytes_taken, lists.reading) == (0, 0)


async def test_long_lists_are_read_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_loads, "INDEX_RESERVED_BYTES", 100)
    async with read_side() as side:
        lists = LongLists(side.store.inner, together=LISTS)
        await committed_reads(side, lists)
        assert lists.reading_max == LISTS


@pytest.mark.parametrize(("share", "at_once"), [(2, 2), (3, 1)])
async def test_their_bytes_are_reserved_or_they_are_read_alone(
    monkeypatch: pytest.MonkeyPatch, share: int, at_once: int
) -> None:
    """Two fifths of all bytes for each list are more than a third, and two of them fit."""
    monkeypatch.setattr(segment_loads, "INDEX_RESERVED_BYTES", 100)
    monkeypatch.setattr(segment_loads, "TXN_RESERVED_SHARE", share)
    async with read_side(changed(inflight_bytes_max=MiB)) as side:
        lists = LongLists(side.store.inner, together=at_once)
        await committed_reads(side, lists, count=6_000)
        assert lists.reading_max == at_once


async def test_a_list_longer_than_all_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_loads, "INDEX_RESERVED_BYTES", 100)
    monkeypatch.setattr(segment_loads, "TXN_BYTES_MAX", 5_000)
    async with read_side() as side:
        aborted = [(producer, 5, 20) for producer in range(500)]
        metadata = await side.segment(batches(side.rng, 0, 4), aborted=aborted)
        committed = side.request(0, isolation=IsolationLevel.READ_COMMITTED)
        fetch = side.watch(committed, wait_s=30)
        need, clock = NeedAborted(metadata), asyncio.get_running_loop().time
        async with asyncio.timeout(20):
            while (damage := side.purgatory._memory.damage(need, clock())) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
        assert isinstance(damage, ObjectTooLarge)
        assert not fetch.results()
