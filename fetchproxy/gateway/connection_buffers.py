"""What all connections hold together, and which of them go when that is too much. Pure.

A relay pauses the faster side, so what one connection holds is bounded by
`gateway.buffer_bytes_max`, a read of the other side, and the frames that have to be whole before
they are looked at. A thousand slow ones are bounded here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def to_close(held: Iterable[tuple[int, T]], bytes_max: int) -> list[T]:
    """Of (bytes, connection): those that hold most, as few as bring the rest within the limit."""
    by_size = sorted(held, key=lambda pair: pair[0], reverse=True)
    above = sum(size for size, _ in by_size) - bytes_max
    closed = []
    for size, connection in by_size:
        if above <= 0:
            break
        closed.append(connection)
        above -= size
    return closed
