"""Compressed records into one buffer that is used again and again.

zstd and lz4 unpack right into it; gzip and snappy, with the framing of Java producers, are
`protocol.compression`'s. The size of the result is bounded as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np

from protocol.compression import RECORDS_BYTES_MAX, CompressionType, decompress
from protocol.errors import MalformedMessage

# Many batches at once, so that compiled code is called seldom; one that is larger makes it grow.
ARENA_BYTES = 8 * 1024 * 1024
_ROOM_BYTES = 4 * 1024 * 1024  # a batch of usual size finds as much

_UNPACK_INTO: dict[int, Callable[[memoryview, Any], int]] = {
    CompressionType.LZ4: cramjam.lz4.decompress_into,
    CompressionType.ZSTD: cramjam.zstd.decompress_into,
}


class Arena:
    """Decompressed records, one batch behind the other, until `clear`."""

    def __init__(self) -> None:
        self._bytes: Any = np.empty(ARENA_BYTES, np.uint8)
        self._used = 0

    @property
    def data(self) -> Any:
        """A read-only uint8 array of all that was added since `clear`, until the next `add`."""
        view = self._bytes[: self._used]
        view.flags.writeable = False
        return view

    @property
    def has_room(self) -> bool:
        """For one more batch of usual size."""
        return len(self._bytes) - self._used >= _ROOM_BYTES

    def clear(self) -> None:
        self._used = 0
        if len(self._bytes) > ARENA_BYTES:
            self._bytes = np.empty(ARENA_BYTES, np.uint8)

    def add(self, codec: int, stored: memoryview) -> tuple[int, int]:
        """Where the records of a batch lie now: (start, end) in `data`.

        Raises MalformedMessage for an unknown codec, damaged data or an absurd size.
        """
        start = self._used
        unpack_into = _UNPACK_INTO.get(codec)
        if unpack_into is None:
            self._append(decompress(codec, stored))
        else:
            self._used += self._unpack(unpack_into, stored)
        return start, self._used

    def _unpack(self, unpack_into: Callable[[memoryview, Any], int], stored: memoryview) -> int:
        """These codecs do not say how large the result is: the arena grows until it fits."""
        while True:
            room = self._bytes[self._used : self._used + RECORDS_BYTES_MAX]
            try:
                return unpack_into(stored, room)
            except cramjam.DecompressionError as error:
                # The codec's only sign of a full buffer; damage is reported in other words.
                if "whole buffer" not in str(error) or len(room) == RECORDS_BYTES_MAX:
                    raise MalformedMessage(f"compressed records: {error}") from None
            self._grow(len(self._bytes))

    def _append(self, records: Any) -> None:
        more = len(records) - (len(self._bytes) - self._used)
        if more > 0:
            self._grow(more)
        self._bytes[self._used : self._used + len(records)] = np.frombuffer(records, np.uint8)
        self._used += len(records)

    def _grow(self, more: int) -> None:
        larger = np.empty(len(self._bytes) + more, np.uint8)
        larger[: self._used] = self._bytes[: self._used]
        self._bytes = larger
