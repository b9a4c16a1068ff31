"""Whom archived bytes count for, on real connections through the listener's own TLS."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from certificates import Authority
from tls_parts import client_context

from fetchproxy.config.load import Setting, load_config
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.serving.admission import payer_of
from fetchproxy.tls.acceptor import TlsAcceptor
from fetchproxy.tls.reloading import listener_context


class Served(asyncio.BufferedProtocol):
    def __init__(self, payers: asyncio.Queue[str]) -> None:
        self._payers = payers
        self._buffer = bytearray(1024)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._payers.put_nowait(payer_of(transport))

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        pass


@pytest.mark.parametrize("auth", ["none", "requested", "required"])
async def test_who_shows_a_certificate_counts_by_it(authority: Authority, auth: str) -> None:
    settings = {"gateway.tls_certificate_file": authority.issue(f"listener-{auth}")}
    if auth != "none":
        settings |= {"gateway.tls_client_ca_file": authority.file, "gateway.tls_client_auth": auth}
    config = load_config(None, {}, [Setting(k, str(v), "test") for k, v in settings.items()])
    source = listener_context(config.gateway, config.tls)
    assert source is not None
    payers: asyncio.Queue[str] = asyncio.Queue()
    acceptor = TlsAcceptor(
        source, 10_000, 100, admit=lambda _: True, on_end=lambda _: None,
        warnings=SparingWarnings(asyncio.get_running_loop().time),
    )  # fmt: skip
    server = await asyncio.get_running_loop().create_server(
        acceptor.protocol_factory(lambda _: Served(payers)), "127.0.0.1", 0
    )
    async with server:
        port: int = server.sockets[0].getsockname()[1]

        async def payer(certificate: Path | None) -> str:
            _, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=client_context(authority, certificate)
            )
            async with asyncio.timeout(20):
                payer_seen = await payers.get()
            writer.close()
            return payer_seen

        orders, other = authority.issue(f"orders-{auth}"), authority.issue(f"other-{auth}")
        if auth == "none":
            assert {await payer(orders), await payer(None)} == {"127.0.0.1"}
        else:
            first, again, another = await payer(orders), await payer(orders), await payer(other)
            assert first == again != another
            assert f"orders-{auth}" in first
        if auth == "requested":
            assert await payer(None) == "127.0.0.1"
    acceptor.close()
