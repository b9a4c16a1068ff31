"""When a worker that has ended is started again."""

from __future__ import annotations

from fetchproxy.cli.running import EXIT_USER_ERROR
from fetchproxy.workers.supervision import (
    CALM_S,
    RESTART_MAX_S,
    RESTART_MIN_S,
    Supervision,
)

KILLED = -9


def test_pauses_double_up_to_a_limit_until_it_lives_long() -> None:
    one, now, pauses = Supervision(), 100.0, []
    for _ in range(10):
        one.started(now)
        now += 1.0
        pauses.append(one.pause_after(KILLED, now))
    assert pauses[:4] == [RESTART_MIN_S, 2 * RESTART_MIN_S, 4 * RESTART_MIN_S, 8 * RESTART_MIN_S]
    assert pauses[-1] == RESTART_MAX_S
    one.started(now)
    assert one.pause_after(KILLED, now + CALM_S) == RESTART_MIN_S


def test_what_the_user_has_to_change_is_not_tried_again() -> None:
    one = Supervision()
    one.started(0.0)
    assert one.pause_after(EXIT_USER_ERROR, 1.0) is None


def test_a_worker_that_has_served_is_started_again_whatever_ended_it() -> None:
    one = Supervision()
    one.started(0.0)
    one.serves()
    assert one.pause_after(EXIT_USER_ERROR, 1.0) == RESTART_MIN_S
