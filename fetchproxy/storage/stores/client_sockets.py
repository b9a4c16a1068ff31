"""The sockets of a store's HTTP client, so that none outlives its request for long.

An HTTP client closes the connection of an upload that took too long. asyncio then keeps the socket,
with the bytes that are not sent yet, until the store takes them. A store that hangs takes nothing.
Each try would leave a socket behind for as long as the outage lasts.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

# In which asyncio's transports notice that their socket is shut, and close it.
_CLOSING_TURNS = 3


class ClientSockets:
    """`untaken_max_ms`: sent bytes that the store does not take for longer end the connection.

    That is Linux's TCP_USER_TIMEOUT. Elsewhere such a socket stays until the client is closed.
    """

    def __init__(self, untaken_max_ms: int) -> None:
        self._untaken_max_ms = untaken_max_ms
        self._made: WeakSet[socket.socket] = WeakSet()

    def new(self, address: tuple[Any, ...]) -> socket.socket:
        """aiohttp's `socket_factory`; `address` is one of getaddrinfo's."""
        family, kind, protocol, *_ = address
        made = socket.socket(family, kind, protocol)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._untaken_max_ms)
        self._made.add(made)
        return made

    async def shut(self) -> None:
        for left in self._made:
            with suppress(OSError):
                left.shutdown(socket.SHUT_RDWR)
        for _ in range(_CLOSING_TURNS):
            await asyncio.sleep(0)
