"""How a segment is divided into chunks: about `chunk_bytes` each, on index-span borders. Pure.

A chunk is always whole batches, so it can be checked by itself and cut without its neighbours.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

from fetchproxy.index.remote_log_index import RemoteLogIndex
from fetchproxy.model import ByteRange


class SegmentLayout:
    """Chunks are numbered from 0; arrays, because long-lived and many."""

    __slots__ = ("ends", "first_offsets", "last_offsets", "max_timestamps_ms")

    def __init__(self, index: RemoteLogIndex, chunk_bytes: int) -> None:
        """A chunk is closed before the span that would make it larger than `chunk_bytes`.

        A single span above that size (a huge batch) is a chunk by itself.
        """
        self.ends = array("q")  # byte position after each chunk
        self.first_offsets = array("q")
        self.last_offsets = array("q")
        self.max_timestamps_ms = array("q")
        i = 0
        while i < len(index):
            j = index.spans_up_to(i, chunk_bytes)
            chunk = index.merged(i, j)
            self.ends.append(chunk.end)
            self.first_offsets.append(chunk.first_offset)
            self.last_offsets.append(chunk.last_offset)
            self.max_timestamps_ms.append(chunk.max_timestamp_ms)
            i = j

    def __len__(self) -> int:
        return len(self.ends)

    @property
    def memory_bytes(self) -> int:
        return 32 * len(self) + 500

    def chunk_at_or_after(self, offset: int) -> int:
        """The first chunk that ends at or above `offset`; `len(self)` where none does."""
        return bisect_left(self.last_offsets, offset)

    def byte_range(self, number: int) -> ByteRange:
        return ByteRange(self.ends[number - 1] if number else 0, self.ends[number])

    def first_chunk_with_timestamp(self, timestamp_ms: int, from_number: int = 0) -> int | None:
        """The first chunk, from `from_number` on, with a record at or after `timestamp_ms`."""
        for number in range(from_number, len(self)):
            if self.max_timestamps_ms[number] >= timestamp_ms:
                return number
        return None
