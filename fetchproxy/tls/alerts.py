"""The server side of TLS with alerts, which asyncio lacks: an alert tells a refused client why.

If a handshake fails, asyncio drops OpenSSL's alert. A client without a certificate would see only
a closed connection, and would try again for ever.
"""

from __future__ import annotations

import ssl
from contextvars import ContextVar
from typing import Protocol, cast

# The peer whose TLS begins: asyncio calls `wrap_bio` without our arguments.
HANDSHAKE_PEER: ContextVar[Peer] = ContextVar("shaking")


class Peer(Protocol):
    """An accepted connection whose handshake is under way."""

    server_name: str | None

    def send(self, data: bytes) -> None: ...

    def knows(self, server_name: str | None) -> bool: ...


class ServerSideObject(ssl.SSLObject):
    peer: Peer
    outgoing: ssl.MemoryBIO

    def do_handshake(self) -> None:
        try:
            super().do_handshake()
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            raise
        except ssl.SSLError:
            alert = self.outgoing.read()
            if alert:
                self.peer.send(alert)
            raise


class ServerSideContext(ssl.SSLContext):
    """Create with `ServerSideContext(ssl.PROTOCOL_TLS_SERVER)`. Set `HANDSHAKE_PEER` before use."""

    sslobject_class = ServerSideObject

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        tls = cast(
            ServerSideObject,
            super().wrap_bio(incoming, outgoing, server_side, server_hostname, session),
        )
        tls.peer, tls.outgoing = HANDSHAKE_PEER.get(), outgoing
        return tls


def on_server_name(tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
    """For `sni_callback`: gives the peer the name, and asks whether the name is one of ours."""
    peer = cast(ServerSideObject, tls).peer
    peer.server_name = name
    return None if peer.knows(name) else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
