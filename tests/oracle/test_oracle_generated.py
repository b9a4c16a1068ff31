"""Generated sequences against both sides: no difference that the compatibility page does not list.

A failure shows its seed and a short sequence. `ORACLE_SEED` begins with another seed;
`make oracle` runs the long form, 10,000 steps and more.
"""

from __future__ import annotations

import os

import pytest
from oracle_rules import Findings
from oracle_steps import Generator, check
from oracle_world import World

pytestmark = pytest.mark.kafka
# Restarts of the brokers are in the long form and in the scenarios only: each takes seconds.
FIRST_SEED = int(os.environ.get("ORACLE_SEED", "1"))
QUICK, QUICK_STEPS = 6, 60
LONG, LONG_STEPS = 92, 100
EPOCHS, EPOCHS_STEPS = 5, 200
NEWEST, NEWEST_STEPS = 20, 100
SHAPES = ((1, 1), (3,), (2, 1), (1, 1, 1), (4, 2))  # partitions of each topic


def test_a_seed_makes_one_sequence() -> None:
    assert Generator(7).steps(80) == Generator(7).steps(80) != Generator(8).steps(80)


@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + QUICK))
def test_generated_sequences(world: World, tally, seed: int) -> None:
    tally(check(world, seed, QUICK_STEPS, shape=SHAPES[seed % len(SHAPES)]), QUICK_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1_000 + FIRST_SEED, 1_000 + FIRST_SEED + LONG))
def test_many_generated_sequences(world: World, tally, seed: int) -> None:
    tally(check(world, seed, LONG_STEPS, shape=SHAPES[seed % len(SHAPES)]), LONG_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2_000 + FIRST_SEED, 2_000 + FIRST_SEED + EPOCHS))
def test_long_generated_sequences_over_leader_epochs(world: World, tally, seed: int) -> None:
    findings: Findings = check(world, seed, EPOCHS_STEPS, restarts=True)
    tally(findings, EPOCHS_STEPS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3_000 + FIRST_SEED, 3_000 + FIRST_SEED + NEWEST))
def test_generated_sequences_with_the_newest_kafka(newest_world: World, tally, seed: int) -> None:
    shape = SHAPES[seed % len(SHAPES)]
    tally(check(newest_world, seed, NEWEST_STEPS, shape=shape), NEWEST_STEPS)


def test_the_long_form_is_long_enough() -> None:
    assert LONG * LONG_STEPS + EPOCHS * EPOCHS_STEPS >= 10_000
