"""Messages of the formats v0 and v1 become batches; kafka-python reads both, and is the oracle."""

from __future__ import annotations

from typing import Any

import pytest
from fetchproxy_protocol.record_batch import TooLargeToUnpack, check_crc, walk
from hypothesis import given
from hypothesis import strategies as st
from kafka.codec import lz4_encode
from kafka.record import MemoryRecords, legacy_records
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from fetchproxy.segments import old_formats
from fetchproxy.segments.old_formats import converted, has_old_format

Row = tuple[int, int | None, bytes | None, bytes | None]
texts = st.none() | st.binary(max_size=40)
timestamps = st.integers(-1, 2**63 - 1)


def old(magic: int, rows: list[Row], codec: int = 0, append_time: bool = False) -> bytes:
    """One compressed message, or a message for each row."""
    if not codec and len(rows) > 1:
        return b"".join(old(magic, [row], codec, append_time) for row in rows)
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 30)
    last = rows[-1][0]
    for number, (offset, timestamp, key, value) in enumerate(rows):
        inside = number if codec and magic else offset
        builder.append(inside, timestamp, key, value)
    built = bytearray(builder.build())
    built[0:8] = last.to_bytes(8, "big")
    return bytes(built)


def rows_of(records: bytes) -> list[Row]:
    rows_read: list[Row] = []
    batches: Any = MemoryRecords(records)
    while (batch := batches.next_batch()) is not None:
        rows_read += [(r.offset, r.timestamp, r.key, r.value) for r in batch]
    return rows_read


@given(st.sampled_from([0, 1]), st.integers(0, 2**40), st.data())
def test_every_message_keeps_what_it_has(magic: int, base: int, data: st.DataObject) -> None:
    rows: list[Row] = []
    for number in range(data.draw(st.integers(1, 20))):
        timestamp = data.draw(timestamps) if magic else -1
        rows.append((base + number, timestamp, data.draw(texts), data.draw(texts)))
    codec = data.draw(st.sampled_from([0, 1]))
    raw = old(magic, rows, codec)
    assert has_old_format(raw, 0)
    records, _, error = converted(memoryview(raw))
    assert error is None
    assert rows_of(records) == rows
    headers = list(walk(records))
    assert all(check_crc(records, header) for header in headers)
    assert [h.last_offset for h in headers][-1] == rows[-1][0]
    assert converted(memoryview(records)) == (records, len(records), None), (
        "batches stay as they are"
    )


def test_a_cut_end_is_left_out_and_damage_ends_it() -> None:
    rows: list[Row] = [(n, 1_000 + n, b"k", b"v" * 20) for n in range(3)]
    raw = old(1, rows)
    size = len(raw) // 3
    assert rows_of(converted(memoryview(raw[:-1]))[0]) == rows[:2]
    broken = bytearray(raw)
    broken[size + 40] ^= 1
    records, _, error = converted(memoryview(bytes(broken)))
    assert rows_of(records) == rows[:1]
    assert "offset 1 fails its CRC" in str(error)


@pytest.mark.parametrize("magic", [0, 1])
@pytest.mark.parametrize("codec", [1, 2, 3])
def test_what_unpacks_to_too_much_is_named_and_is_no_damage(
    magic: int, codec: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(old_formats, "OLD_FORMAT_UNPACKED_BYTES_MAX", 10_000)
    # Kafka's own checksum in v0 needs xxhash; any one of 256 is tried.
    monkeypatch.setattr(legacy_records, "lz4_encode_old_kafka", lz4_encode)
    small = old(magic, [(0, 0, None, b"v")], codec)
    large = old(magic, [(1, 0, None, bytes(10_000))], codec)
    records, _, error = converted(memoryview(small + large))
    assert [row[0] for row in rows_of(records)] == [0]
    assert isinstance(error, TooLargeToUnpack)


def test_a_conversion_ends_where_the_next_fetch_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_formats, "CONVERTED_BYTES_ENOUGH", 10_000)
    raw = [old(1, [(n, 0, None, bytes(6_000))], 1) for n in range(5)]
    offsets_found: list[int] = []
    while len(offsets_found) < 5:
        records, _, error = converted(memoryview(b"".join(raw[len(offsets_found) :])))
        assert error is None
        assert 0 < len(records) < 20_000
        offsets_found += [row[0] for row in rows_of(records)]
    assert offsets_found == list(range(5))


@pytest.mark.parametrize("junk", [b"", b"\0" * 100, b"\xff" * 16])
def test_what_is_no_message(junk: bytes) -> None:
    assert not has_old_format(junk, 0)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_converted(junk: bytes) -> None:
    converted(memoryview(junk))
