"""A connection at the simulated broker: frames in, answers out, one after the other."""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from broker import BrokerNode

_QUEUED_MAX = 20


class BrokerProtocol(asyncio.Protocol):
    """One connection: requests are answered one after the other, as a broker's channel does."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._received = bytearray()
        self._frames: deque[bytes] = deque()
        self._some = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._node.connections[self] = None
        assert self._node.tasks is not None
        self._task = self._node.tasks.create_task(self._serve(), name="broker connection")

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            assert 10 <= size < 1 << 20, f"request of {size} bytes"
            if len(self._received) < 4 + size:
                break
            self._frames.append(bytes(self._received[4 : 4 + size]))
            del self._received[: 4 + size]
        if self._frames:
            self._some.set()
        if len(self._frames) > _QUEUED_MAX and self.transport is not None:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._node.connections.pop(self, None)
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        if self.transport is not None:
            self.transport.abort()

    async def _serve(self) -> None:
        while True:
            while not self._frames:
                self._some.clear()
                await self._some.wait()
            frame = self._frames.popleft()
            response = await self._node.response(frame)
            await self._writable.wait()
            if self.transport is None:
                return
            self.transport.write(response)
            if len(self._frames) <= _QUEUED_MAX // 2:
                self.transport.resume_reading()
