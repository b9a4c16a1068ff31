"""A server that closes each connection at its first bytes: `python -m benchmarks.closing_listener`.

It prints its port and ends with its standard input. What it costs others beside harm is the
machine's own: the sender's work, and the least that any server on asyncio can do about it.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast


class _Closing(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.close()


async def main() -> None:
    async with await asyncio.get_running_loop().create_server(_Closing, "127.0.0.1", 0) as server:
        print(server.sockets[0].getsockname()[1], flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main())
