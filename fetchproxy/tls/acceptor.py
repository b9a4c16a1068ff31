"""Accepts TCP connections, does the TLS handshake within a time limit, and hands them on.

A connection counts towards the limits from the moment it is accepted. TLS, which costs memory,
begins with its first bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import structlog

from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import LIMITS_REACHED, TLS_HANDSHAKES_FAILED
from fetchproxy.tls.alerts import HANDSHAKE_PEER
from fetchproxy.tls.handshake_errors import (
    HandshakesMax,
    NotTls,
    handshake_error_in_words,
    other_protocol,
    reason_of,
)
from fetchproxy.tls.reloading import ReloadingContext

log = structlog.get_logger(__name__)

ClientAddress = tuple[str, int]


def ip_of(client: str) -> str:
    """The address of an `address:port`."""
    return client.rpartition(":")[0]


class ClientProtocol(asyncio.BufferedProtocol):
    """The protocol of a connection whose client may be behind a load balancer.

    `peer`: the client's own address, if the balancer has named it. It is set before
    `connection_made`. None: the socket's other side is the client.
    """

    peer: ClientAddress | None = None

    def address_of_client(self, transport: asyncio.BaseTransport) -> str:
        """As `address:port`."""
        peer = self.peer or transport.get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if peer else "unknown"


NewProtocol = Callable[[str | None], ClientProtocol]  # takes the server name (SNI)


@dataclass(eq=False, repr=False)
class TlsAcceptor:
    """Pass `protocol_factory(new_protocol)` to `loop.create_server`, without `ssl=`.

    `admit()` returns False, and reports it, if there is one connection too many; the acceptor then
    closes the connection. The acceptor calls `on_end()` for each admitted connection when its
    handshake has ended. `knows` says whether a server name is ours; None accepts all.
    """

    source: ReloadingContext
    handshake_max_ms: int
    handshakes_max: int
    admit: Callable[[str], bool]
    on_end: Callable[[str], None]
    warnings: SparingWarnings
    knows: Callable[[str | None], bool] | None = None
    # Both in the order of their beginning: connections without a byte yet, and handshakes.
    _without_byte: dict[_Handshake, None] = field(default_factory=dict)
    _handshakes: dict[_Handshake, None] = field(default_factory=dict)

    def __len__(self) -> int:
        """The number of connections whose handshake has not ended."""
        return len(self._without_byte) + len(self._handshakes)

    @property
    def handshakes(self) -> int:
        """The number of handshakes that have begun and not ended."""
        return len(self._handshakes)

    def protocol_factory(self, new_protocol: NewProtocol) -> Callable[[], ClientProtocol]:
        return lambda: _Handshake(self, new_protocol)

    def close(self) -> None:
        """Ends the handshakes under way. Connections that were handed on stay open."""
        for handshake in (*self._without_byte, *self._handshakes):
            handshake.abort()

    # -- called by the gates ---------------------------------------------------------------------
    def accepted(self, handshake: _Handshake) -> bool:
        """False: there is one connection too many."""
        if not self.admit(handshake.client):
            return False
        self._without_byte[handshake] = None
        return True

    def handshake_began(self, handshake: _Handshake) -> None:
        """Makes room for the handshake: clients that are still there try again.

        The oldest has had the most time. A client's part of a handshake takes a round trip, and
        this limit takes as many handshakes in that time as a core can begin.
        """
        self._without_byte.pop(handshake, None)
        self._handshakes[handshake] = None
        if len(self._handshakes) > self.handshakes_max:
            LIMITS_REACHED.labels("tls_handshakes_max").inc()
            next(iter(self._handshakes)).close_for_newer()

    def handshake_ended(self, handshake: _Handshake, error: BaseException | None) -> None:
        """`error`: None if the handshake has succeeded."""
        self._without_byte.pop(handshake, None)
        self._handshakes.pop(handshake, None)
        self.on_end(handshake.client)
        if isinstance(error, OSError):
            self._log_failed_handshake(handshake.client, handshake.server_name, error)
        elif error is not None:
            log.error(
                "tls_handshake_crashed",
                client=handshake.client,
                error=repr(error),
                hint="report a bug",
            )

    def _log_failed_handshake(self, client: str, server_name: str | None, error: OSError) -> None:
        reason = reason_of(error)
        TLS_HANDSHAKES_FAILED.labels(reason).inc()
        if reason == "closed":  # as each health check of a port does
            log.debug("tls_handshake_failed", client=client, error=handshake_error_in_words(error))
            return
        if reason == "timeout":
            LIMITS_REACHED.labels("tls_handshake_max_ms").inc()
        self.warnings.warn(
            "tls_handshake_failed",
            (ip_of(client), reason),
            client=client,
            server_name=server_name,
            reason=reason,
            error=handshake_error_in_words(error),
            **({"hint": error.hint} if isinstance(error, NotTls) else {}),
        )


class _Handshake(ClientProtocol):
    """One connection from its acceptance to the end of its handshake, or to its failure.

    Until the first bytes it is the raw socket's protocol; during the handshake it is TLS's.
    """

    def __init__(self, acceptor: TlsAcceptor, new_protocol: NewProtocol) -> None:
        self._acceptor = acceptor
        self.knows = acceptor.knows or (lambda name: True)
        self._new_protocol = new_protocol
        self._raw: asyncio.Transport | None = None
        self._first_byte_timer: asyncio.TimerHandle | None = None  # while no byte has come
        self._is_over = False
        self.client = ""
        self.server_name: str | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._raw is not None:
            self._hand_over(cast(asyncio.Transport, transport))
            return
        self._raw = cast(asyncio.Transport, transport)
        self.client = self.address_of_client(transport)
        if not self._acceptor.accepted(self):
            self._is_over = True
            self._raw.abort()
            return
        self._first_byte_timer = asyncio.get_running_loop().call_later(
            self._acceptor.handshake_max_ms / 1000, self._fail, TimeoutError()
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._acceptor.source.receive

    def buffer_updated(self, nbytes: int) -> None:
        """The first bytes of a handshake. They are in the buffer from which TLS reads."""
        if self._is_over:
            return
        assert self._raw is not None
        assert self._first_byte_timer is not None
        first = int.from_bytes(self._acceptor.source.receive[:4], signed=True)
        other = other_protocol(first) if nbytes >= 4 else None
        if other not in (None, "TLS"):
            self._fail(NotTls(other))
            return
        loop = asyncio.get_running_loop()
        left_s = self._first_byte_timer.when() - loop.time()
        self._first_byte_timer.cancel()
        self._acceptor.handshake_began(self)
        tls_ended: asyncio.Future[None] = loop.create_future()
        tls_ended.add_done_callback(self._on_tls_end)
        token = HANDSHAKE_PEER.set(self)
        try:
            tls = self._acceptor.source.protocol(self, tls_ended, max(left_s, 0.001))
        finally:
            HANDSHAKE_PEER.reset(token)
        # An error of the next calls has this frame, and `tls_ended` has the error: together they
        # would be garbage that refers to itself, with all of TLS, and stay for hours (ADR 0071).
        del tls_ended
        self._raw.set_protocol(tls)
        tls.connection_made(self._raw)
        tls.buffer_updated(nbytes)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called if the client goes before its first bytes, or after `_hand_over` was refused."""
        self._finish(ConnectionResetError("closed without a byte"))

    def send(self, data: bytes) -> None:
        """Sends an alert outside of TLS, after the handshake has failed."""
        if self._raw is not None:
            self._raw.write(data)

    def abort(self) -> None:
        if self._raw is not None:
            self._raw.abort()

    def close_for_newer(self) -> None:
        """Closes the connection in favour of newer ones."""
        self._fail(HandshakesMax(f"{self._acceptor.handshakes_max} newer handshakes are under way"))

    def _fail(self, error: OSError) -> None:
        self._finish(error)
        self.abort()

    def _on_tls_end(self, tls_ended: asyncio.Future[None]) -> None:
        if tls_ended.cancelled():
            return
        error = tls_ended.exception() or ConnectionResetError("closed within the handshake")
        # asyncio's frames have the error, too: as in `buffer_updated`.
        self._finish(error.with_traceback(None))

    def _finish(self, error: BaseException | None) -> None:
        """Only the first call counts."""
        if self._is_over:
            return
        self._is_over = True
        if self._first_byte_timer is not None:
            self._first_byte_timer.cancel()
        self._acceptor.handshake_ended(self, error)

    def _hand_over(self, transport: asyncio.Transport) -> None:
        """The handshake has succeeded."""
        if self._is_over or transport.is_closing():
            return
        self._finish(None)
        protocol = self._new_protocol(self.server_name)
        protocol.peer = self.peer
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
