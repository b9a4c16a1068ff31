"""What a WebHDFS client leaves behind when it is closed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from yarl import URL

from fetchproxy.config.sections import StoreConfig
from fetchproxy.storage.hdfs_client import WebHdfsClient
from fetchproxy.storage.hdfs_location import HdfsLocation

SIZE_BYTES = 64 * 1024 * 1024  # more than all buffers on the way take


async def test_an_upload_that_nobody_takes_ends_with_its_client() -> None:
    """A frozen DataNode: the kernel takes a part for it, asyncio keeps the rest."""
    accepted = asyncio.Queue[asyncio.StreamWriter]()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        accepted.put_nowait(writer)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        client = WebHdfsClient(HdfsLocation((f"{host}:{port}",), "/f"), StoreConfig())
        before = open_sockets()
        given: list[int] = []
        upload = asyncio.create_task(
            client.create(URL(f"http://{host}:{port}/place"), SIZE_BYTES, content(given))
        )
        frozen = await accepted.get()
        await all_buffers_are_full(given)
        upload.cancel()
        with pytest.raises(asyncio.CancelledError):
            await upload
        assert open_sockets() == before + 2
        await client.close()
        assert open_sockets() == before + 1, "only the server's end is left"
        frozen.transport.abort()
        await asyncio.sleep(0.01)


async def content(given: list[int]) -> AsyncIterator[bytes]:
    for part in range(SIZE_BYTES // (1024 * 1024)):
        given.append(part)
        yield bytes(1024 * 1024)


async def all_buffers_are_full(given: list[int]) -> None:
    """Nothing more is taken, though the loop has turned."""
    taken = 0
    while not given or len(given) > taken:
        taken = len(given)
        await asyncio.sleep(0.05)


def open_sockets() -> int:
    return sum(is_socket(fd) for fd in Path("/proc/self/fd").iterdir())


def is_socket(fd: Path) -> bool:
    try:
        return os.readlink(fd).startswith("socket:")
    except FileNotFoundError:  # that of the listing itself
        return False
