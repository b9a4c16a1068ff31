"""ListOffsets by timestamp, against a scan of all records."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from random import Random

import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from faulty_store import HANG, OUTAGE
from fetchproxy_protocol.record_batch import SEARCHED_BYTES_MAX
from generated_archive import Batch
from read_side import QUICK, ReadSide, now, read_side
from virtual_loop import run_virtual

from fetchproxy.errors import (
    CorruptSegment,
    RemoteStorageError,
    StorageThrottled,
    StorageUnavailable,
)
from fetchproxy.model import RemoteLogSegmentState
from fetchproxy.observability.metrics import TIMESTAMP_SEARCHES, TIMESTAMP_SEARCHES_WAITING


def batch(
    base: int, stamps: list[int], codec: int, epoch: int = 0, value: bytes = bytes(300)
) -> Batch:
    made = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 24,
    )
    for delta, stamp in enumerate(stamps):
        made.append(delta, stamp, b"k", value, [])
    raw = bytearray(made.build())
    struct.pack_into(">q", raw, 0, base)
    struct.pack_into(">i", raw, 12, epoch)
    return Batch(base, base + len(stamps) - 1, bytes(raw), max(stamps))


@pytest.mark.parametrize("seed", range(5))
def test_finds_what_a_scan_finds(seed: int) -> None:
    async def main() -> None:
        rng = Random(seed)
        records: list[tuple[int, int]] = []
        async with read_side() as side:
            offset = 0
            for _ in range(3):
                stored = []
                for _ in range(rng.randint(1, 9)):
                    count = rng.randint(1, 5)
                    stamps = [1_000 + offset + rng.randint(0, 30) for _ in range(count)]
                    records += [(offset + d, s) for d, s in enumerate(stamps)]
                    stored.append(batch(offset, stamps, rng.choice([0, 1])))
                    offset += count
                await side.segment(stored)
            for start in (0, *sorted(rng.sample(range(1, offset), 3))):
                await side.rlmm.raise_log_start_offset(side.tp, start)
                records_left = [(o, s) for o, s in records if o >= start]
                at_hand = 0
                for timestamp in [0, 5_000, *range(990, 1_040 + offset)]:
                    expected = next(((o, s, 0) for o, s in records_left if s >= timestamp), None)
                    first_offset = await side.purgatory.first_offset_at_or_after(side.tp, timestamp)
                    assert first_offset == expected
                    view = side.rlmm.view(side.tp)
                    assert view is not None
                    shorter = side.purgatory.first_offset_in_memory(view, timestamp)
                    assert shorter in (expected, None)
                    at_hand += shorter is not None
                assert at_hand > 10

    run_virtual(main)


def test_nothing_is_at_hand_before_it_was_read() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment([batch(0, [100], 0)])
            view = await side.rlmm.refresh(side.tp, now())
            assert side.purgatory.first_offset_in_memory(view, 50) is None
            assert await side.purgatory.first_offset_at_or_after(side.tp, 50) == (0, 100, 0)
            assert side.purgatory.first_offset_in_memory(view, 50) == (0, 100, 0)
            assert side.purgatory.first_offset_in_memory(view, 101) is None

    run_virtual(main)


def test_what_was_found_is_at_hand_after_other_reads_have_taken_its_place() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment([batch(0, [100], 0)])
            large, many = 50, 80  # records of 300 bytes, more than the cache holds
            for n in range(many):
                await side.segment([batch(1 + large * n, [1_000 + n] * large, 0)])
            assert await side.purgatory.first_offset_at_or_after(side.tp, 50) == (0, 100, 0)
            for n in range(many):
                first_offset = await side.purgatory.first_offset_at_or_after(side.tp, 1_000 + n)
                assert first_offset == (1 + large * n, 1_000 + n, 0)
            view = side.rlmm.view(side.tp)
            assert view is not None
            assert side.purgatory.first_offset_in_memory(view, 49) is None, "its chunk is gone"
            assert side.purgatory.first_offset_in_memory(view, 50) == (0, 100, 0)
            await side.rlmm.raise_log_start_offset(side.tp, 1)
            view = await side.rlmm.refresh(side.tp, now())
            assert side.purgatory.first_offset_in_memory(view, 50) != (0, 100, 0)

    run_virtual(main)


def test_a_deleted_segment_is_passed_over_a_lost_one_is_damage() -> None:
    async def main() -> None:
        async with read_side() as side:
            first = await side.segment([batch(0, [100], 0)])
            await side.segment([batch(1, [200], 0)])
            await side.storage.rsm.delete_log_segment_data(first)
            await asyncio.sleep(1)
            assert await side.purgatory.first_offset_at_or_after(side.tp, 50) == (1, 200, 0)
            assert first.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            third = await side.segment([batch(2, [300], 0)])
            await side.store.inner.delete(side.log_key(third))
            await asyncio.sleep(1)
            with pytest.raises(CorruptSegment):
                await side.purgatory.first_offset_at_or_after(side.tp, 300)

    run_virtual(main)


def test_an_outage_is_raised_in_the_end_and_a_hang_obeys_the_callers_time_out() -> None:
    async def main() -> None:
        async with read_side(limits=replace(QUICK, unasked_read_max_ms=5_000)) as side:
            await side.segment([batch(0, [100], 0)])
            side.store.faults = HANG
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(2):
                    await side.purgatory.first_offset_at_or_after(side.tp, 50)
            await asyncio.sleep(100)
            side.store.faults = OUTAGE
            began = now()
            with pytest.raises((StorageUnavailable, StorageThrottled)):
                await side.purgatory.first_offset_at_or_after(side.tp, 50)
            assert 5 <= now() - began < 7
        with pytest.raises(StorageUnavailable, match="closed"):
            await side.purgatory.first_offset_at_or_after(side.tp, 50)

    run_virtual(main)


def test_a_bug_in_a_read_is_an_error_that_servers_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """ListOffsets answers for it as in an outage; another error would end the session."""

    async def main() -> None:
        async with read_side(limits=replace(QUICK, unasked_read_max_ms=1_000)) as side:
            await side.segment([batch(0, [100], 0)])

            async def crash(*_: object, **__: object) -> None:
                raise ZeroDivisionError("bug")

            monkeypatch.setattr(side.store, "get_range", crash)
            with pytest.raises(RemoteStorageError, match="ZeroDivisionError: bug"):
                await side.purgatory.first_offset_at_or_after(side.tp, 50)

    run_virtual(main)


def test_an_unknown_partition_has_nothing() -> None:
    async def main() -> None:
        async with read_side() as side:
            assert await side.purgatory.first_offset_at_or_after(side.tp, 0) is None

    run_virtual(main)


async def test_a_batch_that_unpacks_to_far_more_does_not_hold_the_loop() -> None:
    """A thread unpacks it up to a bound; beyond that, the response is an earlier, safe offset."""
    made = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=1,
        is_transactional=False,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 30,
    )
    for delta, stamp in enumerate([1_000, 1_000, 2_000]):
        made.append(delta, stamp, b"k", bytes(SEARCHED_BYTES_MAX if delta else 1), [])
    raw = bytes(made.build())
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    async with read_side() as side:
        await side.segment([Batch(0, 2, raw, 2_000)])
        assert await side.purgatory.first_offset_at_or_after(side.tp, 900) == (0, 1_000, -1)
        turning = asyncio.create_task(turn())
        try:
            first_offset = await side.purgatory.first_offset_at_or_after(side.tp, 1_500)
        finally:
            turning.cancel()
        assert first_offset == (1, 2_000, -1)
        assert turns > 3


# --- searches that take long: one at a time, clients in turn ---
LONG_RECORDS = 5_000


class LongSearches:
    """Look-ups that are under way, in a batch whose last record alone is late."""

    def __init__(self, side: ReadSide) -> None:
        self._side = side
        self.ended: list[object] = []
        self.tasks: list[asyncio.Task[None]] = []
        self._searched_before = _searches()

    @property
    def begun(self) -> int:
        return _searches() - self._searched_before

    def ask(self, timestamp_ms: int, client: object) -> asyncio.Task[None]:
        async def look_up() -> None:
            lookup = self._side.purgatory.first_offset_at_or_after
            first_offset = await lookup(self._side.tp, timestamp_ms, client)
            assert first_offset == (LONG_RECORDS - 1, 9_000, 0)
            self.ended.append(client)

        self.tasks.append(asyncio.create_task(look_up()))
        return self.tasks[-1]

    async def wait_for_begun(self, count: int) -> None:
        while self.begun < count:  # noqa: ASYNC110
            await asyncio.sleep(0)


def _searches() -> int:
    return round(TIMESTAMP_SEARCHES._value.get())


def _waiting() -> int:
    return round(TIMESTAMP_SEARCHES_WAITING.collect()[0].samples[0].value)


@asynccontextmanager
async def long_searches() -> AsyncIterator[LongSearches]:
    """The first record is deleted, and has the latest time: so no table of the batch helps."""
    async with read_side() as side:
        stamps = [9_000] + [1_000] * (LONG_RECORDS - 2) + [9_000]
        await side.segment([batch(0, stamps, 1, value=b"v")])
        await side.rlmm.raise_log_start_offset(side.tp, 1)
        yield LongSearches(side)


async def test_a_batch_that_is_searched_again_and_again_is_unpacked_twice() -> None:
    async with read_side() as side:
        stamps = [1_000 + n // 2 for n in range(LONG_RECORDS)]
        await side.segment([batch(0, stamps, 1, value=b"v")])
        searches_before = _searches()
        for timestamp in range(1_001, 1_000 + LONG_RECORDS // 2, LONG_RECORDS // 40):
            first_offset = await side.purgatory.first_offset_at_or_after(side.tp, timestamp)
            assert first_offset == (2 * (timestamp - 1_000), timestamp, 0)
        assert _searches() - searches_before == 2


async def test_a_client_with_one_search_waits_for_one_of_another_with_many() -> None:
    async with long_searches() as searches:
        for n in range(30):
            searches.ask(2_000 + n, "many")
        await searches.wait_for_begun(3)
        await searches.ask(5_000, "one")
        assert searches.ended.index("one") <= 4
        await asyncio.wait(searches.tasks)
        assert (searches.begun, _waiting()) == (31, 0)


async def test_a_search_whose_asker_has_gone_is_dropped() -> None:
    async with long_searches() as searches:
        many = [searches.ask(2_000 + n, "many") for n in range(30)]
        await searches.wait_for_begun(2)
        for task in many:
            task.cancel()
        await asyncio.wait(many)
        assert _waiting() == 0
        begun = searches.begun
        await searches.ask(5_000, "one")
        assert searches.begun == begun + 1
        assert searches.ended[-1] == "one"


async def test_what_many_clients_ask_for_at_once_is_searched_once() -> None:
    async with long_searches() as searches:
        await asyncio.gather(*(searches.ask(2_000, n) for n in range(30)))
        assert searches.begun == 1


async def test_a_chunk_that_the_cache_drops_while_its_search_waits_is_read_again() -> None:
    async with long_searches() as searches:
        many = [searches.ask(2_000 + n, "many") for n in range(3)]
        await searches.wait_for_begun(1)
        chunks = searches._side.purgatory._memory.chunks
        chunks.clear()
        await asyncio.gather(*many)
        assert searches.begun == 3
