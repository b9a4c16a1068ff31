"""The files beside a segment's log, in Kafka's own formats: transactions, leader epochs,
indexes. Pure.

An entry of Kafka's `.txnindex` file (AbortedTxn), big-endian, 34 bytes:

    version           int16   0
    producerId        int64
    firstOffset      int64   first offset of the transaction's data, perhaps in an earlier segment
    lastOffset        int64   offset of its ABORT marker
    lastStableOffset  int64   the partition's LSO after that marker

In Kafka only the segment with the marker has an entry, and a reader goes on into later segments.
Here every segment lists *each* aborted transaction that overlaps it, so that no reader needs a
second segment. When a transaction's first part is archived, the marker may lie above the LSO, so in
no segment at all yet. If the marker is not in the segment itself, lastOffset is the segment's own
last offset; several entries may share it. If entries of merged segments have equal producerId and
firstOffset, the entry with the largest lastOffset is kept.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from operator import ge, gt
from struct import Struct

from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn, EpochStart

_VERSION = 0
_ENTRY = Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
# Transactions that may be open at one offset of a partition: a producer has one. The coordinator
# aborts each after `transaction.max.timeout.ms`, by default 15 minutes, and brokers keep a state of
# each of these producers. The largest applications have some thousands of them.
OPEN_TXNS_MAX = 50_000
_DIGITS_MAX = 19  # of an int64
_OFFSET_ENTRY = Struct(">ii")
_TIME_ENTRY = Struct(">qi")
_SNAPSHOT_HEAD = Struct(">hI")


def encode_aborted(entries: Iterable[AbortedTxn]) -> bytes:
    """The content of a `.txn` object; entries in the order of their markers."""
    ordered = sorted(entries, key=lambda entry: entry.last_offset)
    return b"".join(
        _ENTRY.pack(_VERSION, e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
        for e in ordered
    )


def decode_aborted(raw: bytes) -> tuple[AbortedTxn, ...]:
    """Raises CorruptSegment, naming the entry. No bytes: no entries."""
    entries = tuple(
        AbortedTxn(first, last, of, stable) for of, first, last, stable in aborted_entries(raw)
    )
    if len(entries) > OPEN_TXNS_MAX:
        firsts = sorted(entry.first_offset for entry in entries)
        check_open(firsts, [entry.last_offset for entry in entries])
    return entries


def check_open(firsts: Sequence[int], lasts: Sequence[int]) -> None:
    """First and last offsets of transactions, both sorted. Raises CorruptSegment if too many were
    open at one offset.
    """
    for begun, first in enumerate(firsts, 1):
        if begun > OPEN_TXNS_MAX and begun - bisect_left(lasts, first) > OPEN_TXNS_MAX:
            raise CorruptSegment(
                f"transaction index: more than {OPEN_TXNS_MAX} transactions, the most of one "
                f"partition, are open at offset {first}"
            )


def aborted_entries(raw: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Producer id, first, last and last stable offset of each. Raises CorruptSegment."""
    if len(raw) % ENTRY_BYTES:
        raise CorruptSegment(
            f"transaction index of {len(raw)} bytes is not a multiple of {ENTRY_BYTES}: "
            f"entry {len(raw) // ENTRY_BYTES} is cut"
        )
    last_before = 0
    for number, (version, producer_id, first, last, stable) in enumerate(_ENTRY.iter_unpack(raw)):
        where = f"transaction index entry {number}"
        if version != _VERSION:
            raise CorruptSegment(f"{where} has version {version}, not {_VERSION}")
        if not 0 <= first <= last or producer_id < 0:
            raise CorruptSegment(f"{where}: producer {producer_id}, offsets {first} to {last}")
        if last < last_before:
            raise CorruptSegment(f"{where} ends at {last}, the one before it after that")
        last_before = last
        yield producer_id, first, last, stable


def merged_aborted(segments: Iterable[Iterable[AbortedTxn]]) -> tuple[AbortedTxn, ...]:
    """The entries of several segments as one segment would list them, by last offset."""
    transactions: dict[tuple[int, int], AbortedTxn] = {}
    for entries in segments:
        for entry in entries:
            previous = transactions.get((entry.producer_id, entry.first_offset))
            if previous is None or entry.last_offset > previous.last_offset:
                transactions[(entry.producer_id, entry.first_offset)] = entry
    return tuple(sorted(transactions.values(), key=lambda entry: entry.last_offset))


def aborted_in(entries: Iterable[AbortedTxn], first: int, last: int) -> tuple[AbortedTxn, ...]:
    """The entries with an offset in `first` … `last` (inclusive), sorted by first offset."""
    return tuple(sorted(e for e in entries if e.first_offset <= last and e.last_offset >= first))


def clip_aborted(entries: Iterable[AbortedTxn], end_offset: int) -> tuple[AbortedTxn, ...]:
    """The entries as the index of a segment that ends at `end_offset` (inclusive) lists them."""
    return tuple(
        replace(e, last_offset=min(e.last_offset, end_offset))
        for e in entries
        if e.first_offset <= end_offset
    )


def encode_epochs(epochs: Iterable[EpochStart]) -> bytes:
    """The text of Kafka's `leader-epoch-checkpoint` file:

        0               version
        2               number of entries
        0 0             epoch, first offset written in it
        3 17200

    Epochs and offsets both rise from line to line.
    """
    entries = list(epochs)
    lines = [str(_VERSION), str(len(entries)), *(f"{e.epoch} {e.start_offset}" for e in entries)]
    return ("\n".join(lines) + "\n").encode()


def decode_epochs(raw: bytes) -> tuple[EpochStart, ...]:
    """Raises CorruptSegment, naming the line."""
    try:
        text = raw.decode("ascii")
    except UnicodeDecodeError:
        raise CorruptSegment("leader epochs are not ASCII text") from None
    lines = text.split("\n")
    if lines[-1] != "":
        raise CorruptSegment(f"leader epochs: line {len(lines)} has no end")
    del lines[-1]
    if len(lines) < 2:
        raise CorruptSegment("leader epochs: version or number of entries is missing")
    version, count = _numbers(lines, 0, 1)[0], _numbers(lines, 1, 1)[0]
    if version != _VERSION:
        raise CorruptSegment(f"leader epochs: line 1 has version {version}, not {_VERSION}")
    if count != len(lines) - 2:
        raise CorruptSegment(f"leader epochs: line 2 says {count} entries, {len(lines) - 2} follow")
    entries: list[EpochStart] = []
    for i in range(2, len(lines)):
        entry = EpochStart(*_numbers(lines, i, 2))
        before = entries[-1] if entries else None
        if before and not (entry.epoch > before.epoch and entry.start_offset > before.start_offset):
            raise CorruptSegment(f"leader epochs: line {i + 1} does not rise above line {i}")
        entries.append(entry)
    return tuple(entries)


def _numbers(lines: list[str], i: int, count: int) -> list[int]:
    words = lines[i].split(" ")
    if len(words) != count or not all(w.isdigit() and len(w) <= _DIGITS_MAX for w in words):
        raise CorruptSegment(f"leader epochs: line {i + 1} is {lines[i][:80]!r}")
    return [int(word) for word in words]


def offset_index_fault(raw: bytes, base_offset: int, end_offset: int, size_bytes: int) -> str:
    """The fault of a segment's offset index; empty: none. `size_bytes`: the size of the segment.

    Offset index: 8-byte entries (int32 offset - base offset, int32 position of the batch in the
    log). Time index: 12-byte entries (int64 timestamp in ms, int32 offset - base offset). Producer
    snapshot: int16 version, CRC-32C of all that follows, entries. All big-endian. Source: Kafka's
    OffsetIndex, TimeIndex, ProducerStateManager.
    """
    last, fault = _last_entry("offset index", raw, _OFFSET_ENTRY, (-1, -1), gt)
    if not fault and (last[0] > end_offset - base_offset or last[1] >= size_bytes):
        return f"offset index ends with {last}, above the segment's end"
    return fault


def time_index_fault(raw: bytes, base_offset: int, end_offset: int, max_timestamp_ms: int) -> str:
    last, fault = _last_entry("time index", raw, _TIME_ENTRY, (-(2**63), -1), ge)
    if not fault and (last[1] > end_offset - base_offset or last[0] > max_timestamp_ms):
        return f"time index ends with {last}, above the segment's end"
    return fault


def _last_entry(
    index_name: str,
    raw: bytes,
    entry_struct: Struct,
    before: tuple[int, ...],
    rises: Callable[[int, int], bool],
) -> tuple[tuple[int, ...], str]:
    """The last entry and the fault. `rises`: an entry's second number is above the one before."""
    if len(raw) % entry_struct.size:
        return before, f"{index_name} of {len(raw)} bytes ends inside an entry"
    for entry in entry_struct.iter_unpack(raw):
        if not (entry[0] > before[0] and rises(entry[1], before[1])):
            return before, f"{index_name} entry {entry} after {before}"
        before = entry
    return before, ""


def joined_offset_index(parts: Iterable[tuple[bytes, int, int]]) -> bytes:
    """Joins indexes of adjacent segments: (index, offsets before it, bytes of log before it)."""
    return b"".join(
        _OFFSET_ENTRY.pack(offsets_before + offset, bytes_before + position)
        for raw, offsets_before, bytes_before in parts
        for offset, position in _OFFSET_ENTRY.iter_unpack(raw)
    )


def joined_time_index(parts: Iterable[tuple[bytes, int]]) -> bytes:
    """Like `joined_offset_index`, without bytes. Keeps only entries with rising timestamps.

    Kafka's TimeIndex also adds a timestamp only if it is larger than the last.
    """
    joined: list[bytes] = []
    latest_ms = -(2**63)
    for raw, offsets_before in parts:
        for timestamp_ms, offset in _TIME_ENTRY.iter_unpack(raw):
            if timestamp_ms > latest_ms:
                latest_ms = timestamp_ms
                joined.append(_TIME_ENTRY.pack(timestamp_ms, offsets_before + offset))
    return b"".join(joined)


def snapshot_fault(raw: bytes) -> str:
    if len(raw) < _SNAPSHOT_HEAD.size:
        return f"producer snapshot of {len(raw)} bytes has no head"
    _, entry_count = _SNAPSHOT_HEAD.unpack_from(raw)
    computed_crc = crc32c(raw[_SNAPSHOT_HEAD.size :])
    if computed_crc != entry_count:
        return f"producer snapshot has checksum {computed_crc:#010x}, states {entry_count:#010x}"
    return ""
