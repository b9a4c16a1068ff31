"""How a request for very many partitions leaves the event loop to others between its steps."""

from __future__ import annotations

import asyncio

# A step of a fetch costs up to some 10 µs a partition: so many stay well below a millisecond.
MANY_PARTITIONS = 100
# Requests, and answers, of one connection that are handled in one turn of the loop. Who sends a
# thousand at once waits for the others between them; clients that read have one or two under way.
MESSAGES_A_TURN = 8
# A request that names more than some 250 partitions is read bit by bit.
READ_AT_ONCE_BYTES_MAX = 8_192


async def breathe(partitions: int) -> None:
    """After a step that went through so many; the usual fetch of a few goes on at once."""
    if partitions >= MANY_PARTITIONS:
        await asyncio.sleep(0)
