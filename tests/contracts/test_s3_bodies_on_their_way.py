"""The server itself refuses a body that was changed on its way over plain HTTP.

It checks the body's CRC-64/NVME, or the SHA-256 in the signature. A probe tells whether the server
checks the CRC.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from fetchproxy.errors import ObjectNotFound, StorageUnavailable
from fetchproxy.storage.contract import CONTRACT_PART_BYTES
from fetchproxy.storage.stores.locations import S3Location
from fetchproxy.storage.stores.s3 import S3ObjectStore
from lab.s3 import RcloneServer, S3Server

pytestmark = pytest.mark.s3

RIGHT, WRONG = b"right", b"wrong"


@asynccontextmanager
async def changing(port: int) -> AsyncIterator[int]:
    """The port of a relay to `port` that changes the clients' bytes."""
    passing: list[asyncio.Task[None]] = []
    writers: list[asyncio.StreamWriter] = []

    async def one_way(
        source: asyncio.StreamReader, sink: asyncio.StreamWriter, changes: bool
    ) -> None:
        while content := await source.read(1 << 16):
            sink.write(content.replace(RIGHT, WRONG) if changes else content)
            await sink.drain()
        sink.close()

    async def relay(client: asyncio.StreamReader, responses: asyncio.StreamWriter) -> None:
        server, requests = await asyncio.open_connection("127.0.0.1", port)
        writers.extend((responses, requests))
        passing.append(asyncio.create_task(one_way(client, requests, True)))
        passing.append(asyncio.create_task(one_way(server, responses, False)))

    async with await asyncio.start_server(relay, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]
    for task in passing:
        task.cancel()
    for writer in writers:
        writer.close()
    await asyncio.gather(*passing, *(w.wait_closed() for w in writers), return_exceptions=True)


def open_store(server: S3Server, port: int) -> S3ObjectStore:
    return S3ObjectStore(
        S3Location("changed", endpoint_url=f"http://127.0.0.1:{port}", region=server.region),
        part_bytes=CONTRACT_PART_BYTES,
    )


@pytest.mark.parametrize("knows_crc64", [True, False], ids=["crc64", "sha256"])
async def test_a_changed_body_is_refused_by_the_server(
    knows_crc64: bool, own_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in own_s3_server.environment.items():
        monkeypatch.setenv(name, value)
    own_s3_server.create_bucket("changed")
    whole, several = tmp_path / "whole", tmp_path / "several"
    whole.write_bytes(RIGHT * 1000)
    several.write_bytes(RIGHT * (CONTRACT_PART_BYTES // 2))
    async with (
        changing(own_s3_server.port) as port,
        open_store(own_s3_server, port) as store,
    ):
        if not knows_crc64:
            store._checks_crc64 = False  # the probe finds this with many servers
        for number, path in enumerate((whole, several)):
            with pytest.raises(StorageUnavailable):  # retriable
                await store.put_file(f"file/{number}", path)
        assert store._checks_crc64 is knows_crc64
        with pytest.raises(StorageUnavailable):
            await store.put("small", RIGHT)
        for key in ("file/0", "file/1", "small"):
            with pytest.raises(ObjectNotFound):
                await store.get(key)
        await store.put("small", b"as it is")  # the relay passes other bodies
        assert await store.get("small") == b"as it is"
        assert await store._uploads(await store._opened(), "", "look") == []


@pytest.mark.slow
async def test_a_server_that_checks_no_crc64_is_found_out(
    rclone_server: RcloneServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in rclone_server.environment.items():
        monkeypatch.setenv(name, value)
    rclone_server.create_bucket("changed")
    (tmp_path / "file").write_bytes(RIGHT * CONTRACT_PART_BYTES)
    async with open_store(rclone_server, rclone_server.port) as store:
        await store.put_file("k", tmp_path / "file")
        assert store._checks_crc64 is False
        assert await store.get("k") == RIGHT * CONTRACT_PART_BYTES
        assert await store._uploads(await store._opened(), "", "look") == []
