"""Wrong passwords behind one address delay those who give the same name, and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from virtual_loop import run_virtual

from fetchproxy.observability.health import Kind
from fetchproxy.serving.archive_only.logins import (
    ADDRESS_FAILED_LOGINS_PER_S_MAX,
    LoginRefused,
    Logins,
)

BALANCER = "10.0.0.1"


def now() -> float:
    return asyncio.get_running_loop().time()


async def right(logins: Logins, name: str, address: str = BALANCER, client_id: str = "") -> float:
    """How long (s) this login has waited."""
    began_at = now()
    async with logins.attempt(address, name, client_id):
        return now() - began_at


async def wrong(logins: Logins, name: str, address: str = BALANCER, client_id: str = "") -> None:
    with pytest.raises(LoginRefused):
        async with logins.attempt(address, name, client_id):
            raise LoginRefused("wrong user or password")


async def again_and_again(attempt: Callable[[], Awaitable[None]]) -> None:
    while True:
        await attempt()
        await asyncio.sleep(0.01)  # it connects again


class Guessers:
    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self._group = tasks
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self, attempts: list[Callable[[], Awaitable[None]]]) -> None:
        self._tasks += [self._group.create_task(again_and_again(one)) for one in attempts]
        await asyncio.sleep(10)

    def end(self) -> None:
        for task in self._tasks:
            task.cancel()


def run(main: Callable[[Logins, Guessers], Awaitable[None]]) -> None:
    async def within() -> None:
        async with asyncio.TaskGroup() as tasks:
            guessers = Guessers(tasks)
            await main(Logins(Path("no file")), guessers)
            guessers.end()

    run_virtual(within)


def test_wrong_passwords_of_another_name_delay_nobody() -> None:
    async def main(logins: Logins, guessers: Guessers) -> None:
        await guessers.begin([lambda: wrong(logins, "mallory")] * 60)
        assert await right(logins, "alice") == 0
        assert await right(logins, "mallory", "10.0.0.2") == 0

    run(main)


def test_wrong_passwords_of_very_many_names_delay_others_by_a_round() -> None:
    async def main(logins: Logins, guessers: Guessers) -> None:
        names = [f"guess-{n}" for n in range(60)]
        await guessers.begin([lambda name=name: wrong(logins, name) for name in names])  # type: ignore[misc]
        assert await right(logins, "alice") <= 60 / ADDRESS_FAILED_LOGINS_PER_S_MAX
        assert await right(logins, "alice", "10.0.0.2") == 0

    run(main)


def test_clients_with_one_name_take_turns() -> None:
    async def main(logins: Logins, guessers: Guessers) -> None:
        await guessers.begin([lambda: wrong(logins, "alice", client_id="old password")] * 60)
        assert await right(logins, "alice", client_id="new password") <= 2

    run(main)


def test_who_goes_leaves_the_queue() -> None:
    async def main(logins: Logins, guessers: Guessers) -> None:
        await guessers.begin([lambda: wrong(logins, "alice")] * 60)
        guessers.end()
        await asyncio.sleep(1)
        assert await right(logins, "alice") == 0
        assert not logins._waiting

    run(main)


@pytest.mark.remedy("clients_wait")
def test_long_waits_are_shown_until_the_passwords_are_right() -> None:
    async def main(logins: Logins, guessers: Guessers) -> None:
        assert not list(logins.conditions(now()))
        names = ["\x1b" + "x" * 10_000] + ["alice"] * 30
        await guessers.begin([lambda name=name: wrong(logins, name) for name in names])  # type: ignore[misc]
        (condition,) = logins.conditions(now())
        assert condition.kind == Kind.CLIENTS_WAIT
        assert "31 logins wait, 30 of them from 10.0.0.1 as 'alice'" in condition.what
        assert len(condition.what) < 200
        guessers.end()
        await asyncio.sleep(1)
        assert await right(logins, "alice") == 0
        assert not list(logins.conditions(now()))

    run(main)
