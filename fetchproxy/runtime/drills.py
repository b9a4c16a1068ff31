"""A drill: a fault that an operator asks for, in this process alone and for a limited time.

`DRILL` is the process's own. It does nothing until `allow` is called, which is done at the start if
`drills.enabled` is set. A drill ends at its time, when it is ended, and when whoever began it has
not asked about it for LEASE_S: a command that was killed leaves no fault behind.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from weakref import WeakKeyDictionary

import structlog

from fetchproxy.errors import ConfigError

log = structlog.get_logger(__name__)

DRILL_MAX_S = 3_600.0
LEASE_S = 15.0
SLOW_S = 2.0
_Address = tuple[str, int]


class Fault(StrEnum):
    STORE_DOWN = "store-down"
    STORE_SLOW = "store-slow"
    STORE_CORRUPT = "store-corrupt"
    BROKER_DOWN = "broker-down"


@dataclass(slots=True)
class _Running:
    fault: Fault
    broker: _Address | None  # None: all
    ends_at: float  # loop time (s)
    ended: asyncio.Event
    timer: asyncio.TimerHandle
    lease: asyncio.TimerHandle


class Drill:
    def __init__(self) -> None:
        self._allowed = False
        self._running: _Running | None = None
        self._to_brokers: WeakKeyDictionary[asyncio.Transport, _Address] = WeakKeyDictionary()

    def allow(self) -> None:
        self._allowed = True

    @property
    def fault(self) -> Fault | None:
        return None if self._running is None else self._running.fault

    @property
    def left_s(self) -> float:
        if self._running is None:
            return 0.0
        return max(self._running.ends_at - asyncio.get_running_loop().time(), 0.0)

    def begin(
        self,
        fault: Fault,
        for_s: float,
        broker: _Address | None = None,
        must_be_connected: bool = True,
    ) -> None:
        """Raises ConfigError, in words for the operator. `must_be_connected`: refuse a broker to
        which this process has no connection.
        """
        if not self._allowed:
            raise ConfigError("drills are not allowed here: set drills.enabled = true and restart")
        if self._running is not None:
            raise ConfigError(f"the drill {self.fault} is running; wait until it is over")
        if not 0 < for_s <= DRILL_MAX_S:
            raise ConfigError(f"a drill takes at most {DRILL_MAX_S:.0f} s")
        known_addresses = set(self._to_brokers.values())
        if broker is not None and must_be_connected and broker not in known_addresses:
            known_names = ", ".join(sorted(map(_named, known_addresses)))
            raise ConfigError(f"no broker {_named(broker)} is connected; there are: {known_names}")
        loop = asyncio.get_running_loop()
        timer = loop.call_later(for_s, self.end, "its time is over")
        ends_at, ended = loop.time() + for_s, asyncio.Event()
        self._running = _Running(fault, broker, ends_at, ended, timer, self._new_lease())
        log.warning("drill_began", fault=fault, seconds=for_s, broker=_named(broker))
        if fault is Fault.BROKER_DOWN:
            for transport, address in list(self._to_brokers.items()):
                if broker in (None, address):
                    transport.abort()

    def renew(self) -> None:
        """Whoever began the drill is still there."""
        if self._running is not None:
            self._running.lease.cancel()
            self._running.lease = self._new_lease()

    def _new_lease(self) -> asyncio.TimerHandle:
        why = "the command that started it is gone"
        return asyncio.get_running_loop().call_later(LEASE_S, self.end, why)

    def end(self, why: str) -> None:
        """Idempotent."""
        running, self._running = self._running, None
        if running is None:
            return
        running.timer.cancel()
        running.lease.cancel()
        running.ended.set()
        log.warning("drill_ended", fault=running.fault, why=why)

    async def wait_slow(self) -> None:
        """For SLOW_S, or until the drill ends."""
        if self._running is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(SLOW_S):
                    await self._running.ended.wait()

    # --- connections to brokers ---
    def before_dial(self, address: _Address) -> None:
        """Raises ConnectionRefusedError."""
        running = self._running
        if running is None or running.fault is not Fault.BROKER_DOWN:
            return
        if running.broker in (None, address):
            raise ConnectionRefusedError("the drill broker-down refuses the connection")

    def dialed(self, address: _Address, transport: asyncio.Transport) -> None:
        """Remembers what a drill will have to close."""
        if self._allowed:
            self._to_brokers[transport] = address


def _named(broker: _Address | None) -> str:
    return "all" if broker is None else f"{broker[0]}:{broker[1]}"


DRILL = Drill()
