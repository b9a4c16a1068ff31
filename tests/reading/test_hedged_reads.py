"""Second requests for slow reads: when, how many, which answer is used, and the cleanup."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest
from faulty_store import Faults
from hypothesis import given
from hypothesis import strategies as st
from read_side import BATCH_BYTES, QUICK, at_rest, fetched, now, read_side
from virtual_loop import run_virtual

from fetchproxy.config.schema import MiB
from fetchproxy.errors import ObjectNotFound, StorageThrottled, StorageUnavailable
from fetchproxy.reading.hedged_reads import (
    SECOND_REQUESTS_SAVED_MAX,
    TIMES_MIN,
    HedgedReads,
    slow_after_s,
)
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.read_budget import ReadBudget, Slot
from fetchproxy.reading.segment_reader import CompletionReason

SIZE = 1000


class Line:
    """Answers with the scripted delays (s) and errors, and after 10 ms when the script is over."""

    def __init__(self, *script: float | Exception) -> None:
        self.script = list(script)
        self.begun = 0
        self.cancelled = 0

    async def begin(self) -> bytes:
        self.begun += 1
        number = self.begun
        step = self.script.pop(0) if self.script else 0.01
        try:
            await asyncio.sleep(0.5 if isinstance(step, Exception) else step)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if isinstance(step, Exception):
            raise step
        return b"%d" % number


def hedged_reads(budget: ReadBudget, **options: object) -> HedgedReads:
    return HedgedReads(budget, replace(ReadingLimits(), **options))  # type: ignore[arg-type]


async def hedging(
    budget: ReadBudget, reads: int = 200, **options: object
) -> tuple[HedgedReads, Callable[[Line], Awaitable[bytes]]]:
    """Hedged reads that have already made `reads` reads of 10 ms each."""
    hedged = hedged_reads(budget, **options)

    async def read(line: Line) -> bytes:
        return await hedged.read(line.begin, SIZE)

    for _ in range(reads):
        await read(Line())
    return hedged, read


def run(test: Callable[[ReadBudget], Awaitable[None]]) -> None:
    async def main() -> None:
        budget = ReadBudget(2, MiB)
        await test(budget)
        assert (budget.tasks_taken, budget.bytes_taken, budget.waiting) == (0, 0, 0)

    run_virtual(main)


def test_the_faster_answer_is_taken_and_the_slower_request_cancelled() -> None:
    async def test(budget: ReadBudget) -> None:
        _, hedged_read = await hedging(budget)
        line, began_at = Line(5.0, 0.03), now()
        assert await hedged_read(line) == b"2"
        assert now() - began_at == pytest.approx(0.02 + 0.03)  # hedge_after_min_ms, then its own
        assert (line.begun, line.cancelled) == (2, 1)

    run(test)


def test_the_first_request_may_still_win() -> None:
    async def test(budget: ReadBudget) -> None:
        _, hedged_read = await hedging(budget)
        line = Line(0.03, 5.0)
        assert await hedged_read(line) == b"1"
        assert (line.begun, line.cancelled) == (2, 1)

    run(test)


def test_a_read_that_is_not_slow_is_asked_once() -> None:
    async def test(budget: ReadBudget) -> None:
        _, hedged_read = await hedging(budget)
        line = Line(0.019)
        assert await hedged_read(line) == b"1"
        assert (line.begun, line.cancelled) == (1, 0)

    run(test)


def test_an_error_counts_when_the_other_request_has_one_too() -> None:
    async def test(budget: ReadBudget) -> None:
        _, hedged_read = await hedging(budget)
        assert await hedged_read(Line(StorageUnavailable("first"), 0.6)) == b"2"
        assert await hedged_read(Line(0.7, StorageUnavailable("second"))) == b"1"
        with pytest.raises(StorageThrottled, match="first"):
            await hedged_read(Line(StorageThrottled("first"), StorageUnavailable("second")))

    run(test)


def test_an_error_before_it_is_slow_is_not_hedged() -> None:
    async def test(budget: ReadBudget) -> None:
        _, hedged_read = await hedging(budget, hedge_after_min_ms=600)
        line = Line(ObjectNotFound("gone"))
        with pytest.raises(ObjectNotFound):
            await hedged_read(line)
        assert line.begun == 1

    run(test)


def test_a_share_of_reads_and_no_more_is_hedged() -> None:
    """A store that stays slow gets 5 % more requests, not twice as many."""

    async def test(budget: ReadBudget) -> None:
        hedged = hedged_reads(budget, hedge_after_max_ms=30)
        requests_made = 0
        for n in range(1_000):
            line = Line(0.04, 0.04)
            await hedged.read(line.begin, SIZE)
            requests_made += line.begun
            assert requests_made - (n + 1) <= SECOND_REQUESTS_SAVED_MAX + 0.05 * (n + 1)
        assert requests_made == pytest.approx(1_050 + SECOND_REQUESTS_SAVED_MAX, abs=2)

    run(test)


def test_what_is_saved_up_is_bounded() -> None:
    async def test(budget: ReadBudget) -> None:
        _, hedged_read = await hedging(budget, reads=600)
        lines = [Line(0.3, 0.3) for _ in range(20)]
        for line in lines:
            await hedged_read(line)
        assert sum(line.begun - 1 for line in lines) == SECOND_REQUESTS_SAVED_MAX

    run(test)


def test_only_where_the_budget_has_a_place() -> None:
    async def test(budget: ReadBudget) -> None:
        _, hedged_read = await hedging(budget)
        taken = [Slot(SIZE, False), Slot(SIZE, False)]
        for slot in taken:
            await budget.acquire(slot)
        line = Line(0.3)
        await hedged_read(line)
        assert line.begun == 1
        budget.release(taken[0])
        line = Line(0.3)
        await hedged_read(line)
        assert line.begun == 2
        budget.release(taken[1])

    run(test)


def test_only_where_nobody_waits_for_a_place() -> None:
    async def test(budget: ReadBudget) -> None:
        _, hedged_read = await hedging(budget)
        small, large = Slot(SIZE, False), Slot(2 * MiB, False)
        await budget.acquire(small)
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(budget.acquire(large))
            await asyncio.sleep(0)
            line = Line(0.3)
            await hedged_read(line)
            assert line.begun == 1
            budget.release(small)
            await waiting
        budget.release(large)

    run(test)


def test_zero_switches_it_off() -> None:
    async def test(budget: ReadBudget) -> None:
        _, hedged_read = await hedging(budget, hedged_reads_share_max=0)
        line = Line(100.0)
        assert await hedged_read(line) == b"1"
        assert line.begun == 1

    run(test)


@pytest.mark.parametrize("at_s", [0.0, 0.01, 0.025, 0.2])
def test_cancelled_at_any_time_it_leaves_nothing(at_s: float) -> None:
    async def test(budget: ReadBudget) -> None:
        _, hedged_read = await hedging(budget)
        line = Line(5.0, 5.0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(at_s):
                await hedged_read(line)
        assert line.cancelled == line.begun

    run(test)


@given(
    st.lists(st.floats(0.001, 60), min_size=TIMES_MIN, max_size=200),
    st.floats(0.001, 1),
    st.floats(0.001, 10),
)
def test_slow_is_slower_than_most_between_floor_and_ceiling(
    times: list[float], floor_s: float, ceiling_s: float
) -> None:
    slow = slow_after_s(times, floor_s, ceiling_s)
    assert slow <= ceiling_s
    assert slow >= min(floor_s, ceiling_s)
    slower = sum(time > slow for time in times)
    assert slow == ceiling_s or slower <= 0.05 * len(times) + 1


@pytest.mark.parametrize(("known", "expected"), [(TIMES_MIN - 1, 2.0), (TIMES_MIN, 0.05)])
def test_before_enough_is_known_slow_is_the_ceiling(known: int, expected: float) -> None:
    assert slow_after_s([0.05] * known, 0.02, 2.0) == expected


def test_a_few_reads_that_hang_do_not_hold_up_a_replay() -> None:
    """In the whole read side, one read in fifty never answers, and no fetch waits for it."""

    async def main() -> None:
        async with read_side(limits=replace(QUICK, hedged_reads_share_max=0.05)) as side:
            await side.history(1_200)
            await fetched(side, 0)
            side.store.faults = Faults(latency_s_min=0.01, latency_s_max=0.015, hanging_share=0.02)
            slowest = 0.0
            for n in range(1, 300):
                began_at = now()
                fetch = side.watch(side.request(40 * n, 4 * BATCH_BYTES), wait_s=60)
                await fetch.completed.wait()
                assert fetch.reason is CompletionReason.DATA
                slowest = max(slowest, now() - began_at)
            assert side.log_reads() - 300 >= 3  # some were requested twice
            assert slowest <= 2.5  # ceiling while few reads are known; chunk_read_max_ms is 30,000
            await asyncio.sleep(60)
            assert at_rest(side)
            assert side.store.in_flight == 0

    run_virtual(main)


def test_what_was_read_is_not_kept_by_the_race() -> None:
    """The cancelled request's traceback goes with the turn of the loop in which it ended."""
    alive = 0

    class Counted(bytes):
        def __del__(self) -> None:
            nonlocal alive
            alive -= 1

    async def main() -> None:
        nonlocal alive
        hedged, _ = await hedging(ReadBudget(4, MiB))
        line = Line(5.0)

        async def begin() -> bytes:
            nonlocal alive
            content = Counted(await line.begin())
            alive += 1
            return content

        assert await hedged.read(begin, SIZE) == b"2"
        await asyncio.sleep(0)
        assert (line.cancelled, alive) == (1, 0)

    gc.disable()
    try:
        run_virtual(main)
    finally:
        gc.enable()
