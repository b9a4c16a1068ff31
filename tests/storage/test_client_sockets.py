"""Clients of a hanging store leave no socket behind, and so no data of a part."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from yarl import URL

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.storage.stores.locations import HdfsLocation, S3Location
from fetchproxy.storage.stores.s3 import S3ObjectStore
from fetchproxy.storage.stores.webhdfs import WebHdfsClient

SIZE_BYTES = 64 * 1024 * 1024  # more than all buffers in between take
HASTY = StoreConfig(timeout_ms=170)


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "any")


@asynccontextmanager
async def frozen_store() -> AsyncIterator[tuple[str, Callable[[], int]]]:
    """(host:port of a store that accepts and never reads, the number of its clients' sockets)."""
    accepted: list[asyncio.StreamWriter] = []

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        accepted.append(writer)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        before = open_sockets()
        yield f"{host}:{port}", lambda: open_sockets() - before - len(accepted)
        for writer in accepted:
            writer.transport.abort()
        await asyncio.sleep(0.01)


async def upload_to_hdfs(client: WebHdfsClient, address: str) -> None:
    await client.create(URL(f"http://{address}/place"), SIZE_BYTES, content())


async def content() -> AsyncIterator[bytes]:
    for _ in range(SIZE_BYTES // (1024 * 1024)):
        yield bytes(1024 * 1024)


async def test_an_upload_to_hdfs_that_is_cancelled_ends_with_its_client() -> None:
    async with frozen_store() as (address, sockets):
        client = WebHdfsClient(HdfsLocation((address,), "/f"), StoreConfig())
        upload = asyncio.create_task(upload_to_hdfs(client, address))
        await sending(sockets)
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        assert sockets() == 1, "asyncio keeps the rest for the store to take"
        await client.close()
        assert sockets() == 0


async def test_an_upload_to_s3_that_is_cancelled_keeps_no_socket(keys: None) -> None:
    async with frozen_store() as (address, sockets):
        store = S3ObjectStore(S3Location("b", endpoint_url=f"http://{address}", region="r"))
        upload = asyncio.create_task(store.put("k", bytes(SIZE_BYTES)))
        await sending(sockets)
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        await no_socket_is_left(sockets)
        await store.close()


async def test_an_upload_to_hdfs_that_took_too_long_keeps_no_socket() -> None:
    async with frozen_store() as (address, sockets):
        client = WebHdfsClient(HdfsLocation((address,), "/f"), HASTY)
        with pytest.raises(TimeoutError):
            await upload_to_hdfs(client, address)
        await no_socket_is_left(sockets)
        await client.close()


async def test_an_upload_to_s3_that_took_too_long_keeps_no_socket(keys: None) -> None:
    async with frozen_store() as (address, sockets):
        url = f"http://{address}"
        async with S3ObjectStore(
            S3Location("b", endpoint_url=url, region="r"), config=HASTY
        ) as store:
            with pytest.raises(StorageUnavailable):
                await store.put("k", bytes(SIZE_BYTES))
            await no_socket_is_left(sockets)


async def sending(sockets: Callable[[], int]) -> None:
    """Wait for the connection, and then until no more data is taken."""
    async with asyncio.timeout(60):
        while sockets() == 0:  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)


async def no_socket_is_left(sockets: Callable[[], int]) -> None:
    """Wait until no socket is left, while the store still hangs and the client continues."""
    async with asyncio.timeout(60):
        while sockets() > 0:  # noqa: ASYNC110 - the kernel tells nobody
            await asyncio.sleep(0.1)


def open_sockets() -> int:
    return sum(is_socket(fd) for fd in Path("/proc/self/fd").iterdir())


def is_socket(fd: Path) -> bool:
    try:
        return os.readlink(fd).startswith("socket:")
    except FileNotFoundError:  # the listing's own descriptor
        return False
