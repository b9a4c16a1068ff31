"""OffsetForLeaderEpoch (v2–4): reads and writes requests, and finds each result in a response.

Results are patched in place: their fields have fixed widths, so a response keeps its length.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from struct import Struct
from typing import NamedTuple

from fetchproxy_protocol.apis import ApiKey, is_flexible
from fetchproxy_protocol.messages import ELEMENTS_MAX
from fetchproxy_protocol.primitives import (
    INT32,
    Buffer,
    Cursor,
    TopicRows,
    encode_count,
    encode_string,
)

_REPLICA_ID_FROM = 3
# A request without a replica id counts as from a "debug" consumer (Kafka's schema).
_DEBUG_REPLICA_ID = -2
_CONSUMER = INT32.pack(-1)  # replica_id
_PLACE = Struct(">iii")
_RESPONSE = Struct(">iq")
_RESPONSE_AT = 6


class EpochResult(NamedTuple):
    """One partition's result; `position` is where the result begins in the payload."""

    topic: str
    partition: int
    error_code: int
    leader_epoch: int
    end_offset: int
    position: int


def replica_id(buf: Buffer, body_pos: int, api_version: int) -> int:
    """The replica id of a request; below 0 if the sender is not a follower. Raises `WireError`."""
    if api_version < _REPLICA_ID_FROM:
        return _DEBUG_REPLICA_ID
    return Cursor(buf, body_pos).int32()


def partitions_in(
    buf: Buffer, body_pos: int, api_version: int
) -> Iterator[tuple[tuple[str, int], int]]:
    """Topic, partition and the epoch that a request asks for, v2 to v4, one by one.

    Raises `WireError`.
    """
    for topic, rows, _, _ in topics_in(buf, body_pos, api_version):
        for partition, _current_epoch, epoch in rows:
            yield (topic, partition), epoch


def topics_in(buf: Buffer, body_pos: int, api_version: int) -> Iterator[TopicRows]:
    """The entries of a request by topic, not yet unpacked: (partition, current epoch, epoch).
    Raises `WireError`, also for ELEMENTS_MAX.
    """
    cursor = Cursor(buf, body_pos)
    if api_version >= _REPLICA_ID_FROM:
        cursor.skip(4, "replica id")
    flexible = is_flexible(ApiKey.OFFSET_FOR_LEADER_EPOCH, api_version)
    return cursor.by_topic(">iii", flexible, ELEMENTS_MAX)


def results_in(cursor: Cursor, api_version: int) -> Iterator[EpochResult]:
    """The results of a response from its body on, one by one. Raises `WireError`."""
    cursor.skip(4, "throttle time")
    flexible = is_flexible(ApiKey.OFFSET_FOR_LEADER_EPOCH, api_version)
    for topic, rows, position, stride in cursor.by_topic(">hiiq", flexible):
        for error_code, partition, epoch, end_offset in rows:
            yield EpochResult(topic, partition, error_code, epoch, end_offset, position)
            position += stride


def write_request(
    api_version: int, epochs: Mapping[str, Sequence[tuple[int, int, int]]]
) -> Iterator[bytes]:
    """The body of a consumer's request, v2 to v4, in pieces.

    `epochs`: by topic, (partition, known current leader epoch, requested leader epoch).
    """
    flexible = is_flexible(ApiKey.OFFSET_FOR_LEADER_EPOCH, api_version)
    tags = b"\x00" if flexible else b""
    yield (_CONSUMER if api_version >= _REPLICA_ID_FROM else b"") + encode_count(
        len(epochs), flexible
    )
    for topic, partitions in epochs.items():
        yield encode_string(topic, flexible) + encode_count(len(partitions), flexible)
        for partition_fields in partitions:
            yield _PLACE.pack(*partition_fields) + tags
        yield tags
    yield tags


def patch(payload: bytearray | memoryview, result: EpochResult) -> None:
    error_at = result.position + _RESPONSE_AT
    _RESPONSE.pack_into(payload, error_at, result.leader_epoch, result.end_offset)
