"""The generated logs are what they say: other people's readers read them, and they are strange."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import legal_logs
from aiokafka.record.default_records import DefaultRecordBatch as AiokafkaReader
from fetchproxy_protocol.record_batch import check_crc, walk
from hypothesis import Phase, given, settings
from legal_logs import DELETE_HORIZON, INT32_MAX, INT64_MAX, LegalLog

from fetchproxy.model import is_topic_name


@settings(max_examples=40)
@given(legal_logs.legal_logs())
def test_a_log_is_what_it_says(log: LegalLog) -> None:
    headers = list(walk(log.content))
    assert [h.size for h in headers] == [len(b.content) for b in log.batches]
    assert all(check_crc(log.content, header) for header in headers)
    assert b"".join(log.segments().values()) == log.content
    assert log.log_start <= log.end
    for header, batch in zip(headers, log.batches, strict=True):
        assert header.base_offset == batch.base_offset
        assert header.last_offset == batch.last_offset
        assert header.records_count == len(batch.records)
        assert header.attributes == batch.flags | batch.codec


@settings(max_examples=40)
@given(legal_logs.legal_logs())
def test_other_peoples_readers_read_the_records(log: LegalLog) -> None:
    """aiokafka's reader takes header keys for text, and wraps no timestamp."""
    for batch in log.batches:
        if batch.raw_snappy and batch.codec == legal_logs.SNAPPY:
            continue
        readable = [r for r in batch.records if not any(_is_no_text(key) for key, _ in r.headers)]
        if len(readable) < len(batch.records):
            continue
        records_read = list(AiokafkaReader(bytearray(batch.content)))
        for record_read, record in zip(records_read, batch.records, strict=True):
            assert record_read.offset == batch.base_offset + record.offset_delta
            assert record_read.key == record.key
            assert record_read.value == record.value
            assert [(k.encode(), v) for k, v in record_read.headers] == list(record.headers)
            assert legal_logs.wrapped(record_read.timestamp) == batch.timestamp_of(record)


def _is_no_text(key: bytes) -> bool:
    try:
        key.decode()
    except UnicodeDecodeError:
        return True
    return False


STRANGE: dict[str, Callable[[LegalLog], bool]] = {
    "no byte, far above 0": lambda log: not log.batches and log.log_start >= 2**31,
    "data batch of 61 bytes": lambda log: any(
        not b.records and not b.is_control for b in log.batches
    ),
    "empty marker": lambda log: any(not b.records and b.is_control for b in log.batches),
    "time below -1": lambda log: any(b.max_timestamp < -1 for b in log.batches),
    "last time": lambda log: any(b.max_timestamp == INT64_MAX for b in log.batches),
    "sequence that wraps": lambda log: any(
        b.base_sequence + b.last_offset_delta > INT32_MAX for b in log.batches
    ),
    "start inside a batch": lambda log: any(b.base_offset < log.log_start for b in log.batches),
    "open and aborted": lambda log: log.last_stable < log.end and bool(log.aborted),
    "unknown control at the end": lambda log: any(
        b.is_control and b.producer_id < 0 for b in log.batches[-1:]
    ),
    "large": lambda log: len(log.content) > 10_000,
    "hole between batches": lambda log: any(
        a.last_offset + 1 < b.base_offset for a, b in pairwise(log.batches)
    ),
    "active segment without a byte": lambda log: log.segments()[log.segment_starts[-1]] == b"",
    "delete horizon": lambda log: any(b.flags & DELETE_HORIZON for b in log.batches),
}


def test_what_is_strange_is_generated() -> None:
    """Each kind has an example, so that no change of the strategy loses one in silence."""
    missing = dict(STRANGE)

    @settings(max_examples=600, phases=[Phase.generate], database=None)
    @given(legal_logs.legal_logs())
    def look(log: LegalLog) -> None:
        for kind in [kind for kind, shows in missing.items() if shows(log)]:
            del missing[kind]

    look()
    assert not missing


@given(legal_logs.topic_names())
def test_names_are_kafkas(name: str) -> None:
    assert is_topic_name(name)
