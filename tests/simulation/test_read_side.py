"""Seeded runs of the read side. `FETCHPROXY_SIMULATION_SEEDS=first:last` runs others."""

from __future__ import annotations

import os

import pytest
from read_side_simulation import simulate

SEEDS_VARIABLE = "FETCHPROXY_SIMULATION_SEEDS"
first, _, last = os.environ.get(SEEDS_VARIABLE, "0:39").partition(":")
SEEDS = range(int(first), int(last or first) + 1)


@pytest.mark.parametrize("seed", SEEDS)
def test_readers_get_the_stored_bytes_whatever_the_store_does(seed: int) -> None:
    try:
        simulate(seed)
    except BaseException:
        print(f"\nrepeat: {SEEDS_VARIABLE}={seed} python -m pytest {os.path.relpath(__file__)}")
        raise


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    trace = simulate(seed)
    assert len(trace) > 10
    assert simulate(seed) == trace
    assert simulate(seed + 1_000) != trace
