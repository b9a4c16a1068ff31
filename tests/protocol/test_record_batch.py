"""Batches built by aiokafka's and kafka-python's builders: walked, checked, cut and searched."""

from __future__ import annotations

import contextlib
import struct
import tracemalloc
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import cramjam
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from fastcrc.crc32 import iscsi as crc32c
from fetchproxy_protocol import record_batch
from fetchproxy_protocol.apis import MalformedMessage, WireError
from fetchproxy_protocol.record_batch import (
    CONTROL_ABORT,
    CONTROL_COMMIT,
    CONTROL_MASK,
    HEADER_BYTES,
    RECORDS_A_STEP,
    SEARCHED_BYTES_MAX,
    TIMESTAMP_TYPE_MASK,
    BatchHeader,
    BatchSearch,
    BatchTimesSearch,
    check_crc,
    control_type,
    cut,
    first_record_at_or_after,
    walk,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder

CODECS = (0, 1, 2, 3, 4)
NO_PRODUCER = {"producer_id": -1, "producer_epoch": -1, "base_sequence": -1}


def reseal(batch: bytearray) -> bytes:
    """Make the CRC true again after an edit."""
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


def make_batch(
    base_offset: int,
    timestamps: list[int],
    codec: int = 0,
    builder: Any = DefaultRecordBatchBuilder,
    value: bytes = b"value",
    epoch: int = 3,
) -> bytes:
    made = builder(
        magic=2,
        compression_type=codec,
        is_transactional=False,
        batch_size=1 << 28,
        **NO_PRODUCER,
    )
    for delta, timestamp in enumerate(timestamps):
        made.append(delta, timestamp, b"key", value, [("h", b"x")])
    batch = bytearray(made.build())
    struct.pack_into(">q", batch, 0, base_offset)
    struct.pack_into(">i", batch, 12, epoch)
    return bytes(batch)


def control_batch(kind: int) -> bytes:
    made = DefaultRecordBatchBuilder(
        magic=2,
        compression_type=0,
        is_transactional=True,
        producer_id=9,
        producer_epoch=1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    made.append(0, 1000, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, 0), [])
    batch = bytearray(made.build())
    batch[22] |= CONTROL_MASK
    return reseal(batch)


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Batches with rising offsets, some with holes between them, as compaction leaves them."""
    offset = draw(st.integers(0, 2**40))
    made = []
    for _ in range(draw(st.integers(0, 8))):
        offset += draw(st.sampled_from([0, 0, 0, 1, 50]))
        count = draw(st.integers(1, 4))
        value = bytes(draw(st.integers(0, 200)))
        made.append(make_batch(offset, [1000] * count, value=value))
        offset += count
    return made


def last_offset(batch: bytes) -> int:
    return int.from_bytes(batch[:8], "big") + int.from_bytes(batch[23:27], "big")


@pytest.mark.parametrize("codec", CODECS)
def test_header_of_one_batch(codec: int) -> None:
    batch = make_batch(100, [5000, 4000, 6000], codec)
    (header,) = walk(batch)
    assert header.position == 0
    assert header.size == header.end == len(batch) == header.batch_length + 12
    assert (header.base_offset, header.last_offset, header.records_count) == (100, 102, 3)
    assert (header.base_timestamp, header.max_timestamp) == (5000, 6000)
    assert header.partition_leader_epoch == 3
    assert header.compression == codec
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (-1, -1, -1)
    assert not header.is_control
    assert not header.is_transactional
    assert not header.is_log_append_time
    assert check_crc(batch, header)


def test_kafka_pythons_batches_are_the_same_to_us() -> None:
    for codec in (0, 1):
        batch = make_batch(7, [1000, 2000], codec, builder=KafkaPythonBuilder)
        (header,) = walk(batch)
        assert check_crc(batch, header)
        assert first_record_at_or_after(batch, header, 1500) == (8, 2000)


@given(logs(), st.integers(0, 100), st.data())
def test_walk_gives_whole_batches_only(log: list[bytes], junk: int, data: st.DataObject) -> None:
    whole = b"".join(log)
    lead = bytes(junk)
    end = data.draw(st.integers(0, len(whole)))
    edges = [0]
    for batch in log:
        edges.append(edges[-1] + len(batch))
    fit = [edge for edge in edges if edge <= end]
    buf = lead + whole[:end]
    headers = list(walk(buf, junk))
    assert [h.position - junk for h in headers] == fit[:-1]
    assert all(a.end == b.position for a, b in pairwise(headers))
    assert all(check_crc(buf, h) for h in headers)
    assert list(walk(lead + whole, junk, junk + end)) == headers
    assert list(walk(memoryview(bytearray(buf)), junk)) == headers


@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_changed_byte_fails_the_crc(at: int, flip: int) -> None:
    batch = bytearray(make_batch(0, [1, 2, 3]))
    (header,) = walk(bytes(batch))
    batch[21 + at % (len(batch) - 21)] ^= flip
    assert not check_crc(batch, header)


def test_crc_does_not_cover_offset_and_epoch() -> None:
    batch = bytearray(make_batch(0, [1]))
    struct.pack_into(">q", batch, 0, 10**12)
    struct.pack_into(">i", batch, 12, 99)
    (header,) = walk(batch)
    assert check_crc(batch, header)
    assert (header.base_offset, header.partition_leader_epoch) == (10**12, 99)


def naive_cut(log: list[bytes], from_offset: int, bytes_max: int, min_one: bool) -> bytes:
    batches_expected = [batch for batch in log if last_offset(batch) >= from_offset]
    out = b""
    for number, batch in enumerate(batches_expected):
        if len(out) + len(batch) > bytes_max and not (min_one and number == 0):
            break
        out += batch
    return out


@given(logs(), st.integers(-5, 100), st.integers(0, 2000), st.booleans(), st.integers(0, 80))
def test_cut_as_a_plain_list_would(
    log: list[bytes], ahead: int, bytes_max: int, min_one: bool, torn: int
) -> None:
    buf = b"".join(log)
    from_offset = ahead + (int.from_bytes(buf[:8], "big") if log else 0)
    partial = make_batch(2**50, [1])[:torn]
    start, end = cut(buf + partial, from_offset, bytes_max, min_one)
    assert (buf + partial)[start:end] == naive_cut(log, from_offset, bytes_max, min_one)


def test_cut_gives_the_first_batch_whole_only_if_asked() -> None:
    buf = make_batch(0, [1] * 5) + make_batch(5, [1] * 5)
    size = len(buf) // 2
    assert cut(buf, 7, 10, min_one=True) == (size, 2 * size)
    assert cut(buf, 7, 10, min_one=False) == (size, size)
    assert cut(buf, 10, 10**6, min_one=True) == (2 * size, 2 * size)
    assert cut(b"", 0, 10, min_one=True) == (0, 0)


@pytest.mark.parametrize(
    ("at", "raw"),
    [(16, b"\x01"), (16, b"\x03"), (8, b"\xff\xff\xff\xff"), (8, b"\x00\x00\x00\x30"),
     (23, b"\xff\xff\xff\xff")],
)  # fmt: skip
def test_nonsense_is_malformed(at: int, raw: bytes) -> None:
    good = make_batch(0, [1])
    bad = bytearray(make_batch(1, [1]))
    bad[at : at + len(raw)] = raw
    buf = good + bytes(bad)
    with pytest.raises(MalformedMessage):
        list(walk(buf))
    with pytest.raises(MalformedMessage):
        cut(buf, 1, 1 << 20, min_one=True)
    if at < 17:
        with pytest.raises(MalformedMessage):
            list(walk(buf[: len(good) + 20]))


@given(st.binary(max_size=200))
def test_garbage_raises_only_wire_errors(junk: bytes) -> None:
    for look in (
        lambda: list(walk(junk)),
        lambda: cut(junk, 0, 100, True),
    ):
        with contextlib.suppress(WireError):
            look()


@pytest.mark.parametrize("kind", [CONTROL_ABORT, CONTROL_COMMIT])
def test_control_type(kind: int) -> None:
    batch = control_batch(kind)
    (header,) = walk(batch)
    assert header.is_control
    assert header.is_transactional
    assert check_crc(batch, header)
    assert control_type(batch, header) == kind


def test_control_type_of_data_is_malformed() -> None:
    batch = make_batch(0, [1])
    (header,) = walk(batch)
    with pytest.raises(MalformedMessage):
        control_type(batch, header)


def naive_search(
    stamps: list[int], base: int, timestamp: int, start: int
) -> tuple[int, int] | None:
    for delta, stamp in enumerate(stamps):
        if stamp >= timestamp and base + delta >= start:
            return base + delta, stamp
    return None


@pytest.mark.parametrize("codec", CODECS)
def test_search_by_timestamp(codec: int) -> None:
    @settings(max_examples=40)
    @given(
        st.lists(st.integers(0, 2**42), min_size=1, max_size=30),
        st.integers(0, 2**42),
        st.integers(0, 30),
        st.integers(0, 2**50),
    )
    def check(stamps: list[int], other: int, ahead: int, base: int) -> None:
        batch = make_batch(base, stamps, codec)
        (header,) = walk(batch)
        for timestamp in (stamps[-1], stamps[0] + 1, max(stamps) + 1, other):
            for start in (0, base + ahead):
                first_record = first_record_at_or_after(batch, header, timestamp, start)
                assert first_record == naive_search(stamps, base, timestamp, start)

    check()


def times_of(batch: bytes, header: BatchHeader) -> BatchTimesSearch:
    search = BatchTimesSearch(batch, header)
    while search.room is not None:
        for _ in search.steps(search.unpack()):
            pass
    return search


@pytest.mark.parametrize("append_time", [False, True])
@given(
    st.lists(st.integers(0, 2**42) | st.integers(0, 9), min_size=1, max_size=30),
    st.integers(0, 30),
    st.integers(-(2**63), 2**63 - 1) | st.integers(-1, 10),
)
def test_the_table_of_a_batch_has_what_a_search_finds(
    append_time: bool, stamps: list[int], start: int, other: int
) -> None:
    batch = bytearray(make_batch(0, stamps))
    if append_time:
        batch[22] |= TIMESTAMP_TYPE_MASK
    sealed = reseal(batch)
    (header,) = walk(sealed)
    search = times_of(sealed, header)
    assert search.position is None
    assert list(search.times.timestamps) == sorted(set(search.times.timestamps))
    for timestamp in (*stamps, other, header.max_timestamp):
        first_record = first_record_at_or_after(sealed, header, timestamp, start)
        is_there, by_table = search.times.first(timestamp, start)
        assert not is_there or by_table == first_record
        assert is_there or start > 0


def test_a_batch_that_is_too_large_has_no_table() -> None:
    batch = make_batch(0, [1000], value=bytes(SEARCHED_BYTES_MAX), codec=1)
    (header,) = walk(batch)
    assert times_of(batch, header).position is not None


def test_search_under_log_append_time() -> None:
    batch = bytearray(make_batch(50, [1000, 2000, 3000]))
    batch[22] |= TIMESTAMP_TYPE_MASK
    struct.pack_into(">q", batch, 35, 9000)
    sealed = reseal(batch)
    (header,) = walk(sealed)
    assert header.is_log_append_time
    assert first_record_at_or_after(sealed, header, 2500) == (50, 9000)
    assert first_record_at_or_after(sealed, header, 2500, 52) == (52, 9000)
    assert first_record_at_or_after(sealed, header, 9001) is None


@pytest.mark.parametrize("codec", CODECS)
def test_broken_records_raise_only_wire_errors(codec: int) -> None:
    batch = make_batch(0, [1000 + n for n in range(20)], codec)
    (header,) = walk(batch)

    @settings(max_examples=60)
    @given(st.dictionaries(st.integers(HEADER_BYTES, len(batch) - 1), st.integers(0, 255)))
    def check(edits: dict[int, int]) -> None:
        broken = bytearray(batch)
        for at, byte in edits.items():
            broken[at] = byte
        with contextlib.suppress(WireError):
            first_record_at_or_after(broken, header, 1019)

    check()
    for size in range(HEADER_BYTES, len(batch)):
        short = BatchHeader(0, size, *header[2:])
        with pytest.raises(WireError):
            first_record_at_or_after(batch, short, 1019)


@pytest.mark.parametrize("codec", CODECS)
def test_a_search_pauses_between_pieces_of_records(codec: int) -> None:
    count = 3 * RECORDS_A_STEP
    batch = make_batch(40, [1000 + n for n in range(count)], codec)
    (header,) = walk(batch)
    search = BatchSearch(batch, header, 1000 + count - 1)
    pauses = 0
    while search.room is not None:
        pauses += len(list(search.steps(search.unpack())))
    assert search.position == (40 + count - 1, 1000 + count - 1)
    assert pauses >= 2
    assert search.work > 0


@given(
    base=st.integers(-(2**63), 2**63 - 1),
    stamps=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=8),
    timestamp=st.integers(-(2**63), 2**63 - 1),
)
def test_any_timestamp_is_found_although_its_delta_overflows(
    base: int, stamps: list[int], timestamp: int
) -> None:
    def varint(value: int) -> bytes:
        value, out = (value << 1) ^ (value >> 63), bytearray()
        while value > 0x7F:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        return bytes([*out, value])

    records = b""
    for n, stamp in enumerate(stamps):
        delta = (stamp - base + 2**63) % 2**64 - 2**63
        body = b"\0" + varint(delta) + varint(n) + b"\x01\0\0"
        records += varint(len(body)) + body
    (header,) = walk(make_batch(7, [0]))
    header = header._replace(
        size=HEADER_BYTES + len(records),
        base_timestamp=base,
        max_timestamp=max(stamps),
        last_offset_delta=len(stamps) - 1,
        records_count=len(stamps),
    )
    first_record = first_record_at_or_after(bytes(HEADER_BYTES) + records, header, timestamp)
    assert first_record == naive_search(stamps, 7, timestamp, 0)


# --- batches that unpack to far more than they are ---
def hostile_batch(codec: int, value_bytes: int, records: int = 3) -> tuple[bytes, BatchHeader]:
    """Of `records` with values of zeros; the last one alone has a late timestamp."""
    stamps = [1000] * (records - 1) + [2000]
    batch = make_batch(40, stamps, codec, value=bytes(value_bytes))
    (header,) = walk(batch)
    return batch, header


def peak_bytes(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", CODECS[1:])
def test_what_a_search_unpacks_is_bounded(codec: int) -> None:
    """The record that is looked for lies behind the bound: an earlier offset misses nothing."""
    batch, header = hostile_batch(codec, SEARCHED_BYTES_MAX, records=4)
    first_records: list[tuple[int, int] | None] = []
    peak = peak_bytes(lambda: first_records.append(first_record_at_or_after(batch, header, 1500)))
    assert first_records == [(40, 2000)]
    assert peak < 1.6 * SEARCHED_BYTES_MAX
    assert first_record_at_or_after(batch, header, 1500, 42) == (42, 2000)
    assert first_record_at_or_after(batch, header, 2001) is None  # by its header alone


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_search_unpacks_no_more_than_it_needs(codec: int) -> None:
    batch, header = hostile_batch(codec, 16 * 1024, records=2000)
    early = peak_bytes(lambda: first_record_at_or_after(batch, header, 900))
    assert early < 600_000
    assert first_record_at_or_after(batch, header, 1500) == (2039, 2000)  # 31 MiB on


def test_a_block_that_is_larger_than_the_bound_is_not_unpacked() -> None:
    """Snappy's are not taken apart: the whole batch may be one."""
    plain, header = hostile_batch(0, 1000)
    claimed = b"\xff\xff\xff\xff\x0f" + bytes(cramjam.snappy.compress_raw(plain[HEADER_BYTES:]))
    batch = bytearray(plain[:HEADER_BYTES] + claimed)
    batch[22] |= 2
    packed = header._replace(size=len(batch), attributes=header.attributes | 2)
    assert peak_bytes(lambda: first_record_at_or_after(batch, packed, 1500)) < 100_000
    assert first_record_at_or_after(batch, packed, 1500) == (40, 2000)


def test_records_that_are_looked_at_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_batch, "SEARCHED_RECORDS_MAX", 10)
    for count, expected in ((10, (49, 2000)), (11, (50, 2000)), (12, (50, 2000)), (90, (50, 2000))):
        for codec in CODECS:
            batch, header = hostile_batch(codec, 10, count)
            assert first_record_at_or_after(batch, header, 1500) == expected
