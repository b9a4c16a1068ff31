"""The figures of the look-ups benchmark. It runs as a part of `connections`."""

from __future__ import annotations

from benchmarks.contestants import DIRECT, FETCHPROXY
from benchmarks.look_up_client import BEGINNING, END, QUESTIONS, TIMES
from benchmarks.look_ups import (
    ARCHIVED,
    COLD,
    COLD_WIDE,
    NEVER,
    WARM,
    WARM_WIDE,
    Measured,
    offset_of,
    rows_of,
)


def test_the_worst_of_each_round_counts() -> None:
    measured = Measured(10)
    for kind, factor in ((ARCHIVED, 2.0), (NEVER, 1.0)):
        for how, more in ((WARM, 1.0), (COLD, 3.0), (WARM_WIDE, 0.5), (COLD_WIDE, 3.5)):
            for number in (1, 2, 3):
                direct = dict.fromkeys(QUESTIONS, 0.5 * number)
                ours = {q: seconds * factor * more for q, seconds in direct.items()}
                if kind == NEVER and number == 2:
                    ours[TIMES] *= 5  # one question of one round
                measured.add(kind, how, DIRECT, direct)
                measured.add(kind, how, FETCHPROXY, ours)
    line, cold, *others = rows_of(measured)
    assert (line.value, line.max, line.met) == (2.0, 5.0, False)  # as the cold ones are too slow
    assert (cold.value, cold.max, cold.met) == (7.0, 17.5, False)
    assert len(others) == 2 * 2 * 4 * len(QUESTIONS)
    by_name = {row.name: row.value for row in others}
    assert by_name[f"{END}, {NEVER}, {COLD}: {FETCHPROXY} : {DIRECT}"] == 3.0


def test_right_answers_differ_by_what_only_the_archive_has() -> None:
    assert [offset_of(q, whole=True) for q in (BEGINNING, END, TIMES)] == [0, 4, 1]
    assert [offset_of(q, whole=False) for q in (BEGINNING, END, TIMES)] == [3, 4, 3]
