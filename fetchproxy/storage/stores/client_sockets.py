"""The sockets of a store's HTTP client. They do not outlive their requests for long.

An HTTP client closes the connection of an upload that took too long. asyncio then keeps the socket,
with its unsent bytes, until the store takes them. A hanging store takes nothing. Each try would
leave a socket for as long as the outage lasts.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Any
from weakref import WeakSet

# Loop turns in which asyncio's transports notice that their socket is shut, and close it.
_CLOSING_TURNS = 3


class ClientSockets:
    """`untaken_max_ms`: the connection ends if the store does not take sent bytes for longer.

    This uses Linux's TCP_USER_TIMEOUT. On other systems such a socket stays until the client is
    closed.
    """

    def __init__(self, untaken_max_ms: int) -> None:
        self._untaken_max_ms = untaken_max_ms
        self._made: WeakSet[socket.socket] = WeakSet()

    def new(self, address: tuple[Any, ...]) -> socket.socket:
        """aiohttp's `socket_factory`. `address`: an entry of getaddrinfo's result."""
        family, kind, protocol, *_ = address
        new_socket = socket.socket(family, kind, protocol)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            new_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._untaken_max_ms)
        self._made.add(new_socket)
        return new_socket

    async def shut(self) -> None:
        for client_socket in self._made:
            with suppress(OSError):
                client_socket.shutdown(socket.SHUT_RDWR)
        for _ in range(_CLOSING_TURNS):
            await asyncio.sleep(0)
