"""FetchRequest v4–18: parsed with every partition's bytes kept, and composed again from them.

A partition entry is never re-encoded: what the client wrote (epochs, tags) reaches the broker
unchanged, whichever session it travels in; but for the offset, where that was lost. Layout: Kafka's
FetchRequest.json.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from protocol.errors import MalformedMessage
from protocol.primitives import INT16, INT32, INT64, Buffer, Cursor, encode_count, encode_uvarint

VERSION_MIN = 4
VERSION_MAX = 18
FLEXIBLE_FROM = 12
TOPIC_IDS_FROM = 13
SESSIONS_FROM = 7
LEADER_EPOCH_FROM = 9

SESSIONLESS_EPOCH = -1  # KIP-227 FINAL_EPOCH: no session, or close the one named
INITIAL_EPOCH = 0
NO_LEADER_EPOCH = -1

# Of one request. Five times what clusters of 10,000 partitions have; each costs some 400 bytes.
PARTITIONS_MAX = 50_000
# How many are read before `request_in_steps` leaves the event loop to others: less than 2 ms.
_PARTITIONS_A_STEP = 250

# A topic as the client named it on the wire: its UTF-8 name (v4–12) or the 16 bytes of its id.
TopicRef = bytes
PartitionKey = tuple[TopicRef, int]
# One asked partition as the client wrote it, with tags. Nothing else is kept of it: a session may
# have ten thousand, and plain bytes are small, and nothing that Python's collector looks at.
FetchEntry = bytes

_ENTRY_V4 = Struct(">iqi")  # partition, offset, max bytes
_ENTRY_V5 = Struct(">iqqi")  # + log start
_ENTRY_V9 = Struct(">iiqqi")  # + leader epoch
_ENTRY_V12 = Struct(">iiqiqi")  # + last fetched epoch
_HEAD = Struct(">iii")  # max wait, min bytes, max bytes
_SESSION = Struct(">ii")  # id, epoch
_LIMITS = Struct(">iiiBii")  # max wait, min bytes, max bytes, isolation level, session id and epoch
# Lengths that are below 0 (null) become large, and are not plain.
_COUNT = Struct(">I")
_LENGTH = Struct(">H")
_NO_TAGS = b"\x00"


def fetch_offset(entry: FetchEntry) -> int:
    return INT64.unpack_from(entry, _offset_at(entry))[0]  # type: ignore[no-any-return]


def entry_bytes_max(entry: FetchEntry) -> int:
    """How much the client takes of this partition."""
    at = min(len(entry), _ENTRY_V12.size) - INT32.size  # the last field before the tags
    return INT32.unpack_from(entry, at)[0]  # type: ignore[no-any-return]


def leader_epoch(entry: FetchEntry) -> int:
    """The one that the client believes in; -1 (and all below v9): none to check."""
    if len(entry) < _ENTRY_V9.size:
        return NO_LEADER_EPOCH
    return INT32.unpack_from(entry, INT32.size)[0]  # type: ignore[no-any-return]


def from_offset(entry: FetchEntry, offset: int) -> FetchEntry:
    """The same, asked from `offset` on."""
    written = bytearray(entry)
    INT64.pack_into(written, _offset_at(entry), offset)
    return bytes(written)


def _offset_at(entry: FetchEntry) -> int:
    """Versions tell by the size: 16 bytes (v4), 24 (v5), 28 (v9), 33 and more (v12)."""
    return 8 if len(entry) >= _ENTRY_V9.size else 4


class FetchRequest(NamedTuple):
    version: int
    correlation_id: int
    header: bytes  # request header as sent, from api_key to its tags
    replica_id: int  # -1: a consumer
    max_wait_ms: int
    min_bytes: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    partitions: Mapping[PartitionKey, FetchEntry]
    forgotten: tuple[PartitionKey, ...]
    rack: bytes  # encoded rack id (v11+), else empty
    tags: bytes  # top-level tagged fields (v12+), else empty


def parse_fetch_request(payload: Buffer, body_at: int) -> FetchRequest:
    """`payload` is a whole request without size prefix; `body_at` is where its header ends.

    Raises WireError. Versions outside 4–18 are the caller's to refuse.
    """
    version = INT16.unpack_from(payload, 2)[0]
    return plain_request(bytes(payload), body_at, version) or any_request(payload, body_at)


def plain_request(payload: bytes, body_at: int, version: int) -> FetchRequest | None:
    """What consumers send as a rule, read in a third of the time: less than 128 of everything,
    nothing forgotten, no tags. None: it is not so, or not in order; `any_request` will tell.
    """
    if version < SESSIONS_FROM:
        return None
    try:
        at = body_at if version >= 15 else body_at + 4
        wait, min_bytes, bytes_max, isolation, session, epoch = _LIMITS.unpack_from(payload, at)
        read = _plain_flexible if version >= FLEXIBLE_FROM else _plain_classic
        found = read(payload, at + _LIMITS.size, version)
        if found is None or isolation > 1:
            return None
        partitions, rack, tags = found
        values = (
            version,
            INT32.unpack_from(payload, 4)[0],
            payload[:body_at],
            -1 if version >= 15 else INT32.unpack_from(payload, body_at)[0],
            *(wait, min_bytes, bytes_max, isolation, session, epoch),
            *(partitions, (), rack, tags),
        )
    except (IndexError, StructError):
        return None
    return tuple.__new__(FetchRequest, values)


_Read = tuple[dict[PartitionKey, FetchEntry], bytes, bytes]  # partitions, rack and tags


def _plain_flexible(payload: bytes, pos: int, version: int) -> _Read | None:
    """From the topics on (v12+). Raises IndexError and StructError where it ends too early."""
    number_of, size = INT32.unpack_from, _ENTRY_V12.size + 1
    partitions: dict[PartitionKey, FetchEntry] = {}
    topics = payload[pos] - 1
    pos += 1
    if not 0 <= topics < 0x7F:
        return None
    for _ in range(topics):
        length = 17 if version >= TOPIC_IDS_FROM else payload[pos]
        start = pos if version >= TOPIC_IDS_FROM else pos + 1
        pos = start + length - 1
        topic = payload[start:pos]
        count = payload[pos] - 1
        pos += 1
        if not (0 < length < 0x80 and 0 <= count < 0x7F):
            return None
        for _ in range(count):
            entry = payload[pos : pos + size]
            if entry[size - 1]:
                return None
            partitions[topic, number_of(entry)[0]] = entry
            pos += size
        if payload[pos]:
            return None
        pos += 1
    rack_at = pos + 1  # behind the number of topics with forgotten partitions
    rack_end = rack_at + (payload[rack_at] or 1)
    if payload[pos] != 1 or payload[rack_at] >= 0x80 or payload[rack_end:] != _NO_TAGS:
        return None
    return partitions, payload[rack_at:rack_end], _NO_TAGS


def _plain_classic(payload: bytes, pos: int, version: int) -> _Read | None:
    """From the topics on (v7–11). Raises IndexError and StructError where it ends too early."""
    number_of, size = INT32.unpack_from, _entry_bytes(version)
    partitions: dict[PartitionKey, FetchEntry] = {}
    topics = _COUNT.unpack_from(payload, pos)[0]
    pos += 4
    if topics >= 0x80:
        return None
    for _ in range(topics):
        start = pos + 2
        pos = start + _LENGTH.unpack_from(payload, pos)[0]
        topic = payload[start:pos]
        count = _COUNT.unpack_from(payload, pos)[0]
        pos += 4
        if count >= 0x80:
            return None
        for _ in range(count):
            partitions[topic, number_of(payload, pos)[0]] = payload[pos : pos + size]
            pos += size
    rack_at = pos + 4
    if _COUNT.unpack_from(payload, pos)[0]:
        return None
    rack_end = rack_at
    if version >= 11:
        rack_end += 2 + _LENGTH.unpack_from(payload, rack_at)[0]
    return (partitions, payload[rack_at:], b"") if rack_end == len(payload) else None


def any_request(payload: Buffer, body_at: int) -> FetchRequest:
    steps = request_in_steps(payload, body_at)
    while True:
        try:
            next(steps)
        except StopIteration as read:
            return read.value  # type: ignore[no-any-return]


def request_in_steps(payload: Buffer, body_at: int) -> Generator[None, None, FetchRequest]:
    """As `parse_fetch_request`, with a pause wherever it yields. Raises WireError."""
    version = INT16.unpack_from(payload, 2)[0]
    flexible = version >= FLEXIBLE_FROM
    cursor = Cursor(payload, body_at)
    replica_id = cursor.int32() if version < 15 else -1
    at = cursor.skip(13, "fetch limits")
    max_wait_ms, min_bytes, bytes_max = _HEAD.unpack_from(payload, at)
    isolation_level = payload[at + 12]
    if isolation_level not in (0, 1):  # the broker's IsolationLevel.forId takes no other
        raise MalformedMessage(f"isolation level {isolation_level} in a Fetch")
    session_id, session_epoch = 0, SESSIONLESS_EPOCH
    if version >= SESSIONS_FROM:
        session_id, session_epoch = cursor.int32(), cursor.int32()
    partitions: dict[PartitionKey, FetchEntry] = {}
    yield from _read_partitions(cursor, version, partitions)
    forgotten: list[PartitionKey] = []
    if version >= SESSIONS_FROM:
        yield from _read_forgotten(cursor, version, forgotten)
    rack = b""
    if version >= 11:
        start = cursor.pos
        cursor.skip_string(flexible)
        rack = bytes(payload[start : cursor.pos])
    tags = b""
    if flexible:
        start = cursor.pos
        for tag, tag_at, tag_end in cursor.tags():
            if tag == 1 and version >= 15:  # ReplicaState: a follower, not a consumer
                replica_id = Cursor(payload, tag_at, tag_end).int32()
        tags = bytes(payload[start : cursor.pos])
    if cursor.remaining:
        raise MalformedMessage(f"{cursor.remaining} bytes after the end of Fetch v{version}")
    return FetchRequest(
        version=version,
        correlation_id=INT32.unpack_from(payload, 4)[0],
        header=bytes(payload[:body_at]),
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        bytes_max=bytes_max,
        isolation_level=isolation_level,
        session_id=session_id,
        session_epoch=session_epoch,
        partitions=partitions,
        forgotten=tuple(forgotten),
        rack=rack,
        tags=tags,
    )


def _topic_ref(cursor: Cursor, version: int) -> TopicRef:
    if version >= TOPIC_IDS_FROM:
        start = cursor.skip(16, "topic id")
        return bytes(cursor.buf[start : cursor.pos])
    length = cursor.uvarint() - 1 if version >= FLEXIBLE_FROM else cursor.int16()
    start = cursor.skip(length, "topic name")
    return bytes(cursor.buf[start : cursor.pos])


def _entry_bytes(version: int) -> int:
    """Without tags."""
    if version >= FLEXIBLE_FROM:
        return _ENTRY_V12.size
    if version >= LEADER_EPOCH_FROM:
        return _ENTRY_V9.size
    return _ENTRY_V5.size if version >= 5 else _ENTRY_V4.size


def _read_partitions(
    cursor: Cursor, version: int, found: dict[PartitionKey, FetchEntry]
) -> Iterator[None]:
    flexible = version >= FLEXIBLE_FROM
    size = _entry_bytes(version)
    left, step = PARTITIONS_MAX, 0
    for _ in range(cursor.count(flexible) or 0):
        topic = _topic_ref(cursor, version)
        count = cursor.count(flexible) or 0
        left = _within(left, count, "partitions")
        for _ in range(count):
            start = cursor.skip(size, "fetch partition")
            if flexible:
                cursor.skip_tags()
            number = INT32.unpack_from(cursor.buf, start)[0]
            found[topic, number] = bytes(cursor.buf[start : cursor.pos])
            step += 1
            if step % _PARTITIONS_A_STEP == 0:
                yield
        if flexible:
            cursor.skip_tags()
        step += 1  # a topic of few partitions costs as much as one of them
        if step % _PARTITIONS_A_STEP == 0:
            yield


def _read_forgotten(cursor: Cursor, version: int, found: list[PartitionKey]) -> Iterator[None]:
    flexible = version >= FLEXIBLE_FROM
    for number in range(cursor.count(flexible) or 0):
        topic = _topic_ref(cursor, version)
        count = cursor.count(flexible) or 0
        _within(PARTITIONS_MAX - len(found), count, "forgotten partitions")
        found.extend((topic, cursor.int32()) for _ in range(count))
        if flexible:
            cursor.skip_tags()
        if number % _PARTITIONS_A_STEP == 0 or count > _PARTITIONS_A_STEP:
            yield


def _within(left: int, count: int, what: str) -> int:
    if count > left:
        raise MalformedMessage(f"a Fetch of more than {PARTITIONS_MAX} {what}")
    return left - count


def _encode_topic_ref(topic: TopicRef, version: int) -> bytes:
    if version >= TOPIC_IDS_FROM:
        return topic
    if version >= FLEXIBLE_FROM:
        return encode_uvarint(len(topic) + 1) + topic
    return INT16.pack(len(topic)) + topic


def encode_fetch_request(
    request: FetchRequest,
    *,
    partitions: Mapping[PartitionKey, FetchEntry],
    forgotten: Iterable[PartitionKey],
    session_id: int,
    session_epoch: int,
    max_wait_ms: int,
    min_bytes: int,
    bytes_max: int,
) -> bytes:
    """A framed request for `partitions` in another session; all else as the client asked it."""
    version = request.version
    flexible = version >= FLEXIBLE_FROM
    tag_end = b"\x00" if flexible else b""
    out = bytearray(4)
    out += request.header
    if version < 15:
        out += INT32.pack(request.replica_id)
    out += _HEAD.pack(max_wait_ms, min_bytes, bytes_max)
    out.append(request.isolation_level)
    if version >= SESSIONS_FROM:
        out += INT32.pack(session_id) + INT32.pack(session_epoch)
    by_topic = group_by_topic(partitions)
    out += encode_count(len(by_topic), flexible)
    for topic, numbers in by_topic.items():
        out += _encode_topic_ref(topic, version) + encode_count(len(numbers), flexible)
        for number in numbers:
            out += partitions[topic, number]
        out += tag_end
    if version >= SESSIONS_FROM:
        gone = group_by_topic(forgotten)
        out += encode_count(len(gone), flexible)
        for topic, numbers in gone.items():
            out += _encode_topic_ref(topic, version) + encode_count(len(numbers), flexible)
            for number in numbers:
                out += INT32.pack(number)
            out += tag_end
    out += request.rack
    out += request.tags
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def with_session(
    frame: bytes, body_at: int, version: int, session_id: int, session_epoch: int
) -> bytes:
    """A framed request (v7+) in another session, and else as it came.

    `body_at` is where the header ends behind the size prefix.
    """
    out = bytearray(frame)
    at = 4 + body_at + (4 if version < 15 else 0) + _HEAD.size + 1
    _SESSION.pack_into(out, at, session_id, session_epoch)
    return bytes(out)


def group_by_topic(keys: Iterable[PartitionKey]) -> dict[TopicRef, list[int]]:
    """Partition numbers by topic, both in the order in which they first appear."""
    grouped: dict[TopicRef, list[int]] = {}
    for topic, partition in keys:
        grouped.setdefault(topic, []).append(partition)
    return grouped
