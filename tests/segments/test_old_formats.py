"""Messages of the formats v0 and v1 become batches; kafka-python reads both, and is the oracle."""

from __future__ import annotations

from typing import Any

import pytest
from fetchproxy_protocol.record_batch import check_crc, walk
from hypothesis import given
from hypothesis import strategies as st
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatchBuilder

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
    found: list[Row] = []
    batches: Any = MemoryRecords(records)
    while (batch := batches.next_batch()) is not None:
        found += [(r.offset, r.timestamp, r.key, r.value) for r in batch]
    return found


@given(st.sampled_from([0, 1]), st.integers(0, 2**40), st.data())
def test_every_message_keeps_what_it_has(magic: int, base: int, data: st.DataObject) -> None:
    rows: list[Row] = []
    for number in range(data.draw(st.integers(1, 20))):
        timestamp = data.draw(timestamps) if magic else -1
        rows.append((base + number, timestamp, data.draw(texts), data.draw(texts)))
    codec = data.draw(st.sampled_from([0, 1]))
    raw = old(magic, rows, codec)
    assert has_old_format(raw, 0)
    records, error = converted(memoryview(raw))
    assert error is None
    assert rows_of(records) == rows
    headers = list(walk(records))
    assert all(check_crc(records, header) for header in headers)
    assert [h.last_offset for h in headers][-1] == rows[-1][0]
    assert converted(memoryview(records)) == (records, None), "batches stay as they are"


def test_a_cut_end_is_left_out_and_damage_ends_it() -> None:
    rows: list[Row] = [(n, 1_000 + n, b"k", b"v" * 20) for n in range(3)]
    raw = old(1, rows)
    size = len(raw) // 3
    assert rows_of(converted(memoryview(raw[:-1]))[0]) == rows[:2]
    broken = bytearray(raw)
    broken[size + 40] ^= 1
    records, error = converted(memoryview(bytes(broken)))
    assert rows_of(records) == rows[:1]
    assert "offset 1 fails its CRC" in str(error)


@pytest.mark.parametrize("junk", [b"", b"\0" * 100, b"\xff" * 16])
def test_what_is_no_message(junk: bytes) -> None:
    assert not has_old_format(junk, 0)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused_or_converted(junk: bytes) -> None:
    converted(memoryview(junk))
