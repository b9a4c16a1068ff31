"""Connections of the console: few, each for one request without a body, and none for long.

A client that opens many connections and sends or reads nothing must not use up the gateway's file
descriptors and memory, and must not keep a health probe out. `LimitedConnection` is between the
socket and aiohttp's protocol, which has no such limits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from fetchproxy.config.values import is_loopback
from fetchproxy.observability.metrics import LIMITS_REACHED

# For a few browsers with several connections each, and a scraper; the console's own share of the
# descriptors.
CONSOLE_CONNECTIONS_MAX = 64
CONSOLE_HEADERS_MAX_S = 5.0
# From the end of the headers to the last byte of the response, however slowly the client reads.
CONSOLE_REQUEST_MAX_S = 30.0
_HEADERS_END = b"\r\n\r\n"


class ConnectionPlace(NamedTuple):
    """What `gives_way` needs to know of an open connection. `host`: the client's address."""

    host: str
    has_request: bool  # all headers have come


def gives_way(places: Sequence[ConnectionPlace], newcomer: str) -> int | None:
    """Which of `places`, the oldest first, is closed for a newcomer from this address. None: the
    newcomer is refused.

    First goes the oldest without a whole request: a probe sends its own at once. Then an address
    with many gives way to one with few, so that one client cannot take all places. A newcomer from
    this machine always gets in, because an orchestrator ends a process whose probe fails.
    """
    if (index := _first(not place.has_request for place in places)) is not None:
        return index
    hosts = Counter(place.host for place in places)
    host, count = hosts.most_common(1)[0]
    if is_loopback(newcomer):
        return _first(not is_loopback(place.host) for place in places) or 0
    return _first(place.host == host for place in places) if hosts[newcomer] + 1 < count else None


def _first(matches: Iterable[bool]) -> int | None:
    return next((index for index, match in enumerate(matches) if match), None)


class LimitedConnection(asyncio.Protocol):
    """Wraps a protocol from `make_inner`. `connections`: all open ones, the oldest first."""

    def __init__(
        self,
        make_inner: Callable[[], asyncio.Protocol],
        connections: dict[LimitedConnection, None],
    ) -> None:
        self._make_inner = make_inner
        self._inner = asyncio.Protocol()  # does nothing, for refused connections
        self._open = connections
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._host = ""
        self._last_bytes: bytes | None = b""  # of the headers so far; None: they are complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._host = (transport.get_extra_info("peername") or [""])[0]
        if len(self._open) >= CONSOLE_CONNECTIONS_MAX and not self._make_room():
            transport.abort()
            return
        self._open[self] = None
        self._transport = transport
        self._inner = self._make_inner()
        self._inner.connection_made(transport)
        self._end_after(CONSOLE_HEADERS_MAX_S, "console_headers_max_s")

    def data_received(self, data: bytes) -> None:
        if self._last_bytes is None:
            return  # a body, or a second request: the console reads neither
        seen = self._last_bytes + data
        end = seen.find(_HEADERS_END)
        if end < 0:
            self._last_bytes = seen[-len(_HEADERS_END) + 1 :]
        else:
            data = data[: end + len(_HEADERS_END) - len(self._last_bytes)]
            self._last_bytes = None
            self._end_after(CONSOLE_REQUEST_MAX_S, "console_request_max_s")
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._inner.connection_lost(exc)

    def _make_room(self) -> bool:
        """Whether another connection has been closed for this one."""
        LIMITS_REACHED.labels("console_connections_max").inc()
        opened = list(self._open)
        places = [ConnectionPlace(each._host, each._last_bytes is None) for each in opened]
        index = gives_way(places, self._host)
        if index is None:
            return False
        del self._open[opened[index]]  # its `connection_lost` comes in a later turn
        opened[index]._abort()
        return True

    def _end_after(self, seconds: float, limit: str) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, self._end, limit)

    def _end(self, limit: str) -> None:
        LIMITS_REACHED.labels(limit).inc()
        self._abort()

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
