"""Generated attacks leave every process within its bounds (`machine`).

Each run of `make test` tries the same cases; `make bounds` others, for as long as it is told.
"""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from machine import FAMILIES, KNOWN, Case, Report, cases, complaints, run
from victims import MEMORY_BYTES_MAX, TURN_CPU_S_MAX, Figures

# Of each victim in `make test`: all of them take half a minute, and less than a minute of CPU.
CASES_OF_EACH = 12
AN_HOUR_S = 3_600.0


def judge(report: Report) -> None:
    print(
        f"{report.cases} cases, {len(report.suspects)} suspects, {len(report.failures)} failed; "
        f"{report.cpu_s:.0f} s of CPU"
    )
    assert report.cases
    assert not report.failures, "\n".join(map(str, report.failures))


def test_a_case_is_the_same_again() -> None:
    for victim in FAMILIES:
        case = next(cases(victim, 7))
        assert Case.of(str(case)) == case


def test_each_kind_of_harm_is_a_complaint() -> None:
    inf = float("inf")
    calm = Figures({TURN_CPU_S_MAX: 5, inf: 5}, 0.01, MEMORY_BYTES_MAX, (), 200)
    assert not list(complaints(calm, calm))
    harm = {
        "1 turns above": {"turns": {TURN_CPU_S_MAX: 5, inf: 6}},
        "MiB of memory": {"peak_bytes": MEMORY_BYTES_MAX + 1},
        "/healthz says 503": {"healthy": 503},
        "logged: part_failed": {"bad": ("part_failed",)},
    }
    for words, changed in harm.items():
        (complaint,) = complaints(calm, replace(calm, **changed))
        assert words in complaint
    # What was so before is another case's.
    long_ago = replace(calm, turns={TURN_CPU_S_MAX: 5, inf: 6}, bad=("part_failed",))
    assert not list(complaints(long_ago, long_ago))


def test_each_attack_that_once_succeeded_has_its_test() -> None:
    tests = Path(__file__).parents[1]
    rows = (tests / "bounds" / "README.md").read_text().partition("## Attacks")[2]
    named = re.findall(r"`(\w+/test_\w+\.py)(?:::(\w+))?`", rows)
    assert len(named) > 40
    for file, name in named:
        assert f"def {name or 'test_'}" in (tests / file).read_text(), (file, name)
    families = {f"{of}.{one.__name__}" for of, some in FAMILIES.items() for one in some}
    assert set(re.findall(r"`(\w+\.\w+)`", rows)) - families == {"machine.py"}


def test_some_generated_attacks() -> None:
    judge(asyncio.run(run(seed=0, each_max=CASES_OF_EACH, without=KNOWN)))


@pytest.mark.skipif("BOUNDS_SECONDS" not in os.environ, reason="only for `make bounds`")
def test_chosen_attacks() -> None:
    """BOUNDS_SECONDS, BOUNDS_SEED; BOUNDS_CASE: one case alone, as it was printed."""
    seconds, seed = float(os.environ["BOUNDS_SECONDS"]), int(os.environ.get("BOUNDS_SEED") or 0)
    only = os.environ.get("BOUNDS_CASE")
    judge(asyncio.run(run(seconds, seed, only=Case.of(only) if only else None)))


@pytest.mark.slow
def test_an_hour_of_generated_attacks() -> None:
    judge(asyncio.run(run(AN_HOUR_S, seed=1, without=KNOWN)))
