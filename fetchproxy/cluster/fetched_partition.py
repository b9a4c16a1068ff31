"""Reads a broker's answer to a Fetch of one partition; records stay where they arrived. No I/O.

Kafka-python's decoder copies them, which takes milliseconds for a fetch of 8 MiB, on the loop that
relays the tail, and as much memory again. Layout: Kafka's FetchResponse.json, versions 5 to 17.
"""

from __future__ import annotations

from fetchproxy.cluster.answers import FetchedPartition
from fetchproxy.errors import ClusterError
from fetchproxy.model import TopicIdPartition
from protocol.error_codes import ErrorCode
from protocol.errors import WireError
from protocol.fetch_request import FLEXIBLE_FROM, SESSIONS_FROM, TOPIC_IDS_FROM
from protocol.primitives import Cursor

_UUID_BYTES = 16
_PREFERRED_REPLICA_FROM = 11


def decode_fetch(payload: memoryview, version: int, tip: TopicIdPartition) -> FetchedPartition:
    """`payload` follows the correlation id; `records` is a view of it. `tip` is for errors' texts.

    Raises ClusterError for all but 0 and OFFSET_OUT_OF_RANGE.
    """
    try:
        return _decoded(Cursor(payload), payload, version, tip)
    except WireError as error:
        raise ClusterError(f"FetchResponse version {version} is malformed: {error}") from None


def _decoded(
    cursor: Cursor, payload: memoryview, version: int, tip: TopicIdPartition
) -> FetchedPartition:
    flexible = version >= FLEXIBLE_FROM
    if flexible:
        cursor.skip_tags()
    cursor.int32()  # throttle time
    if version >= SESSIONS_FROM:
        _raise_for(cursor.int16(), tip)
        cursor.int32()  # session id
    for _ in range(cursor.count(flexible) or 0):
        if version >= TOPIC_IDS_FROM:
            cursor.skip(_UUID_BYTES)
        else:
            cursor.skip_string(flexible)
        if cursor.count(flexible):
            return _partition(cursor, payload, version, tip)
        if flexible:
            cursor.skip_tags()
    raise ClusterError("Fetch was answered without the partition")


def _partition(
    cursor: Cursor, payload: memoryview, version: int, tip: TopicIdPartition
) -> FetchedPartition:
    flexible = version >= FLEXIBLE_FROM
    cursor.int32()  # its number: no other was asked for
    error_code = cursor.int16()
    if error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
        _raise_for(error_code, tip)
    high_watermark, last_stable_offset = cursor.int64(), cursor.int64()
    log_start_offset = cursor.int64()
    aborted = []
    for _ in range(cursor.count(flexible) or 0):
        aborted.append((cursor.int64(), cursor.int64()))
        if flexible:
            cursor.skip_tags()
    if version >= _PREFERRED_REPLICA_FROM:
        cursor.int32()
    length = cursor.uvarint() - 1 if flexible else cursor.int32()
    start = cursor.skip(max(length, 0), "records")  # -1: null
    return FetchedPartition(
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        tuple(aborted),
        payload[start : cursor.pos],
    )


def _raise_for(error_code: int, tip: TopicIdPartition) -> None:
    if error_code != 0:
        raise ClusterError(f"Fetch of {tip}: error {error_code}", error_code)
