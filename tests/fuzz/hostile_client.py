"""Connections that send hostile frames as fast as the proxy takes them, in a process of their own.

`python hostile_client.py HOST:PORT TOPIC_ID SEED FRAMES`. Prints one JSON line: how many frames
were sent, on how many connections, and how many of those got a response.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import socket
import struct
import sys
from collections.abc import Iterator
from uuid import UUID

from frame_mutations import hostile_frames, recorded_frames

CONNECTIONS = 100  # at once
FRAMES_PER_CONNECTION_MAX = 20
STEP_S = 2.0  # a connection that hears nothing for so long sends on, or leaves


class Hostility:
    def __init__(self, port: int, frames: Iterator[bytes], rng: random.Random) -> None:
        self._port = port
        self._frames = frames
        self._rng = rng
        self.frames_sent = self.connections = self.responded = 0

    async def attack(self) -> None:
        """Until the frames are used up."""
        frame = next(self._frames, None)
        while frame is not None:
            frame = await self._connection(frame)

    async def _connection(self, frame: bytes | None) -> bytes | None:
        """Send from `frame` on; the frame that the next connection begins with."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        self.connections += 1
        responded = False
        # Reset on close: a port that lingers is one less for the next connection.
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        try:
            for _ in range(self._rng.randint(1, FRAMES_PER_CONNECTION_MAX)):
                if frame is None:
                    break
                sending, frame = frame, next(self._frames, None)
                self.frames_sent += 1
                await self._send(writer, sending)
                if self._rng.random() < 0.7:  # else pipelined
                    if not await _heard(reader):
                        break
                    responded = True
        except TimeoutError:
            pass  # it waits for the rest of a frame: leave it so
        except OSError:
            pass  # thrown out, as it deserves
        self.responded += responded
        writer.close()
        return frame

    async def _send(self, writer: asyncio.StreamWriter, frame: bytes) -> None:
        if self._rng.random() < 0.2:  # in two pieces, cut anywhere
            cut = self._rng.randrange(len(frame))
            writer.write(frame[:cut])
            await writer.drain()
            await asyncio.sleep(0)
            frame = frame[cut:]
        writer.write(frame)
        await writer.drain()


async def _heard(reader: asyncio.StreamReader) -> bytes:
    """What comes first, empty if the connection ends. Raises TimeoutError if nothing comes."""
    try:
        async with asyncio.timeout(STEP_S):
            return await reader.read(1 << 16)
    except TimeoutError:
        # This process may have been too busy to look.
        async with asyncio.timeout(0):
            return await reader.read(1 << 16)


async def main(bootstrap: str, topic_id: str, seed: str, count: str) -> None:
    rng = random.Random(int(seed))
    every = hostile_frames(rng, recorded_frames(UUID(topic_id)))
    hostility = Hostility(
        int(bootstrap.rpartition(":")[2]), itertools.islice(every, int(count)), rng
    )
    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(hostility.attack())
    figures = {"sent": hostility.frames_sent, "connections": hostility.connections}
    print(json.dumps({**figures, "answered": hostility.responded}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
