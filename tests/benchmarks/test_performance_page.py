"""docs/performance.md says what the results in the repository say, on one page."""

from __future__ import annotations

import pytest

from benchmarks import goals
from benchmarks.performance_page import LINES, PAGE, RESULTS, table, with_table

BYTES_MAX = 8_000


def test_the_page_on_disk_has_the_figures_of_the_results() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_table(page, RESULTS), "run python -m benchmarks.performance_page"
    assert len(page.encode()) <= BYTES_MAX


@pytest.mark.parametrize("goal", goals.TABLE, ids=lambda goal: goal.words[:40])
def test_each_goal_is_on_the_page_met_or_missed(goal: goals.Goal) -> None:
    rows = [line.row for line in LINES]
    assert goal.words in rows
    for also in goal.also:
        assert f"{goal.words}: {also.words}" in rows


def test_a_goal_that_was_missed_says_so() -> None:
    (small,) = [line for line in table(RESULTS).splitlines() if line.startswith("| Small fetches")]
    assert "**missed**" in small
