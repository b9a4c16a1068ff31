"""How work is spread and what becomes of it: here, and on a context that runs tasks at once."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from multiprocessing import active_children
from typing import Any

import pytest

from fetchproxy.errors import CorruptSegment, PipelineFailed, StorageUnavailable
from fetchproxy.jobs.runner import (
    AT_ONCE_HERE,
    ITEMS_FAILED_IN_A_ROW_MAX,
    Here,
    ItemFailure,
    OnSpark,
    Progress,
    Report,
    Runner,
    StoreWork,
    Work,
    attempt,
    named,
)


class Context:
    """Of a SparkContext what `spread` uses. `lost`: how collecting ends instead."""

    def __init__(self, lost: Exception | None = None) -> None:
        self.lost = lost
        self.slices = 0
        self.groups: list[str] = []

    def accumulator(self, zero: dict[int, int], param: Any) -> Any:
        class Accumulator:
            def add(self, more: dict[int, int]) -> None:
                param.addInPlace(zero, more)

        return Accumulator()

    def setJobGroup(self, group: str, text: str, interruptOnCancel: bool) -> None:
        self.groups.append(group)

    def parallelize(self, items: list[Any], slices: int) -> Context:
        self.slices = slices
        self._items = items
        return self

    def mapPartitions(self, task: Callable[[Iterable[Any]], Iterator[Any]]) -> Context:
        items = self._items[:1] if self.lost else reversed(self._items)
        self._rows = list(task(iter(items)))
        return self

    def collect(self) -> list[Any]:
        if self.lost is not None:
            raise self.lost
        return self._rows


class Session:
    def __init__(self, lost: Exception | None = None) -> None:
        self.sparkContext = Context(lost)

    def createDataFrame(self, rows: list[Any], schema: str) -> list[Any]:
        return list(rows)


def halved(number: int) -> int:
    if number == 3:
        raise CorruptSegment("three is broken")
    if number == 5:
        raise ExceptionGroup("store", [StorageUnavailable("away"), StorageUnavailable("away")])
    return number // 2


def test_what_fails_fails_alone_and_is_named() -> None:
    progress: list[Progress] = []
    work = Work("halve", halved, name=lambda n: f"number {n}", size=lambda half: half)
    outcome = OnSpark(Session(), progress.append).each([2, 3, 4, 5], work)
    assert outcome.results == (1, 2)
    assert [str(f) for f in outcome.failures] == [
        "number 3: CorruptSegment: three is broken",
        "number 5: StorageUnavailable: away (may be tried again)",
    ]
    assert progress[-1] == Progress(items_done=4, items=4, size_done=3)


BOTH = [lambda reported: Here(reported), lambda reported: OnSpark(Session(), reported)]


@asynccontextmanager
async def opened() -> AsyncIterator[int]:
    yield 2


async def divided(by: int, number: int, tell: Report) -> int:
    await asyncio.sleep(0.01 / number)  # the last ones are done first
    tell(1, 2)
    return halved(number) * 2 // by


@pytest.mark.parametrize("runner", BOTH)
def test_results_come_in_the_order_of_the_items(
    runner: Callable[[Callable[[Progress], None]], Runner],
) -> None:
    progress: list[Progress] = []
    early: list[int] = []
    work = StoreWork("divide", opened, divided, name=lambda n: f"number {n}", size=lambda n: n)
    outcome = runner(progress.append).each([2, 3, 4, 5, 6, 8], work, early.append)
    assert list(outcome.results) == early == [1, 2, 3, 4]
    assert [failure.name for failure in outcome.failures] == ["number 3", "number 5"]
    assert progress[-1] == Progress(items_done=6, items=6, size_done=10)


@pytest.mark.parametrize("runner", BOTH)
def test_what_cannot_be_opened_fails_each_item(
    runner: Callable[[Callable[[Progress], None]], Runner],
) -> None:
    @asynccontextmanager
    async def away() -> AsyncIterator[int]:
        raise StorageUnavailable("away")
        yield 2

    outcome = runner(lambda progress: None).each([2, 4], StoreWork("divide", away, divided))
    assert [str(failure) for failure in outcome.failures] == [
        "2: StorageUnavailable: away (may be tried again)",
        "4: StorageUnavailable: away (may be tried again)",
    ]


def test_a_part_of_an_item_is_progress() -> None:
    progress_steps: list[Progress] = []
    is_seen = threading.Event()

    def look(progress: Progress) -> None:
        progress_steps.append(progress)
        if progress.in_progress:
            is_seen.set()

    async def work_in_parts(by: int, number: int, tell: Report) -> int:
        tell(25, 100)
        await asyncio.to_thread(is_seen.wait)
        return number

    Here(look).each([7], StoreWork("tell", opened, work_in_parts, size=lambda n: 100))
    assert Progress(items_done=0, items=1, size_done=25, in_progress=0.25) in progress_steps
    assert progress_steps[-1] == Progress(items_done=1, items=1, size_done=100)


def test_work_here_is_spread_over_processes() -> None:
    progress: list[Progress] = []
    work = Work("halve", halved, name=lambda n: f"number {n}", size=lambda half: half)
    outcome = Here(progress.append).each([2, 3, 4, 5], work)
    assert outcome.results == (1, 2)
    assert [failure.name for failure in outcome.failures] == ["number 3", "number 5"]
    assert progress[-1] == Progress(items_done=4, items=4, size_done=3)


def test_a_worker_process_that_dies_is_named_by_what_it_had() -> None:
    with pytest.raises(PipelineFailed, match=r"lost with its task.*not finished: .*9"):
        Here().each([9], Work("die", killed))
    assert not [child for child in active_children() if child.is_alive()]


def test_a_defect_costs_its_item_alone() -> None:
    outcome = Here().each([2, 0, 4], Work("break", broken_at_zero))
    assert outcome.results == (2, 4)
    (failure,) = outcome.failures
    assert (failure.name, failure.retriable) == ("0", False)
    assert failure.error == "KeyError: 0 (a bug in fetchproxy: the log has the traceback)"
    assert not [child for child in active_children() if child.is_alive()]


def broken_at_zero(number: int) -> int:
    if not number:
        raise KeyError(number)
    return number


def killed(number: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_each_item_is_a_task_of_its_own() -> None:
    session = Session()
    OnSpark(session).each(list(range(10, 17)), Work("halve", halved))
    assert session.sparkContext.slices == 7
    assert session.sparkContext.groups == ["fetchproxy-halve"]


def test_nothing_to_do_asks_spark_nothing() -> None:
    assert OnSpark(None).each([], Work("halve", halved)).results == ()
    assert Here().each([], Work("halve", halved)).results == ()


def test_a_defect_beside_a_failure_is_not_hidden() -> None:
    def broken(number: int) -> int:
        raise ExceptionGroup("both", [StorageUnavailable("away"), KeyError(number)])

    failure = attempt(broken, 1, "1")
    assert isinstance(failure, ItemFailure)
    assert failure.error == (
        "StorageUnavailable: away; KeyError: 1 (a bug in fetchproxy: the log has the traceback)"
    )
    assert not failure.retriable


def test_a_lost_worker_is_told_from_a_defect() -> None:
    text = "Task 0 in stage 0.0 failed 4 times\nPython worker exited unexpectedly (crashed)"
    with pytest.raises(PipelineFailed, match=r"lost with its task.*not finished: 4") as e:
        OnSpark(Session(RuntimeError(text))).each([2, 4], Work("halve", halved))
    assert e.value.retriable
    defect = Session(RuntimeError("Traceback (most recent call last)\nKeyError: 1"))
    with pytest.raises(RuntimeError, match="KeyError"):
        OnSpark(defect).each([1], Work("halve", halved))


def test_results_and_failures_go_over_the_pipe() -> None:
    result = attempt(halved, 3, "3")
    assert pickle.loads(pickle.dumps(result)) == result


def test_many_names_are_cut() -> None:
    assert named(["a", "b"]) == "a, b"
    assert named(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_what_may_succeed_later_is_tried_once_more_at_the_end() -> None:
    tries: list[int] = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        yield

    async def do(_: None, item: int, tell: Report) -> int:
        tries.append(item)
        if item == 1 and tries.count(1) == 1:
            raise StorageUnavailable("for a moment")
        if item == 2:
            raise StorageUnavailable("for good")
        if item == 3:
            raise CorruptSegment("in the store")
        return 10 * item

    results: list[int] = []
    work = StoreWork("try", opened, do, name=lambda item: f"item {item}")
    outcome = Here().each(range(5), work, results.append)
    assert sorted(tries[:5]) == [0, 1, 2, 3, 4]
    assert sorted(tries[5:]) == [1, 2]
    assert outcome.results == (0, 10, 40)
    assert sorted(results) == [0, 10, 40]
    assert [failure.name for failure in outcome.failures] == ["item 2", "item 3"]


def test_many_failures_in_a_row_are_an_outage_that_ends_the_job() -> None:
    tried: list[int] = []
    back: list[bool] = []

    @asynccontextmanager
    async def opened() -> AsyncIterator[None]:
        yield

    async def do(_: None, item: int, tell: Report) -> int:
        tried.append(item)
        await asyncio.sleep(0)
        if not back and item != 5:
            raise StorageUnavailable("no answer")
        return item

    count = 10 * ITEMS_FAILED_IN_A_ROW_MAX
    outcome = Here().each(range(count), StoreWork("try", opened, do))
    assert outcome.results == (5,)
    assert len(outcome.failures) == count - 1
    # Twice; the one that works begins the count anew. Some are begun at the same time.
    assert len(tried) <= 2 * (ITEMS_FAILED_IN_A_ROW_MAX + AT_ONCE_HERE) + 6
    assert outcome.failures[-1].error == (
        "not tried, because others failed before: StorageUnavailable: no answer"
    )
    assert outcome.failures[-1].retriable
    back.append(True)
    assert Here().each(range(count), StoreWork("try", opened, do)).results == tuple(range(count))
