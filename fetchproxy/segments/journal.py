"""The layout of a journal object, and how the entries of several objects become one log. Pure.

An archiver writes what its partitions have gained every few seconds into one object. If brokers and
archiver are lost before a segment is copied, its records are still there (docs/adr/0089).

An object is

    entries  bytes   each entry's record batches, in parts
    table    JSON    what the entries are
    length   uint32  of the table
    check    uint32  CRC-32C of the table
    magic    8 bytes

The table comes last, because it is known last: an object is built in a file, entry by entry. A part
is

    length  uint32  of the rest
    body    bytes   up to `PART_BYTES_MAX` of the batches; encrypted if the object has a key
    check   bytes   CRC-32C of the body (4), or the tag of AES-256-GCM (16)

The label of an encrypted part has the journal, the object's number, the partition, the entry's
first offset and the part's number, so no part is taken for another one. The table of an encrypted
object is not secret, and a changed table opens no part.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from struct import Struct
from typing import NamedTuple
from uuid import UUID

from fastcrc.crc32 import iscsi as crc32c

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import ByteRange, TopicIdPartition
from fetchproxy.segments.json_fields import (
    INT32_LIMIT,
    INT64_LIMIT,
    JsonFields,
    decode_document,
    legal_partition,
)
from fetchproxy.segments.object_keys import uuid_text
from fetchproxy.segments.packing import NONCE_BYTES, TAG_BYTES, Cipher, WrappedKey

PART_BYTES_MAX = 1024 * 1024
_VERSION = 1
_MAGIC = b"fpjournl"
_END = Struct(">II8s")
END_BYTES = _END.size
_LENGTH = Struct(">I")
_CRC_BYTES = 4
_NOTHING = -1  # archived
_INT64_DIGITS_MAX = 19
_LABEL = Struct(">16sQ16siQI")
# A nonce is used once under a key: the number of the build and that of the part in it. The object's
# number will not do: an object that could not be written is built again, with more records.
_NONCE = Struct(">QI")
# 30,000 partitions of 250-character topics, each with some aborted transactions. A writer leaves
# what has no room for the next object (`table_bytes`).
TABLE_BYTES_MAX = 16 * 1024 * 1024
# Of a table, without its entries.
TABLE_HEAD_BYTES_MAX = 64 * 1024
# As much as its entries take by `table_bytes`, without their topics. A writer puts in the first
# entry in any case, with up to 490,000 transactions, as a segment of 64 MiB has.
TABLE_COUNTED_BYTES_MAX = 20 * 1024 * 1024
# What decoding takes of the memory at these limits, without the table's bytes.
TABLE_MEMORY_BYTES_MAX = 112 * 1024 * 1024
# The shortest entry takes 150 bytes of a table; and the least that each takes, without its topic
# and its aborted transactions.
_ENTRY_BYTES_MIN, _ENTRY_BYTES_MAX = 128, 320
_NUMBER_BYTES_MAX = _INT64_DIGITS_MAX + 1
_ABORTED_BYTES_MAX = 2 * _NUMBER_BYTES_MAX
_ENTRIES, _NO_MORE = b'"entries":[', b"]}"
_KEY = re.compile(rb'"([a-z_]*)":')
_ENTRY_KEYS = frozenset(
    b"topic topic_id partition start_offset next_offset leader_epoch stored_start stored_end "
    b"aborted_producers aborted_offsets".split()
)
_ENTRY_COMMAS = 8  # the one behind it included, but not those of its transactions


class JournalPlace(NamedTuple):
    """One object of a journal. `journal`: the run of the archiver that writes it."""

    journal: UUID
    number: int


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """What one partition gained: the batches of offsets from `start_offset` to before
    `next_offset`, in `stored` bytes of the object.

    `leader_epoch`: of the leader that they were read from; -1: not known. `aborted`: (producer id,
    first offset) of each aborted transaction that overlaps them, and perhaps of later ones.
    """

    tp: TopicIdPartition
    start_offset: int
    next_offset: int
    leader_epoch: int
    aborted: tuple[tuple[int, int], ...]
    stored: ByteRange


@dataclass(frozen=True, slots=True)
class JournalTable:
    """`read_at_ms`: all records that the archiver had read by then are in this object, in an
    earlier one, or in segments. `key`: of encrypted parts.
    """

    place: JournalPlace
    cluster_id: str
    read_at_ms: int
    key: WrappedKey | None
    entries: tuple[JournalEntry, ...]


@dataclass(slots=True)
class JournalParts:
    """Makes the parts of one object, in their order. `build`: another one each time that an object
    is made under the same key.
    """

    place: JournalPlace
    cipher: Cipher | None
    build: int
    _count: int = 0

    def stored(
        self, tp: TopicIdPartition, start_offset: int, parts: Iterable[bytes]
    ) -> Iterator[bytes]:
        """The stored parts of one entry. `parts`: of up to `PART_BYTES_MAX`."""
        for number, part in enumerate(parts):
            if self.cipher is None:
                sealed = part + crc32c(part).to_bytes(_CRC_BYTES, "big")
            else:
                nonce = _NONCE.pack(self.build, self._count)
                label = _label(self.place, tp, start_offset, number)
                sealed = nonce + self.cipher.seal(nonce, part, label)
            self._count += 1
            yield _LENGTH.pack(len(sealed)) + sealed


def opened_entry(
    place: JournalPlace, entry: JournalEntry, stored: memoryview, cipher: Cipher | None
) -> bytes:
    """The record batches of an entry. `stored`: its bytes of the object. Raises CorruptSegment."""
    parts: list[bytes | memoryview] = []
    at = 0
    while at < len(stored):
        (length,) = _LENGTH.unpack_from(stored, at) if len(stored) - at >= 4 else (0,)
        sealed = stored[at + 4 : at + 4 + length]
        more = _CRC_BYTES if cipher is None else NONCE_BYTES + TAG_BYTES
        if len(sealed) != length or not more <= length <= PART_BYTES_MAX + more:
            raise CorruptSegment(f"a part of {length} bytes at byte {at}")
        if cipher is None:
            part = sealed[:-_CRC_BYTES]
            if crc32c(part) != int.from_bytes(sealed[-_CRC_BYTES:], "big"):
                raise CorruptSegment(f"the CRC-32C of the part at byte {at} is wrong")
            parts.append(part)
        else:
            label = _label(place, entry.tp, entry.start_offset, len(parts))
            parts.append(cipher.open(bytes(sealed[:NONCE_BYTES]), sealed[NONCE_BYTES:], label))
        at += 4 + length
    return b"".join(parts)


def _label(place: JournalPlace, tp: TopicIdPartition, start_offset: int, number: int) -> bytes:
    return _LABEL.pack(
        place.journal.bytes, place.number, tp.topic_id.bytes, tp.partition, start_offset, number
    )


# --- the table -----------------------------------------------------------------------------------


def table_bytes(topic: str, aborted_count: int) -> int:
    """No entry takes more than this of a table."""
    return _ENTRY_BYTES_MAX + len(topic) + aborted_count * _ABORTED_BYTES_MAX


def encode_table(table: JournalTable) -> bytes:
    """The end of an object, from the table on."""
    key = table.key
    document: dict[str, object] = {
        "version": _VERSION,
        "journal": uuid_text(table.place.journal),
        "number": table.place.number,
        "cluster_id": table.cluster_id,
        "read_at_ms": table.read_at_ms,
    }
    if key is not None:
        document |= {"key_id": key.key_id, "wrapped_key": b64encode(key.wrapped).decode("ascii")}
    document["entries"] = [_entry_fields(entry) for entry in table.entries]
    text = json.dumps(document, separators=(",", ":")).encode()
    return text + _END.pack(len(text), crc32c(text), _MAGIC)


def _entry_fields(entry: JournalEntry) -> Mapping[str, object]:
    fields: dict[str, object] = {
        "topic": entry.tp.topic,
        "topic_id": uuid_text(entry.tp.topic_id),
        "partition": entry.tp.partition,
        "start_offset": entry.start_offset,
        "next_offset": entry.next_offset,
        "leader_epoch": entry.leader_epoch,
        "stored_start": entry.stored.start,
        "stored_end": entry.stored.end,
    }
    if entry.aborted:
        fields["aborted_producers"] = [producer for producer, _ in entry.aborted]
        fields["aborted_offsets"] = [offset for _, offset in entry.aborted]
    return fields


def table_range(end: bytes, size_bytes: int, key: str) -> ByteRange:
    """Where the table lies. `end`: the last `END_BYTES` of an object of `size_bytes`, named `key`.

    Raises CorruptSegment.
    """
    length, _, magic = _END.unpack(end) if len(end) == END_BYTES else (0, 0, b"")
    start = size_bytes - END_BYTES - length
    if magic != _MAGIC or start < 0 or length > TABLE_BYTES_MAX:
        raise CorruptSegment(f"{key}: it does not end as a journal does")
    return ByteRange(start, size_bytes - END_BYTES)


def decode_table(raw: bytes, end: bytes, size_bytes: int, key: str) -> JournalTable:
    """`raw`: the bytes of `table_range`. Raises CorruptSegment, NewerMetadataVersion."""
    body_bytes = table_range(end, size_bytes, key).start
    _, check, _ = _END.unpack(end)
    if crc32c(raw) != check:
        raise CorruptSegment(f"{key}: the CRC-32C of its table is wrong")
    _check_counts(raw, key)
    return decode_document(raw, key, _VERSION, lambda fields: _table(fields, body_bytes))


def _check_counts(raw: bytes, key: str) -> None:
    """A table is counted before it is decoded: JSON of 16 MiB may take 400 MiB of memory. What no
    writer has put into it is refused by its bytes. Raises CorruptSegment, NewerMetadataVersion.
    """
    # An empty object of 3 bytes takes 70 in memory.
    if max(raw.count(b"{"), raw.count(b"[") // 2) > 1 + len(raw) // _ENTRY_BYTES_MIN:
        raise CorruptSegment(f"{key}: its table has more entries than its bytes have room for")
    begins = raw.find(_ENTRIES)
    at = len(raw) - len(_NO_MORE) if begins < 0 else begins + len(_ENTRIES)
    if at > TABLE_HEAD_BYTES_MAX:
        raise CorruptSegment(f"{key}: its table has {at} bytes before its entries")
    decode_document(raw[:at] + _NO_MORE, key, _VERSION, lambda fields: fields.objects("entries"))
    # A character that is not ASCII, or a backslash for one, makes four bytes of each in its text.
    if not raw.isascii() or raw.find(b"\\", at) >= 0:
        raise CorruptSegment(f"{key}: an entry of its table has a character that no name has")
    counted = 0
    while raw[at : at + len(_NO_MORE)] != _NO_MORE and at < len(raw):
        next_at = raw.find(b"{", at + 1)
        end = len(raw) if next_at < 0 else next_at
        keys = _KEY.findall(raw, at, end)
        if (
            raw[at : at + 1] != b"{"
            or len(keys) > len(_ENTRY_KEYS)
            or not _ENTRY_KEYS.issuperset(keys)
            or raw.count(b":", at, end) != len(keys)
            or raw.count(b"[", at, end) > 2
        ):
            raise CorruptSegment(f"{key}: there is no entry at byte {at} of its table")
        numbers = max(0, raw.count(b",", at, end) - _ENTRY_COMMAS)
        counted += _ENTRY_BYTES_MAX + numbers * _NUMBER_BYTES_MAX
        at = end
    if counted > TABLE_COUNTED_BYTES_MAX:
        raise CorruptSegment(f"{key}: its table has more than a writer puts into one")


def _table(fields: JsonFields, body_bytes: int) -> JournalTable:
    place = JournalPlace(fields.uuid("journal"), fields.integer("number", 0, INT64_LIMIT))
    entries: list[JournalEntry] = []
    at = 0
    for one in fields.objects("entries"):
        entry = _entry(one)
        if entry.stored.start != at:
            raise CorruptSegment(f"an entry begins at byte {entry.stored.start}, not {at}")
        at = entry.stored.end
        entries.append(entry)
    if at != body_bytes:
        raise CorruptSegment(f"the entries have {at} of {body_bytes} bytes")
    return JournalTable(
        place,
        fields.text("cluster_id"),
        fields.integer("read_at_ms", 0, INT64_LIMIT),
        _wrapped_key(fields),
        tuple(entries),
    )


def _wrapped_key(fields: JsonFields) -> WrappedKey | None:
    if "key_id" not in fields.names():
        return None
    try:
        wrapped = b64decode(fields.text("wrapped_key"), validate=True)
    except Base64Error as error:
        raise CorruptSegment(f"field wrapped_key: {error}") from None
    return WrappedKey(fields.text("key_id"), wrapped)


def _entry(fields: JsonFields) -> JournalEntry:
    tp = legal_partition(
        fields.uuid("topic_id"), fields.text("topic"), fields.integer("partition", 0, INT32_LIMIT)
    )
    start = fields.integer("start_offset", 0, INT64_LIMIT - 1)
    stored = fields.integer("stored_start", 0, INT64_LIMIT - 1)
    producers = fields.integers("aborted_producers", 0, INT64_LIMIT)
    offsets = fields.integers("aborted_offsets", 0, INT64_LIMIT)
    if len(producers) != len(offsets):
        raise CorruptSegment("fields aborted_producers and aborted_offsets differ in length")
    return JournalEntry(
        tp,
        start,
        fields.integer("next_offset", start + 1, INT64_LIMIT),
        fields.integer("leader_epoch", -1, INT32_LIMIT),
        tuple(zip(producers, offsets, strict=True)),
        ByteRange(stored, fields.integer("stored_end", stored + 1, INT64_LIMIT)),
    )


# --- several objects -----------------------------------------------------------------------------


class PlacedEntry(NamedTuple):
    """An entry and the object that has it."""

    place: JournalPlace
    entry: JournalEntry


def log_of(
    entries: Iterable[PlacedEntry], archive_end: int | None, archived_epoch: int = -1
) -> list[PlacedEntry]:
    """The entries of one partition that continue its archive, in the order of their offsets.

    `archive_end`: exclusive; None: nothing is archived, and the log begins with the lowest entry.
    `archived_epoch`: of the archive's last record; -1: not known. A leader before that one had
    other records behind it, if any, which an unclean election has cut off.
    A later leader's entries replace all that earlier leaders had from there on, as a follower's log
    is cut. Entries of one leader have the same records at the same offsets. The log ends where
    offsets are missing. An entry may begin below the end of the one before, or below `archive_end`:
    its reader skips the batches that are there already.
    """
    chain: list[PlacedEntry] = []
    archived = _NOTHING if archive_end is None else archive_end
    by_leader = sorted(
        (one for one in entries if one.entry.leader_epoch not in range(archived_epoch)), key=_order
    )
    for _, of_leader in groupby(by_leader, key=lambda placed: placed.entry.leader_epoch):
        first = True
        for placed in of_leader:
            start, next_offset = placed.entry.start_offset, placed.entry.next_offset
            if next_offset <= archived:
                continue
            while first and chain and chain[-1].entry.next_offset > max(start, archived):
                chain.pop()
            first = False
            end = chain[-1].entry.next_offset if chain else archive_end
            if end is None or start <= end < next_offset:
                chain.append(placed)
    return chain


def _order(placed: PlacedEntry) -> tuple[int, int, int]:
    entry = placed.entry
    return entry.leader_epoch, entry.start_offset, -entry.next_offset


def by_partition(
    tables: Sequence[JournalTable],
) -> dict[TopicIdPartition, list[PlacedEntry]]:
    entries: dict[TopicIdPartition, list[PlacedEntry]] = {}
    for table in tables:
        for entry in table.entries:
            placed = PlacedEntry(table.place, entry)
            entries.setdefault(entry.tp, []).append(placed)
    return entries
