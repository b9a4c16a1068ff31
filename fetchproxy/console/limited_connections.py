"""Connections of the console: few, each for one request without a body, and none for long.

A client that opens many connections and sends or reads nothing must not use up the gateway's file
descriptors and memory, and must not keep a health probe out. So no newcomer is refused before it
has asked, and a probe has a place whatever others ask. `LimitedConnection` is between the socket
and aiohttp's protocol, which has no such limits.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fetchproxy.config.values import is_loopback
from fetchproxy.observability.metrics import LIMITS_REACHED

# Requests under way: for a few browsers with several connections each, and a scraper.
CONSOLE_CONNECTIONS_MAX = 64
# Connections without a whole request. The loop accepts 100 in a turn and reads two turns later what
# they have sent, so a probe's request is read before its connection is the oldest of so many.
CONSOLE_SILENT_MAX = 256
CONSOLE_HEADERS_MAX_S = 5.0
# From the end of the headers to the last byte of the response, however slowly the client reads.
CONSOLE_REQUEST_MAX_S = 30.0
_HEADERS_END = b"\r\n\r\n"
# Answered at once, in a few bytes that no client has to wait for. (A parent of workers asks them
# for /readyz, so that one counts as a request.)
_PROBE = b"GET /healthz "


def request_to_close(hosts: Sequence[str], newcomer: str) -> int | None:
    """The request that is closed to make place for a request from the address `newcomer`. `hosts`:
    the clients' addresses, the oldest request first. None: the newcomer is refused.

    An address with many gives way to one with few, so that one client cannot take all places. A
    newcomer from this machine always gets in.
    """
    counts = Counter(hosts)
    host, count = counts.most_common(1)[0]
    if is_loopback(newcomer):
        return _first(not is_loopback(host) for host in hosts) or 0
    return _first(each == host for each in hosts) if counts[newcomer] + 1 < count else None


def _first(matches: Iterable[bool]) -> int | None:
    return next((index for index, match in enumerate(matches) if match), None)


@dataclass(slots=True)
class OpenConnections:
    """The oldest first."""

    without_request: dict[LimitedConnection, None] = field(default_factory=dict)
    requesting: dict[LimitedConnection, None] = field(default_factory=dict)  # not for health


class LimitedConnection(asyncio.Protocol):
    """Wraps a protocol from `make_inner`, from the first bytes on."""

    def __init__(
        self, make_inner: Callable[[], asyncio.Protocol], connections: OpenConnections
    ) -> None:
        self._make_inner = make_inner
        self._inner = asyncio.Protocol()  # does nothing, while nothing has come
        self._open = connections
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._host = ""
        self._begin = b""  # of the request
        self._last_bytes: bytes | None = b""  # of the headers so far; None: they are complete

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._host = (transport.get_extra_info("peername") or [""])[0]
        self._transport = transport
        self._open.without_request[self] = None
        if len(self._open.without_request) > CONSOLE_SILENT_MAX:
            self._close_for_another(self._open.without_request, 0)
        self._end_after(CONSOLE_HEADERS_MAX_S, "console_headers_max_s")

    def data_received(self, data: bytes) -> None:
        if self._last_bytes is None or self._transport is None:
            return  # a body, or a second request: the console reads neither
        if not self._begin:
            self._inner = self._make_inner()
            self._inner.connection_made(self._transport)
        self._begin = (self._begin + data[: len(_PROBE)])[: len(_PROBE)]
        received = self._last_bytes + data
        end = received.find(_HEADERS_END)
        if end < 0:
            self._last_bytes = received[-len(_HEADERS_END) + 1 :]
        else:
            data = data[: end + len(_HEADERS_END) - len(self._last_bytes)]
            self._last_bytes = None
            if not self._has_place():
                self._abort()
                return
            self._end_after(CONSOLE_REQUEST_MAX_S, "console_request_max_s")
        self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        return self._inner.eof_received()

    def pause_writing(self) -> None:
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.without_request.pop(self, None)
        self._open.requesting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
        self._inner.connection_lost(exc)

    def _has_place(self) -> bool:
        """Whether there is a place for the request; always for a probe."""
        self._open.without_request.pop(self, None)
        if self._begin == _PROBE:
            return True
        requesting = self._open.requesting
        if len(requesting) >= CONSOLE_CONNECTIONS_MAX:
            index = request_to_close([connection._host for connection in requesting], self._host)
            if index is None:
                LIMITS_REACHED.labels("console_connections_max").inc()
                return False
            self._close_for_another(requesting, index)
        requesting[self] = None
        return True

    def _close_for_another(self, among: dict[LimitedConnection, None], index: int) -> None:
        LIMITS_REACHED.labels("console_connections_max").inc()
        one = list(among)[index]
        del among[one]  # its `connection_lost` comes in a later turn
        one._abort()

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
