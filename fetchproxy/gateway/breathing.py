"""How a fetch of very many partitions leaves the event loop to others between its steps."""

from __future__ import annotations

import asyncio

# A step of a fetch costs up to some 10 µs a partition: so many stay well below a millisecond.
MANY_PARTITIONS = 100


async def breathe(partitions: int) -> None:
    """After a step that went through so many; the usual fetch of a few goes on at once."""
    if partitions >= MANY_PARTITIONS:
        await asyncio.sleep(0)
