"""A part that fails begins again and takes nothing else with it; the pauses between grow."""

from __future__ import annotations

import asyncio
import random
from itertools import pairwise

import pytest

from fetchproxy.runtime import retrying as keep_running


class Part:
    """Fails `failures` times, then runs until cancelled."""

    def __init__(self, failures: int) -> None:
        self.failures = failures
        self.begun_at: list[float] = []
        self.runs_at_last = asyncio.Event()

    async def run(self) -> None:
        self.begun_at.append(asyncio.get_running_loop().time())
        if len(self.begun_at) <= self.failures:
            async with asyncio.TaskGroup() as tasks:  # as the archiver does: errors come in groups
                tasks.create_task(self._fail())
        self.runs_at_last.set()
        await asyncio.Event().wait()

    async def _fail(self) -> None:
        raise RuntimeError("defect")


async def test_a_failing_part_begins_again_after_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(keep_running, "RESTART_PAUSE_INITIAL_S", 0.02)
    part, failed = Part(failures=3), []
    rng = random.Random(1)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(
            keep_running.keep_running("part", part.run, rng, on_failure=lambda: failed.append(1))
        )
        await part.runs_at_last.wait()
        task.cancel()
    assert len(failed) == 3
    pauses = [b - a for a, b in pairwise(part.begun_at)]
    for pause, at_least in zip(pauses, (0.02, 0.04, 0.08), strict=True):
        assert pause >= at_least


async def test_cancelling_ends_it() -> None:
    part = Part(failures=0)
    rng = random.Random(1)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(keep_running.keep_running("part", part.run, rng))
        await part.runs_at_last.wait()
        task.cancel()
    assert len(part.begun_at) == 1
