"""Logs that compaction has left holes in are archived as they are."""

from __future__ import annotations

from uuid import UUID

import pytest
from fetchproxy_protocol.record_batch import BatchHeader

from fetchproxy.model import AbortedTxn, TopicIdPartition
from fetchproxy.segments.contents import SegmentSummary
from fetchproxy.segments.transaction_check import TxnCheck


def header(
    base_offset: int, offsets: int, records: int, producer_id: int = -1, attributes: int = 0
) -> BatchHeader:
    return BatchHeader(
        position=0,
        size=100,
        base_offset=base_offset,
        batch_length=88,
        partition_leader_epoch=0,
        crc=0,
        attributes=attributes,
        last_offset_delta=offsets - 1,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=producer_id,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=records,
    )


TP = TopicIdPartition(UUID(int=1), "t", 0)
TRANSACTIONAL = 0x10


def test_what_the_cleaner_leaves_is_taken_as_it_is() -> None:
    summary = SegmentSummary(TP, 8)
    batches = [
        header(10, 7, 7),  # behind a hole
        header(17, 7, 6),  # one record less
        header(24, 7, 0),  # kept for its producer's state
        header(40, 1, 1),
    ]
    for batch in batches:
        summary.add(b"", batch)
    assert (summary.start_offset, summary.position) == (8, 41)


@pytest.mark.parametrize(
    ("batches", "first_offset", "faults"),
    [
        ([header(0, 10, 10, 7, TRANSACTIONAL)], 0, 0),
        ([header(0, 10, 9, 7, TRANSACTIONAL)], 0, 0),  # one of its records is gone
        ([header(0, 5, 4), header(5, 5, 5, 7, TRANSACTIONAL)], 2, 0),  # its first batch is gone
        ([header(0, 5, 4)], 2, 0),  # all of it is gone, but not the marker
        ([header(0, 10, 10)], 2, 1),  # no record is gone, so nobody can have written it
    ],
)
def test_aborted_transactions_of_which_only_a_part_is_left(
    batches: list[BatchHeader], first_offset: int, faults: int
) -> None:
    check = TxnCheck()
    check.begin(TP, (AbortedTxn(first_offset, 10, 7, 11),), "key", (0, 10))
    for batch in batches:
        check.batch(batch, None)
    check.batch(header(10, 1, 1, 7, TRANSACTIONAL | 0x20), 0)
    assert len(check.end()) == faults
