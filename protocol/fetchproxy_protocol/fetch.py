"""Fetch: requests and responses as values. Plain messages are read in one pass. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import starmap
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from fetchproxy_protocol.apis import MalformedMessage, Truncated
from fetchproxy_protocol.fetch_layout import (
    FETCH_FLEXIBLE_FROM,
    LEADER_EPOCH_FROM,
    LOG_START_FROM,
    PREFERRED_REPLICA_FROM,
    REPLICA_STATE_FROM,
    REQUEST_ENTRY_BYTES,
    REQUEST_ENTRY_BYTES_MAX,
    RESPONSE_PARTITION,
    SESSIONS_FROM,
    TOPIC_IDS_FROM,
    position,
    positions_by_size,
    response_partition,
)
from fetchproxy_protocol.primitives import (
    INT16,
    INT32,
    INT64,
    Buffer,
    Cursor,
    decode_uvarint,
    encode_count,
    encode_uvarint,
)

# FetchRequest. A partition entry is never re-encoded: the client's bytes (epochs, tags) reach
# the broker unchanged in any session. Only the offset is replaced if it was lost. Layout: Kafka's
# FetchRequest.json.

SESSIONLESS_EPOCH = -1  # KIP-227 FINAL_EPOCH: no session, or close the named session
INITIAL_EPOCH = 0
NO_LEADER_EPOCH = -1

# Partitions of one request: five times the number in clusters of 10,000 partitions. Each costs some
# 400 bytes.
PARTITIONS_MAX = 50_000
# `request_in_steps` yields after this many partitions, which take less than 2 ms.
_PARTITIONS_PER_STEP = 250
# Topics of a response between two yields, which take less than 2 ms.
_TOPICS_PER_STEP = 2_000

# A topic as the client named it on the wire: its UTF-8 name (v4–12) or the 16 bytes of its id.
TopicRef = bytes
PartitionKey = tuple[TopicRef, int]
# One requested partition as the client wrote it, with tags. Only these bytes are kept: a session
# may have ten thousand partitions, bytes are small, and Python's garbage collector ignores them.
FetchEntry = bytes

# Where a field is in a FetchEntry, by the entry's size: the size shows the version.
_OFFSET_AT = positions_by_size("FetchOffset")
_BYTES_MAX_AT = positions_by_size("PartitionMaxBytes")
_LEADER_EPOCH_AT = positions_by_size("CurrentLeaderEpoch")
_FOLLOWERS_START_AT = positions_by_size("LogStartOffset")
_LAST_EPOCH_AT = positions_by_size("LastFetchedEpoch")
_HEAD = Struct(">iii")  # max wait, min bytes, max bytes
_SESSION = Struct(">ii")  # id, epoch
_LIMITS = Struct(">iiiBii")  # max wait, min bytes, max bytes, isolation level, session id and epoch
# Unsigned: a length below 0 (null) becomes large, so the message is not plain.
_COUNT = Struct(">I")
_LENGTH = Struct(">H")
_NO_TAGS = b"\x00"
_Read = tuple[dict[PartitionKey, FetchEntry], bytes, bytes]  # partitions, rack and tags
WATERMARKS = Struct(">qqq")  # high watermark, last stable offset, log start offset (v5+)
WATERMARKS_V4 = Struct(">qq")
_SESSION_HEAD = Struct(">ihi")  # throttle time, error code, session id (v7+)
# Error code, session id, topics; after the size prefix, correlation id and throttle time.
_HEAD_V7 = Struct(">12xhiI")
# The position of the number of topics in a framed response (v12+), and the byte for one topic: a
# count is encoded as count + 1.
_TOPICS_AT, _ONE = 19, 2
# A response of one topic and partition (v13+) up to its records, without unused values of the
# partition.
_ONE_V13 = Struct(">8xB4xhix16sB4xh16xqB4xB")
_ONE_PARTITION_AT = 37
# A partition up to its records: aborted transactions, (preferred replica,) bytes of records.
_PARTITION_V7 = response_partition(SESSIONS_FROM, "iI")
_PARTITION_V11 = response_partition(PREFERRED_REPLICA_FROM, "iiI")
_LOG_START_AT = position(RESPONSE_PARTITION, "LogStartOffset", LOG_START_FROM)
# A partition up to the count of its aborted transactions, which takes one byte if they are few.
_PARTITION_V12 = response_partition(FETCH_FLEXIBLE_FROM, "B")
# Then comes the preferred replica, and the length of the records.
_RECORDS_LENGTH_AT = _PARTITION_V12.size + INT32.size
_VARINT_BYTES_MAX = 5
# An aborted transaction: producer id and first offset, then no tags (v12+).
_ABORTED, _ABORTED_FLEXIBLE = Struct(">qq"), Struct(">qqx")
# From a partition to its log start offset for clients. -1: not known. None: the broker's own.
LogStart = Callable[[int], int | None]
# By topic, for topics whose log may begin below the broker's log start.
LogStarts = Mapping[TopicRef, LogStart]


def fetch_offset(entry: FetchEntry) -> int:
    return INT64.unpack_from(entry, _OFFSET_AT[min(len(entry), REQUEST_ENTRY_BYTES_MAX)])[0]  # type: ignore[no-any-return]


def entry_bytes_max(entry: FetchEntry) -> int:
    """The client's limit of bytes for this partition."""
    at = _BYTES_MAX_AT[min(len(entry), REQUEST_ENTRY_BYTES_MAX)]
    return INT32.unpack_from(entry, at)[0]  # type: ignore[no-any-return]


def leader_epoch(entry: FetchEntry) -> int:
    """The client's current leader epoch. -1 (always below v9): there is none to check."""
    if len(entry) < REQUEST_ENTRY_BYTES[LEADER_EPOCH_FROM]:
        return NO_LEADER_EPOCH
    at = _LEADER_EPOCH_AT[min(len(entry), REQUEST_ENTRY_BYTES_MAX)]
    return INT32.unpack_from(entry, at)[0]  # type: ignore[no-any-return]


def followers_log_start(entry: FetchEntry) -> int:
    """Where the log of a follower that fetches begins (v5+); a consumer writes -1."""
    at = _FOLLOWERS_START_AT[min(len(entry), REQUEST_ENTRY_BYTES_MAX)]
    return INT64.unpack_from(entry, at)[0]  # type: ignore[no-any-return]


def last_fetched_epoch(entry: FetchEntry) -> int:
    """The leader epoch of the last batch in a follower's log (v12+). -1: its log is empty, or has
    no epochs, or a consumer fetches.
    """
    if len(entry) < REQUEST_ENTRY_BYTES[FETCH_FLEXIBLE_FROM]:
        return NO_LEADER_EPOCH
    at = _LAST_EPOCH_AT[min(len(entry), REQUEST_ENTRY_BYTES_MAX)]
    return INT32.unpack_from(entry, at)[0]  # type: ignore[no-any-return]


def from_offset(entry: FetchEntry, offset: int) -> FetchEntry:
    written = bytearray(entry)
    INT64.pack_into(written, _OFFSET_AT[min(len(entry), REQUEST_ENTRY_BYTES_MAX)], offset)
    return bytes(written)


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
    """`payload`: a whole request without size prefix. `body_at`: the position where its header
    ends. Raises WireError. The caller must refuse versions outside FETCH_VERSION_MIN to
    FETCH_VERSION_MAX.
    """
    version = INT16.unpack_from(payload, 2)[0]
    return plain_request(bytes(payload), body_at, version) or any_request(payload, body_at)


def plain_request(payload: bytes, body_at: int, version: int) -> FetchRequest | None:
    """A request as consumers usually send it, read in a third of the time: all counts and lengths
    below 128, no forgotten partitions, no tags. None: the request is different or malformed, so use
    `any_request`.
    """
    if version < SESSIONS_FROM:
        return None
    try:
        at = body_at if version >= REPLICA_STATE_FROM else body_at + 4
        wait, min_bytes, bytes_max, isolation, session, epoch = _LIMITS.unpack_from(payload, at)
        read = _plain_request_flexible if version >= FETCH_FLEXIBLE_FROM else _plain_request_classic
        request = read(payload, at + _LIMITS.size, version)
        if request is None or isolation > 1:
            return None
        partitions, rack, tags = request
        values = (
            version,
            INT32.unpack_from(payload, 4)[0],
            payload[:body_at],
            -1 if version >= REPLICA_STATE_FROM else INT32.unpack_from(payload, body_at)[0],
            *(wait, min_bytes, bytes_max, isolation, session, epoch),
            *(partitions, (), rack, tags),
        )
    except (IndexError, StructError):
        return None
    return tuple.__new__(FetchRequest, values)


def _plain_request_flexible(payload: bytes, pos: int, version: int) -> _Read | None:
    """Reads from the topics on (v12+). Raises IndexError or StructError if it ends too early."""
    number_of, size = INT32.unpack_from, REQUEST_ENTRY_BYTES[version] + 1
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
    rack_at = pos + 1  # after the number of topics with forgotten partitions
    rack_end = rack_at + (payload[rack_at] or 1)
    if payload[pos] != 1 or payload[rack_at] >= 0x80 or payload[rack_end:] != _NO_TAGS:
        return None
    return partitions, payload[rack_at:rack_end], _NO_TAGS


def _plain_request_classic(payload: bytes, pos: int, version: int) -> _Read | None:
    """Reads from the topics on (v7–11). Raises IndexError or StructError if it ends too early."""
    number_of, size = INT32.unpack_from, REQUEST_ENTRY_BYTES[version]
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
    if version >= PREFERRED_REPLICA_FROM:
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
    """As `parse_fetch_request`, but the caller may pause at each yield. Raises WireError."""
    version = INT16.unpack_from(payload, 2)[0]
    flexible = version >= FETCH_FLEXIBLE_FROM
    cursor = Cursor(payload, body_at)
    replica_id = cursor.int32() if version < REPLICA_STATE_FROM else -1
    at = cursor.skip(13, "fetch limits")
    max_wait_ms, min_bytes, bytes_max = _HEAD.unpack_from(payload, at)
    isolation_level = payload[at + 12]
    if isolation_level not in (0, 1):  # the broker's IsolationLevel.forId accepts only these
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
    if version >= PREFERRED_REPLICA_FROM:
        start = cursor.pos
        cursor.skip_string(flexible)
        rack = bytes(payload[start : cursor.pos])
    tags = b""
    if flexible:
        start = cursor.pos
        for tag, tag_at, tag_end in cursor.tags():
            if (
                tag == 1 and version >= REPLICA_STATE_FROM
            ):  # ReplicaState: a follower, not a consumer
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
    length = cursor.uvarint() - 1 if version >= FETCH_FLEXIBLE_FROM else cursor.int16()
    start = cursor.skip(length, "topic name")
    return bytes(cursor.buf[start : cursor.pos])


def _read_partitions(
    cursor: Cursor, version: int, entries: dict[PartitionKey, FetchEntry]
) -> Iterator[None]:
    flexible = version >= FETCH_FLEXIBLE_FROM
    size = REQUEST_ENTRY_BYTES[version]
    left, step = PARTITIONS_MAX, 0
    for _ in range(cursor.count(flexible) or 0):
        topic = _topic_ref(cursor, version)
        count = cursor.count(flexible) or 0
        left = _subtract_count(left, count, "partitions")
        for _ in range(count):
            start = cursor.skip(size, "fetch partition")
            cursor.skip_tags(flexible)
            number = INT32.unpack_from(cursor.buf, start)[0]
            entries[topic, number] = bytes(cursor.buf[start : cursor.pos])
            step += 1
            if step % _PARTITIONS_PER_STEP == 0:
                yield
        cursor.skip_tags(flexible)
        step += 1  # a topic costs as much as a partition
        if step % _PARTITIONS_PER_STEP == 0:
            yield


def _read_forgotten(cursor: Cursor, version: int, forgotten: list[PartitionKey]) -> Iterator[None]:
    flexible = version >= FETCH_FLEXIBLE_FROM
    for number in range(cursor.count(flexible) or 0):
        topic = _topic_ref(cursor, version)
        count = cursor.count(flexible) or 0
        _subtract_count(PARTITIONS_MAX - len(forgotten), count, "forgotten partitions")
        forgotten.extend((topic, cursor.int32()) for _ in range(count))
        cursor.skip_tags(flexible)
        if number % _PARTITIONS_PER_STEP == 0 or count > _PARTITIONS_PER_STEP:
            yield


def _subtract_count(left: int, count: int, items: str) -> int:
    if count > left:
        raise MalformedMessage(f"a Fetch of more than {PARTITIONS_MAX} {items}")
    return left - count


def encode_topic_start(version: int, topic: TopicRef, partitions: int) -> bytes:
    if version >= TOPIC_IDS_FROM:
        return topic + encode_uvarint(partitions + 1)
    if version >= FETCH_FLEXIBLE_FROM:
        return encode_uvarint(len(topic) + 1) + topic + encode_uvarint(partitions + 1)
    return INT16.pack(len(topic)) + topic + INT32.pack(partitions)


def no_tags(version: int) -> bytes:
    """The empty tags that end a partition, a topic and a message."""
    return b"\x00" if version >= FETCH_FLEXIBLE_FROM else b""


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
    """A framed request for `partitions` in another session. All other fields are the client's."""
    version = request.version
    out = bytearray(4)
    out += request.header
    if version < REPLICA_STATE_FROM:
        out += INT32.pack(request.replica_id)
    out += _HEAD.pack(max_wait_ms, min_bytes, bytes_max)
    out.append(request.isolation_level)
    if version >= SESSIONS_FROM:
        out += INT32.pack(session_id) + INT32.pack(session_epoch)
    _add_by_topic(out, version, partitions, partitions.__getitem__)
    if version >= SESSIONS_FROM:
        _add_by_topic(out, version, forgotten, lambda key: INT32.pack(key[1]))
    out += request.rack
    out += request.tags
    INT32.pack_into(out, 0, len(out) - 4)
    return bytes(out)


def _add_by_topic(
    out: bytearray,
    version: int,
    keys: Iterable[PartitionKey],
    encode: Callable[[PartitionKey], bytes],
) -> None:
    grouped: dict[TopicRef, list[PartitionKey]] = {}
    for key in keys:
        grouped.setdefault(key[0], []).append(key)
    out += encode_count(len(grouped), version >= FETCH_FLEXIBLE_FROM)
    for topic, of_topic in grouped.items():
        out += encode_topic_start(version, topic, len(of_topic))
        for key in of_topic:
            out += encode(key)
        out += no_tags(version)


def with_session(
    frame: bytes, body_at: int, version: int, session_id: int, session_epoch: int
) -> bytes:
    """The framed request (v7+) in another session, otherwise unchanged.

    `body_at`: the position where the header ends, counted after the size prefix.
    """
    out = bytearray(frame)
    at = session_epoch_at(body_at, version) - INT32.size
    _SESSION.pack_into(out, at, session_id, session_epoch)
    return bytes(out)


def session_epoch_at(body_at: int, version: int) -> int:
    """The position of the session epoch in a framed request (v7+); see `with_session`."""
    return 4 + body_at + (4 if version < REPLICA_STATE_FROM else 0) + _LIMITS.size - INT32.size


def with_bytes_max(frame: bytes, body_at: int, version: int, bytes_max: int) -> bytes:
    """The framed request with another `bytes_max`, otherwise unchanged; see `with_session`."""
    out = bytearray(frame)
    INT32.pack_into(out, 4 + body_at + (4 if version < REPLICA_STATE_FROM else 0) + 8, bytes_max)
    return bytes(out)


# FetchResponse. This module never touches records: the caller puts them between
# `encode_partition_start` and `no_tags`. Layout: Kafka's FetchResponse.json.


# Made once per response. A named tuple takes a third of a frozen dataclass's time.
class FetchResponseHead(NamedTuple):
    correlation_id: int
    throttle_time_ms: int
    error_code: int
    session_id: int
    topics: int


class PartitionEntries(NamedTuple):
    """The encoded entries of `partitions` partitions of one topic, one after the other."""

    partitions: int
    pieces: Sequence[Buffer]


class HeadPatch(NamedTuple):
    """Changes to the head of a broker's response: the client's own ids, and the partitions
    `injected`.

    `listed`: topics that the broker's response may have, with an upper bound of their partitions.
    Injected partitions of these topics go before the broker's partitions. Each other topic gets its
    own entry.
    """

    correlation_id: int
    session_id: int
    injected: Mapping[TopicRef, PartitionEntries] = {}
    listed: Mapping[TopicRef, int] = {}
    throttle_time_ms: int = 0  # used if longer than the broker's


class PartitionPatch(NamedTuple):
    """New values for a partition's response; may replace an error. -1: it is not known."""

    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    error_code: int = 0


def head_bytes(version: int) -> int:
    """The number of bytes before the topic count, size prefix included."""
    return (
        8
        + (1 if version >= FETCH_FLEXIBLE_FROM else 0)
        + 4
        + (6 if version >= SESSIONS_FROM else 0)
    )


def parse_head(frame: Buffer, version: int) -> tuple[FetchResponseHead, int] | None:
    """(head, position of the first topic) of a framed response. None: bytes are still missing."""
    at = head_bytes(version)
    if len(frame) < at + 5:  # 5: the longest topic count
        total = INT32.unpack_from(frame)[0] + 4 if len(frame) >= 4 else 1 << 31
        if len(frame) < total:
            return None
    flexible = version >= FETCH_FLEXIBLE_FROM
    cursor = Cursor(frame, 4)
    correlation_id = cursor.int32()
    cursor.skip_tags(flexible)
    error_code = session_id = 0
    if version >= SESSIONS_FROM:
        start = cursor.skip(_SESSION_HEAD.size, "head")
        throttle_time_ms, error_code, session_id = _SESSION_HEAD.unpack_from(frame, start)
    else:
        throttle_time_ms = cursor.int32()
    topics = cursor.uvarint() - 1 if flexible else cursor.int32()
    return FetchResponseHead(
        correlation_id, throttle_time_ms, error_code, session_id, max(topics, 0)
    ), cursor.pos


def encode_head(version: int, head: FetchResponseHead, body_bytes: int) -> bytes:
    """The framed head of a response. `body_bytes`: the size of its topics and trailing tags."""
    flexible = version >= FETCH_FLEXIBLE_FROM
    out = bytearray(4)
    out += INT32.pack(head.correlation_id)
    if flexible:
        out.append(0)
    out += INT32.pack(head.throttle_time_ms)
    if version >= SESSIONS_FROM:
        out += INT16.pack(head.error_code) + INT32.pack(head.session_id)
    out += encode_count(head.topics, flexible)
    INT32.pack_into(out, 0, len(out) - 4 + body_bytes)
    return bytes(out)


def encode_topic(version: int, topic: TopicRef, entries: PartitionEntries) -> list[Buffer]:
    start = encode_topic_start(version, topic, entries.partitions)
    return [start, *entries.pieces, no_tags(version)]


def response_in_steps(
    version: int, head: FetchResponseHead, topics: Mapping[TopicRef, PartitionEntries]
) -> Generator[None, None, list[Buffer]]:
    """A whole framed response. The caller may pause at each yield."""
    body: list[Buffer] = []
    for number, (topic, entries) in enumerate(topics.items(), 1):
        body += encode_topic(version, topic, entries)
        if not number % _TOPICS_PER_STEP:
            yield
    body.append(no_tags(version))
    return [encode_head(version, head, sum(map(len, body))), *body]


def count_grows_by(version: int, listed: int, further: int) -> int:
    """The bytes by which a count of up to `listed` can grow with `further` partitions."""
    return len(encode_uvarint(listed + further + 1)) - 1 if version >= FETCH_FLEXIBLE_FROM else 0


def encode_partition_start(
    version: int,
    partition: int,
    error_code: int,
    watermarks: PartitionPatch,
    aborted: Sequence[tuple[int, int]] | None,
    records_bytes: int,
) -> bytes:
    """A partition up to its records. The caller appends the records, then `no_tags`.

    `aborted`: (producer id, first offset) pairs. None: read_uncommitted.
    """
    flexible = version >= FETCH_FLEXIBLE_FROM
    out = bytearray(INT32.pack(partition) + INT16.pack(error_code))
    w = watermarks
    if version >= LOG_START_FROM:
        out += WATERMARKS.pack(w.high_watermark, w.last_stable_offset, w.log_start_offset)
    else:
        out += WATERMARKS_V4.pack(w.high_watermark, w.last_stable_offset)
    out += encode_count(None if aborted is None else len(aborted), flexible)
    out += b"".join(starmap((_ABORTED_FLEXIBLE if flexible else _ABORTED).pack, aborted or ()))
    if version >= PREFERRED_REPLICA_FROM:
        out += INT32.pack(-1)  # no preferred read replica
    out += encode_uvarint(records_bytes + 1) if flexible else INT32.pack(records_bytes)
    return bytes(out)


def encode_error_response(version: int, correlation_id: int, error_code: int) -> bytes:
    """A framed response with a top-level error and no topics (v7+)."""
    head = FetchResponseHead(correlation_id, 0, error_code, 0, 0)
    body = no_tags(version)
    return encode_head(version, head, len(body)) + body


def plain_session_id(
    frame: memoryview, version: int, log_starts: LogStarts | None = None
) -> int | None:
    """The session id of a whole framed response (v7+) in which only log starts matter.

    Nearly every response at the tail is such: no error, no aborted transaction, no tags. This is
    one pass without the scan's state, because its time adds to the latency of each record. None:
    any other response, also a malformed one, which the scan then reports. Log starts are patched in
    place, even if the response later turns out to be different.
    """
    try:
        if version >= TOPIC_IDS_FROM and frame[_TOPICS_AT] == _ONE:
            return _plain_one(frame, log_starts)
        if version >= FETCH_FLEXIBLE_FROM:
            return _plain_response_flexible(frame, version, log_starts)
        return (
            _plain_response_classic(frame, version, log_starts)
            if version >= SESSIONS_FROM
            else None
        )
    except (IndexError, StructError, Truncated):
        return None


def _plain_one(frame: memoryview, log_starts: LogStarts | None) -> int | None:
    """`plain_session_id` for one topic, by id (v13+). A response of one partition, as usual at the
    tail, is read with one unpack.
    """
    tags, error_code, session_id, topic, partitions, code, start, aborted, length = (
        _ONE_V13.unpack_from(frame)
    )
    if partitions != _ONE:
        return _plain_response_flexible(frame, TOPIC_IDS_FROM, log_starts)
    if length < 0x80:
        at = _ONE_V13.size - 1 + (length or 1)
    else:
        length, at = decode_uvarint(frame, _ONE_V13.size - 1)
        at += length - 1
    # After the records come the tags of the partition, of the topic and of the response.
    if tags or error_code or code or aborted > 1 or at + 3 != len(frame):
        return None
    if frame[at] or frame[at + 1] or frame[at + 2]:
        return None
    if log_starts and start > 0 and (log_start := log_starts.get(topic)):
        show_log_start(frame, _ONE_PARTITION_AT, log_start)
    return session_id  # type: ignore[no-any-return]


def _plain_response_flexible(
    frame: memoryview, version: int, log_starts: LogStarts | None
) -> int | None:
    end = len(frame) - 1  # the last byte is the count of the response's own tags
    if frame[8] or frame[end]:
        return None
    _, error_code, session_id = _SESSION_HEAD.unpack_from(frame, 9)
    topics = frame[_TOPICS_AT] - 1
    pos = _TOPICS_AT + 1
    if error_code or not 0 <= topics < 0x7F:
        return None
    for _ in range(topics):
        length = 17 if version >= TOPIC_IDS_FROM else frame[pos]
        at = pos if version >= TOPIC_IDS_FROM else pos + 1
        pos = at + length - 1
        partitions = frame[pos] - 1
        if not (0 < length < 0x80 and 0 <= partitions < 0x7F):
            return None
        log_start = log_starts.get(bytes(frame[at:pos])) if log_starts else None
        pos, left = plain_run(frame, pos + 1, end, partitions, log_start)
        if left or frame[pos]:
            return None
        pos += 1
    return session_id if pos == end else None


def _plain_response_classic(
    frame: memoryview, version: int, log_starts: LogStarts | None
) -> int | None:
    """Reads counts and lengths as unsigned, so that null becomes large and is not plain."""
    error_code, session_id, topics = _HEAD_V7.unpack_from(frame)
    entry = _PARTITION_V11 if version >= PREFERRED_REPLICA_FROM else _PARTITION_V7
    pos, end = _HEAD_V7.size, len(frame)
    if error_code or topics >= 0x80:
        return None
    for _ in range(topics):
        at = pos + 2
        pos = at + _LENGTH.unpack_from(frame, pos)[0]
        partitions = _COUNT.unpack_from(frame, pos)[0]
        if partitions >= 0x80:
            return None
        log_start = log_starts.get(bytes(frame[at:pos])) if log_starts else None
        pos += 4
        for _ in range(partitions):
            fields = entry.unpack_from(frame, pos)
            if fields[1] or fields[5] > 0 or fields[-1] >= end:
                return None
            if log_start is not None:
                show_log_start(frame, pos, log_start)
            pos += entry.size + fields[-1]
    return session_id if pos == end else None


def show_log_start(buf: memoryview, pos: int, log_start: LogStart) -> None:
    """Patch the log start in the partition's entry at `pos` (v5+) if the log begins lower."""
    start = INT64.unpack_from(buf, pos + _LOG_START_AT)[0]
    if start <= 0:  # no log begins below it
        return
    first_offset = log_start(INT32.unpack_from(buf, pos)[0])
    if first_offset is not None and first_offset < start:
        INT64.pack_into(buf, pos + _LOG_START_AT, first_offset)


def plain_run(
    buf: memoryview, pos: int, end: int, partitions: int, log_start: LogStart | None = None
) -> tuple[int, int]:
    """Step over partitions (v12+) that have no error, no aborted transactions and no tags.

    Returns (position, partitions left). It stops before the first partition that is different or
    not whole. Log starts of the partitions before it are patched by `log_start`.
    """
    unpack, length_at = _PARTITION_V12.unpack_from, _RECORDS_LENGTH_AT
    while partitions and pos + length_at < end:
        fields = unpack(buf, pos)
        if fields[1] or fields[5] > 1:
            break
        begin = pos + length_at
        length = buf[begin]
        at = begin + (length or 1)
        if length >= 0x80:
            if begin + _VARINT_BYTES_MAX > end:
                break
            second = buf[begin + 1]
            if second < 0x80:
                at = begin + 1 + (length & 0x7F | second << 7)
            else:
                length, at = decode_uvarint(buf, begin)
                at += length - 1
        if at >= end or buf[at]:
            break
        if log_start is not None:
            show_log_start(buf, pos, log_start)
        pos = at + 1
        partitions -= 1
    return pos, partitions
