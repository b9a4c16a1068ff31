"""ListOffsets: what is asked, and where in an answer each result lies, to be patched in place.

v0 answers with arrays of offsets, before there were timestamps in the log: such answers are not
read (`parse_response` says None) and reach the client as the broker sent them.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from protocol.apis import ApiKey, is_flexible
from protocol.headers import response_body
from protocol.primitives import Buffer, Cursor

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6  # KIP-1023

READ_UNCOMMITTED = 0
READ_COMMITTED = 1

UNKNOWN_TIMESTAMP = -1
UNKNOWN_OFFSET = -1
UNKNOWN_EPOCH = -1

_LEADER_EPOCH_FROM = 4
_RESULT = Struct(">hqq")
_RESULT_WITH_EPOCH = Struct(">hqqi")


class AskedOffset(NamedTuple):
    """`timestamp` in ms, or one of the negative names above."""

    topic: str
    partition: int
    current_leader_epoch: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class ListOffsetsRequest:
    """`timeout_ms` is None before v10."""

    replica_id: int
    isolation_level: int
    asked: tuple[AskedOffset, ...]
    timeout_ms: int | None


class OffsetResult(NamedTuple):
    """One partition's result; `position` is where its error code begins in the payload."""

    topic: str
    partition: int
    error_code: int
    timestamp: int
    offset: int
    leader_epoch: int
    position: int


def parse_request(
    buf: Buffer, body_pos: int, api_version: int, end: int | None = None
) -> ListOffsetsRequest:
    """A whole request's body in `buf[body_pos:end]`, any version to 11. Raises `WireError`."""
    cursor = Cursor(buf, body_pos, end)
    flexible = is_flexible(ApiKey.LIST_OFFSETS, api_version)
    replica_id = cursor.int32()
    isolation_level = cursor.int8() if api_version >= 2 else READ_UNCOMMITTED
    asked: list[AskedOffset] = []
    for _ in range(cursor.count(flexible) or 0):
        topic = cursor.string(flexible)
        for _ in range(cursor.count(flexible) or 0):
            partition = cursor.int32()
            has_epoch = api_version >= _LEADER_EPOCH_FROM
            epoch = cursor.int32() if has_epoch else UNKNOWN_EPOCH
            asked.append(AskedOffset(topic, partition, epoch, cursor.int64()))
            if api_version == 0:
                cursor.skip(4, "max num offsets")
            if flexible:
                cursor.skip_tags()
        if flexible:
            cursor.skip_tags()
    timeout_ms = cursor.int32() if api_version >= 10 else None
    return ListOffsetsRequest(replica_id, isolation_level, tuple(asked), timeout_ms)


def parse_response(payload: Buffer, api_version: int) -> list[OffsetResult] | None:
    """The results of an answer without its size prefix; None for v0. Raises `WireError`."""
    if api_version < 1:
        return None
    cursor = response_body(payload, ApiKey.LIST_OFFSETS, api_version)
    flexible = is_flexible(ApiKey.LIST_OFFSETS, api_version)
    has_epoch = api_version >= _LEADER_EPOCH_FROM
    if api_version >= 2:
        cursor.skip(4, "throttle time")
    results: list[OffsetResult] = []
    for _ in range(cursor.count(flexible) or 0):
        topic = cursor.string(flexible)
        for _ in range(cursor.count(flexible) or 0):
            partition = cursor.int32()
            at = cursor.skip(_RESULT.size, "offset result")
            error_code, timestamp, offset = _RESULT.unpack_from(payload, at)
            epoch = cursor.int32() if has_epoch else UNKNOWN_EPOCH
            results.append(OffsetResult(topic, partition, error_code, timestamp, offset, epoch, at))
            if flexible:
                cursor.skip_tags()
        if flexible:
            cursor.skip_tags()
    return results


def patch(payload: bytearray | memoryview, api_version: int, result: OffsetResult) -> None:
    """Write `result`'s error, timestamp, offset and epoch over those at its position.

    The length stays. `result` is one of `parse_response`'s, with other values
    (`entry._replace(offset=...)`); before v4 its epoch has no place and is dropped.
    """
    values = (result.error_code, result.timestamp, result.offset)
    if api_version >= _LEADER_EPOCH_FROM:
        _RESULT_WITH_EPOCH.pack_into(payload, result.position, *values, result.leader_epoch)
    else:
        _RESULT.pack_into(payload, result.position, *values)
