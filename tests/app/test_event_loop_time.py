"""The loop's turns, on a clock that only callbacks move."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
import time

import pytest

from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.runtime.cooperative import a_turn
from fetchproxy.runtime.timed_loop import (
    LONGEST_WITHIN_S,
    PUBLISH_INTERVAL_S,
    TimedEventLoop,
    TurnTimes,
)


class SteppedClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def value(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


def test_a_turn_is_all_that_runs_between_two_looks_at_the_sockets() -> None:
    clock, cpu_clock = SteppedClock(), SteppedClock()

    def busy(seconds: float) -> None:
        clock.now += seconds
        cpu_clock.now += seconds / 5  # others have the core four fifths of the time

    async def main() -> tuple[int, float, float, float]:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TimedEventLoop)
        await asyncio.sleep(0)
        before = loop.times.turns
        for seconds in (0.25, 0.5):
            loop.call_soon(busy, seconds)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        clock.now += 0.1
        await asyncio.sleep(0)
        times = loop.times
        return times.turns - before, times.busy_s, times.longest_s, times.cpu_longest_s

    count_before = value("fetchproxy_event_loop_held_seconds_count")
    quick = value("fetchproxy_event_loop_cpu_seconds_bucket", le="0.1")
    in_bucket = value("fetchproxy_event_loop_held_seconds_bucket", le="0.25")
    with asyncio.Runner(
        loop_factory=lambda: TimedEventLoop(clock, cpu_clock, time.monotonic)
    ) as runner:
        turns, busy_s, longest_s, cpu_longest_s = runner.run(main())
    assert turns >= 3
    assert busy_s == pytest.approx(0.85)
    assert longest_s == pytest.approx(0.75)
    assert cpu_longest_s == pytest.approx(0.15)
    assert value("fetchproxy_event_loop_held_seconds_count") - count_before == 2
    # 0.15 s of CPU is above that bucket, and 0.02 s is in it.
    assert value("fetchproxy_event_loop_cpu_seconds_bucket", le="0.1") - quick == 1
    assert value("fetchproxy_event_loop_held_seconds_bucket", le="0.25") - in_bucket == 1


def test_the_longest_is_that_of_the_last_minute() -> None:
    times = TurnTimes()
    turns, busy = (
        value("fetchproxy_event_loop_turns_total"),
        value("fetchproxy_event_loop_busy_seconds_total"),
    )
    times.add(0.125, 0.0625)
    times.publish()
    for _ in range(round(LONGEST_WITHIN_S / PUBLISH_INTERVAL_S) - 1):
        times.add(0.0005)
        times.publish()
        assert value("fetchproxy_event_loop_longest_seconds") == 0.125
        assert value("fetchproxy_event_loop_cpu_longest_seconds") == 0.0625
    times.publish()
    assert value("fetchproxy_event_loop_longest_seconds") == 0.0005
    assert value("fetchproxy_event_loop_cpu_longest_seconds") == 0
    assert value("fetchproxy_event_loop_turns_total") - turns == times.turns == 60
    spent = value("fetchproxy_event_loop_busy_seconds_total") - busy
    assert spent == pytest.approx(times.busy_s)


IN_A_COMMAND = """
import asyncio, time
from fetchproxy.cli.running import run
async def main():
    now = asyncio.get_running_loop().time()
    print(now - time.monotonic())
run(main())
"""


def test_a_commands_deadlines_go_on_while_the_machine_is_suspended() -> None:
    """In a time namespace whose machine was suspended for ten days."""
    aside = ["unshare", "--time", "--fork", "--boottime=864000"]
    if shutil.which("unshare") is None or subprocess.run([*aside, "true"], check=False).returncode:
        pytest.skip("no time namespace can be made here")
    result = subprocess.run(
        [*aside, sys.executable, "-c", IN_A_COMMAND], capture_output=True, text=True, check=True
    )
    assert float(result.stdout) == pytest.approx(864_000, abs=60)


async def test_the_long_work_of_many_goes_on_one_step_in_a_turn() -> None:
    loop = asyncio.get_running_loop()
    turn, steps = 0, []

    def count() -> None:
        nonlocal turn
        turn += 1
        if len(steps) < 50:
            loop.call_soon(count)

    async def work() -> None:
        for _ in range(5):
            await a_turn()
            steps.append(turn)

    loop.call_soon(count)
    async with asyncio.TaskGroup() as tasks:
        for _ in range(10):
            tasks.create_task(work())
    assert len(set(steps)) == len(steps) == 50
