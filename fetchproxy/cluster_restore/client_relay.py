"""A port for clients that reach the brokers at another listener than brokers among themselves.

Phantoms must be brokers at that listener, too: else its Metadata has no leader for the partitions
that they lead. What clients send there is passed on to a real broker, with its TLS, byte for byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fetchproxy.config.values import HostPort
from fetchproxy.errors import ConfigError, system_error_in_words

_DIAL_MAX_S = 10.0
_AT_ONCE_BYTES = 64 << 10


@asynccontextmanager
async def relaying(host: str, broker: HostPort) -> AsyncIterator[int]:
    """Passes connections on inside the block. The port at `host`. Raises ConfigError."""
    async with asyncio.TaskGroup() as connections:

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            passing = _pass_on(broker, reader, writer)
            try:
                task = connections.create_task(passing)
            except RuntimeError:  # the block has ended since the connection was accepted
                passing.close()
                writer.transport.abort()
                return
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        tasks: set[asyncio.Task[None]] = set()
        try:
            server = await asyncio.start_server(connected, host, 0)
        except OSError as error:
            why = system_error_in_words(error)
            raise ConfigError(f"cannot listen at {host} for clients: {why}") from error
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in tasks:
                task.cancel()


async def _pass_on(
    broker: HostPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    try:
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_DIAL_MAX_S):
                there = await asyncio.open_connection(broker.host, broker.port)
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, there[1]))
                    both.create_task(_copy(there[0], writer))
            finally:
                there[1].close()
    finally:
        writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until one side closes; then the other one is closed."""
    with suppress(OSError):
        while data := await reader.read(_AT_ONCE_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()
