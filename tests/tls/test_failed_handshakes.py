"""What a failed handshake has taken goes at once, without a collection of garbage (ADR 0071)."""

from __future__ import annotations

import asyncio
import gc
import socket
from functools import partial

import pytest
from certificates import Authority

from fetchproxy.config.load import Setting, load_config
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.tls.acceptor import TlsAcceptor
from fetchproxy.tls.protocol import TlsProtocol
from fetchproxy.tls.reloading import listener_context

TIMES = 3


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\x16\x03\x01\xff\xff" + bytes(1 << 16), id="a record that is too long"),
        pytest.param(b"\x16\x03\x01\x00\x05hello", id="no hello"),
        pytest.param(b"\x15\x03\x01\x00\x02\x01\x00" * 5_000, id="alerts"),
        pytest.param(b"\x16\x03\x01\x02\x00", id="the beginning of a hello"),
    ],
)
async def test_nothing_stays_of_a_failed_handshake(authority: Authority, data: bytes) -> None:
    certificate = Setting("gateway.tls_certificate_file", str(authority.issue("failed")), "test")
    config = load_config(None, {}, [certificate])
    source = listener_context(config.gateway, config.tls)
    assert source is not None
    ended: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()
    acceptor = TlsAcceptor(
        source, 10_000, 100, admit=lambda _: True, on_end=ended.put_nowait,
        warnings=SparingWarnings(loop.time),
    )  # fmt: skip
    server = await loop.create_server(
        acceptor.protocol_factory(lambda _: pytest.fail("it has not failed")), "127.0.0.1", 0
    )
    gc.collect()
    gc.disable()
    try:
        async with server:
            address = server.sockets[0].getsockname()
            for _ in range(TIMES):
                await asyncio.to_thread(partial(sent_and_closed, address, data))
                async with asyncio.timeout(60):
                    await ended.get()
        for _ in range(5):
            await asyncio.sleep(0)  # the transports' own last turns
        protocols = [each for each in gc.get_objects() if isinstance(each, TlsProtocol)]
        assert not protocols
    finally:
        gc.enable()


def sent_and_closed(address: tuple[str, int], data: bytes) -> None:
    with socket.create_connection(address) as peer:
        peer.sendall(data)
