"""A server that closes each connection at its first bytes.

`python -m benchmarks.closing_listener PORT`. What harm that is done to it costs others is the
machine's: the sender's work, and the least that any server on asyncio does about it.
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


async def close_all(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(_Closing, "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(close_all(int(sys.argv[1])))
