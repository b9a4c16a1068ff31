"""Waits for the first of several coroutines, and for a thread."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Sequence,
)
from dataclasses import dataclass
from typing import TypeVar

V = TypeVar("V")


async def first_of(waits: Sequence[Coroutine[None, None, object]], timeout_s: float) -> None:
    """Return when one of `waits` is done or the time is over. Cancels the others."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(wait, name="first-of") for wait in waits]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
        else:
            await asyncio.sleep(timeout_s)


async def in_thread(work: Callable[[], V]) -> V:
    """The result of `work` in a thread. A caller that is cancelled waits for the thread: what it
    has reserved counts until the work is done (docs/adr/0085).
    """
    running = asyncio.get_running_loop().run_in_executor(None, work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()  # nobody else asks for it
        raise


async def first_success(
    calls: Iterable[Callable[[], Awaitable[V]]], stagger_s: float, failure: type[Exception]
) -> V:
    """The first result of `calls`; the others are cancelled. The next one begins when one fails by
    `failure`, or has no result after `stagger_s`. Raises the last failure if all fail; any other
    error at once.
    """
    outcome: V | _Failed = _Failed(ValueError("nothing to try"))
    async with asyncio.TaskGroup() as tasks:
        waiting, running = deque(calls), set[asyncio.Task[V | _Failed]]()
        while waiting or running:
            if waiting:
                running.add(tasks.create_task(_outcome(waiting.popleft()), name="first-success"))
            pause_s = stagger_s if waiting else None
            done, running = await asyncio.wait(
                running, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED
            )
            for outcome in (task.result() for task in done):
                if not isinstance(outcome, _Failed) or not isinstance(outcome.error, failure):
                    for task in running:
                        task.cancel()
                    waiting.clear()
                    running = set()
                    break
    if isinstance(outcome, _Failed):
        raise outcome.error
    return outcome


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


async def _outcome(work: Callable[[], Awaitable[V]]) -> V | _Failed:
    try:
        return await work()
    except Exception as error:  # noqa: BLE001 - `first_success` raises it again
        return _Failed(error)
