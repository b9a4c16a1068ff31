"""ListOffsets: reads and writes requests, and finds each result in a response to patch it in place.

v0 answers with arrays of offsets, from before logs had timestamps. Such responses are not read and
reach the client as the broker sent them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from fetchproxy_protocol.apis import ApiKey, is_flexible
from fetchproxy_protocol.messages import ELEMENTS_MAX
from fetchproxy_protocol.primitives import (
    INT32,
    INT64,
    NO_TAGS,
    Buffer,
    Cursor,
    TopicRows,
    encode_count,
    encode_string,
)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6  # KIP-1023

UNKNOWN_TIMESTAMP = -1
UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1

_LEADER_EPOCH_FROM = 4
_TIMEOUT_FROM = 10
_CONSUMER = INT32.pack(-1)  # replica_id
_PLACE_WITH_EPOCH = Struct(">ii")
_RESULT = Struct(">hqq")
_RESULT_WITH_EPOCH = Struct(">hqqi")
_PARTITION_FORMAT = ">iiq"  # from v4 on: partition, leader epoch, timestamp
# Each takes 11 µs of one turn of the event loop, and clients name a few.
_TOPICS_AT_ONCE = 1_000


class OffsetResult(NamedTuple):
    """One partition's result; `position` is where the result begins in the payload."""

    topic: str
    partition: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int
    position: int


def partitions_in(
    buf: Buffer, body_pos: int, api_version: int
) -> Iterator[tuple[tuple[str, int], int]]:
    """Topic, partition and the timestamp asked for (ms, or a negative constant above), one by one.
    Raises `WireError`.
    """
    at = 2 if api_version >= _LEADER_EPOCH_FROM else 1
    for topic, rows, _, _ in topics_in(buf, body_pos, api_version):
        for row in rows:
            yield (topic, row[0]), row[at]


def topics_in(buf: Buffer, body_pos: int, api_version: int) -> Iterator[TopicRows]:
    """The entries of a request by topic, not yet unpacked: (partition, timestamp, max offsets), and
    from v4 on (partition, leader epoch, timestamp). Raises `WireError`, also for ELEMENTS_MAX.
    """
    cursor = Cursor(buf, body_pos)
    cursor.skip(4 + (api_version >= 2), "replica id and isolation level")
    entry = ">iq" if api_version else ">iqi"
    if api_version >= _LEADER_EPOCH_FROM:
        entry = _PARTITION_FORMAT
    flexible = is_flexible(ApiKey.LIST_OFFSETS, api_version)
    return cursor.by_topic(entry, flexible, ELEMENTS_MAX)


def timestamp_of_all(buf: Buffer, body_pos: int, api_version: int) -> int | None:
    """The timestamp if a request asks for the same one in all partitions. None: it does not, its
    entries differ in length, or it names more than `_TOPICS_AT_ONCE`. Raises `WireError`.
    """
    if api_version < _LEADER_EPOCH_FROM:
        return None
    cursor = Cursor(buf, body_pos)
    flexible = is_flexible(ApiKey.LIST_OFFSETS, api_version)
    cursor.skip(4 + 1, "replica id and isolation level")
    row, timestamp = Struct(_PARTITION_FORMAT + "x" * flexible), None
    topics = cursor.count(flexible) or 0
    if topics > _TOPICS_AT_ONCE:
        return None
    for _ in range(topics):
        cursor.skip_string(flexible)
        count, begin = cursor.count(flexible) or 0, cursor.pos
        plain, rows = cursor.rows(row, count, NO_TAGS[flexible])
        if not count or plain < count:
            return None
        first = next(rows)[-1]
        timestamp_bytes, position = INT64.pack(first), begin + _PLACE_WITH_EPOCH.size
        for n in range(INT64.size):
            column = bytes(buf[position + n : cursor.pos : row.size])
            if column.strip(timestamp_bytes[n : n + 1]):
                return None
        if timestamp not in (None, first):
            return None
        timestamp = first
        cursor.skip_tags(flexible)
    return timestamp


def results_in(cursor: Cursor, api_version: int) -> Iterator[OffsetResult]:
    """The results of a response from its body on, v1 and later, one by one. Raises `WireError`."""
    for topic, rows, at, stride in result_rows_in(cursor, api_version):
        for partition, error_code, timestamp, offset, epoch in rows:
            yield OffsetResult(topic, partition, error_code, timestamp, offset, epoch, at)
            at += stride


def result_rows_in(cursor: Cursor, api_version: int) -> Iterator[TopicRows]:
    """As `results_in`, but in rows: all entries of equal length of a topic at once, as (partition,
    error code, timestamp, offset, leader epoch).
    """
    flexible = is_flexible(ApiKey.LIST_OFFSETS, api_version)
    if api_version >= 2:
        cursor.skip(4, "throttle time")
    if api_version >= _LEADER_EPOCH_FROM:
        yield from cursor.by_topic(">ihqqi", flexible)
        return
    for topic in cursor.by_topic(">ihqq", flexible):
        yield topic._replace(rows=((*row, UNKNOWN_EPOCH) for row in topic.rows))


def write_request(
    api_version: int,
    isolation_level: int,
    timestamps: Mapping[str, Sequence[tuple[int, int]]],
    timestamp: int,
) -> Iterator[bytes]:
    """The body of a consumer's request, v2 to v11, in pieces: one timestamp for many partitions.

    `timestamps`: by topic, (partition, known leader epoch). The time-out is left to the broker.
    """
    flexible = is_flexible(ApiKey.LIST_OFFSETS, api_version)
    tags = b"\x00" if flexible else b""
    has_epoch = api_version >= _LEADER_EPOCH_FROM
    at = INT64.pack(timestamp) + tags
    yield _CONSUMER + bytes([isolation_level]) + encode_count(len(timestamps), flexible)
    for topic, partitions in timestamps.items():
        yield encode_string(topic, flexible) + encode_count(len(partitions), flexible)
        for partition, epoch in partitions:
            place = _PLACE_WITH_EPOCH.pack(partition, epoch) if has_epoch else INT32.pack(partition)
            yield place + at
        yield tags
    yield (INT32.pack(0) if api_version >= _TIMEOUT_FROM else b"") + tags


def patch(payload: bytearray | memoryview, api_version: int, result: OffsetResult) -> None:
    """Write `result`, from `results_in` with other values, at its position. Versions before v4 have
    no epoch: it is dropped.
    """
    values = (result.error_code, result.timestamp, result.offset)
    patch_at(payload, api_version, result.position, *values, result.leader_epoch)


def patch_at(
    payload: bytearray | memoryview,
    api_version: int,
    position: int,
    error_code: int,
    timestamp: int,
    offset: int,
    leader_epoch: int,
) -> None:
    """As `patch`, for the result that begins at `position`."""
    timestamp_at = position + INT32.size
    if api_version >= _LEADER_EPOCH_FROM:
        _RESULT_WITH_EPOCH.pack_into(
            payload, timestamp_at, error_code, timestamp, offset, leader_epoch
        )
    else:
        _RESULT.pack_into(payload, timestamp_at, error_code, timestamp, offset)
