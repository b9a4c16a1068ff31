"""Logs that Kafka may hold, generated: what a broker stores and serves, no part may refuse.

`legal_logs()` is a hypothesis strategy for the log of one partition. A log has its batches of
format v2 as bytes, and describes them. `topic_names()`, `partitions()` and `node_ids()` are
strategies for other legal values. Not a test.

Kafka decides what is legal (DefaultRecordBatch, LogSegment.recover, ProducerStateManager): a broker
that finds these bytes in a partition's folder starts with them.
Every value that a rule leaves open is drawn from its whole range, its ends first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import cramjam
import lz4.frame
from fastcrc.crc32 import iscsi as crc32c
from hypothesis import strategies as st

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
INT32_MAX, INT16_MAX = 2**31 - 1, 2**15 - 1
LOG_APPEND_TIME, TRANSACTIONAL, CONTROL, DELETE_HORIZON = 0x08, 0x10, 0x20, 0x40
ABORT, COMMIT = 0, 1
NONE, GZIP, SNAPPY, LZ4, ZSTD = range(5)
NO_TIMESTAMP = -1

_HEADER = struct.Struct(">qiibI")
_AFTER_CRC = struct.Struct(">hiqqqhii")
_XERIAL_HEAD = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK_BYTES = 32 * 1024

Header = tuple[bytes, bytes | None]


@dataclass(frozen=True)
class Record:
    """`offset_delta` counts from the batch's base offset; `timestamp` is the producer's."""

    offset_delta: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, repr=False)
class Batch:
    """One batch in words; `content` has its bytes. `flags`: of the attributes, without the codec.

    `base_timestamp`: what record timestamps are relative to; with DELETE_HORIZON it is the horizon.
    `raw_snappy`: one raw block in place of a xerial stream.
    """

    base_offset: int
    last_offset_delta: int
    records: tuple[Record, ...]
    base_timestamp: int
    max_timestamp: int
    codec: int = NONE
    raw_snappy: bool = False
    flags: int = 0
    leader_epoch: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    content: bytes = field(default=b"", compare=False)

    def __repr__(self) -> str:
        kind = "control" if self.is_control else "data"
        return (
            f"[{self.base_offset}-{self.last_offset}] {kind}, {len(self.records)} records, "
            f"{len(self.content)} bytes, codec {self.codec}, flags {self.flags:#x}, "
            f"epoch {self.leader_epoch}, producer {self.producer_id}/{self.producer_epoch}/"
            f"{self.base_sequence}, times {self.base_timestamp} to {self.max_timestamp}"
        )

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def is_control(self) -> bool:
        return bool(self.flags & CONTROL)

    @property
    def is_dense(self) -> bool:
        """True: no record was removed from it."""
        return len(self.records) == self.last_offset_delta + 1

    def timestamp_of(self, record: Record) -> int:
        """What every reader has to give for `record`, ms."""
        return self.max_timestamp if self.flags & LOG_APPEND_TIME else record.timestamp


@dataclass(frozen=True)
class Aborted:
    """An aborted transaction; `marker` is the offset of its ABORT marker."""

    producer_id: int
    first_offset: int
    marker: int


@dataclass(frozen=True, repr=False)
class LegalLog:
    """`log_start` may lie inside the first batch; without batches it is the log's end as well.

    `segment_starts`: the base offsets of the segment files, the first at or below the first batch;
    the last may be the log's end (an active segment without a byte).
    """

    log_start: int
    batches: tuple[Batch, ...]
    segment_starts: tuple[int, ...]

    def __repr__(self) -> str:
        lines = "".join(f"\n  {batch}" for batch in self.batches)
        files = ", ".join(map(str, self.segment_starts))
        return f"log from {self.log_start} to {self.end}, segments {files}{lines}"

    @property
    def end(self) -> int:
        """The offset after the last one."""
        return self.batches[-1].last_offset + 1 if self.batches else self.log_start

    @property
    def content(self) -> bytes:
        return b"".join(batch.content for batch in self.batches)

    @property
    def is_dense(self) -> bool:
        """True: it has no hole, between batches or inside one."""
        starts = [batch.base_offset for batch in self.batches[1:]]
        ends = [batch.last_offset + 1 for batch in self.batches[:-1]]
        return starts == ends and all(batch.is_dense for batch in self.batches)

    @property
    def aborted(self) -> tuple[Aborted, ...]:
        return tuple(txn for txn in self._txns() if isinstance(txn, Aborted))

    @property
    def last_stable(self) -> int:
        """The first offset of the first open transaction, or the end."""
        return min((txn for txn in self._txns() if isinstance(txn, int)), default=self.end)

    def _txns(self) -> Iterator[Aborted | int]:
        """Aborted transactions by their markers, then the first offsets of the open ones."""
        begun: dict[int, int] = {}
        for batch in self.batches:
            if not batch.flags & TRANSACTIONAL:
                continue
            if not batch.is_control:
                begun.setdefault(batch.producer_id, batch.base_offset)
            elif batch.records:
                first = begun.pop(batch.producer_id, None)
                if first is not None and control_type(batch) == ABORT:
                    yield Aborted(batch.producer_id, first, batch.base_offset)
        yield from begun.values()

    def segments(self) -> dict[int, bytes]:
        """The log files' contents by base offset."""
        borders = [*self.segment_starts[1:], INT64_MAX]
        return {
            start: b"".join(
                batch.content for batch in self.batches if begin <= batch.base_offset < border
            )
            for start, begin, border in zip(
                self.segment_starts, (INT64_MIN, *self.segment_starts[1:]), borders, strict=True
            )
        }

    def segment_of(self, batch: Batch) -> int:
        return max(s for s in self.segment_starts if s <= batch.base_offset)


def control_type(batch: Batch) -> int:
    key = batch.records[0].key
    assert key is not None
    return int(struct.unpack_from(">hh", key)[1])


# -- bytes ----------------------------------------------------------------------------------------
def _varint(value: int) -> bytes:
    """Zigzag, as a signed 64-bit number (a smaller one has the same bytes)."""
    zigzag = ((value << 1) ^ (value >> 63)) & (2**64 - 1)
    out = bytearray()
    while zigzag >= 0x80:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)
    return bytes(out)


def wrapped(value: int, bits: int = 64) -> int:
    """As Java's arithmetic wraps it."""
    half = 1 << bits - 1
    return (value + half) % (1 << bits) - half


def _sized(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _encoded_record(record: Record, base_timestamp: int) -> bytes:
    body = b"".join(
        [
            b"\x00",
            _varint(wrapped(record.timestamp - base_timestamp)),
            _varint(record.offset_delta),
            _sized(record.key),
            _sized(record.value),
            _varint(len(record.headers)),
            *(_sized(part) for header in record.headers for part in header),
        ]
    )
    return _varint(len(body)) + body


def _xerial(data: bytes) -> bytes:
    out = [_XERIAL_HEAD]
    for at in range(0, len(data), _XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK_BYTES]))
        out += [struct.pack(">i", len(block)), block]
    return b"".join(out)


def _compressed(batch: Batch, data: bytes) -> bytes:
    if batch.codec == GZIP:
        return bytes(cramjam.gzip.compress(data))
    if batch.codec == SNAPPY:
        return bytes(cramjam.snappy.compress_raw(data)) if batch.raw_snappy else _xerial(data)
    if batch.codec == LZ4:  # independent blocks: Kafka's own LZ4 reader knows no others
        return bytes(lz4.frame.compress(data, block_linked=False, store_size=False))
    if batch.codec == ZSTD:
        return bytes(cramjam.zstd.compress(data))
    return data


def sealed(batch: Batch) -> Batch:
    """The batch with its bytes."""
    records = b"".join(_encoded_record(record, batch.base_timestamp) for record in batch.records)
    covered = _AFTER_CRC.pack(
        batch.flags | batch.codec,
        batch.last_offset_delta,
        batch.base_timestamp,
        batch.max_timestamp,
        batch.producer_id,
        batch.producer_epoch,
        batch.base_sequence,
        len(batch.records),
    ) + (_compressed(batch, records) if records else b"")
    head = _HEADER.pack(batch.base_offset, len(covered) + 9, batch.leader_epoch, 2, crc32c(covered))
    return replace(batch, content=head + covered)


# -- values ---------------------------------------------------------------------------------------
def _edges(low: int, high: int, *more: int) -> st.SearchStrategy[int]:
    """The ends of a range and what lies beside them, `more`, or anything between."""
    near = [low, low + 1, high - 1, high, *more]
    return st.one_of(st.sampled_from(near), st.integers(low, high))


_NOW_MS = 1_700_000_000_000
_SOME_BYTES: list[bytes] = [
    b"",
    b"\x00",
    b"key",
    "Grüße".encode(),
    "\U0001f600".encode(),
    b"\xff\xfek",  # no UTF-8
    b"\xed\xa0\x80",  # a surrogate, which is no UTF-8 either
    b"\xc0\x80",  # how Java's own form writes a zero
    b"e\xcc\x81 \xe2\x80\xae",
    b"\xf0\x9f",  # cut
    b"a\r\n\t\"',;\\",
]
some_bytes = st.one_of(st.sampled_from(_SOME_BYTES), st.binary(max_size=8))
bytes_or_null = st.one_of(st.none(), some_bytes)
timestamps = st.one_of(
    st.integers(_NOW_MS, _NOW_MS + 10**9),
    _edges(
        INT64_MIN,
        INT64_MAX,
        *(-6, -5, -4, -3, -2, -1, 0, 1, _NOW_MS),
        *(2**31, 2**53 + 1, 253_402_300_800_000, 4_102_444_800_000),
        *(INT64_MAX // 1000, INT64_MAX // 1000 + 1, INT64_MIN // 1000, INT64_MIN // 1000 - 1),
        *(INT64_MAX // 1_000_000, INT64_MAX // 1_000_000 + 1),
    ),
)
producer_ids = _edges(0, INT64_MAX, 1000, 2**31, 2**53 + 1)
producer_epochs = _edges(0, INT16_MAX)
sequences = _edges(0, INT32_MAX)
leader_epochs = _edges(0, INT32_MAX)
codecs = st.sampled_from([NONE, GZIP, SNAPPY, LZ4, ZSTD])
base_offsets = _edges(
    *(0, 2**62),
    *(2**31 - 3, 2**31, 2**32 - 3, 2**32, 2**53 - 1, 900_000_000_000, 10**18 - 2),
)

_NAME_LETTERS = "abcxyzABC0189._-"
_SOME_NAMES = [
    *("-", "--", "...", "_", "__", "0", "-0", "00", "-1", "a-0", "a-0-1", "0-0", "null", "None"),
    *("__x", "__consumer_offsets.", "__remote_log_metadata.x", "index", "log", "segments"),
    *("orders.", ".orders", "orders-delete", "x.log", "a_b", "v1", "topics", "..a", "a..", "_._"),
    *("con", "NUL", "nan", "1e3", "0x10", "true", "metrics", "index.html", "-help", "--topic"),
]


def topic_names(bytes_max: int = 249) -> st.SearchStrategy[str]:
    """Every name that Kafka takes, but its own internal topics'."""
    legal = (
        st.sampled_from(_SOME_NAMES)
        | st.text(_NAME_LETTERS, min_size=1, max_size=12)
        | st.builds(
            lambda letter, size: letter * size,
            st.sampled_from("x_-0"),
            st.sampled_from([bytes_max - 1, bytes_max]),
        )
    )
    return legal.filter(lambda name: name not in (".", ".."))


def partitions() -> st.SearchStrategy[int]:
    return _edges(0, INT32_MAX, 9, 10, 255, 256, 65_535, 65_536)


def node_ids() -> st.SearchStrategy[int]:
    return _edges(0, INT32_MAX, 1000)


# -- batches --------------------------------------------------------------------------------------
_LARGE_BYTES = [127, 128, 4096, 40_000, 70_000]


@st.composite
def _values(draw: st.DrawFn, bytes_max: int) -> bytes | None:
    """Mostly small; sometimes as large as a batch may be."""
    if draw(st.integers(0, 15)) < 15:
        return draw(bytes_or_null)
    size = min(draw(st.sampled_from([*_LARGE_BYTES, bytes_max])), bytes_max)
    seed = draw(some_bytes) or b"\x01"
    return (seed * (size // len(seed) + 1))[:size]


_headers = st.one_of(
    st.just(()),
    st.lists(st.tuples(some_bytes, bytes_or_null), max_size=3).map(tuple),
)


@st.composite
def _offset_deltas(draw: st.DrawFn, holes: bool, last_max: int) -> tuple[list[int], int]:
    """The records' offset deltas, and the last offset delta of the batch."""
    count = draw(st.integers(1, min(5, last_max + 1)))
    if not holes or not draw(st.booleans()):
        return list(range(count)), count - 1
    last = draw(st.sampled_from([count, count + 1, 300, 70_000]))
    last = min(last, last_max)
    deltas_kept = draw(st.sets(st.integers(0, last), max_size=4))
    return sorted(deltas_kept), last


@dataclass
class _Producers:
    """What Kafka's ProducerStateManager would know, so that no batch is one that it refuses."""

    open: dict[int, int] = field(default_factory=dict)  # epoch by producer id
    next_sequence: dict[int, int] = field(default_factory=dict)
    transactional: list[tuple[int, int]] = field(default_factory=list)
    idempotent: list[tuple[int, int]] = field(default_factory=list)


@st.composite
def _data_batch(
    draw: st.DrawFn, base: int, producers: _Producers, holes: bool, value_bytes_max: int
) -> Batch:
    deltas, last = draw(_offset_deltas(holes, 2**31 - 1))
    records = tuple(
        Record(
            delta,
            draw(timestamps),
            draw(bytes_or_null),
            draw(_values(value_bytes_max)),
            draw(_headers),
        )
        for delta in deltas
    )
    flags = draw(st.sampled_from([0, 0, 0, LOG_APPEND_TIME]))
    base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    newest = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    if flags & LOG_APPEND_TIME and records:
        newest = draw(timestamps)
    if holes and draw(st.booleans()):
        flags |= DELETE_HORIZON
        base_timestamp = draw(timestamps)
    kind = draw(st.sampled_from(["plain", "idempotent", "transactional"]))
    known = {"idempotent": producers.idempotent, "transactional": producers.transactional}
    producer_id, epoch, sequence = -1, -1, -1
    if known.get(kind):
        producer_id, epoch = draw(st.sampled_from(known[kind]))
        sequence = producers.next_sequence.get(producer_id, 0)
        producers.next_sequence[producer_id] = (sequence + last + 1) % 2**31
        if kind == "transactional":
            flags |= TRANSACTIONAL
            producers.open[producer_id] = epoch
    return Batch(
        base,
        last,
        records,
        base_timestamp,
        newest,
        codec=draw(codecs) if records else NONE,
        raw_snappy=draw(st.booleans()),
        flags=flags,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
    )


@st.composite
def _marker(draw: st.DrawFn, base: int, producers: _Producers, holes: bool) -> Batch:
    """A COMMIT or ABORT of a producer, whether or not it has a transaction; or an empty one."""
    at = draw(st.sampled_from([_NOW_MS, *[-1, 0, INT64_MAX]]))
    producer_id, epoch = draw(st.sampled_from(producers.transactional))
    kind = draw(st.sampled_from([ABORT, COMMIT]))
    value_version = draw(st.sampled_from([0, 0, 1, INT16_MAX]))
    value = struct.pack(">hi", value_version, draw(_edges(0, INT32_MAX)))
    value += draw(st.sampled_from([b"", b"\x00"])) if value_version else b""
    record = Record(0, at, struct.pack(">hh", 0, kind), value)
    empty = holes and producer_id not in producers.open and draw(st.booleans())
    flags = TRANSACTIONAL | CONTROL
    if holes and draw(st.booleans()):
        flags |= DELETE_HORIZON
    if not empty:
        producers.open.pop(producer_id, None)
    return Batch(
        base,
        0,
        () if empty else (record,),
        NO_TIMESTAMP if empty else at,
        NO_TIMESTAMP if empty else at,
        flags=flags,
        producer_id=producer_id,
        producer_epoch=epoch,
    )


@st.composite
def _other_control(draw: st.DrawFn, base: int) -> Batch:
    """A control batch that ends no transaction: KRaft's, or one of a Kafka to come."""
    count = draw(st.integers(1, 3))
    kinds = st.sampled_from([2, 3, 4, 5, 6, 7, 100, INT16_MAX])
    versions = st.sampled_from([0, 0, 1, INT16_MAX])
    at = draw(timestamps)
    records = tuple(
        Record(
            delta,
            at,
            struct.pack(">hh", draw(versions), draw(kinds)) + draw(st.sampled_from([b"", b"x"])),
            draw(bytes_or_null),
        )
        for delta in range(count)
    )
    return Batch(base, count - 1, records, at, at, flags=CONTROL)


@st.composite
def _epochs(draw: st.DrawFn, count: int) -> list[int]:
    """A leader epoch for each batch: rising, with jumps, or -1 where the writer knew none; or in
    any order, as when a cluster is set up anew around its logs and counts from 0 again.
    """
    epoch = draw(st.sampled_from([0, 0, 1, 7, 2**30, INT32_MAX - 9]))
    epochs = []
    for _ in range(count):
        step = draw(st.sampled_from([0, 0, 0, 0, 1, 1000, -1, -(2**31)]))
        if step < 0:
            epochs.append(step)
            continue
        epoch = min(epoch + step, INT32_MAX - 9)
        epochs.append(epoch)
    return draw(st.permutations(epochs)) if draw(st.integers(0, 3)) == 0 else epochs


@st.composite
def _start(draw: st.DrawFn, batches: list[Batch], empty_start: int) -> int:
    """Where the log starts: with the first batch, or inside of it after DeleteRecords."""
    if not batches:
        return empty_start
    first = batches[0]
    return draw(st.sampled_from([first.base_offset, first.base_offset, first.last_offset]))


@st.composite
def _segment_starts(draw: st.DrawFn, batches: list[Batch], start: int) -> tuple[int, ...]:
    if not batches:
        return (start,)
    starts = [batches[0].base_offset]
    for batch in batches[1:]:
        rolls = draw(st.integers(0, 3)) == 0
        if rolls or batch.last_offset - starts[-1] > INT32_MAX:  # an index counts in 32 bits
            starts.append(batch.base_offset)
    if draw(st.integers(0, 3)) == 0:
        starts.append(batches[-1].last_offset + 1)
    return tuple(starts)


def _new_producers(draw: st.DrawFn) -> _Producers:
    ids = draw(st.lists(producer_ids, min_size=1, max_size=4, unique=True))
    producers = _Producers()
    for number, producer_id in enumerate(ids):
        kind = producers.idempotent if number % 2 else producers.transactional
        kind.append((producer_id, draw(producer_epochs)))
        producers.next_sequence[producer_id] = draw(sequences)
    return producers


@st.composite
def legal_logs(
    draw: st.DrawFn,
    *,
    holes: bool = True,
    batches_max: int = 8,
    value_bytes_max: int = 200_000,
) -> LegalLog:
    """The log of one partition. `holes`: as compaction leaves them, with all that it does."""
    first = draw(base_offsets)
    producers = _new_producers(draw)
    batches: list[Batch] = []
    base = first
    count = draw(st.sampled_from([0, 1, *range(1, batches_max + 1)]))
    for _ in range(count):
        kind = draw(st.sampled_from(["data", "data", "data", "marker", "control"]))
        if holes and batches:
            base += draw(st.sampled_from([0, 0, 0, 1, 1000, 2**31, 2**40]))
        if kind == "data":
            batch = draw(_data_batch(base, producers, holes, value_bytes_max))
        elif kind == "marker":
            batch = draw(_marker(base, producers, holes))
        else:
            batch = draw(_other_control(base))
        batches.append(batch)
        base = batch.last_offset + 1
    epochs = draw(_epochs(len(batches)))
    made = [
        sealed(replace(batch, leader_epoch=epoch))
        for batch, epoch in zip(batches, epochs, strict=True)
    ]
    start = draw(_start(made, first))
    return LegalLog(start, tuple(made), draw(_segment_starts(made, start)))
