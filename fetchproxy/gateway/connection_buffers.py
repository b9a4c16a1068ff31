"""What all connections hold together, and which of them go when that is too much. Pure.

A relay pauses the faster side, so what one connection holds is bounded by
`gateway.buffer_bytes_max`, a read of the other side, the frames that have to be whole before they
are looked at, and the partitions of a fetch session. A thousand connections are bounded here.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeVar

T = TypeVar("T")


def to_close(held: Collection[tuple[int, T]], bytes_max: int) -> list[T]:
    """Of (bytes, connection): those that hold most, as few as bring the rest within the limit."""
    above = sum(size for size, _ in held) - bytes_max
    closed: list[T] = []
    if above <= 0:
        return closed
    for size, connection in sorted(held, key=lambda pair: pair[0], reverse=True):
        if above <= 0:
            break
        closed.append(connection)
        above -= size
    return closed
