"""Passes clients on to a real broker, byte for byte: they take a phantom for a broker.

Phantoms must also be brokers at the listener of clients, if brokers among themselves use another
one: else its Metadata has no leader for the partitions that they lead. So they have a port of its
own for that listener, at which every connection is passed on.
"""

from __future__ import annotations

import asyncio
import ssl
from contextlib import AbstractAsyncContextManager, suppress
from typing import NamedTuple

from fetchproxy.cluster_restore.accepted_connections import AcceptedConnections
from fetchproxy.config.values import HostPort

_DIAL_MAX_S = 10.0
_AT_ONCE_BYTES = 64 << 10


class RealBroker(NamedTuple):
    """With TLS for its listener. None: the bytes of the client are passed on as they are, also if
    they are TLS. Our certificate is not shown there: a client would have our rights.
    """

    address: HostPort
    context: ssl.SSLContext | None = None


def relaying(host: str, broker: HostPort) -> AbstractAsyncContextManager[int]:
    """Passes connections on inside the block. The port at `host`. Raises ConfigError."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError):
            await pass_on(RealBroker(broker), reader, writer)

    return AcceptedConnections(serve, "clients").at(HostPort(host, 0))


async def pass_on(
    broker: RealBroker,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    beginning: bytes = b"",
) -> None:
    """Until both sides have closed. `beginning`: what was read of the client. Raises OSError,
    TimeoutError.
    """
    address, context = broker
    name = None if context is None else address.host
    async with asyncio.timeout(_DIAL_MAX_S):
        there = await asyncio.open_connection(
            address.host, address.port, ssl=context, server_hostname=name
        )
    try:
        there[1].write(beginning)
        async with asyncio.TaskGroup() as both:
            both.create_task(_copy(reader, there[1]))
            both.create_task(_copy(there[0], writer))
    finally:
        there[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side closes; then the other one is closed."""
    with suppress(OSError):
        while data := await reader.read(_AT_ONCE_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
