"""One receive buffer for all connections of a loop.

asyncio asks for a buffer, fills it and hands it back in one uninterrupted step, so connections
can share it and an idle connection costs no buffer. What a protocol keeps it copies; what it wrote
to a transport that could not send at once may still be referenced there, so the buffer is then
given away and a new one taken (asyncio from 3.12 on, and uvloop, keep the view itself).
"""

from __future__ import annotations

import asyncio

RECEIVE_BYTES = 256 * 1024


class ReceiveBuffer:
    def __init__(self, size: int = RECEIVE_BYTES) -> None:
        self._size = size
        self.view = memoryview(bytearray(size))

    def release(self, transport: asyncio.WriteTransport | None) -> None:
        """Called after views of the buffer were written to `transport`."""
        if transport is not None and transport.get_write_buffer_size():
            self.view = memoryview(bytearray(self._size))
