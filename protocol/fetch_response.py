"""FetchResponse v4–18: its head, read and written, and the entries that the proxy adds to one.

Records are never touched here: whoever composes an answer puts them between
`encode_partition_start` and `encode_partition_end`. Layout: Kafka's FetchResponse.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from protocol.errors import Truncated
from protocol.fetch_request import FLEXIBLE_FROM, SESSIONS_FROM, TOPIC_IDS_FROM, TopicRef
from protocol.primitives import (
    INT16,
    INT32,
    INT64,
    Buffer,
    Cursor,
    decode_uvarint,
    encode_count,
    encode_uvarint,
)

WATERMARKS = Struct(">qqq")  # high watermark, last stable offset, log start offset (v5+)
WATERMARKS_V4 = Struct(">qq")
_SESSION_HEAD = Struct(">ihi")  # throttle time, error code, session id (v7+)
# Error code, session id, topics; behind the size prefix, correlation id and throttle time.
_HEAD_V7 = Struct(">12xhiI")
_TOPICS_AT, _ONE = 19, 2  # in a framed answer (v12+) their number, one more than there are
# An answer of one topic and partition (v13+) up to its records, without the values of the partition
# that nobody looks at.
_ONE_V13 = Struct(">8xB4xhix16sB4xh16xqB4xB")
_ONE_PARTITION_AT = 37
_COUNT = Struct(">I")
_LENGTH = Struct(">H")
# A partition up to its records: aborted transactions, (preferred replica,) bytes of records.
_PARTITION_V5 = Struct(">ihqqqiI")
_PARTITION_V11 = Struct(">ihqqqiiI")
_LOG_START_AT = 22  # in a partition's entry (v5+)
# A partition up to its aborted transactions' count, which takes one byte where there are few.
_PARTITION_V12 = Struct(">ihqqqB")


# The first offset of a partition that is to be shown, -1: not known, None: the broker's own.
LogStart = Callable[[int], int | None]
# By topic, for those whose log may begin below the broker's.
LogStarts = Mapping[TopicRef, LogStart]


# One of each per answer: a named tuple is made in a third of a frozen dataclass's time.
class FetchResponseHead(NamedTuple):
    correlation_id: int
    throttle_time_ms: int
    error_code: int
    session_id: int
    topics: int


class HeadPatch(NamedTuple):
    """What the client sees instead: its own ids, and `injected_topics` entries in front."""

    correlation_id: int
    session_id: int
    injected_topics: int = 0
    injected: Sequence[Buffer] = ()
    throttle_time_ms: int = 0  # where it is longer than the broker's


class PartitionPatch(NamedTuple):
    """Makes an answer without error of one with, or changes it; -1 where a value is not known."""

    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    error_code: int = 0


def head_bytes(version: int) -> int:
    """Bytes before the topic count, size prefix included."""
    return 8 + (1 if version >= FLEXIBLE_FROM else 0) + 4 + (6 if version >= SESSIONS_FROM else 0)


def parse_head(frame: Buffer, version: int) -> tuple[FetchResponseHead, int] | None:
    """(head, position of the first topic) of a framed response, None while bytes are missing."""
    at = head_bytes(version)
    if len(frame) < at + 5:  # 5: the longest topic count
        total = INT32.unpack_from(frame)[0] + 4 if len(frame) >= 4 else 1 << 31
        if len(frame) < total:
            return None
    flexible = version >= FLEXIBLE_FROM
    cursor = Cursor(frame, 4)
    correlation_id = cursor.int32()
    if flexible:
        cursor.skip_tags()
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
    """Framed head of a response whose topics and trailing tags take `body_bytes`."""
    flexible = version >= FLEXIBLE_FROM
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


def encode_topic_start(version: int, topic: TopicRef, partitions: int) -> bytes:
    if version >= TOPIC_IDS_FROM:
        return topic + encode_uvarint(partitions + 1)
    if version >= FLEXIBLE_FROM:
        return encode_uvarint(len(topic) + 1) + topic + encode_uvarint(partitions + 1)
    return INT16.pack(len(topic)) + topic + INT32.pack(partitions)


def encode_topic_end(version: int) -> bytes:
    return b"\x00" if version >= FLEXIBLE_FROM else b""


def encode_partition_start(
    version: int,
    partition: int,
    error_code: int,
    watermarks: PartitionPatch,
    aborted: Sequence[tuple[int, int]] | None,
    records_bytes: int,
) -> bytes:
    """A partition up to its records, which the caller appends, then `encode_partition_end`.

    `aborted` are (producer id, first offset), None for read_uncommitted.
    """
    flexible = version >= FLEXIBLE_FROM
    out = bytearray(INT32.pack(partition) + INT16.pack(error_code))
    w = watermarks
    if version >= 5:
        out += WATERMARKS.pack(w.high_watermark, w.last_stable_offset, w.log_start_offset)
    else:
        out += WATERMARKS_V4.pack(w.high_watermark, w.last_stable_offset)
    out += encode_count(None if aborted is None else len(aborted), flexible)
    for producer_id, first_offset in aborted or ():
        out += INT64.pack(producer_id) + INT64.pack(first_offset)
        if flexible:
            out.append(0)
    if version >= 11:
        out += INT32.pack(-1)  # no preferred read replica
    out += encode_uvarint(records_bytes + 1) if flexible else INT32.pack(records_bytes)
    return bytes(out)


def encode_partition_end(version: int) -> bytes:
    return b"\x00" if version >= FLEXIBLE_FROM else b""


def encode_error_response(version: int, correlation_id: int, error_code: int) -> bytes:
    """A framed answer with a top-level error and no topics (v7+)."""
    tail = b"\x00" if version >= FLEXIBLE_FROM else b""
    head = FetchResponseHead(correlation_id, 0, error_code, 0, 0)
    return encode_head(version, head, len(tail)) + tail


def plain_session_id(
    frame: memoryview, version: int, log_starts: LogStarts | None = None
) -> int | None:
    """Of a whole framed answer (v7+) that holds nothing to look at but log starts.

    Such is nearly every answer at the tail: no error, no aborted transaction, no tags. One pass
    without the scan's state, as its time is what the proxy adds to a record's way. None for every
    other answer, a malformed one among them: the scan then says what is wrong with it. Log starts
    are patched in place, also before it turns out that the answer is another one.
    """
    try:
        if version >= TOPIC_IDS_FROM and frame[_TOPICS_AT] == _ONE:
            return _plain_one(frame, log_starts)
        if version >= FLEXIBLE_FROM:
            return _plain_flexible(frame, version, log_starts)
        return _plain_classic(frame, version, log_starts) if version >= SESSIONS_FROM else None
    except (IndexError, StructError, Truncated):
        return None


def _plain_one(frame: memoryview, log_starts: LogStarts | None) -> int | None:
    """Of one topic, by id. Of one partition it is read in one go: so it is at the tail."""
    tags, error_code, session_id, topic, partitions, code, start, aborted, length = (
        _ONE_V13.unpack_from(frame)
    )
    if partitions != _ONE:
        return _plain_flexible(frame, TOPIC_IDS_FROM, log_starts)
    if length < 0x80:
        at = _ONE_V13.size - 1 + (length or 1)
    else:
        length, at = decode_uvarint(frame, _ONE_V13.size - 1)
        at += length - 1
    # Behind the records come the tags of the partition, of the topic and of the answer.
    if tags or error_code or code or aborted > 1 or at + 3 != len(frame):
        return None
    if frame[at] or frame[at + 1] or frame[at + 2]:
        return None
    if log_starts and start > 0 and (shown := log_starts.get(topic)):
        show_log_start(frame, _ONE_PARTITION_AT, shown)
    return session_id  # type: ignore[no-any-return]


def _plain_flexible(frame: memoryview, version: int, log_starts: LogStarts | None) -> int | None:
    end = len(frame) - 1  # the last byte is the count of the answer's own tags
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
        shown = log_starts.get(bytes(frame[at:pos])) if log_starts else None
        pos, left = plain_run(frame, pos + 1, end, partitions, shown)
        if left or frame[pos]:
            return None
        pos += 1
    return session_id if pos == end else None


def _plain_classic(frame: memoryview, version: int, log_starts: LogStarts | None) -> int | None:
    """Counts and lengths are read without sign: null becomes large, and is not plain."""
    error_code, session_id, topics = _HEAD_V7.unpack_from(frame)
    entry = _PARTITION_V11 if version >= 11 else _PARTITION_V5
    pos, end = _HEAD_V7.size, len(frame)
    if error_code or topics >= 0x80:
        return None
    for _ in range(topics):
        at = pos + 2
        pos = at + _LENGTH.unpack_from(frame, pos)[0]
        partitions = _COUNT.unpack_from(frame, pos)[0]
        if partitions >= 0x80:
            return None
        shown = log_starts.get(bytes(frame[at:pos])) if log_starts else None
        pos += 4
        for _ in range(partitions):
            fields = entry.unpack_from(frame, pos)
            if fields[1] or fields[5] > 0 or fields[-1] >= end:
                return None
            if shown is not None:
                show_log_start(frame, pos, shown)
            pos += entry.size + fields[-1]
    return session_id if pos == end else None


def show_log_start(buf: memoryview, pos: int, shown: LogStart) -> None:
    """In the partition's entry at `pos` (v5+): its log may begin below the broker's."""
    start = INT64.unpack_from(buf, pos + _LOG_START_AT)[0]
    if start <= 0:  # nothing lies below it
        return
    first_offset = shown(INT32.unpack_from(buf, pos)[0])
    if first_offset is not None and first_offset < start:
        INT64.pack_into(buf, pos + _LOG_START_AT, first_offset)


def plain_run(
    buf: memoryview, pos: int, end: int, partitions: int, shown: LogStart | None = None
) -> tuple[int, int]:
    """Step over partitions (v12+) without error, aborted transactions and tags.

    (position, partitions left): stops before the first that is not so, or not whole. The log
    starts of the others are patched where `shown` says so.
    """
    unpack = _PARTITION_V12.unpack_from
    while partitions and pos + 36 <= end:
        fields = unpack(buf, pos)
        if fields[1] or fields[5] > 1:
            break
        length = buf[pos + 35]
        at = pos + 35 + (length or 1)
        if length >= 0x80:
            if pos + 40 > end:  # the length takes up to five bytes
                break
            second = buf[pos + 36]
            if second < 0x80:
                at = pos + 36 + (length & 0x7F | second << 7)
            else:
                length, at = decode_uvarint(buf, pos + 35)
                at += length - 1
        if at >= end or buf[at]:
            break
        if shown is not None:
            show_log_start(buf, pos, shown)
        pos = at + 1
        partitions -= 1
    return pos, partitions
