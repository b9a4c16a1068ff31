"""Batches of other people's builders to Arrow, against other people's readers."""

from __future__ import annotations

import dataclasses
import random
import re
import struct
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import product
from typing import Any

import legal_logs
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from legal_logs import Batch, LegalLog, sealed
from made_batches import (
    BUILDERS,
    CODECS,
    READERS,
    Record,
    Row,
    made_batch,
    marker,
    reseal,
    rows_read_by,
)

from fetchproxy.model import AbortedTxn
from fetchproxy.remotelog.decoder.arrow_batches import (
    BATCH_BYTES_MAX,
    COLUMNS,
    HEADER_ROWS_MAX,
    ROWS_MAX,
    ArrowBatches,
    arrow_schema,
)
from fetchproxy.remotelog.decoder.log_decoder import AbortedBatches, LogDecoder, OnFault
from fetchproxy.remotelog.decoder.record_rows import RowLimits

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Fault = tuple[int, int, str]


def raised(position: int, offset: int, what: str) -> None:
    raise AssertionError(f"byte {position}, offset {offset}: {what}")


def collected(faults: list[Fault]) -> OnFault:
    return lambda position, offset, what: faults.append((position, offset, what))


def decoded(
    log: bytes,
    limits: RowLimits | None = None,
    *,
    columns: Sequence[str] = COLUMNS,
    aborted: AbortedBatches | None = None,
    **sizes: int,
) -> list[Any]:
    decoder = LogDecoder(ArrowBatches(columns, "orders", 7, **sizes), raised)
    decoded_batches = list(decoder.decode(log, limits or RowLimits(), aborted=aborted))
    for batch in decoded_batches:
        batch.validate(full=True)
        assert batch.schema == arrow_schema(columns)
    return decoded_batches


def decoded_with_faults(
    log: bytes, borders: Sequence[int] = (), position: int = 0
) -> tuple[list[int], list[Fault]]:
    """The offsets that are left, and what was said of the rest."""
    faults: list[Fault] = []
    decoder = LogDecoder(ArrowBatches(COLUMNS, "orders", 7), collected(faults), goes_on=True)
    decoded_batches = decoder.decode(log, RowLimits(), borders=borders, position=position)
    return [o for batch in decoded_batches for o in batch.column("offset").to_pylist()], faults


def as_rows(batches: Sequence[Any]) -> list[Row]:
    rows = []
    for batch in batches:
        for row in batch.to_pylist():
            assert (row["topic"], row["partition"]) == ("orders", 7)
            headers = row["headers"]
            assert headers is None or headers, "no headers are null, as Spark's own source has them"
            rows.append(
                Row(
                    row["key"],
                    row["value"],
                    row["offset"],
                    (row["timestamp"] - EPOCH) // timedelta(milliseconds=1),
                    row["timestampType"],
                    tuple((h["key"], h["value"]) for h in headers or ()),
                )
            )
    return rows


def offsets(batches: Sequence[Any]) -> list[int]:
    return [o for batch in batches for o in batch.column("offset").to_pylist()]


texts = st.text(st.characters(codec="utf-8"), max_size=20)
header_lists = st.lists(st.tuples(texts, st.none() | st.binary(max_size=40)), max_size=4)
records = st.builds(
    Record,
    key=st.none() | st.binary(max_size=200),
    value=st.none() | st.binary(max_size=300),
    timestamp=st.integers(0, 2_000_000_000_000),
    headers=header_lists.map(tuple),
)


@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    batches, offset = [], draw(st.integers(0, 2**40))
    for _ in range(draw(st.integers(1, 5))):
        chosen = draw(st.lists(records, min_size=1, max_size=40))
        batch = made_batch(
            offset,
            chosen,
            codec=draw(st.sampled_from(CODECS)),
            builder=draw(st.sampled_from(BUILDERS)),
            append_time=draw(st.none() | st.integers(0, 2_000_000_000_000)),
        )
        batches.append(batch)
        offset += len(chosen) + draw(st.integers(0, 10))
    return batches


@given(logs(), st.sampled_from(READERS), st.integers(1, 9), st.integers(200, 4000))
def test_rows_are_those_of_other_readers(
    batches: list[bytes], reader: Any, rows_max: int, batch_bytes_max: int
) -> None:
    decoded_batches = decoded(b"".join(batches), rows_max=rows_max, batch_bytes_max=batch_bytes_max)
    assert as_rows(decoded_batches) == rows_read_by(reader, batches)
    assert all(batch.num_rows <= rows_max for batch in decoded_batches)


@given(logs(), st.data())
def test_limits_leave_out_what_lies_beyond_them(batches: list[bytes], data: st.DataObject) -> None:
    every = rows_read_by(READERS[0], batches)
    border = st.sampled_from([row.offset for row in every])
    time = st.sampled_from([row.timestamp for row in every])
    limits = RowLimits(
        data.draw(border),
        data.draw(border) + data.draw(st.integers(0, 1)),
        data.draw(time),
        data.draw(time),
    )
    assert as_rows(decoded(b"".join(batches), limits)) == [
        row
        for row in every
        if limits.offset_from <= row.offset < limits.offset_end
        and limits.timestamp_min <= row.timestamp <= limits.timestamp_max
    ]


@given(logs(), st.sets(st.sampled_from(COLUMNS)).map(sorted))
def test_only_the_asked_columns_are_there(batches: list[bytes], columns: list[str]) -> None:
    whole = pa.Table.from_batches(decoded(b"".join(batches)))
    decoded_batches = decoded(b"".join(batches), columns=columns)
    if not columns:
        assert sum(batch.num_rows for batch in decoded_batches) == whole.num_rows
    else:
        assert pa.Table.from_batches(decoded_batches) == whole.select(columns)


@given(
    logs(),
    st.sets(st.sampled_from(["topic", "partition", "offset", "timestampType"]), min_size=1),
    st.integers(1, 9),
    st.data(),
)
def test_what_headers_tell_is_what_records_tell(
    batches: list[bytes], columns: set[str], rows_max: int, data: st.DataObject
) -> None:
    every = [row.offset for row in rows_read_by(READERS[0], batches)]
    border = st.sampled_from(every)
    limits = RowLimits(data.draw(border), data.draw(border) + data.draw(st.integers(0, 1)))
    whole = pa.Table.from_batches(decoded(b"".join(batches), limits), arrow_schema())
    decoded_batches = decoded(b"".join(batches), limits, columns=sorted(columns), rows_max=rows_max)
    schema = arrow_schema(sorted(columns))
    assert pa.Table.from_batches(decoded_batches, schema) == whole.select(sorted(columns))
    assert all(0 < batch.num_rows <= rows_max for batch in decoded_batches)


@pytest.mark.parametrize("codec", CODECS)
def test_headers_do_not_tell_the_offsets_of_a_batch_that_lacks_some(codec: int) -> None:
    batch = bytearray(made_batch(10, [Record()] * 3, codec=codec))
    struct.pack_into(">i", batch, 23, 7)  # the last offset delta, which compaction keeps
    log = made_batch(0, [Record()] * 10) + reseal(batch) + made_batch(18, [Record()])
    assert offsets(decoded(log, columns=["offset"])) == [*range(13), 18]


def test_headers_that_claim_too_many_rows_are_not_believed() -> None:
    def claiming(count: int) -> bytes:
        batch = bytearray(made_batch(0, [Record()]))
        struct.pack_into(">i", batch, 23, count - 1)
        struct.pack_into(">i", batch, 57, count)
        return reseal(batch)

    decoded_batches = decoded(claiming(HEADER_ROWS_MAX), columns=["offset"])
    assert sum(batch.num_rows for batch in decoded_batches) == HEADER_ROWS_MAX
    for count in (HEADER_ROWS_MAX + 1, 2**31 - 1):
        with pytest.raises(AssertionError, match="offset 0: "):
            decoded(claiming(count), columns=["offset"])


def test_records_that_nobody_asks_for_stay_packed() -> None:
    batch = bytearray(made_batch(0, [Record(value=bytes(1000))] * 10, codec=4))
    batch[75:] = b"\xaa" * len(batch[75:])
    log = reseal(batch)
    assert offsets(decoded(log, columns=["offset"])) == list(range(10))
    with pytest.raises(AssertionError, match="offset 0: "):
        decoded(log, columns=["offset", "timestamp"])
    decoder = LogDecoder(ArrowBatches(["offset"], "orders", 7), collected([]), goes_on=True)
    assert offsets(list(decoder.decode(log, RowLimits()))) == list(range(10))


@pytest.mark.parametrize("codec", CODECS)
def test_many_rows_come_in_batches_of_bounded_size(codec: int) -> None:
    many = [Record(b"k", bytes(90)) for _ in range(30_000)]
    log = made_batch(0, many, codec=codec) + made_batch(30_000, many, codec=codec)
    decoded_batches = decoded(log)
    assert offsets(decoded_batches) == list(range(60_000))
    assert [batch.num_rows for batch in decoded_batches] == [ROWS_MAX] * 3
    large = [Record(None, bytes(100_000)) for _ in range(100)]
    decoded_batches = decoded(made_batch(0, large, codec=codec))
    assert offsets(decoded_batches) == list(range(100))
    assert max(batch.nbytes for batch in decoded_batches) <= BATCH_BYTES_MAX
    assert len(decoded_batches) == 3


def test_a_record_that_is_larger_than_a_batch_comes_alone() -> None:
    sizes = (10, 5 * 1024 * 1024, 10, 20)
    log = made_batch(0, [Record(None, bytes(size)) for size in sizes], codec=4)
    decoded_batches = decoded(log, columns=["value"])
    assert [[len(value) for value in b.column(0).to_pylist()] for b in decoded_batches] == [
        [10],
        [5 * 1024 * 1024],
        [10, 20],
    ]


def test_a_batch_that_unpacks_to_more_than_the_arena() -> None:
    large = [Record(None, bytes([i]) * 1_000_000) for i in range(40)]
    for codec in CODECS:
        log = made_batch(0, [Record()], codec=codec) + made_batch(1, large, codec=codec)
        assert as_rows(decoded(log))[1:] == rows_read_by(READERS[0], [made_batch(1, large)])


def test_control_batches_give_no_rows_and_committed_ones_leave_out_what_was_aborted() -> None:
    def data(base: int, producer: int) -> bytes:
        return made_batch(base, [Record()] * 10, producer_id=producer, transactional=True)

    log = b"".join(
        [
            data(0, 1),
            data(10, 2),
            data(20, 1),
            marker(30, 1, 0),
            marker(31, 2, 1),
            data(32, 1),
            marker(42, 1, 1),
            made_batch(43, [Record()] * 2),
            made_batch(45, [Record()] * 2, producer_id=1),  # idempotent: in no transaction
        ]
    )
    aborted = AbortedBatches([AbortedTxn(0, 30, 1, 31), AbortedTxn(44, 46, 1, 47)])
    assert offsets(decoded(log)) == [*range(30), *range(32, 42), *range(43, 47)]
    assert offsets(decoded(log, aborted=aborted)) == [
        *range(10, 20),
        *range(32, 42),
        *range(43, 47),
    ]
    assert offsets(decoded(log, aborted=AbortedBatches(()))) == offsets(decoded(log))


def test_no_timestamp_is_what_spark_makes_of_it() -> None:
    batch = bytearray(made_batch(0, [Record(timestamp=0)]))
    struct.pack_into(">qq", batch, 27, -1, -1)
    assert [row.timestamp for row in as_rows(decoded(reseal(batch)))] == [-1]


@pytest.mark.parametrize(
    ("timestamp", "micros"),
    [
        (2**63 // 1000, 2**63 // 1000 * 1000),
        (2**63 // 1000 + 1, None),
        (-(2**63 // 1000), -(2**63 // 1000) * 1000),
        (-(2**63 // 1000) - 1, None),
        (2**63 - 1, None),
        (-(2**63), None),
    ],
)
def test_a_timestamp_without_microseconds_is_null_and_costs_no_other_record(
    timestamp: int, micros: int | None
) -> None:
    batch = bytearray(made_batch(0, [Record(timestamp=0)]))
    struct.pack_into(">qq", batch, 27, timestamp, timestamp)
    log = reseal(batch) + made_batch(1, [Record(timestamp=5)])
    table = pa.Table.from_batches(decoded(log))
    table.validate(full=True)
    assert table.column("timestamp").cast(pa.int64()).to_pylist() == [micros, 5000]
    decoder = LogDecoder(ArrowBatches(["timestamp"], "orders", 7, exact=True), raised)
    exact = pa.Table.from_batches(decoder.decode(log, RowLimits()))
    assert exact.column("timestamp").to_pylist() == [timestamp, 5]


# --- whatever Kafka may hold ---


def java_text(raw: bytes) -> str:
    """As Java's `new String(raw, UTF_8)`: for it, a surrogate is one malformed part."""
    whole = re.sub(rb"\xed[\xa0-\xbf][\x80-\xbf]?", b"\xef\xbf\xbd", raw)
    return whole.decode("utf-8", "replace")


# Read by a JVM 17: String(bytes, UTF_8).getBytes(UTF_8).
JAVA_TEXTS = {
    "fffe6b": "efbfbdefbfbd6b",
    "eda080": "efbfbd",
    "eda041": "efbfbd41",
    "eda0": "efbfbd",
    "edbfbf80": "efbfbdefbfbd",
    "c080": "efbfbdefbfbd",
    "c3": "efbfbd",
    "e08080": "efbfbdefbfbdefbfbd",
    "e0a0": "efbfbd",
    "e0a041": "efbfbd41",
    "e18041": "efbfbd41",
    "f09f": "efbfbd",
    "f09f98": "efbfbd",
    "f09f9841": "efbfbd41",
    "f09f9880": "f09f9880",
    "f08f8080": "efbfbdefbfbdefbfbdefbfbd",
    "f4908080": "efbfbdefbfbdefbfbdefbfbd",
    "f5808080": "efbfbdefbfbdefbfbdefbfbd",
    "f880808080": "efbfbdefbfbdefbfbdefbfbdefbfbd",
    "80bf": "efbfbdefbfbd",
}


def test_the_reference_reads_as_a_jvm() -> None:
    for raw, text in JAVA_TEXTS.items():
        assert java_text(bytes.fromhex(raw)).encode().hex() == text


def logs_of_keys(keys: Sequence[bytes]) -> bytes:
    batch = Batch(0, 0, (legal_logs.Record(0, 5, None, None, tuple((k, k) for k in keys)),), 5, 5)
    return sealed(batch).content


def test_header_keys_of_any_bytes_are_javas_text() -> None:
    pieces = (b"A", b"\x80", b"\xa0", b"\xbf", b"\xc2", b"\xe0", b"\xed", b"\xf0", b"\xf4", b"\xff")
    keys = [b"".join(chosen) for n in range(5) for chosen in product(pieces, repeat=n)]
    keys += [bytes.fromhex(raw) for raw in JAVA_TEXTS]
    [batch] = decoded(logs_of_keys(keys))
    batch.validate(full=True)
    [headers] = batch.column("headers").to_pylist()
    assert [header["key"] for header in headers] == [java_text(key) for key in keys]
    assert [header["value"] for header in headers] == keys


def micros_of(timestamp: int) -> int | None:
    return timestamp * 1000 if abs(timestamp) <= 2**63 // 1000 else None


@settings(max_examples=150)
@given(legal_logs.legal_logs(value_bytes_max=20_000), st.integers(1, 9), st.booleans())
def test_every_legal_log_gives_every_record(log: LegalLog, rows_max: int, goes_on: bool) -> None:
    exact = [
        (
            batch.base_offset + record.offset_delta,
            batch.timestamp_of(record),
            int(bool(batch.flags & legal_logs.LOG_APPEND_TIME)),
            record.key,
            record.value,
            record.headers or None,
        )
        for batch in log.batches
        if not batch.is_control
        for record in batch.records
    ]
    names = ["offset", "timestamp", "timestampType", "key", "value", "headers"]
    for is_exact in (True, False):
        rows = ArrowBatches(COLUMNS, "orders", 7, exact=is_exact, rows_max=rows_max)
        decoder = LogDecoder(rows, raised, goes_on=goes_on)
        made = list(decoder.decode(log.content, RowLimits(), borders=[]))
        table = pa.Table.from_batches(made, arrow_schema(exact=is_exact))
        table.validate(full=True)
        columns = [
            table.column("timestamp").cast(pa.int64()).to_pylist()
            if name == "timestamp"
            else table.column(name).to_pylist()
            for name in names
        ]
        rows_found = [
            (*row[:5], row[5] and tuple((h["key"], h["value"]) for h in row[5]))
            for row in zip(*columns, strict=True)
        ]
        expected = (
            exact
            if is_exact
            else [
                (o, micros_of(t), *rest, hs and tuple((java_text(k), v) for k, v in hs))
                for o, t, *rest, hs in exact
            ]
        )
        assert rows_found == expected


def test_records_beyond_the_range_and_headers_nobody_asks_for_may_be_anything() -> None:
    def odd(base: int) -> bytes:
        """Its headers do not fill their part of the record."""
        batch = bytearray(made_batch(base, [Record(headers=(("h", b"xy"),))]))
        batch[-1 - len(b"xy")] = 2  # the value's length: one byte
        return reseal(batch)

    log = odd(0) + made_batch(1, [Record()]) + odd(2)
    inside = RowLimits(offset_from=1, offset_end=2)
    for goes_on in (False, True):
        for columns, limits, offsets_left in (
            (COLUMNS, inside, [1]),
            (["offset", "key"], None, [0, 1, 2]),
        ):
            decoder = LogDecoder(ArrowBatches(columns, "orders", 7), raised, goes_on=goes_on)
            assert offsets(list(decoder.decode(log, limits or RowLimits()))) == offsets_left
    with pytest.raises(AssertionError, match="offset 0: a record's headers"):
        decoded(log)


def test_damage_beyond_the_range_is_nobodys() -> None:
    batches = [made_batch(10 * i, [Record()] * 10) for i in range(5)]
    size = len(batches[0])
    inside = RowLimits(offset_from=20, offset_end=30)
    borders = [i * size for i in range(5)]

    def read(damaged: bytearray) -> list[int]:
        decoder = LogDecoder(ArrowBatches(["offset"], "orders", 7), raised)
        decoded_batches = decoder.decode(bytes(damaged), inside, borders=borders, last_offset=49)
        return offsets(list(decoded_batches))

    for number in (0, 1, 3, 4):
        for byte in (2, 8, 16, 23, 70):  # base offset, size, magic, last offset delta, a record
            damaged = bytearray(b"".join(batches))
            damaged[number * size + byte] ^= 0x81
            assert read(damaged) == list(range(20, 30)), (number, byte)
    for byte in (2, 8, 16, 23, 70):
        damaged = bytearray(b"".join(batches))
        damaged[2 * size + byte] ^= 0x81
        with pytest.raises(AssertionError, match="byte"):
            read(damaged)
    assert read(bytearray(b"".join(batches)[: -size - 3])) == list(range(20, 30))


# --- damage ---


@pytest.mark.parametrize("codec", CODECS)
def test_a_flipped_bit_costs_its_batch_alone(codec: int) -> None:
    batches = [made_batch(10 * i, [Record(value=bytes(50))] * 10, codec=codec) for i in range(3)]
    start = len(batches[0])
    damaged = bytearray(b"".join(batches))
    damaged[start + 70] ^= 4
    offsets_left, faults = decoded_with_faults(bytes(damaged))
    assert offsets_left == [*range(10), *range(20, 30)]
    [(position, offset, what)] = faults
    assert (position, offset) == (start, 10)
    assert "CRC-32C" in what


def test_broken_records_under_a_right_checksum_give_no_row() -> None:
    batch = bytearray(made_batch(10, [Record(value=bytes(20))] * 10))
    batch[61 + 5 * (len(batch) - 61) // 10] = 0xFE  # the sixth record's length
    log = made_batch(0, [Record()] * 10) + reseal(batch) + made_batch(20, [Record()])
    offsets_left, faults = decoded_with_faults(log)
    assert offsets_left == [*range(10), 20]
    assert [offset for _, offset, _ in faults] == [10]
    with pytest.raises(AssertionError, match="offset 10: "):
        decoded(log)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_broken_codec_stream_is_a_fault(codec: int) -> None:
    batch = bytearray(made_batch(0, [Record(value=bytes(1000))] * 10, codec=codec))
    for i in range(75, len(batch)):
        batch[i] = 0xAA
    offsets_left, faults = decoded_with_faults(reseal(batch) + made_batch(10, [Record()]))
    assert offsets_left == [10]
    assert len(faults) == 1


def test_behind_broken_headers_reading_goes_on_at_the_next_border() -> None:
    batches = [made_batch(10 * i, [Record(value=bytes(50))] * 10) for i in range(4)]
    size = len(batches[0])
    damaged = bytearray(b"".join(batches))
    damaged[size + 16] = 1  # the magic
    borders = [1000 + i * size for i in (0, 2, 3)]
    offsets_left, faults = decoded_with_faults(bytes(damaged), borders, position=1000)
    assert offsets_left == [*range(10), *range(20, 40)]
    assert faults == [(1000 + size, 10, "batch has a magic other than 2")]
    assert decoded_with_faults(bytes(damaged))[0] == [*range(10)]


def test_a_cut_log_says_so() -> None:
    log = made_batch(0, [Record()]) + made_batch(1, [Record()])
    assert decoded_with_faults(log[:-1]) == ([0], [(len(log) // 2, 1, "batch is cut off")])
    assert decoded_with_faults(log[:20]) == ([], [(0, 0, "batch is cut off")])


@settings(max_examples=60)
@given(logs(), st.data())
def test_damage_gives_no_row_that_was_not_there(batches: list[bytes], data: st.DataObject) -> None:
    log = bytearray(b"".join(batches))
    start = data.draw(st.integers(0, len(log) - 1))
    for at in range(start, min(len(log), start + data.draw(st.integers(1, 30)))):
        log[at] ^= data.draw(st.integers(1, 255))
    decoder = LogDecoder(ArrowBatches(COLUMNS, "orders", 7), lambda *_: None, goes_on=True)
    # Base offset and leader epoch are not under the checksum: readers know them from the index.
    rows_found = as_rows(decoder.decode(bytes(log), RowLimits()))
    there = [dataclasses.replace(r, offset=0) for r in rows_read_by(READERS[0], batches)]
    assert all(dataclasses.replace(row, offset=0) in there for row in rows_found)


@pytest.mark.parametrize("seed", range(20))
def test_damage_under_a_right_checksum_never_leads_out_of_the_batch(seed: int) -> None:
    """Compiled code reads by addresses: here it would crash, or read what lies behind the batch."""
    dice = random.Random(seed)
    record = Record(b"key", b"value", headers=(("h", b"x"), ("g", None)))
    sound = made_batch(0, [record] * 5)
    secret = made_batch(5, [Record(b"SECRET", b"SECRET")] * 5)
    for _ in range(200):
        damaged = bytearray(sound)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(57, len(damaged))] = dice.randrange(256)
        log = reseal(damaged) + secret
        faults: list[Fault] = []
        decoder = LogDecoder(
            ArrowBatches(["key", "value"], "orders", 7), collected(faults), goes_on=True
        )
        batches = decoder.decode(log, RowLimits(), borders=[len(sound)])
        rows_found = [row for batch in batches for row in batch.to_pylist()]
        of_it = rows_found[:-5]
        assert rows_found[-5:] == [{"key": b"SECRET", "value": b"SECRET"}] * 5
        assert not (faults and of_it)
        assert not any(b"SECRET" in (field or b"") for row in of_it for field in row.values())
