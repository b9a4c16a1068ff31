"""A part that fails begins again and takes nothing else with it; the pauses between grow."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from itertools import pairwise

import pytest
from archive_harness import until_true

from fetchproxy.config.schema import GatewayConfig
from fetchproxy.observability.health import Health
from fetchproxy.runtime import retrying
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.serving.listener import Listener


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


def restarting(
    part: Part, health: Health, on_failure: Callable[[], None] = lambda: None, name: str = "part"
) -> Coroutine[None, None, None]:
    rng = random.Random(1)
    return retrying.keep_running(name, part.run, rng, health, "it does nothing", on_failure)


async def test_a_failing_part_begins_again_after_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(retrying, "RESTART_PAUSE_INITIAL_S", 0.02)
    part, failed = Part(failures=3), []
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(restarting(part, Health(), on_failure=lambda: failed.append(1)))
        await part.runs_at_last.wait()
        task.cancel()
    assert len(failed) == 3
    pauses = [b - a for a, b in pairwise(part.begun_at)]
    for pause, at_least in zip(pauses, (0.02, 0.04, 0.08), strict=True):
        assert pause >= at_least


async def test_cancelling_ends_it() -> None:
    part = Part(failures=0)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(restarting(part, Health()))
        await part.runs_at_last.wait()
        task.cancel()
    assert len(part.begun_at) == 1


@pytest.mark.remedy("part_failed")
async def test_it_is_a_condition_until_the_part_has_run_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It ends by itself, and the other parts have none."""
    monkeypatch.setattr(retrying, "RESTART_PAUSE_INITIAL_S", 0.02)
    monkeypatch.setattr(retrying, "RESTART_PAUSE_MAX_S", 0.3)
    failing, sound, health = Part(failures=2), Part(failures=0), Health()
    async with asyncio.TaskGroup() as tasks:
        parts = {"part": failing, "sound": sound}
        begun = [
            tasks.create_task(restarting(part, health, name=name)) for name, part in parts.items()
        ]
        await failing.runs_at_last.wait()
        [condition] = health.conditions(0.0)
        assert (condition.kind, condition.subject) == ("part_failed", "part")
        assert condition.what == "the part \"part\" fails: RuntimeError('defect'); it does nothing"
        await until_true(lambda: not health.conditions(0.0))
        assert failing.begun_at[-1] + 0.3 <= asyncio.get_running_loop().time()
        for task in begun:
            task.cancel()


async def test_a_part_of_a_listener_that_fails_ends_neither_the_listener_nor_the_other_parts() -> (
    None
):
    health, failing, sound = Health(), Part(failures=1), Part(failures=0)
    config = GatewayConfig(listen="127.0.0.1:0")
    async with Listener(config, ServingLimits(), None, "gateway", health=health) as listener:
        listener.keep("failing", failing.run, "it does nothing")
        listener.keep("sound", sound.run, "")
        await until_true(lambda: bool(health.conditions(0.0)))
        [condition] = health.conditions(0.0)
        assert (condition.kind, condition.subject) == ("part_failed", "failing")
        assert sound.runs_at_last.is_set()
        await failing.runs_at_last.wait()
