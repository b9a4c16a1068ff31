"""Work in a thread cannot be cancelled: who is cancelled waits for it, as its memory counts."""

from __future__ import annotations

import asyncio
import threading

import pytest
from generated_archive import make_batch
from read_side import changed, read_side
from reads_under_way import under_way

from fetchproxy.reading import segment_loads
from fetchproxy.reading.segment_loads import CHECK_INLINE_BYTES_MAX
from fetchproxy.runtime.cooperative import at_once
from fetchproxy.runtime.waits import in_thread


@pytest.mark.parametrize("fails", [False, True])
async def test_who_is_cancelled_waits_for_its_thread(fails: bool) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        goes_on.wait()
        if fails:
            raise ValueError("nobody asks for it")

    waiting = asyncio.create_task(in_thread(work))
    await asyncio.to_thread(begun.wait)
    waiting.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    goes_on.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_what_work_returns_and_raises() -> None:
    assert await in_thread(lambda: 5) == 5
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 / 0)


async def test_a_read_that_ends_in_a_thread_keeps_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, goes_on = threading.Event(), threading.Event()

    def checked(steps: object) -> object:
        begun.set()
        goes_on.wait()
        return at_once(steps)  # type: ignore[arg-type]

    monkeypatch.setattr(segment_loads, "at_once", checked)
    async with read_side(changed(chunk_cache_bytes_max=2 * CHECK_INLINE_BYTES_MAX)) as side:
        await side.segment([make_batch(0, 10, bytes(CHECK_INLINE_BYTES_MAX))])
        fetch = side.watch(side.request(0), wait_s=60)
        await asyncio.to_thread(begun.wait)
        fetch.cancel(client_gone=True)
        for _ in range(5):
            await asyncio.sleep(0)
        assert (under_way(side.purgatory).loads, under_way(side.purgatory).store_reads) == (0, 1)
        goes_on.set()
        async with asyncio.timeout(20):
            while under_way(side.purgatory).store_reads:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
