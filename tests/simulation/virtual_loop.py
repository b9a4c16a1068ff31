"""An event loop whose clock jumps to the next timer instead of waiting for it.

Whole hours run in milliseconds, and two runs of one seed are the same to the last step. If nothing
can ever happen again on the loop, that is a deadlock and it raises. Sockets and processes do not
work here. Work for a thread runs at once, in the loop's own.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

# Not 0, so that a time which was never set is not mistaken for now.
START_S = 1_000.0


class Deadlock(Exception):
    """No callback is ready and no timer is set."""


class VirtualClockSelector(selectors.SelectSelector):
    """A wait moves the clock; real events (the loop's own wake-up pipe) come first."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = START_S

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        if timeout is None:
            raise Deadlock("every task waits for another one")
        self.now_s += max(timeout, 0.0)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """`turns`: how often the loop has polled for events and run the callbacks that were ready."""

    def __init__(self) -> None:
        self.turns = 0
        self._virtual_clock = VirtualClockSelector()
        super().__init__(self._virtual_clock)

    def _run_once(self) -> None:
        # asyncio fires a timer up to this much before its time. A caller that then waits for the
        # remainder would do so for ever: unlike a real clock, this one stands still meanwhile.
        self._clock_resolution = math.ulp(self.time())
        self.turns += 1
        super()._run_once()  # type: ignore[misc]

    def time(self) -> float:
        return self._virtual_clock.now_s

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - as asyncio: whatever it raises
            future.set_exception(error)
        return future


def run_virtual(
    main: Callable[[], Coroutine[Any, Any, T]],
    loop_factory: Callable[[], VirtualTimeLoop] = VirtualTimeLoop,
) -> T:
    """Run `main()` on a new virtual-time loop; raises if it leaves a task behind."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:

        async def whole() -> T:
            result = await main()
            tasks_left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not tasks_left, (
                f"tasks left behind: {sorted(task.get_name() for task in tasks_left)}"
            )
            return result

        return runner.run(whole())
