"""Accepts TCP connections, does the TLS handshake within a time limit, and hands them on.

A connection counts towards the limits from the moment it is accepted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import structlog

from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import LIMITS_REACHED, TLS_HANDSHAKES_FAILED
from fetchproxy.tls.contexts import SHAKING, ReloadingContext, in_words, reason_of

log = structlog.get_logger(__name__)

NewProtocol = Callable[[str | None], asyncio.BufferedProtocol]  # takes the server name (SNI)


def ip_of(client: str) -> str:
    """The address of an `address:port`."""
    return client.rpartition(":")[0]


@dataclass(eq=False, repr=False)
class TlsAcceptor:
    """Pass `protocol_factory(new_protocol)` to `loop.create_server`, without `ssl=`.

    `admit()` returns False, and reports it, if there is one connection too many; the acceptor then
    closes the connection. The acceptor calls `ended()` for each admitted connection when its
    handshake has ended. `knows` says whether a server name is ours; None accepts all.
    """

    source: ReloadingContext
    tasks: asyncio.TaskGroup
    handshake_max_ms: int
    admit: Callable[[str], bool]
    ended: Callable[[str], None]
    warnings: SparingWarnings
    knows: Callable[[str | None], bool] | None = None
    _shaking: set[_Gate] = field(default_factory=set)

    def __len__(self) -> int:
        """The number of connections in the handshake."""
        return len(self._shaking)

    def protocol_factory(self, new_protocol: NewProtocol) -> Callable[[], asyncio.Protocol]:
        return lambda: _Gate(self, new_protocol)

    def close(self) -> None:
        """Ends the handshakes under way. Connections that were handed on stay open."""
        for gate in list(self._shaking):
            gate.abort()

    def begin(self, gate: _Gate, raw: asyncio.Transport) -> None:
        if not self.admit(gate.client):
            raw.abort()
            return
        self._shaking.add(gate)
        self.tasks.create_task(self._shake_hands(gate, raw), name=f"tls-handshake-{gate.client}")

    async def _shake_hands(self, gate: _Gate, raw: asyncio.Transport) -> None:
        SHAKING.set(gate)
        transport = None  # stays None if the connection was lost meanwhile
        try:
            transport = await asyncio.get_running_loop().start_tls(
                raw,
                gate,
                self.source.context,
                server_side=True,
                ssl_handshake_timeout=self.handshake_max_ms / 1000,
            )
        except OSError as error:
            self._failed(gate.client, gate.server_name, error)
        finally:
            self._shaking.discard(gate)
            self.ended(gate.client)
        if transport is not None and not transport.is_closing():
            gate.hand_over(transport)

    def _failed(self, client: str, server_name: str | None, error: OSError) -> None:
        reason = reason_of(error)
        TLS_HANDSHAKES_FAILED.labels(reason).inc()
        if reason == "closed":  # as each health check of a port does
            log.debug("tls_handshake_failed", client=client, error=in_words(error))
            return
        if reason == "timeout":
            LIMITS_REACHED.labels("tls_handshake_max_ms").inc()
        self.warnings.warn(
            "tls_handshake_failed",
            (ip_of(client), reason),
            client=client,
            server_name=server_name,
            reason=reason,
            error=in_words(error),
        )


class _Gate(asyncio.Protocol):
    """One connection, from its acceptance to the end of its handshake."""

    def __init__(self, acceptor: TlsAcceptor, new_protocol: NewProtocol) -> None:
        self._acceptor = acceptor
        self.knows = acceptor.knows or (lambda name: True)
        self._new_protocol = new_protocol
        self._raw: asyncio.Transport | None = None
        self._early = bytearray()
        self.client = ""
        self.server_name: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.client = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        # Bytes that arrive before the task runs belong to the handshake.
        self._raw.pause_reading()
        self._acceptor.begin(self, self._raw)

    def data_received(self, data: bytes) -> None:
        """Keeps bytes that arrived with the end of the handshake, before the task could go on."""
        self._early += data

    def send(self, data: bytes) -> None:
        """Sends an alert outside of TLS, after the handshake has failed."""
        if self._raw is not None:
            self._raw.write(data)

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()

    def hand_over(self, transport: asyncio.Transport) -> None:
        protocol = self._new_protocol(self.server_name)
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        early = memoryview(self._early)
        while early and not transport.is_closing():
            buffer = memoryview(cast(bytearray, protocol.get_buffer(len(early))))
            size = min(len(buffer), len(early))
            buffer[:size] = early[:size]
            early = early[size:]
            protocol.buffer_updated(size)
