"""Which batches go into the segment that is being gathered, and when it is closed. Pure.

Only batches whose last offset is below the last stable offset are taken (read_committed): what an
archive holds was decided, and a reader of it needs no later transaction state.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from protocol.record_batch import BatchHeader


class CutReason(StrEnum):
    BYTES = "bytes"  # the next batch would make it larger than segment_bytes_max
    AGE = "age"  # its first batch was read segment_age_max_ms ago
    SPOOL = "spool"  # all gathered ones together are above spool_bytes_max, or its disk is full
    GAP = "gap"  # the broker has deleted what comes next
    SHORT = "short"  # nothing more is there and nobody waits for more


@dataclass(frozen=True, slots=True)
class Take:
    """`headers[start:end]` join the segment; `full`: whatever follows belongs into the next one."""

    start: int
    end: int
    full: bool


def plan_take(
    headers: Sequence[BatchHeader],
    *,
    position: int,
    last_stable_offset: int,
    gathered_bytes: int,
    segment_bytes_max: int,
) -> Take:
    """`headers` follow each other; `position` is the first offset that is still wanted.

    A batch that is alone larger than `segment_bytes_max` makes a segment by itself. A broker may
    send batches that end below the position it was asked for; they are passed over.
    """
    start = 0
    while start < len(headers) and headers[start].last_offset < position:
        start += 1
    end, size = start, gathered_bytes
    for header in headers[start:]:
        if header.last_offset >= last_stable_offset:
            return Take(start, end, full=False)
        if size > 0 and size + header.size > segment_bytes_max:
            return Take(start, end, full=True)
        size += header.size
        end += 1
    return Take(start, end, full=size >= segment_bytes_max)


def cut_reason(
    *,
    age_ms: float,
    spool_bytes: int,
    segment_age_max_ms: int,
    spool_bytes_max: int,
) -> CutReason | None:
    """Whether a segment that is not full is closed anyway; ask only of one that holds a batch."""
    if age_ms >= segment_age_max_ms:
        return CutReason.AGE
    if spool_bytes >= spool_bytes_max:
        return CutReason.SPOOL
    return None
