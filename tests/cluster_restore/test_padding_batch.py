"""Batches of padding, read back; and what a plan says of them. No parts."""

from __future__ import annotations

import pytest
from fetchproxy_protocol.record_batch import HEADER_BYTES, check_crc, decompress, walk
from fetchproxy_protocol.records import records_in
from restore_process import topic

from fetchproxy.cluster_restore.padding_batch import PADDING_MS, PADDING_RECORDS_MAX, padding_batch
from fetchproxy.cluster_restore.padding_plan import (
    BYTES_AN_OFFSET,
    FirstRecord,
    configs_afterwards,
    configs_while_padding,
    cost_text,
    plan_padding,
    why_not_padded,
)
from fetchproxy.cluster_restore.plan import FoundPartition, PlannedTopic, TopicAction


@pytest.mark.parametrize("records", [1, 2, 64, 65, 8_192, 8_193, PADDING_RECORDS_MAX])
def test_a_batch_has_as_many_empty_records_as_offsets(records: int) -> None:
    batch = padding_batch(records)
    [header] = walk(batch)
    assert header.size == len(batch)
    assert check_crc(batch, header)
    assert (header.records_count, header.last_offset_delta) == (records, records - 1)
    assert (header.producer_id, header.base_timestamp, header.max_timestamp) == (-1, 0, PADDING_MS)
    unpacked = decompress(header.compression, batch[HEADER_BYTES:], 16 * records)
    read = [record for record in records_in(unpacked, header) if record is not None]
    assert [one.offset for one in read] == list(range(records))
    assert {(one.timestamp, one.key, one.value) for one in read} == {(PADDING_MS, None, None)}


def test_a_full_batch_costs_what_a_plan_says() -> None:
    assert len(padding_batch(PADDING_RECORDS_MAX)) == pytest.approx(
        PADDING_RECORDS_MAX * BYTES_AN_OFFSET, rel=0.05
    )


START = 1_000


@pytest.mark.parametrize(
    ("log", "first", "fault"),
    [
        ((0, 0), None, ""),
        ((0, 500), None, ""),  # padded so far
        ((500, 500), None, ""),  # retention has removed the padding
        ((0, START), None, ""),  # not deleted yet
        ((START, START + 5), START, ""),
        ((0, START + 5), START, ""),  # a crash has undone the deletion
        ((0, 500), 120, "other records from offset 120"),
        ((0, START + 5), 120, "other records from offset 120"),
        ((0, START + 5), None, "has no records at"),  # padded too far
        ((0, START + 5), START + 1, "has no records at"),
        ((START + 1, START + 5), START + 1, "begins at 1001"),
        (None, None, "no leader"),
    ],
)
def test_a_partition_is_padded_if_it_has_nothing_but_padding(
    log: tuple[int, int] | None, first: int | None, fault: str
) -> None:
    start, end = log or (None, None)
    partition = FoundPartition(1, 0, (1,), frozenset({1}), start, end)
    record = None if first is None else FirstRecord(first, 5)
    why = why_not_padded(3, START, partition, record)
    assert fault in why if fault else why == ""


def test_a_topic_is_made_with_settings_that_allow_padding() -> None:
    archived = topic("t", [5], cleanup_policy="compact", retention_ms="7", compression_type="lz4")
    assert configs_while_padding(archived) == {
        "cleanup.policy": "delete",
        "compression.type": "producer",
        "retention.ms": "7",
    }
    made = PlannedTopic(archived, TopicAction.CREATE)
    assert configs_afterwards(made) == {"cleanup.policy": "compact", "compression.type": "lz4"}
    taken = PlannedTopic(archived, TopicAction.TAKE)
    assert configs_afterwards(taken) == dict(archived.configs)


def test_a_topic_with_too_many_replicas_is_refused() -> None:
    [planned] = plan_padding([topic("t", [5], replicas=3)], {}, {}, 2).topics
    assert planned.action is TopicAction.REFUSE


def test_the_time_is_said_for_small_and_large_offsets() -> None:
    assert cost_text(3_000_000).startswith("3,000,000 offsets of padding: 1.0 s at 3,000,000 a")
    assert "6 min" in cost_text(1_000_000_000)
    assert "9.3 h" in cost_text(100_000_000_000)
    assert "400.0 MB" in cost_text(1_000_000_000)
