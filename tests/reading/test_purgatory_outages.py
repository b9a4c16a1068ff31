"""A slow, failing or hanging store: which fetches get an error and when, and which work goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from faulty_store import HANG, NO_FAULTS, OUTAGE, Faults
from read_side import (
    QUICK,
    SLOW,
    ReadSide,
    at_rest,
    batches,
    changed,
    fetched,
    now,
    read_side,
)
from reads_under_way import under_way
from virtual_loop import run_virtual

from fetchproxy.errors import StorageUnavailable
from fetchproxy.reading.segment_reader import CompletionReason
from fetchproxy.storage.store_health import OperationStatus, StoreOperation


def reads_of(side: ReadSide) -> OperationStatus:
    return side.storage.health[StoreOperation.READ].status(now())


def test_an_outage_is_never_out_of_range() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = OUTAGE
            await asyncio.sleep(1)
            fetch = await fetched(side, 999)
            assert (fetch.reason, fetch.results()) == (CompletionReason.DEADLINE, {})

    run_virtual(main)


def test_the_reply_is_time_boxed_the_work_is_not() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = SLOW
            began = now()
            fetch = await fetched(side, 0)
            assert (fetch.reason, fetch.results()) == (CompletionReason.DEADLINE, {})
            assert now() == pytest.approx(began + 0.5)
            assert under_way(side.purgatory).pending_reads == 1
            await asyncio.sleep(10)  # index and chunk, 2 s each
            assert side.in_memory(side.request(0)) is not None
            assert at_rest(side)

    run_virtual(main)


def test_a_read_goes_on_after_an_outage_while_somebody_asks() -> None:
    async def main() -> None:
        async with read_side() as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = OUTAGE
            began = now()
            while now() < began + 50:
                fetch = await fetched(side, 0)
                assert (fetch.reason, fetch.results()) == (CompletionReason.DEADLINE, {})
            side.store.faults = NO_FAULTS
            fetch = await fetched(side, 0, wait_s=5)
            assert fetch.reason is CompletionReason.DATA
            assert now() < began + 50 + 1.5  # the longest pause, plus the reads
            assert reads_of(side).up

    run_virtual(main)


def test_a_failing_read_that_nobody_asks_for_ends() -> None:
    async def main() -> None:
        async with read_side(limits=replace(QUICK, unasked_read_max_ms=10_000)) as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = OUTAGE
            await fetched(side, 0)
            await asyncio.sleep(9)
            assert under_way(side.purgatory).pending_reads == 1
            await asyncio.sleep(3)
            assert at_rest(side)
            reads = len(side.store.reads)
            await asyncio.sleep(100)
            assert len(side.store.reads) == reads

    run_virtual(main)


@pytest.mark.parametrize("faults", [OUTAGE, HANG])
def test_an_outage_is_an_error_only_when_it_is_long_and_only_at_the_deadline(
    faults: Faults,
) -> None:
    async def main() -> None:
        async with read_side(
            changed(remote_error_after_ms=60_000), limits=replace(QUICK, chunk_read_max_ms=3_000)
        ) as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = faults
            began = now()
            first_error = None
            while now() < began + 70:
                asked_at = now()
                fetch = await fetched(side, 0)
                assert fetch.reason is CompletionReason.DEADLINE
                assert now() == pytest.approx(asked_at + 0.5)
                if fetch.results():
                    assert isinstance(fetch.results()[0].error, StorageUnavailable)
                    first_error = first_error or now()
                else:
                    assert first_error is None
            assert first_error is not None
            assert first_error - began == pytest.approx(60, abs=0.6)
            health = reads_of(side)
            assert not health.up
            assert health.failing_for_s == pytest.approx(70, abs=1)
            # A client that comes late gets the error as soon as there is fresh evidence.
            other = await fetched(side, 20, wait_s=8)
            assert isinstance(other.results()[0].error, StorageUnavailable)

    run_virtual(main)


def test_an_old_outage_is_no_evidence() -> None:
    async def main() -> None:
        async with read_side(changed(remote_error_after_ms=1_000)) as side:
            await side.segment(batches(side.rng, 0, 4))
            side.store.faults = OUTAGE
            await fetched(side, 0)
            await asyncio.sleep(3600)
            assert not reads_of(side).up
            side.store.faults = SLOW
            fetch = await fetched(side, 0)
            assert (fetch.reason, fetch.results()) == (CompletionReason.DEADLINE, {})

    run_virtual(main)


def test_a_storage_error_never_travels_with_data() -> None:
    async def main() -> None:
        async with read_side(changed(remote_error_after_ms=0)) as side:
            await side.segment(batches(side.rng, 0, 8))
            await fetched(side, 0)
            side.store.faults = OUTAGE
            fetch = side.watch(side.request(40), wait_s=0.5)
            await fetch.completed.wait()
            assert isinstance(fetch.results()[0].error, StorageUnavailable)
            fetch = side.watch(side.request(40), side.request(0))
            assert {i: r.error for i, r in fetch.results().items()} == {1: None}

    run_virtual(main)
