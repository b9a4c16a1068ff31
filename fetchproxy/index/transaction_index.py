"""A segment's aborted transactions, in the bytes of Kafka's `.txnindex` file. Pure.

One entry, big-endian, 34 bytes (Kafka's AbortedTxn):

    version           int16   0
    producerId        int64
    firstOffset       int64   first offset of the transaction's data, perhaps in an earlier segment
    lastOffset        int64   offset of its ABORT marker
    lastStableOffset  int64   the partition's LSO after that marker

In Kafka an entry belongs to the segment that holds the marker alone, and a reader goes on into
later segments. Here every segment lists *each* aborted transaction that overlaps it, so that no
reader needs a second segment: the marker may lie above the LSO when a transaction's first part is
archived, thus in no segment at all yet. Where the marker is not in the segment itself, lastOffset
is the segment's own last offset; several entries may share it. Whoever merges segments keeps, of
entries with equal producerId and firstOffset, the one with the largest lastOffset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from struct import Struct

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn

VERSION = 0
_ENTRY = Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size


def encode_aborted(entries: Iterable[AbortedTxn]) -> bytes:
    """The content of a `.txn` object; entries in the order of their markers."""
    ordered = sorted(entries, key=lambda entry: entry.last_offset)
    return b"".join(
        _ENTRY.pack(VERSION, e.producer_id, e.first_offset, e.last_offset, e.last_stable_offset)
        for e in ordered
    )


def decode_aborted(raw: bytes) -> tuple[AbortedTxn, ...]:
    """Raises CorruptSegment, naming the entry. No bytes: no entries."""
    if len(raw) % ENTRY_BYTES:
        raise CorruptSegment(
            f"transaction index of {len(raw)} bytes is no multiple of {ENTRY_BYTES}: "
            f"entry {len(raw) // ENTRY_BYTES} is cut"
        )
    entries: list[AbortedTxn] = []
    for version, producer_id, first, last, stable in _ENTRY.iter_unpack(raw):
        where = f"transaction index entry {len(entries)}"
        if version != VERSION:
            raise CorruptSegment(f"{where} has version {version}, not {VERSION}")
        if not 0 <= first <= last or producer_id < 0:
            raise CorruptSegment(f"{where}: producer {producer_id}, offsets {first} to {last}")
        if entries and last < entries[-1].last_offset:
            raise CorruptSegment(f"{where} ends at {last}, the one before it after that")
        entries.append(AbortedTxn(first, last, producer_id, stable))
    return tuple(entries)


def merged_aborted(segments: Iterable[Iterable[AbortedTxn]]) -> tuple[AbortedTxn, ...]:
    """The entries of several segments as one that holds them all lists them, by last offset."""
    found: dict[tuple[int, int], AbortedTxn] = {}
    for entries in segments:
        for entry in entries:
            known = found.get((entry.producer_id, entry.first_offset))
            if known is None or entry.last_offset > known.last_offset:
                found[(entry.producer_id, entry.first_offset)] = entry
    return tuple(sorted(found.values(), key=lambda entry: entry.last_offset))


def aborted_in(entries: Iterable[AbortedTxn], first: int, last: int) -> tuple[AbortedTxn, ...]:
    """Those with an offset in `first` … `last`, both inclusive, sorted by first offset."""
    return tuple(sorted(e for e in entries if e.first_offset <= last and e.last_offset >= first))


def clip_aborted(entries: Iterable[AbortedTxn], end_offset: int) -> tuple[AbortedTxn, ...]:
    """As the transaction index of a segment that ends at `end_offset` (inclusive) lists them."""
    return tuple(
        replace(e, last_offset=min(e.last_offset, end_offset))
        for e in entries
        if e.first_offset <= end_offset
    )
