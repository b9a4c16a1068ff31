"""What the parent tells a worker through its standard input: pickles, each behind its size."""

from __future__ import annotations

import os
import pickle
from typing import Any

_SIZE_BYTES = 4


def as_message(content: object) -> bytes:
    pickled = pickle.dumps(content)
    return len(pickled).to_bytes(_SIZE_BYTES) + pickled


def read_message(fd: int) -> Any:
    """Blocks. Raises EOFError: the parent is gone."""
    size = int.from_bytes(_read_exactly(fd, _SIZE_BYTES))
    return pickle.loads(_read_exactly(fd, size))


def take_messages(received: bytearray) -> list[Any]:
    """Removes all whole messages from the front."""
    bodies = []
    while len(received) >= _SIZE_BYTES:
        end = _SIZE_BYTES + int.from_bytes(received[:_SIZE_BYTES])
        if len(received) < end:
            break
        bodies.append(pickle.loads(received[_SIZE_BYTES:end]))
        del received[:end]
    return bodies


def _read_exactly(fd: int, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = os.read(fd, count - len(parts))
        if not part:
            raise EOFError("the parent is gone")
        parts += part
    return bytes(parts)
