"""The one check that every byte passes before it may be served. Pure.

Written as one flat loop over the few header fields it needs: it runs once per batch of everything
that is read from the store, and costs a third of a walk that makes headers.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from struct import Struct

from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import EpochStart
from fetchproxy.remote_fetch.chunk_cache import Chunk
from protocol.record_batch import CRC_COVERS_FROM, HEADER_BYTES, LOG_OVERHEAD_BYTES, MAGIC

# Work between two breaths of the event loop: well below 1 ms.
STEP_BYTES = 1024 * 1024
_BATCH_COST_BYTES = 4096  # what a batch costs beside its bytes
_BATCH_BYTES_MIN = HEADER_BYTES - LOG_OVERHEAD_BYTES
_OFFSET_MAX = 2**63 - 1

# Base offset, length, leader epoch, magic, CRC, last offset delta.
_FIELDS = Struct(">qiibI2xi")


def check_chunk(
    content: bytes | bytearray,
    first_offset: int,
    last_offset: int,
    epochs: Sequence[EpochStart] = (),
    epochs_up_to: int = _OFFSET_MAX,
    crc_known: bool = False,
) -> Iterator[Chunk | None]:
    """Check every batch; yields None where the caller may breathe, and at last the Chunk.

    Raises CorruptSegment: a CRC-32C or header that is wrong, a batch cut at the end, offsets that
    do not rise, or others than the index promised. The CRC does not cover base offset and leader
    epoch. In a log without holes a changed base offset runs into a neighbour or the index; the
    leader epoch must be the one that the segment's metadata have for that offset, or -1 (none);
    they have none for offsets above `epochs_up_to`. `crc_known`: the bytes as a whole are those
    that have passed before, so that the batches' own sums need not be made again.
    """
    view, limit = memoryview(content), len(content)
    last_offsets, ends = array("q"), array("q")
    crc_of, unpack_from = crc32c, _FIELDS.unpack_from
    later_epochs = list(epochs[1:])
    # A segment may begin inside a batch, so its first epoch also holds below that epoch's start.
    epoch = epochs[0].epoch if epochs else None
    epoch_until = later_epochs[0].start_offset if later_epochs else _OFFSET_MAX
    before, pos, breathe_at = first_offset - 1, 0, STEP_BYTES
    while limit - pos >= HEADER_BYTES:
        base, length, its_epoch, magic, crc, delta = unpack_from(content, pos)
        end = pos + length + LOG_OVERHEAD_BYTES
        if magic != MAGIC or length < _BATCH_BYTES_MIN or delta < 0 or end > limit:
            break
        if base <= before or (pos == 0 and base != first_offset):
            raise CorruptSegment(f"base offset {base} at byte {pos}, after {before}")
        if not crc_known and crc_of(view[pos + CRC_COVERS_FROM : end]) != crc:
            raise CorruptSegment(f"CRC of the batch with base offset {base} at byte {pos}")
        while base >= epoch_until:
            epoch = later_epochs.pop(0).epoch
            epoch_until = later_epochs[0].start_offset if later_epochs else _OFFSET_MAX
        if its_epoch != epoch and its_epoch != -1 and epoch is not None and base <= epochs_up_to:
            raise CorruptSegment(f"leader epoch {its_epoch}, not {epoch}, at base offset {base}")
        before = base + delta
        last_offsets.append(before)
        ends.append(end)
        pos = end
        if pos + _BATCH_COST_BYTES * len(ends) >= breathe_at:
            breathe_at = pos + _BATCH_COST_BYTES * len(ends) + STEP_BYTES
            yield None
    if pos != limit or not ends:
        raise CorruptSegment(f"no whole batch at byte {pos} of {limit}")
    if before != last_offset:
        raise CorruptSegment(f"the last offset is {before}, by the index {last_offset}")
    yield Chunk(content, last_offsets, ends)
