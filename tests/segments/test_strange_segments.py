"""Every log that Kafka may hold becomes segments in which their check finds nothing."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import legal_logs
from fetchproxy_protocol.record_batch import (
    CONTROL_EMPTY,
    control_type,
    cut,
    first_record_at_or_after,
    walk,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from legal_logs import INT64_MAX, INT64_MIN, Batch, LegalLog

from fetchproxy.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.segments.check import SegmentCheck
from fetchproxy.segments.contents import SegmentSummary
from fetchproxy.segments.description import decode_segment, encode_segment
from fetchproxy.segments.leader_epochs import epoch_at, rising
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.records import decode_message, encode_message
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.segments.transaction_check import TxnCheck

TP = TopicIdPartition(UUID(int=1), "strange", 0)
_NO_FILE = Path("unused")


def _segments(log: LegalLog, start: int) -> list[tuple[list[Batch], SegmentSummary]]:
    """The log from `start` on, in the broker's own segments."""
    groups: list[list[Batch]] = []
    for batch in log.batches:
        if batch.last_offset < start:
            continue
        if not groups or log.segment_of(batch) != log.segment_of(groups[-1][-1]):
            groups.append([])
        groups[-1].append(batch)
    made = []
    position = start
    for group in groups:
        summary = SegmentSummary(TP, position)
        summary.report(
            (txn.producer_id, txn.first_offset)
            for txn in log.aborted
            if txn.marker >= position and txn.first_offset <= group[-1].last_offset
        )
        content = b"".join(batch.content for batch in group)
        for header in walk(content):
            summary.add(content, header)
        summary.add_bytes(memoryview(content))
        position = summary.position
        made.append((group, summary))
    return made


@settings(max_examples=25)
@given(legal_logs.legal_logs())
def test_segments_of_a_log_are_sound(log: LegalLog) -> None:
    txns = TxnCheck()
    if log.log_start > 0:
        txns.restart()
    continues = False
    for number, (group, summary) in enumerate(_segments(log, log.log_start)):
        accumulated = summary.close(_NO_FILE, settled=True)
        metadata = RemoteLogSegmentMetadata(
            segment_id=RemoteLogSegmentId(TP, UUID(int=number)),
            start_offset=accumulated.start_offset,
            end_offset=accumulated.end_offset,
            max_timestamp_ms=accumulated.max_timestamp_ms,
            event_timestamp_ms=1,
            segment_leader_epochs=accumulated.leader_epochs,
            segment_size_bytes=accumulated.size_bytes,
            state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            has_aborted_txns=bool(accumulated.aborted),
        )
        assert decode_segment(encode_segment(metadata), "key") == metadata
        assert decode_message(encode_message(metadata), "topic") == metadata
        index = RemoteLogIndex.parse(accumulated.index.encoded("key"))
        assert list(index.spans()) == list(accumulated.index.spans())
        content = b"".join(batch.content for batch in group)
        offsets = accumulated.start_offset, accumulated.end_offset
        txns.begin(metadata.topic_id_partition, accumulated.aborted, "txn", offsets)
        check = SegmentCheck(metadata, _key, list(index.spans()), txns, continues=continues)
        assert check.take(content, 0) is None
        check.finish()
        assert check.faults == []
        assert txns.end() == []
        _check_epochs(log, group, accumulated.start_offset, metadata)
        continues = True


def _key(file: SegmentFile) -> str:
    return str(file)


def _check_epochs(
    log: LegalLog, group: list[Batch], start: int, metadata: RemoteLogSegmentMetadata
) -> None:
    """As Kafka's LeaderEpochFileCache learns them: where a batch has a newer epoch than before.

    A segment repeats the epoch that it begins in, also in front of a hole. Only batches whose epoch
    does not count may have another epoch than the segment says.
    """
    expected: list[tuple[int, int]] = []
    for batch in group:
        begins = start if batch is group[0] else batch.base_offset
        if batch.leader_epoch > (expected[-1][0] if expected else -1):
            expected.append((batch.leader_epoch, begins))
        stated = epoch_at(metadata.segment_leader_epochs, batch.base_offset)
        newest = expected[-1][0] if expected else -1
        if batch.leader_epoch != -1:
            assert stated == (newest if batch.leader_epoch == newest else -1)
    epochs_found = [
        (entry.epoch, entry.start_offset) for entry in rising(metadata.segment_leader_epochs)
    ]
    assert epochs_found == expected


@settings(max_examples=25)
@given(legal_logs.legal_logs(), st.data())
def test_batches_are_found_by_offset_and_time(log: LegalLog, data: st.DataObject) -> None:
    """As Kafka looks for them, with holes wherever they may be."""
    edges = {log.log_start, log.end, *(b.base_offset for b in log.batches)}
    edges |= {b.last_offset for b in log.batches} | {b.last_offset + 1 for b in log.batches}
    start_offset = data.draw(st.sampled_from(sorted(edges)))
    content = log.content
    start, end = cut(content, start_offset, len(content), min_one=True)
    expected = b"".join(b.content for b in log.batches if b.last_offset >= start_offset)
    assert content[start:end] == expected
    times = {b.timestamp_of(r) for b in log.batches for r in b.records} | {0}
    time = data.draw(st.sampled_from(sorted(times)))
    time = min(max(time + data.draw(st.sampled_from([-1, 0, 1])), INT64_MIN), INT64_MAX)
    for header, batch in zip(walk(content), log.batches, strict=True):
        first_record = first_record_at_or_after(content, header, time, start_offset)
        offsets = (
            (batch.base_offset + r.offset_delta, batch.timestamp_of(r)) for r in batch.records
        )
        right = next(
            (each for each in offsets if each[1] >= time and each[0] >= start_offset), None
        )
        assert first_record == (right if batch.max_timestamp >= time else None)


@settings(max_examples=25)
@given(legal_logs.legal_logs())
def test_control_batches_have_the_type_of_their_first_record(log: LegalLog) -> None:
    for header, batch in zip(walk(log.content), log.batches, strict=True):
        if batch.is_control:
            kind = legal_logs.control_type(batch) if batch.records else CONTROL_EMPTY
            assert control_type(log.content, header) == kind


def test_a_timestamp_is_found_that_is_half_a_world_from_its_batchs_first() -> None:
    """Their difference is no int64; as Java's arithmetic wraps, so does ours."""
    times = (INT64_MIN, INT64_MAX, 5)
    records = tuple(legal_logs.Record(n, time, None, b"v") for n, time in enumerate(times))
    batch = legal_logs.sealed(Batch(10, 2, records, INT64_MIN, INT64_MAX))
    header = next(iter(walk(batch.content)))
    assert first_record_at_or_after(batch.content, header, 6) == (11, INT64_MAX)
    assert first_record_at_or_after(batch.content, header, 5, 12) == (12, 5)
