"""Signs of compaction in batches, and a log that shows them is not archived."""

from __future__ import annotations

import pytest
from fetchproxy_protocol.record_batch import BatchHeader

from fetchproxy.segments.contents import compaction_sign


def header(base_offset: int, offsets: int, records: int) -> BatchHeader:
    return BatchHeader(
        position=0,
        size=100,
        base_offset=base_offset,
        batch_length=88,
        partition_leader_epoch=0,
        crc=0,
        attributes=0,
        last_offset_delta=offsets - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=records,
    )


@pytest.mark.parametrize(
    ("batch", "position"),
    [
        (header(10, 1, 1), 10),  # also a marker of a transaction
        (header(10, 7, 7), 10),
        (header(10, 7, 7), 13),  # DeleteRecords, or a resume, in the middle of the batch
    ],
)
def test_whole_batches_that_follow_each_other(batch: BatchHeader, position: int) -> None:
    assert compaction_sign(batch, position) is None


@pytest.mark.parametrize(
    ("batch", "position", "words"),
    [
        (header(10, 7, 6), 10, "6 records for 7 offsets"),
        (header(10, 7, 0), 10, "0 records for 7 offsets"),  # kept for its producer's state
        (header(10, 7, 7), 8, "offsets 8 to 9 are missing"),
        (header(9, 1, 1), 8, "offsets 8 to 8 are missing"),
    ],
)
def test_what_the_cleaner_leaves(batch: BatchHeader, position: int, words: str) -> None:
    sign = compaction_sign(batch, position)
    assert sign is not None
    assert words in sign
