"""One receive buffer for all connections of a loop.

asyncio asks for a buffer, fills it and hands it back in one uninterrupted step. So connections
can share the buffer, and an idle connection costs none. A protocol copies the bytes that it
keeps. A transport that could not send all bytes at once may keep a view of the buffer (asyncio
from 3.12 on, and uvloop, keep the view itself). In that case a new buffer is made.
"""

from __future__ import annotations

import asyncio

RECEIVE_BYTES = 256 * 1024


class ReceiveBuffer:
    def __init__(self) -> None:
        self.view = memoryview(bytearray(RECEIVE_BYTES))

    def release(self, transport: asyncio.WriteTransport | None) -> None:
        """Called after views of the buffer were written to `transport`."""
        if transport is not None and transport.get_write_buffer_size():
            self.view = memoryview(bytearray(RECEIVE_BYTES))
