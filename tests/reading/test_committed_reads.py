"""Committed reads of segments with very many aborted transactions: what is listed, what is left for
the next fetch, and what no log can have.
"""

from __future__ import annotations

import asyncio

import pytest
from longest_turns import longest_turn
from read_side import ReadSide, batches, read_side

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn, IsolationLevel
from fetchproxy.reading.purgatory import DelayedRemoteFetch
from fetchproxy.reading.segment_reader import FETCHED_TXNS_MAX
from fetchproxy.runtime.cooperative import in_steps
from fetchproxy.segments.aborted_index import TxnStart, txn_starts
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.side_files import OPEN_TXNS_MAX, encode_aborted

COMMITTED = IsolationLevel.READ_COMMITTED
TURN_CPU_S_MAX = 0.05


def listed(txns: list[tuple[int, int]]) -> bytes:
    """`txns`: first and last offset of each; each has a producer of its own."""
    return encode_aborted(
        AbortedTxn(first, last, number, last + 1) for number, (first, last) in enumerate(txns)
    )


async def starts_of(fetch: DelayedRemoteFetch[int], key: int = 0) -> list[TxnStart]:
    return await in_steps(txn_starts(fetch.results()[key].aborted))


async def responded(side: ReadSide, offset: int) -> DelayedRemoteFetch[int]:
    """As a client asks again until it hears something: records or an error."""
    while True:
        fetch = side.watch(side.request(offset, isolation=COMMITTED), wait_s=0.2)
        await fetch.completed.wait()
        result = fetch.results().get(0)
        if result is not None and (result.records or result.error is not None):
            return fetch


@pytest.mark.parametrize("open_at_once", [OPEN_TXNS_MAX, OPEN_TXNS_MAX + 1, 160_000])
async def test_a_forged_list_holds_the_loop_for_no_time(open_at_once: int) -> None:
    """At the limit all are listed. Above it, the object is damage by its name."""
    async with read_side() as side:
        metadata = await side.segment(batches(side.rng, 0, 4), aborted=[(7, 5, 20)])
        key = side.storage.rsm.object_key(metadata, SegmentFile.TXN)
        await side.store.inner.put(key, listed([(5, 39)] * open_at_once))
        async with longest_turn() as longest:
            for _ in range(3):
                fetch = await responded(side, 10)
                result = fetch.results()[0]
                if open_at_once > OPEN_TXNS_MAX:
                    assert isinstance(result.error, CorruptSegment)
                    assert f"more than {OPEN_TXNS_MAX} transactions" in str(result.error)
                else:
                    assert len(await starts_of(fetch)) == result.txns == open_at_once
        assert longest[0] < TURN_CPU_S_MAX


async def test_what_one_response_cannot_list_is_left_for_the_next_fetch() -> None:
    """Each batch of ten offsets has a third of the most."""
    each = OPEN_TXNS_MAX // 3
    async with read_side() as side:
        metadata = await side.segment(batches(side.rng, 0, 8), aborted=[(7, 5, 20)])
        key = side.storage.rsm.object_key(metadata, SegmentFile.TXN)
        txns = [(10 * (n // each), 10 * (n // each) + 9) for n in range(8 * each)]
        await side.store.inner.put(key, listed(txns))
        offset, lengths = 0, []
        while offset < 80:
            fetch = side.watch(side.request(offset, isolation=COMMITTED), wait_s=60)
            await fetch.completed.wait()
            result = fetch.results()[0]
            covered = range(offset, result.next_offset)
            expected = [(f, n) for n, (f, last) in enumerate(txns) if f in covered]
            assert await starts_of(fetch) == expected
            lengths.append(len(covered))
            offset = result.next_offset
        assert lengths == [30, 10, 30, 10]  # four batches are a chunk


async def test_a_batch_that_names_more_than_can_be_open_is_damage() -> None:
    async with read_side() as side:
        metadata = await side.segment(batches(side.rng, 0, 4), aborted=[(7, 5, 20)])
        key = side.storage.rsm.object_key(metadata, SegmentFile.TXN)
        half = OPEN_TXNS_MAX // 2 + 1
        await side.store.inner.put(key, listed([(11, 12)] * half + [(14, 15)] * half))
        before = side.watch(side.request(0, isolation=COMMITTED), wait_s=60)
        await before.completed.wait()
        assert before.results()[0].next_offset == 10
        error = (await responded(side, 10)).results()[0].error
        assert isinstance(error, CorruptSegment)
        assert str(metadata.segment_id.id) in str(error)
        plain = side.watch(side.request(10), wait_s=60)
        await plain.completed.wait()
        assert plain.results()[0].next_offset == 40


async def test_a_further_partition_waits_for_the_next_fetch() -> None:
    async with read_side() as side:
        metadata = await side.segment(batches(side.rng, 0, 4), aborted=[(7, 5, 20)])
        key = side.storage.rsm.object_key(metadata, SegmentFile.TXN)
        await side.store.inner.put(key, listed([(5, 39)] * FETCHED_TXNS_MAX))
        first = side.watch(side.request(0, isolation=COMMITTED), wait_s=60)
        await first.completed.wait()
        requests = [side.request(offset, 1_000, COMMITTED) for offset in (0, 10, 20)]
        fetch = side.watch(*requests, wait_s=0)
        assert list(fetch.results()) == [0]
        await asyncio.sleep(0)
        assert list(side.watch(*requests[1:], wait_s=0).results()) == [0]
