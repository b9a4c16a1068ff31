"""A port of the restore, to which every client of the cluster may connect.

Above CONNECTIONS_MAX, the next connection ends the oldest that may be ended: so nobody keeps the
others out.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager

import structlog

from fetchproxy.config.values import HostPort
from fetchproxy.errors import ConfigError, system_error_in_words

# Clients of the cluster may all be here, each with buffers of up to 256 KiB.
CONNECTIONS_MAX = 1_000
_HANDSHAKE_MAX_S = 10.0

log = structlog.get_logger(__name__)

ServeConnection = Callable[
    [asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]
]


class AcceptedConnections:
    """`serve` is run for each connection, which is closed afterwards. `whose` is for errors."""

    def __init__(self, serve: ServeConnection, whose: str) -> None:
        self._serve = serve
        self._whose = whose
        self._protected: set[asyncio.StreamWriter] = set()
        # Those that may be ended, the oldest first.
        self._others: dict[asyncio.StreamWriter, None] = {}

    def protect(self, writer: asyncio.StreamWriter) -> None:
        """No newer connection ends this one."""
        self._others.pop(writer, None)
        self._protected.add(writer)

    @asynccontextmanager
    async def at(
        self, address: HostPort, context: ssl.SSLContext | None = None
    ) -> AsyncIterator[int]:
        """Accepts inside the block. The port. Raises ConfigError."""
        async with asyncio.TaskGroup() as connections:

            def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                serving = self._serve_one(reader, writer)
                try:
                    task = connections.create_task(serving)
                except RuntimeError:  # the block has ended since the connection was accepted
                    serving.close()
                    writer.transport.abort()
                    return
                tasks.add(task)
                task.add_done_callback(tasks.discard)
                self._make_place(writer)

            tasks: set[asyncio.Task[None]] = set()
            handshake_max_s = None if context is None else _HANDSHAKE_MAX_S
            try:
                server = await asyncio.start_server(
                    connected, address.host, address.port,
                    ssl=context, ssl_handshake_timeout=handshake_max_s,
                )  # fmt: skip
            except OSError as error:
                why = system_error_in_words(error)
                raise ConfigError(f"cannot listen at {address} for {self._whose}: {why}") from error
            try:
                yield server.sockets[0].getsockname()[1]
            finally:
                server.close()
                for task in tasks:
                    task.cancel()

    def _make_place(self, newcomer: asyncio.StreamWriter) -> None:
        if len(self._others) + len(self._protected) >= CONNECTIONS_MAX and self._others:
            oldest = next(iter(self._others))
            del self._others[oldest]
            oldest.transport.abort()
        self._others[newcomer] = None

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await self._serve(reader, writer)
        except Exception:  # a bug in one connection must not end the restore
            log.exception("session_crashed")
        finally:
            self._others.pop(writer, None)
            self._protected.discard(writer)
            writer.close()
