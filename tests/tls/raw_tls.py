"""One TLS connection to a proxy, with nothing of a client behind it."""

from __future__ import annotations

import socket
import ssl
import struct
from pathlib import Path

from certificates import Authority
from proxy_process import ProxyProcess
from raw_fetch import RawConnection
from test_bad_input import read_frame, request
from tls_parts import client_context

API_VERSIONS = 18


class RawTls(RawConnection):
    def __init__(
        self,
        proxy: ProxyProcess,
        authority: Authority,
        server_name: str = "localhost",
        certificate: Path | None = None,
    ) -> None:
        super().__init__(proxy.bootstrap)
        self._socket = client_context(authority, certificate).wrap_socket(
            self._socket, server_hostname=server_name
        )


def tls_connection(
    proxy: ProxyProcess, authority: Authority, certificate: Path | None = None,
    server_name: str | None = "localhost",
) -> ssl.SSLSocket:  # fmt: skip
    context = client_context(authority, certificate)
    context.check_hostname = server_name is not None
    peer = socket.create_connection(("127.0.0.1", proxy.port))
    peer.settimeout(20)
    try:
        return context.wrap_socket(peer, server_hostname=server_name)
    except OSError:
        peer.close()
        raise


def responses(peer: socket.socket, correlation: int = 7) -> bool:
    """Whether the broker answers ApiVersions over this connection."""
    peer.sendall(request(API_VERSIONS, 0, correlation=correlation))
    return read_frame(peer)[:4] == struct.pack(">i", correlation)


def serves(proxy: ProxyProcess, authority: Authority) -> bool:
    with tls_connection(proxy, authority) as peer:
        return responses(peer)
