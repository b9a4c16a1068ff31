"""A client that has closed its connection while it waits: its work ends, and no other client's.

A close (FIN) is no reset (RST): it cannot be told from the end of the client's sending alone.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from certificates import Authority
from kafka.protocol.consumer import FetchResponse
from memory_object_store import MemoryObjectStore
from planted_archive import PlantedArchive, batch
from served_archive import Client, ServedArchive, serve_archive
from test_archive_only_apis import ORDERS, fetch_request
from test_archive_only_limits import alive, nobody_left, nobody_left_but

from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, Content

HOUR_MS = 3_600_000
SOON_MS = 100
CUT_OFF = struct.pack(">i", 1_000_000) + bytes(300_000)  # more than is read


class SlowStore(MemoryObjectStore):
    """Logs are read when `goes_on` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.cancelled, self.goes_on = (asyncio.Event() for _ in range(3))

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        await self._wait(key)
        return await super().get(key, bytes_max)

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        await self._wait(key)
        return await super().get_range(key, byte_range)

    async def _wait(self, key: str) -> None:
        if not key.endswith(".log"):
            return
        self.begun.set()
        try:
            await self.goes_on.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


@asynccontextmanager
async def slow_archive(
    gateway: dict[str, object] | None = None, ended_client_max_ms: int = SOON_MS
) -> AsyncIterator[tuple[ServedArchive, SlowStore]]:
    planted = PlantedArchive(store := SlowStore())
    await planted.add([batch(0), batch(10)])
    settings = {"gateway": gateway or {}}
    async with serve_archive(planted, settings, ended_client_max_ms=ended_client_max_ms) as served:
        yield served, store


def ask(client: Client, offset: int = 0) -> None:
    client.send(fetch_request(11, {ORDERS: offset}, wait_ms=HOUR_MS), 11)


async def records(client: Client) -> bytes:
    response = FetchResponse[11].decode(await client.receive(), header=True)
    return bytes(response.responses[0].partitions[0].records or b"")


@pytest.mark.parametrize("behind", [b"", CUT_OFF])
async def test_the_read_of_who_has_closed_is_cancelled(behind: bytes) -> None:
    async with slow_archive() as (served, store):
        client, other = await served.client(), await served.client()
        ask(client)
        client.writer.write(behind)
        await store.begun.wait()
        await client.close()
        async with asyncio.timeout(20):
            await store.cancelled.wait()
        await nobody_left_but(served, 1)
        store.goes_on.set()
        ask(other)
        assert await records(other) == batch(0) + batch(10)


async def test_who_reads_the_same_goes_on() -> None:
    async with slow_archive() as (served, store):
        client, other = await served.client(), await served.client()
        ask(client)
        ask(other)
        await store.begun.wait()
        await client.close()
        await nobody_left_but(served, 1)
        assert not store.cancelled.is_set()
        store.goes_on.set()
        assert await records(other) == batch(0) + batch(10)


async def test_who_waits_at_the_end_and_closes_leaves_nothing_behind() -> None:
    async with slow_archive() as (served, _):
        client, other = await served.client(), await served.client()
        ask(client, 20)
        ask(other, 20)
        await client.close()
        await nobody_left_but(served, 1)
        await other.close()
        await nobody_left(served)


async def test_who_has_only_ended_its_sending_has_its_time() -> None:
    async with slow_archive(ended_client_max_ms=HOUR_MS) as (served, store):
        client = await served.client()
        ask(client)
        ask(client, 10)
        await store.begun.wait()
        client.end()
        other = await served.client()
        ask(other)
        other.writer.write(CUT_OFF)
        await other.writer.drain()
        other.reset()
        await nobody_left_but(served, 1)  # its end is noticed by the look at all connections
        store.goes_on.set()
        assert await records(client) == batch(0) + batch(10)
        assert await records(client) == batch(10)
        assert await client.closed()


async def test_who_takes_its_response_slowly_is_not_let_go() -> None:
    planted = PlantedArchive()
    await planted.add([batch(10 * i) for i in range(20_000)])
    async with serve_archive(planted, ended_client_max_ms=SOON_MS) as served:
        slow, silent = await served.client(receive_bytes_max=4096), await served.client()
        slow.send(fetch_request(11, {ORDERS: 0}, bytes_max=200_000), 11)
        slow.end()
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        ask(silent, 200_000)
        silent.end()
        await nobody_left_but(served, 1)
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await slow.receive()) > 150_000
        assert await slow.closed()


@pytest.mark.parametrize("behind", [b"", CUT_OFF])
async def test_tls_ends_both_directions_at_once(behind: bytes, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = str(authority.issue("node", hosts=("127.0.0.1",)))
    context = ssl.create_default_context(cafile=str(authority.file))
    gateway: dict[str, object] = {"tls_certificate_file": certificate}
    async with slow_archive(gateway, ended_client_max_ms=HOUR_MS) as (served, store):

        async def connect() -> Client:
            port = served.server.port
            return Client(*await asyncio.open_connection("127.0.0.1", port, ssl=context))

        client, other = await connect(), await connect()
        ask(client)
        client.writer.write(behind)
        await client.writer.drain()
        await store.begun.wait()
        if behind:
            client.writer.transport.abort()  # `close` would wait for TLS's own end
        else:
            client.writer.close()
        async with asyncio.timeout(20):
            await store.cancelled.wait()
        await nobody_left_but(served, 1)
        assert await alive(other)
        await other.close()
