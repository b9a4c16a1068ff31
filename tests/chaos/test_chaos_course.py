"""What a reader of chaos calls wrong: each kind of a wrong record, and nothing else."""

from __future__ import annotations

import pytest

from chaos.ledger import ABORTED, COMMITTED, Log, ReadRecord
from chaos.readers import Course


def course_of(count: int, *, committed_only: bool = True) -> Course:
    log = Log("chaos-txn", 0)
    log.written = {offset: log.next_value() for offset in range(count)}
    log.aborted = {2}
    return Course("reader", log, committed_only, [])


def read(course: Course, offset: int, value: bytes | None = None) -> ReadRecord:
    key = ABORTED if offset in course.log.aborted else COMMITTED
    return ReadRecord(offset, key, course.log.written[offset] if value is None else value)


def test_each_record_once_and_in_order_is_right() -> None:
    course = course_of(5)
    for offset in (0, 1, 3, 4):
        course.take(read(course, offset))
    assert course.faults == []
    assert course.missing(0, 5) == set()
    assert course.position == 5


@pytest.mark.parametrize("again", [0, 1])
def test_one_that_comes_again_is_wrong(again: int) -> None:
    course = course_of(5)
    for offset in (0, 1, again):
        course.take(read(course, offset))
    assert course.faults == [f"reader, chaos-txn-0: offset {again} came after 1"]


def test_one_that_does_not_come_is_missing() -> None:
    course = course_of(5)
    for offset in (0, 4):
        course.take(read(course, offset))
    assert course.missing(0, 5) == {1, 3}
    assert course.missing(2, 4) == {3}


def test_other_bytes_and_aborted_ones_are_wrong() -> None:
    course = course_of(5)
    course.take(read(course, 0, course.log.written[1]))
    course.take(read(course, 1, b"?"))
    course.take(read(course, 2))
    assert [
        next(word for word in ("is not", "never written", "aborted") if word in fault)
        for fault in course.faults
    ] == ["is not", "never written", "aborted"]
    everything = course_of(5, committed_only=False)
    everything.take(read(everything, 2))
    assert everything.faults == []
