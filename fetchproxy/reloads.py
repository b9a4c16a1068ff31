"""Settings that are read again while a process runs: when it is asked, and what it tells."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from fetchproxy.config.load import Loaded
from fetchproxy.config.reloading import Reload, compare_settings, own_copy
from fetchproxy.config.schema import Config
from fetchproxy.errors import ConfigError
from fetchproxy.observability.health import Condition, Health, Kind

log = structlog.get_logger(__name__)

NextReload = Callable[[], Awaitable[Reload]]  # waits until settings were read again


class Reloads:
    """`config`: as it was read at the start. `read` reads it again, and may block; ConfigError: it
    cannot be used.
    """

    def __init__(self, config: Config, read: Callable[[], Loaded]) -> None:
        self._in_force = own_copy(config)
        self._read = read
        self._requested = asyncio.Event()

    def ask(self) -> None:
        self._requested.set()

    async def next(self) -> Reload:
        await self._requested.wait()
        self._requested.clear()
        try:
            loaded = await asyncio.to_thread(self._read)
        except ConfigError as error:
            return Reload(self._in_force, fault=str(error))
        reload = compare_settings(self._in_force, loaded)
        self._in_force = reload.config
        return reload


def tell(reload: Reload, health: Health) -> None:
    """In the log, and as conditions: what was taken, what waits, or why nothing was taken."""
    health.forget(Kind.SETTINGS_REFUSED)  # each request is answered in the log
    if reload.fault:
        what = f"The changed settings cannot be used, so none of them was applied: {reload.fault}"
        health.report(Condition(Kind.SETTINGS_REFUSED, what), error=reload.fault)
        return
    log.info("settings_read_again", taken=list(reload.applied_keys), waiting=list(reload.waiting))
    health.forget(Kind.SETTINGS_WAIT)
    if reload.waiting:
        what = f"Changed settings wait for a restart: {', '.join(reload.waiting)}"
        health.hold(Condition(Kind.SETTINGS_WAIT, what))
