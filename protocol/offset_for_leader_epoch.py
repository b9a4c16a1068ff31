"""OffsetForLeaderEpoch (v2–4): what is asked, and where in an answer each result lies.

Results are patched in place: a result's fields have fixed widths, so an answer keeps its length.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from protocol.apis import ApiKey, is_flexible
from protocol.headers import response_body
from protocol.primitives import Buffer, Cursor

_REPLICA_ID_FROM = 3
# What a request without a replica id stands for: a "debug" consumer (Kafka's schema).
_DEBUG_REPLICA_ID = -2
_RESULT = Struct(">hiiq")  # error code, partition, leader epoch, end offset
_ANSWER = Struct(">iq")
_ANSWER_AT = 6


class AskedEpoch(NamedTuple):
    topic: str
    partition: int
    current_leader_epoch: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class OffsetForLeaderEpochRequest:
    replica_id: int
    asked: tuple[AskedEpoch, ...]


class EpochResult(NamedTuple):
    """One partition's result; `position` is where its error code begins in the payload."""

    topic: str
    partition: int
    error_code: int
    leader_epoch: int
    end_offset: int
    position: int


def parse_request(
    buf: Buffer, body_pos: int, api_version: int, end: int | None = None
) -> OffsetForLeaderEpochRequest:
    """A whole request's body in `buf[body_pos:end]`, v2 to v4. Raises `WireError`."""
    cursor = Cursor(buf, body_pos, end)
    flexible = is_flexible(ApiKey.OFFSET_FOR_LEADER_EPOCH, api_version)
    replica_id = cursor.int32() if api_version >= _REPLICA_ID_FROM else _DEBUG_REPLICA_ID
    asked: list[AskedEpoch] = []
    for _ in range(cursor.count(flexible) or 0):
        topic = cursor.string(flexible)
        for _ in range(cursor.count(flexible) or 0):
            asked.append(AskedEpoch(topic, cursor.int32(), cursor.int32(), cursor.int32()))
            if flexible:
                cursor.skip_tags()
        if flexible:
            cursor.skip_tags()
    return OffsetForLeaderEpochRequest(replica_id, tuple(asked))


def parse_response(payload: Buffer, api_version: int) -> list[EpochResult]:
    """The results of an answer without its size prefix. Raises `WireError`."""
    cursor = response_body(payload, ApiKey.OFFSET_FOR_LEADER_EPOCH, api_version)
    flexible = is_flexible(ApiKey.OFFSET_FOR_LEADER_EPOCH, api_version)
    cursor.skip(4, "throttle time")
    results: list[EpochResult] = []
    for _ in range(cursor.count(flexible) or 0):
        topic = cursor.string(flexible)
        for _ in range(cursor.count(flexible) or 0):
            at = cursor.skip(_RESULT.size, "epoch result")
            error_code, partition, epoch, end_offset = _RESULT.unpack_from(payload, at)
            results.append(EpochResult(topic, partition, error_code, epoch, end_offset, at))
            if flexible:
                cursor.skip_tags()
        if flexible:
            cursor.skip_tags()
    return results


def patch(payload: bytearray | memoryview, result: EpochResult) -> None:
    """Write `result`'s epoch and end offset over those at its position."""
    at = result.position + _ANSWER_AT
    _ANSWER.pack_into(payload, at, result.leader_epoch, result.end_offset)
