"""The server's side of TLS as asyncio lacks it: a refused client is told why, by an alert.

asyncio drops what OpenSSL has to say when a handshake fails, so that a client without certificate
would see nothing but a closed connection, and try again for ever.
"""

from __future__ import annotations

import ssl
from contextvars import ContextVar
from typing import Protocol, cast


class Peer(Protocol):
    """An accepted connection whose handshake is under way."""

    server_name: str | None

    def send(self, data: bytes) -> None: ...

    def knows(self, server_name: str | None) -> bool: ...


# Whose TLS is begun in this task: `wrap_bio` is called by asyncio and takes nothing of ours.
SHAKING: ContextVar[Peer] = ContextVar("shaking")


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
    """Made by `ServerSideContext(ssl.PROTOCOL_TLS_SERVER)`; `SHAKING` is set where it is used."""

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
        tls.peer, tls.outgoing = SHAKING.get(), outgoing
        return tls


def on_server_name(tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int | None:
    """For `sni_callback`: the peer is told the name, and says whether it is one of ours."""
    peer = cast(ServerSideObject, tls).peer
    peer.server_name = name
    return None if peer.knows(name) else ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME
