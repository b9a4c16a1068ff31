"""The remoteLogIndex: the KIP's bytes, round trips, and nothing but CorruptSegment for junk."""

from __future__ import annotations

import struct

import pytest
from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol.record_batch import BatchHeader
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.errors import CorruptSegment
from fetchproxy.segments.remote_log_index import (
    IndexSpan,
    RemoteLogIndex,
    encode_index_entry,
    entry_positions,
)

KEY = "t-AAAAAAAAAAAAAAAAAAAAAA/0/00000000000000000000-id.log"


def header(
    base_offset: int,
    records: int = 1,
    size: int = 100,
    first_ts: int = 0,
    max_ts: int | None = None,
) -> BatchHeader:
    return BatchHeader(
        position=0,
        size=size,
        base_offset=base_offset,
        batch_length=size - 12,
        partition_leader_epoch=0,
        crc=0,
        attributes=0,
        last_offset_delta=records - 1,
        base_timestamp=first_ts,
        max_timestamp=first_ts if max_ts is None else max_ts,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        records_count=records,
    )


@st.composite
def batches(draw: st.DrawFn) -> list[BatchHeader]:
    offset = draw(st.integers(0, 2**40))
    out = []
    for _ in range(draw(st.integers(1, 30))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 50]))  # a hole now and then
        records = draw(st.integers(1, 500))
        first_ts = draw(st.integers(-1, 10_000))
        size = draw(st.integers(61, 5_000))
        max_ts = draw(st.integers(-1, 10_000))
        out.append(header(offset, records, size, first_ts, max_ts))
        offset += records
    return out


def built(headers: list[BatchHeader], interval_bytes: int, key: str = KEY) -> bytes:
    index = RemoteLogIndex()
    for one in headers:
        index.add(one, interval_bytes)
    return index.encoded(key)


def test_entry_has_the_bytes_of_the_kip() -> None:
    raw = encode_index_entry("a/b.log", IndexSpan(300, 20, 5, 9, 1_000, 1_002))
    body = struct.pack(">qqqqih", 5, 9, 1_000, 1_002, 20, 11) + b"a/b.log#300"
    assert raw == struct.pack(">hhI", 0, len(body) + 8, crc32c(body)) + body


def test_an_entry_closes_at_the_interval_and_never_inside_a_batch() -> None:
    raw = built([header(i, size=100) for i in range(5)], interval_bytes=150)
    spans = list(RemoteLogIndex.parse(raw).spans())
    assert [(s.position, s.length, s.first_offset, s.last_offset) for s in spans] == [
        (0, 200, 0, 1),
        (200, 200, 2, 3),
        (400, 100, 4, 4),
    ]


def test_last_timestamp_is_the_largest_and_first_the_first_batch_s() -> None:
    raw = built([header(0, first_ts=7, max_ts=90), header(1, first_ts=3, max_ts=8)], 10_000)
    (span,) = RemoteLogIndex.parse(raw).spans()
    assert (span.first_timestamp_ms, span.max_timestamp_ms) == (7, 90)


def test_data_length_never_overflows_its_int32() -> None:
    raw = built([header(i, size=2**31 - 100) for i in range(3)], interval_bytes=2**31 - 1)
    assert [s.length for s in RemoteLogIndex.parse(raw).spans()] == [2**31 - 100] * 3


def test_what_cannot_be_indexed_is_refused() -> None:
    index = RemoteLogIndex()
    assert index.encoded(KEY) == b""
    index.add(header(10, records=5))
    with pytest.raises(ValueError, match="after 14"):
        index.add(header(14))
    for interval_bytes in (1, 2**31 - 1):
        with pytest.raises(ValueError, match="too large"):
            index.add(header(15, size=2**31), interval_bytes)
    with pytest.raises(ValueError, match="too large"):
        index.encoded("k" * 40_000)


@given(batches(), st.integers(1, 20_000))
def test_round_trip_and_lookup_agree_with_the_batches(
    headers: list[BatchHeader], interval: int
) -> None:
    index = RemoteLogIndex.parse(built(headers, interval))
    assert index.object_key == KEY
    assert index.size_bytes == sum(h.size for h in headers)
    assert sum(s.length for s in index.spans()) == index.size_bytes
    starts = [sum(h.size for h in headers[:i]) for i in range(len(headers))]
    for span in index.spans():
        inside = [
            h for h, at in zip(headers, starts, strict=True) if span.position <= at < span.end
        ]
        assert sum(h.size for h in inside) == span.length
        assert (inside[0].base_offset, inside[-1].last_offset) == (
            span.first_offset,
            span.last_offset,
        )
        assert span.first_timestamp_ms == inside[0].base_timestamp
        assert span.max_timestamp_ms == max(h.max_timestamp for h in inside)
        assert span.length - inside[-1].size < interval  # it closed as soon as it was full
    index.check_covers(headers[-1].last_offset, index.size_bytes)
    with pytest.raises(CorruptSegment, match="ends with offset"):
        index.check_covers(headers[-1].last_offset + 1, index.size_bytes)


@given(batches(), st.integers(1, 2_000), st.data())
def test_a_flipped_or_missing_byte_is_never_taken_for_an_index(
    headers: list[BatchHeader], interval: int, data: st.DataObject
) -> None:
    raw = built(headers, interval)
    at = data.draw(st.integers(0, len(raw) - 1))
    flipped = raw[:at] + bytes([raw[at] ^ data.draw(st.integers(1, 255))]) + raw[at + 1 :]
    with pytest.raises(CorruptSegment, match="entry"):
        RemoteLogIndex.parse(flipped)
    cut = raw[:at]
    try:
        shorter = RemoteLogIndex.parse(cut)
    except CorruptSegment:
        return
    # Cut exactly between two entries: only the segment's metadata can tell.
    with pytest.raises(CorruptSegment):
        shorter.check_covers(headers[-1].last_offset, sum(h.size for h in headers))


@given(st.binary(max_size=200))
def test_garbage_is_corrupt(raw: bytes) -> None:
    with pytest.raises(CorruptSegment):
        RemoteLogIndex.parse(raw)


def entry(key: str, position: int, length: int, first: int, last: int) -> bytes:
    return encode_index_entry(key, IndexSpan(position, length, first, last, 0, 0))


@pytest.mark.parametrize(
    ("second", "what"),
    [
        (entry(KEY, 101, 50, 10, 19), "position 101, expected 100"),
        (entry(KEY, 100, 50, 9, 19), "offset 9 after 9"),
        (entry(KEY, 100, 0, 10, 19), "dataLength 0"),
        (entry(KEY, 100, 50, 19, 10), "offsets 19 to 10"),
        (entry("other.log", 100, 50, 10, 19), "rdi names 'other.log'"),
        (entry("", 100, 50, 10, 19), "is not <key>#<position>"),
    ],
)
def test_entries_with_right_checksums_that_do_not_fit(second: bytes, what: str) -> None:
    first = entry(KEY, 0, 100, 0, 9)
    with pytest.raises(CorruptSegment, match=f"entry 1 at byte {len(first)}.*{what}"):
        RemoteLogIndex.parse(first + second)


def test_a_key_may_hold_the_separator() -> None:
    assert RemoteLogIndex.parse(entry("a#b/c#.log", 0, 1, 0, 0)).object_key == "a#b/c#.log"


def test_another_way_to_write_a_position_is_read_as_before() -> None:
    """Many entries are checked at once; what is not in the usual form is looked at singly."""
    raw = b"".join(entry(KEY, 10 * i, 10, i, i) for i in range(300))
    assert len(RemoteLogIndex.parse(raw)) == 300
    odd = struct.pack(">qqqqih", 300, 300, 0, 0, 10, len(KEY) + 6) + f"{KEY}#03000".encode()
    odd = struct.pack(">hhI", 0, len(odd) + 8, crc32c(odd)) + odd
    tail = b"".join(entry(KEY, 3_010 + 10 * i, 10, 301 + i, 301 + i) for i in range(50))
    index = RemoteLogIndex.parse(raw + odd + tail)
    assert [span.position for span in index.spans()] == [10 * i for i in range(351)]


@given(batches(), batches(), st.integers(1, 20_000), st.data())
def test_take_ends_where_another_segment_begins_or_at_the_damage(
    first: list[BatchHeader], second: list[BatchHeader], interval: int, data: st.DataObject
) -> None:
    one, other = built(first, interval), built(second, interval, KEY.replace("id", "jd"))
    taken, end, error = RemoteLogIndex.take(one + other)
    assert list(taken.spans()) == list(RemoteLogIndex.parse(one).spans())
    assert (end, error is not None) == (len(one), True)
    taken, end, error = RemoteLogIndex.take(one + other, len(one))
    assert list(taken.spans()) == list(RemoteLogIndex.parse(other).spans())
    assert (end, error) == (len(one) + len(other), None)
    with pytest.raises(CorruptSegment, match=f"at byte {len(one)}: rdi names"):
        RemoteLogIndex.parse(one + other)
    at = data.draw(st.integers(0, len(one) - 1))
    taken, end, error = RemoteLogIndex.take(one[:at] + bytes([one[at] ^ 1]) + one[at + 1 :] + other)
    starts = [*entry_positions(one), len(one)]
    assert error is not None
    assert end == max(start for start in starts if start <= at)
    assert list(taken.spans()) == list(RemoteLogIndex.parse(one).spans())[: starts.index(end)]
