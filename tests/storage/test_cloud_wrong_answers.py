"""A response from another server in a cloud store's place must not look like an empty archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from urllib.parse import unquote

import pytest

from fetchproxy.config.schema import StoreConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.storage.contract import keys_of
from fetchproxy.storage.stores.clouds import open_cloud_store
from fetchproxy.storage.stores.locations import CloudLocation
from fetchproxy.storage.stores.obstore_store import ObstoreObjectStore

RESPONSES = [
    b"<html><body>Sign in to this network</body></html>",
    b"<?xml version='1.0'?><Welcome/>",
    b"{}",
    b"",
]


@asynccontextmanager
async def answering(
    scheme: str,
    *bodies: bytes,
    monkeypatch: pytest.MonkeyPatch,
    looked_for: list[bytes] | None = None,
) -> AsyncIterator[ObstoreObjectStore]:
    """A store with a server in its place.

    The server answers 200 with each of `bodies` in turn, and repeats the last one.
    """
    coming = list(bodies)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, OSError):
            head = await reader.readuntil(b"\r\n\r\n")
            if looked_for is not None and head.startswith(b"HEAD"):
                looked_for.append(head.split(b" ")[1])
            body = coming.pop(0) if len(coming) > 1 else coming[0]
            content = b"" if head.startswith(b"HEAD") else body
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n"
                b"Content-Length: %d\r\n\r\n%s" % (len(body), content)
            )
            await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
        monkeypatch.setenv(
            "AZURE_STORAGE_CONNECTION_STRING",
            f"AccountName=a;AccountKey=a2V5;BlobEndpoint={endpoint}/a",
        )
        async with open_cloud_store(CloudLocation(scheme, "bucket", ""), StoreConfig()) as store:
            yield store


@pytest.mark.parametrize("scheme", ["gs", "az"])
@pytest.mark.parametrize("body", RESPONSES)
async def test_no_wrong_listing_looks_empty(
    scheme: str, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with answering(scheme, body, monkeypatch=monkeypatch) as store:
        with pytest.raises(StorageUnavailable):
            await keys_of(store.list("archive/"))
        with pytest.raises(StorageUnavailable):
            [name async for name in store.list_folders("archive/")]


async def test_a_listing_does_not_end_where_a_page_should_follow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    objects = "".join(
        f"<Contents><Key>archive/{n:04}</Key><Size>1</Size><ETag>e</ETag>"
        "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for n in range(1000)
    )
    page = f"<ListBucketResult><NextContinuationToken>t</NextContinuationToken>{objects}"
    bodies = (f"{page}</ListBucketResult>".encode(), RESPONSES[0])
    async with answering("gs", *bodies, monkeypatch=monkeypatch) as store:
        with pytest.raises(StorageUnavailable):
            await keys_of(store.list("archive/"))


async def test_a_look_for_the_end_stays_below_the_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credentials may cover only the archive's prefix."""
    looked_for: list[bytes] = []
    async with answering(
        "gs", RESPONSES[0], monkeypatch=monkeypatch, looked_for=looked_for
    ) as store:
        with pytest.raises(StorageUnavailable):
            await keys_of(store.list("archive/orders-"))
        with pytest.raises(StorageUnavailable):
            [name async for name in store.list_folders("archive/")]
    below = [unquote(path.decode()) for path in looked_for]
    assert len(below) == 2
    assert all(path.startswith("/bucket/archive/") for path in below), below
