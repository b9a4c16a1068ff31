"""ListOffsets: what is asked, and where in an answer each result lies, to be patched in place.

v0 answers with arrays of offsets, before there were timestamps in the log: such answers are not
read and reach the client as the broker sent them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from fetchproxy_protocol.apis import ApiKey, is_flexible
from fetchproxy_protocol.primitives import (
    INT32,
    INT64,
    NO_TAGS,
    Buffer,
    Cursor,
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
# An entry from v4 on, whole, where it has no tagged fields; which a flexible one says in a byte.
_ASKED_ROW = {False: Struct(">iiq"), True: Struct(">iiqx")}
_RESULT_ROW = {False: Struct(">ihqqi"), True: Struct(">ihqqix")}


class AskedOffset(NamedTuple):
    """`timestamp` in ms, or one of the negative names above."""

    topic: str
    partition: int
    current_leader_epoch: int
    timestamp: int


class OffsetResult(NamedTuple):
    """One partition's result; `position` is where its error code begins in the payload."""

    topic: str
    partition: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int
    position: int


class ResultRows(NamedTuple):
    """Results of one topic: (partition, error code, timestamp, offset, leader epoch).

    `position` is where the error code of the first lies, the others lie `stride` bytes apart.
    """

    topic: str
    rows: Iterator[tuple[int, int, int, int, int]]
    position: int
    stride: int = 0


def asked_in(buf: Buffer, body_pos: int, api_version: int) -> Iterator[AskedOffset]:
    """What a request asks for, one by one. Raises `WireError`."""
    cursor = Cursor(buf, body_pos)
    flexible = is_flexible(ApiKey.LIST_OFFSETS, api_version)
    has_epoch = api_version >= _LEADER_EPOCH_FROM
    cursor.skip(4 + (api_version >= 2), "replica id and isolation level")
    for _ in range(cursor.count(flexible) or 0):
        topic = cursor.string(flexible)
        count = cursor.count(flexible) or 0
        fast = count if has_epoch else 0
        plain, rows = cursor.rows(_ASKED_ROW[flexible], fast, NO_TAGS[flexible])
        for partition, epoch, timestamp in rows:
            yield AskedOffset(topic, partition, epoch, timestamp)
        for _ in range(count - plain):
            partition = cursor.int32()
            epoch = cursor.int32() if has_epoch else UNKNOWN_EPOCH
            timestamp = cursor.int64()
            if api_version == 0:
                cursor.skip(4, "max num offsets")
            cursor.skip_tags(flexible)
            yield AskedOffset(topic, partition, epoch, timestamp)
        cursor.skip_tags(flexible)


def asked_of_all(buf: Buffer, body_pos: int, api_version: int) -> int | None:
    """The timestamp, where a request asks all its partitions for the same one; else None.

    Only of entries that have all one length, which take no time. Raises `WireError`.
    """
    if api_version < _LEADER_EPOCH_FROM:
        return None
    cursor = Cursor(buf, body_pos)
    flexible = is_flexible(ApiKey.LIST_OFFSETS, api_version)
    cursor.skip(4 + 1, "replica id and isolation level")
    row, found = _ASKED_ROW[flexible], None
    for _ in range(cursor.count(flexible) or 0):
        cursor.skip_string(flexible)
        count, begin = cursor.count(flexible) or 0, cursor.pos
        plain, rows = cursor.rows(row, count, NO_TAGS[flexible])
        if not count or plain < count:
            return None
        first = next(rows)[-1]
        said, at = INT64.pack(first), begin + _PLACE_WITH_EPOCH.size
        for n in range(INT64.size):
            column = bytes(buf[at + n : cursor.pos : row.size])
            if column.strip(said[n : n + 1]):
                return None
        if found not in (None, first):
            return None
        found = first
        cursor.skip_tags(flexible)
    return found


def results_in(cursor: Cursor, api_version: int) -> Iterator[OffsetResult]:
    """The results of an answer from its body on, one by one, from v1 on. Raises `WireError`."""
    for topic, rows, at, stride in result_rows_in(cursor, api_version):
        for partition, error_code, timestamp, offset, epoch in rows:
            yield OffsetResult(topic, partition, error_code, timestamp, offset, epoch, at)
            at += stride


def result_rows_in(cursor: Cursor, api_version: int) -> Iterator[ResultRows]:
    """As `results_in`, as many of a topic at once as have the same length."""
    flexible = is_flexible(ApiKey.LIST_OFFSETS, api_version)
    has_epoch = api_version >= _LEADER_EPOCH_FROM
    if api_version >= 2:
        cursor.skip(4, "throttle time")
    for _ in range(cursor.count(flexible) or 0):
        topic = cursor.string(flexible)
        count = cursor.count(flexible) or 0
        row, at = _RESULT_ROW[flexible], cursor.pos + INT32.size
        plain, rows = cursor.rows(row, count if has_epoch else 0, NO_TAGS[flexible])
        if plain:
            yield ResultRows(topic, rows, at, row.size)
        for _ in range(count - plain):
            partition = cursor.int32()
            at = cursor.skip(_RESULT.size, "offset result")
            error_code, timestamp, offset = _RESULT.unpack_from(cursor.buf, at)
            epoch = cursor.int32() if has_epoch else UNKNOWN_EPOCH
            cursor.skip_tags(flexible)
            yield ResultRows(topic, iter([(partition, error_code, timestamp, offset, epoch)]), at)
        cursor.skip_tags(flexible)


def write_request(
    api_version: int,
    isolation_level: int,
    asked: Mapping[str, Sequence[tuple[int, int]]],
    timestamp: int,
) -> Iterator[bytes]:
    """The body of a consumer's request, v2 to v11, in pieces: one timestamp for many partitions.

    `asked`: by topic, (partition, leader epoch known). The broker's own time-out is left to it.
    """
    flexible = is_flexible(ApiKey.LIST_OFFSETS, api_version)
    tags = b"\x00" if flexible else b""
    has_epoch = api_version >= _LEADER_EPOCH_FROM
    at = INT64.pack(timestamp) + tags
    yield _CONSUMER + bytes([isolation_level]) + encode_count(len(asked), flexible)
    for topic, partitions in asked.items():
        yield encode_string(topic, flexible) + encode_count(len(partitions), flexible)
        for partition, epoch in partitions:
            place = _PLACE_WITH_EPOCH.pack(partition, epoch) if has_epoch else INT32.pack(partition)
            yield place + at
        yield tags
    yield (INT32.pack(0) if api_version >= _TIMEOUT_FROM else b"") + tags


def patch(payload: bytearray | memoryview, api_version: int, result: OffsetResult) -> None:
    """Write `result`'s error, timestamp, offset and epoch over those at its position.

    The length stays. `result` is one of `results_in`'s, with other values
    (`entry._replace(offset=...)`); before v4 its epoch has no place and is dropped.
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
    """As `patch`, of the result whose error code lies at `position`."""
    if api_version >= _LEADER_EPOCH_FROM:
        values = (error_code, timestamp, offset, leader_epoch)
        _RESULT_WITH_EPOCH.pack_into(payload, position, *values)
    else:
        _RESULT.pack_into(payload, position, error_code, timestamp, offset)
