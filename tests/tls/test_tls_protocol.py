"""TLS in pieces: each byte arrives, in order, whatever the sizes and whoever is slow."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from certificates import Authority

from fetchproxy.tls.protocol import PIECE_BYTES, RECEIVE_BYTES, TlsProtocol

BYTES = 700_000


class Side(asyncio.BufferedProtocol):
    """Keeps what it receives, in a buffer of `buffer_bytes`, and may pause after each receipt."""

    def __init__(self, buffer_bytes: int = RECEIVE_BYTES) -> None:
        self.transport: asyncio.Transport | None = None
        self.received = bytearray()
        self.all_received = asyncio.Event()  # BYTES of them
        self.made, self.lost, self.writable = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.writable.set()
        self.ended_well = False
        self.pauses_s: Callable[[], float] | None = None
        self._buffer = memoryview(bytearray(buffer_bytes))

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.transport = transport
        self.made.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        if len(self.received) >= BYTES:
            self.all_received.set()
        if self.pauses_s is not None and self.transport is not None:
            self.transport.pause_reading()
            asyncio.get_running_loop().call_later(self.pauses_s(), self._go_on)

    def _go_on(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def eof_received(self) -> bool:
        self.ended_well = True
        return False

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self.lost.set()


@asynccontextmanager
async def connected(
    authority: Authority, server: Side, client: Side, version: ssl.TLSVersion
) -> AsyncIterator[None]:
    loop = asyncio.get_running_loop()
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(authority.issue("pieces"))
    of_server.maximum_version = version
    of_client = ssl.create_default_context(cafile=authority.file)
    receive = memoryview(bytearray(RECEIVE_BYTES))
    waiters = [loop.create_future(), loop.create_future()]
    listener = await loop.create_server(
        lambda: TlsProtocol(receive, server, of_server, waiters[0], 60.0), "127.0.0.1", 0
    )
    async with listener:
        port = listener.sockets[0].getsockname()[1]
        await loop.create_connection(
            lambda: TlsProtocol(receive, client, of_client, waiters[1], 60.0, "localhost"),
            "127.0.0.1",
            port,
        )
        async with asyncio.timeout(60):
            await asyncio.gather(*waiters)
            yield
        for side in (server, client):
            if side.transport is not None:
                side.transport.abort()


async def send(side: Side, data: bytes, sizes: Callable[[], int]) -> None:
    at = 0
    while at < len(data):
        await side.writable.wait()
        assert side.transport is not None
        size = sizes()
        piece: bytes | memoryview | bytearray = memoryview(data)[at : at + size]
        if size % 3 == 0:
            piece = bytes(piece)
        elif size % 3 == 1:
            piece = memoryview(bytearray(piece))
        side.transport.write(piece)
        if size % 3 == 1:
            piece[:] = bytes(len(piece))  # the sender uses its buffer again
        at += size
        if size % 5 == 0:
            await asyncio.sleep(0)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("seed", range(2))
async def test_both_ways_at_once(authority: Authority, version: ssl.TLSVersion, seed: int) -> None:
    rng = random.Random(seed)
    server, client = Side(rng.choice((700, 8192, RECEIVE_BYTES))), Side()
    if seed % 2:
        server.pauses_s = client.pauses_s = lambda: rng.choice((0.0, 0.0, 0.0, 0.005))
    there, back = rng.randbytes(BYTES), rng.randbytes(BYTES)
    top = rng.choice((3 * PIECE_BYTES, 3 * RECEIVE_BYTES))

    def sizes() -> int:
        return rng.choice((1, 100, PIECE_BYTES, rng.randint(1, top)))

    async with connected(authority, server, client, version):
        await asyncio.gather(send(client, there, sizes), send(server, back, sizes))
        await asyncio.gather(server.all_received.wait(), client.all_received.wait())
        assert client.transport is not None
        client.transport.close()
        await asyncio.gather(server.lost.wait(), client.lost.wait())
    assert server.received == there
    assert client.received == back
    assert server.ended_well


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_what_was_written_before_the_end_still_arrives(
    authority: Authority, version: ssl.TLSVersion
) -> None:
    """Most of it waits unencrypted, as the other side takes little at a time."""
    server, client = Side(4096), Side()
    data = random.Random(1).randbytes(20 * BYTES)
    async with connected(authority, server, client, version):
        assert client.transport is not None
        client.transport.write(data)
        assert client.transport.get_write_buffer_size() > BYTES
        assert not client.writable.is_set()
        client.transport.close()
        await server.lost.wait()
    assert server.received == data
    assert server.ended_well


async def test_unsent_bytes_count_until_the_socket_has_taken_them(authority: Authority) -> None:
    server, client = Side(), Side()
    data = bytes(20 * BYTES)
    async with connected(authority, server, client, ssl.TLSVersion.TLSv1_3):
        assert server.transport is not None
        assert client.transport is not None
        server.transport.pause_reading()
        client.transport.write(data)
        before = client.transport.get_write_buffer_size()
        for _ in range(20):  # the sockets fill up
            await asyncio.sleep(0.01)
        unsent_bytes = client.transport.get_write_buffer_size()
        assert BYTES < unsent_bytes <= before + PIECE_BYTES
        server.transport.resume_reading()
        await client.writable.wait()
        assert client.transport.get_write_buffer_size() < BYTES
