"""A plan is a pure function of its seed, and breaks no more at once than the parts can bear."""

from __future__ import annotations

import itertools

import pytest

from chaos.plan import BROKERS, GREAT, Act, Kind, make_plan

SEEDS = range(200)
HALF_AN_HOUR = 1_800.0


def test_the_same_seed_is_the_same_plan() -> None:
    assert make_plan(7, HALF_AN_HOUR) == make_plan(7, HALF_AN_HOUR)
    assert len({make_plan(seed, HALF_AN_HOUR) for seed in SEEDS}) == len(SEEDS)


def test_a_longer_plan_begins_as_the_shorter_one() -> None:
    short, long = make_plan(7, 400.0), make_plan(7, HALF_AN_HOUR)
    assert long.rounds[: len(short.rounds)] == short.rounds


@pytest.mark.parametrize("seed", SEEDS)
def test_half_an_hour_has_every_act(seed: int) -> None:
    plan = make_plan(seed, HALF_AN_HOUR)
    firsts = [each.first.kind for each in plan.rounds]
    assert set(firsts) == set(GREAT)
    small = {act.kind for each in plan.rounds for act in each.acts}
    assert small == set(Kind) - set(GREAT)


@pytest.mark.parametrize("seed", SEEDS)
def test_one_broker_at_a_time_and_nobody_twice(seed: int) -> None:
    for each in make_plan(seed, HALF_AN_HOUR).rounds:
        assert list(each.acts) == sorted(each.acts, key=lambda act: act.at_s)
        for one, other in itertools.combinations((each.first, *each.acts), 2):
            if one.target == other.target or {one.target, other.target} <= set(BROKERS):
                assert not overlap(one, other)


def overlap(one: Act, other: Act) -> bool:
    return one.at_s <= other.until_s and other.at_s <= one.until_s
