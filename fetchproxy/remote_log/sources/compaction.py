"""Signs in a log that compaction has been at work on it. Pure.

Kafka numbers records without a hole, markers of transactions included, and a producer fills the
offsets of its batch. Only the log cleaner takes records out: from inside a batch, which keeps its
last offset, or whole batches. So what was compacted once shows for as long as it is in the log,
also when the topic's cleanup.policy is `delete` again; a part that has lost nothing is like any
other, and is archived as such.
"""

from __future__ import annotations

from protocol.record_batch import BatchHeader


def compaction_sign(header: BatchHeader, position: int) -> str | None:
    """What the next batch at `position` shows of compaction, in words; None: nothing.

    A batch may begin below `position` (DeleteRecords, or a resume in the middle), never above it.
    """
    if header.base_offset > position:
        return f"offsets {position} to {header.base_offset - 1} are missing"
    if header.records_count != header.last_offset_delta + 1:
        return (
            f"the batch at offset {header.base_offset} holds {header.records_count} records for "
            f"{header.last_offset_delta + 1} offsets"
        )
    return None
