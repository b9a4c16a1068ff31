"""archive.copy_bytes_per_s_max: the rate of all partitions together, on a virtual clock."""

from __future__ import annotations

import asyncio
from functools import partial
from random import Random
from typing import cast

import pytest
from taken_settings import take_into
from virtual_loop import run_virtual

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ArchiveConfig, KiB, MiB
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.remote_log_manager import open_source

RATE = 1 * MiB


def now() -> float:
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("seed", range(5))
def test_no_stretch_of_time_has_more_than_the_rate(seed: int) -> None:
    """Several workers with reads of any size and duration; each worker makes progress."""
    workers = 4

    async def main() -> None:
        rng = Random(seed)
        pace = CopyPace(lambda: RATE)
        reads: list[tuple[float, int]] = []
        by_worker = [0] * workers

        async def worker(number: int) -> None:
            while now() < end:
                assert await pace.turn(None)
                size = rng.randint(1, pace.step(8 * MiB))
                await asyncio.sleep(rng.choice([0, 0.01, 0.3]))
                reads.append((now(), size))
                by_worker[number] += size
                pace.spend(size)
                await asyncio.sleep(rng.choice([0, 0, 2]))

        end = now() + 120
        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(worker(number))
        # The saved-up burst, and each worker's read in progress when the debt begins.
        slack = RATE + workers * RATE
        for at, (began, _) in enumerate(reads):
            total = 0
            for ended, size in reads[at:]:
                total += size
                assert total <= slack + RATE * (ended - began)
        whole = sum(size for _, size in reads)
        assert whole >= 0.9 * RATE * 120  # the rate is used
        assert min(by_worker) > 0.1 * whole

    run_virtual(main)


def test_a_turn_that_would_come_too_late_is_left_to_the_next() -> None:
    async def main() -> None:
        pace = CopyPace(lambda: RATE)
        pace.spend(11 * RATE)
        begun = now()
        assert not await pace.turn(begun + 4)
        assert now() == begun + 4
        assert await pace.turn(begun + 20)
        assert now() == pytest.approx(begun + 10)

    run_virtual(main)


def test_without_a_rate_nobody_waits_and_no_read_is_cut() -> None:
    async def main() -> None:
        pace = CopyPace(lambda: ArchiveConfig().copy_bytes_per_s_max)
        begun = now()
        pace.spend(1000 * MiB)
        assert await pace.turn(begun - 1)
        assert (now(), pace.step(8 * MiB)) == (begun, 8 * MiB)

    run_virtual(main)


def test_a_read_is_a_second_s_worth_at_most() -> None:
    assert CopyPace(lambda: 64 * KiB).step(8 * MiB) == 64 * KiB


@pytest.mark.live("archive.copy_bytes_per_s_max")
def test_a_rate_that_changes_counts_from_the_next_read_on() -> None:
    async def main() -> None:
        config = ArchiveConfig()
        source = open_source(config, cast(Cluster, None), WritingLimits(), ())
        assert isinstance(source, partial)
        pace = source.keywords["pace"]
        assert pace.step(8 * MiB) == 8 * MiB
        take_into(config, copy_bytes_per_s_max=RATE)
        assert pace.step(8 * RATE) == RATE
        pace.spend(11 * RATE)
        assert not await pace.turn(now() + 4)
        take_into(config, copy_bytes_per_s_max=0)
        assert await pace.turn(now()), "without a limit nobody owes anything"

    run_virtual(main)
