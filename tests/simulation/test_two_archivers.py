"""Seeded runs of two archivers. `FETCHPROXY_LAB_SEED=123` runs only that one seed."""

from __future__ import annotations

import os
from functools import cache

import pytest
from archive_simulation import simulate_archive
from archive_world import ArchiveWorld

SEED_VARIABLE = "FETCHPROXY_LAB_SEED"
CHOSEN = os.environ.get(SEED_VARIABLE)
SEEDS = [int(CHOSEN)] if CHOSEN else range(20)
MORE_SEEDS = [] if CHOSEN else range(20, 60)
MANY_SEEDS = 10_000
SEEDS_PER_TEST = 100


@cache
def world_of(seed: int) -> ArchiveWorld:
    try:
        return simulate_archive(seed)
    except BaseException:
        path = os.path.relpath(__file__)
        print(f"\nrepeat: {SEED_VARIABLE}={seed} python -m pytest {path} -k archived_once")
        raise


@pytest.mark.parametrize("seed", SEEDS)
def test_everything_is_archived_once(seed: int) -> None:
    assert world_of(seed).segments_seen > 0


@pytest.mark.skipif(CHOSEN is not None, reason="one seed is not every kind of world")
def test_the_archivers_world_is_as_hard_as_it_says() -> None:
    worlds = [world_of(seed) for seed in SEEDS]
    assert sum(world.kills for world in worlds) > len(worlds)
    assert sum(world.freezes for world in worlds) > len(worlds)
    assert 0 < sum(world.topic_based for world in worlds) < len(worlds)
    assert sum(world.config.archive.remote_log_retention_bytes > 0 for world in worlds) > 5


@pytest.mark.slow
@pytest.mark.parametrize("seed", MORE_SEEDS)
def test_more_is_archived_once(seed: int) -> None:
    assert world_of.__wrapped__(seed).segments_seen > 0


@pytest.mark.slow
@pytest.mark.skipif(CHOSEN is not None, reason="one seed was asked for")
@pytest.mark.parametrize("first", range(100_000, 100_000 + MANY_SEEDS, SEEDS_PER_TEST))
def test_ten_thousand_seeds(first: int) -> None:
    for seed in range(first, first + SEEDS_PER_TEST):
        world_of.__wrapped__(seed)
