"""Connections of the console: few, each for one request, and none for long.

Whoever opens many and sends nothing, or never reads, must not take the descriptors and the memory
of the gateway beside it. It stands between a socket and aiohttp's own protocol, which has no such
limits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from fetchproxy.observability.metrics import LIMITS_REACHED

log = structlog.get_logger(__name__)

# A few browsers, with a handful each, and a scraper; its own share of the descriptors.
CONSOLE_CONNECTIONS_MAX = 64
CONSOLE_HEADERS_MAX_S = 5.0
# From the first byte to the last one of the answer, however slowly it is read.
CONSOLE_REQUEST_MAX_S = 30.0
_HEADERS_END = b"\r\n\r\n"


class LimitedConnections:
    """A protocol factory around another one."""

    def __init__(self, inner: Callable[[], asyncio.Protocol]) -> None:
        self._inner = inner
        self.open: set[LimitedConnection] = set()

    def __call__(self) -> LimitedConnection:
        return LimitedConnection(self._inner, self.open)


class LimitedConnection(asyncio.Protocol):
    def __init__(
        self, inner: Callable[[], asyncio.Protocol], connections: set[LimitedConnection]
    ) -> None:
        self._make_inner = inner
        self._inner: asyncio.Protocol | None = None  # None: refused
        self._open = connections
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._last_bytes: bytes | None = b""  # of unfinished headers; None: they are here

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        if len(self._open) >= CONSOLE_CONNECTIONS_MAX:
            LIMITS_REACHED.labels("console_connections_max").inc()
            transport.abort()
            return
        self._open.add(self)
        self._transport = transport
        self._inner = self._make_inner()
        self._inner.connection_made(transport)
        self._end_after(CONSOLE_HEADERS_MAX_S, "console_headers_max_s")

    def data_received(self, data: bytes) -> None:
        if self._inner is None:
            return
        if self._last_bytes is not None:
            seen = self._last_bytes + data
            self._last_bytes = seen[-len(_HEADERS_END) + 1 :]
            if _HEADERS_END in seen:
                self._last_bytes = None
                self._end_after(CONSOLE_REQUEST_MAX_S, "console_request_max_s")
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return None if self._inner is None else self._inner.eof_received()

    def pause_writing(self) -> None:
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._inner is not None:
            self._inner.connection_lost(exc)

    def _end_after(self, seconds: float, limit: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end, limit)

    def _end(self, limit: str) -> None:
        LIMITS_REACHED.labels(limit).inc()
        if self._transport is not None:
            self._transport.abort()
