"""An archive in memory, served in this process; a client that speaks by kafka-python's codec."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from itertools import count
from typing import Any, Self

from planted_archive import PlantedArchive

from fetchproxy.config.schema import Config
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.serving.archive_only.kept_state import KeptState
from fetchproxy.serving.archive_only.server import open_archive_only
from fetchproxy.serving.limits import ArchiveOnlyLimits
from fetchproxy.serving.listener import Listener
from fetchproxy.tls.reloading import listener_context

REFRESH_MS = 100


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._correlation = 0
        self.client_id = "test"

    @classmethod
    async def connect(cls, port: int, receive_bytes_max: int | None = None) -> Self:
        """`receive_bytes_max`: of one that takes little at a time."""
        peer = socket.socket()
        if receive_bytes_max is not None:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes_max)
        peer.setblocking(False)
        await asyncio.get_running_loop().sock_connect(peer, ("127.0.0.1", port))
        return cls(*await asyncio.open_connection(sock=peer))

    def send(self, request: Any, version: int) -> None:
        self._correlation += 1
        request.API_VERSION = version
        request.with_header(correlation_id=self._correlation, client_id=self.client_id)
        self.writer.write(request.encode(header=True, framed=True))

    async def receive(self) -> bytes:
        size = struct.unpack(">i", await self.reader.readexactly(4))[0]
        return await self.reader.readexactly(size)

    async def ask(self, request: Any, response: Any, version: int) -> Any:
        self.send(request, version)
        response = response[version].decode(await self.receive(), header=True)
        assert response.header.correlation_id == self._correlation
        return response

    async def closed(self) -> bool:
        """The other side has closed, and said nothing before."""
        async with asyncio.timeout(20):
            return await self.reader.read() == b""

    def end(self) -> None:
        """Nothing more is sent."""
        self.writer.write_eof()

    def leave(self) -> None:
        """Both directions are closed, as every client does that has read all its responses."""
        self.writer.close()

    def reset(self) -> None:
        peer = self.writer.get_extra_info("socket")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


class ServedArchive:
    def __init__(self, server: Listener) -> None:
        self.server = server
        self._clients: list[Client] = []

    async def client(self, receive_bytes_max: int | None = None) -> Client:
        client = await Client.connect(self.server.port, receive_bytes_max)
        self._clients.append(client)
        return client

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


QUICK = ArchiveOnlyLimits(group_initial_rebalance_delay_ms=0, group_session_timeout_min_ms=100)


@asynccontextmanager
async def serve_archive(
    planted: PlantedArchive,
    settings: Mapping[str, Mapping[str, object]] | None = None,
    *,
    reading: ReadingLimits = ReadingLimits(),  # noqa: B008 - frozen
    **limits: int,
) -> AsyncIterator[ServedArchive]:
    sections: dict[str, dict[str, object]] = {
        "gateway": {"listen": "127.0.0.1:0"},
        "archive_only": {"refresh_interval_ms": REFRESH_MS},
        "store": {"url": "file:///planted"},
    }
    for section, values in (settings or {}).items():
        sections.setdefault(section, {}).update(values)
    config = Config.model_validate(sections)
    ids = count(1)
    async with (
        StoreBackedRemoteLogMetadataManager(planted.storage, config.metadata, serves=True) as rlmm,
        RemoteFetchPurgatory(
            config.remote_fetch, rlmm, planted.storage, random.Random(1), limits=reading
        ) as purgatory,
        open_archive_only(
            config,
            rlmm,
            TopicDescriptions(planted.storage.objects),
            purgatory,
            lambda p: f"{p}-{next(ids)}",
            listener_context(config.gateway, config.tls),
            limits=replace(QUICK, **limits),
            kept_state=KeptState(planted.storage.objects),
        ) as server,
    ):
        served = ServedArchive(server)
        try:
            yield served
        finally:
            await served.close()
