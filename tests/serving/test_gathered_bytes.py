"""Incomplete requests and answers count while they grow; the largest gives up at the limit."""

from __future__ import annotations

from typing import Any, cast

import pytest
from fetchproxy_protocol.headers import RequestHead

from fetchproxy.serving.limits import AccumulatedBytes
from fetchproxy.serving.session import COUNTED_BYTES_MIN, ClientSession, RequestFraming


class Framing(RequestFraming[Any]):
    """All that comes is the beginning of one request."""

    def _consume(self, view: memoryview) -> int:
        return 0

    def _is_full(self) -> bool:
        return False

    def _accept(self, size: int, head: RequestHead) -> None:
        return None

    def _check_size(self, size: int, head: RequestHead | None) -> None:
        return None


class Session:
    muted = False

    def __init__(self, accumulated: AccumulatedBytes) -> None:
        self._accumulated = accumulated
        self.gave_up = False
        self.requests = Framing(cast(ClientSession, self), lambda: 0.0, 1 << 30)

    def accumulates(self, size: int) -> None:
        self._accumulated.hold(self, size)

    def give_up(self) -> None:
        self.gave_up = True
        self.requests.drop()

    def take(self, size: int) -> None:
        self.requests.take(memoryview(bytes(size)))


def test_the_largest_incomplete_request_gives_up_at_once() -> None:
    accumulated = AccumulatedBytes(10 * COUNTED_BYTES_MIN)
    small, large, next_one = (Session(accumulated) for _ in range(3))
    small.take(2 * COUNTED_BYTES_MIN)
    for _ in range(5):
        large.take(COUNTED_BYTES_MIN)
    next_one.take(COUNTED_BYTES_MIN)  # not counted: it is small
    assert not any(each.gave_up for each in (small, large, next_one))
    next_one.take(3 * COUNTED_BYTES_MIN)
    assert [each.gave_up for each in (small, large, next_one)] == [False, True, False]
    assert accumulated.total == 6 * COUNTED_BYTES_MIN
    for session in (small, next_one):
        session.requests.drop()
    assert accumulated.total == 0


@pytest.mark.parametrize(
    ("others", "gives_up"), [(0, False), (500, False), (501, True), (9e9, True)]
)
def test_what_is_not_gathered_leaves_less_for_it(others: int, gives_up: bool) -> None:
    accumulated = AccumulatedBytes(1000)
    accumulated.leave_to_others(others, 1000)
    session = Session(accumulated)
    accumulated.hold(session, 500)
    assert session.gave_up is gives_up
    assert accumulated.total == (0 if gives_up else 500)
