"""How work is spread and what becomes of it, on a context that runs tasks here and now."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from fetchproxy.errors import CorruptSegment, PipelineFailed, StorageUnavailable
from fetchproxy.jobs.runner import Progress, attempt, named, spread


class Context:
    """Of a SparkContext what `spread` uses. `lost`: how collecting ends instead."""

    def __init__(self, lost: Exception | None = None) -> None:
        self.lost = lost
        self.slices = 0
        self.groups: list[str] = []
        self.value: dict[int, int] = {}

    def accumulator(self, zero: dict[int, int], param: Any) -> Any:
        outer = self

        class Accumulator:
            value = outer.value

            def add(self, more: dict[int, int]) -> None:
                param.addInPlace(outer.value, more)

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


def halved(number: int) -> int:
    if number == 3:
        raise CorruptSegment("three is broken")
    if number == 5:
        raise ExceptionGroup("store", [StorageUnavailable("away"), StorageUnavailable("away")])
    return number // 2


def test_what_fails_fails_alone_and_is_named() -> None:
    seen: list[Progress] = []
    done = spread(
        Session(),
        [2, 3, 4, 5],
        halved,
        label="halve",
        name=lambda n: f"number {n}",
        size=lambda half: half,
        on_progress=seen.append,
    )
    assert done.results == (1, 2)
    assert [str(f) for f in done.failures] == [
        "number 3: CorruptSegment: three is broken",
        "number 5: StorageUnavailable: away (may be tried again)",
    ]
    assert seen[-1] == Progress(items_done=4, items=4, size_done=3)


def test_each_item_is_a_task_of_its_own() -> None:
    session = Session()
    spread(session, list(range(10, 17)), halved, label="halve")
    assert session.sparkContext.slices == 7
    assert session.sparkContext.groups == ["fetchproxy-halve"]


def test_nothing_to_do_asks_spark_nothing() -> None:
    assert spread(None, [], halved, label="halve").results == ()


def test_a_defect_is_no_failure_of_an_item() -> None:
    def broken(number: int) -> int:
        raise KeyError(number)

    with pytest.raises(KeyError):
        attempt(broken, 1, str)


def test_a_defect_beside_a_failure_is_not_hidden() -> None:
    def broken(number: int) -> int:
        raise ExceptionGroup("both", [StorageUnavailable("away"), KeyError(number)])

    with pytest.raises(ExceptionGroup, match="both") as raised:
        attempt(broken, 1, str)
    assert [type(e) for e in raised.value.exceptions] == [KeyError]


def test_a_lost_worker_is_told_from_a_defect() -> None:
    text = "Task 0 in stage 0.0 failed 4 times\nPython worker exited unexpectedly (crashed)"
    with pytest.raises(PipelineFailed, match=r"lost with its task.*not finished: 4") as e:
        spread(Session(RuntimeError(text)), [2, 4], halved, label="halve")
    assert e.value.retriable
    with pytest.raises(RuntimeError, match="KeyError"):
        spread(
            Session(RuntimeError("Traceback (most recent call last)\nKeyError: 1")),
            [1],
            halved,
            label="halve",
        )


def test_results_and_failures_go_over_the_pipe() -> None:
    result = attempt(halved, 3, str)
    assert pickle.loads(pickle.dumps(result)) == result


def test_many_names_are_cut() -> None:
    assert named(["a", "b"]) == "a, b"
    assert named(list("abcdefg")) == "a, b, c, d, e and 2 more"
