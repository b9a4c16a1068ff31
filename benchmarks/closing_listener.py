"""A server that closes each connection at its first bytes.

`python -m benchmarks.closing_listener PORT`. Hostile clients that connect here cost others only the
machine's time: the sender's own work, and the least work of any server on asyncio.
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
