"""DeleteRecords (v0–2): reads requests and finds each result in a response.

Results are patched in place: their fields have fixed widths, so a response keeps its length.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from fetchproxy_protocol.apis import ApiKey, is_flexible
from fetchproxy_protocol.headers import response_body
from fetchproxy_protocol.messages import ELEMENTS_MAX
from fetchproxy_protocol.primitives import Buffer, Cursor, TopicRows

HIGH_WATERMARK = -1  # as an offset: everything that consumers can read
INVALID_LOW_WATERMARK = -1  # comes with an error

_OFFSET_AND_ERROR = Struct(">qh")
_PATCHED_AT = 4


class DeletionResult(NamedTuple):
    """One partition's result; `position` is where the partition begins in the payload."""

    topic: str
    partition: int
    low_watermark: int
    error_code: int
    position: int


def partitions_in(cursor: Cursor, api_version: int) -> Iterator[tuple[tuple[str, int], int]]:
    """Topic, partition and the offset below which the request deletes, one by one.

    `cursor` stands at the request's body; `timeout_ms` (int32) follows. Raises `WireError`.
    """
    for topic in topics_in(cursor, api_version):
        for partition, offset in topic.rows:
            yield (topic.topic, partition), offset


def topics_in(cursor: Cursor, api_version: int) -> Iterator[TopicRows]:
    """As `partitions_in`, by topic and not yet unpacked. Raises `WireError`, also for
    ELEMENTS_MAX.
    """
    flexible = is_flexible(ApiKey.DELETE_RECORDS, api_version)
    return cursor.by_topic(">iq", flexible, ELEMENTS_MAX)


def parse_response(payload: Buffer, api_version: int) -> Iterator[DeletionResult]:
    """The results of a response without its size prefix, step by step. Raises `WireError`."""
    cursor = response_body(payload, ApiKey.DELETE_RECORDS, api_version)
    cursor.skip(4, "throttle time")
    for topic, rows, position, stride in cursor.by_topic(
        ">iqh", is_flexible(ApiKey.DELETE_RECORDS, api_version)
    ):
        for partition, low_watermark, error_code in rows:
            yield DeletionResult(topic, partition, low_watermark, error_code, position)
            position += stride


def patch(payload: bytearray | memoryview, result: DeletionResult) -> None:
    position = result.position + _PATCHED_AT
    _OFFSET_AND_ERROR.pack_into(payload, position, result.low_watermark, result.error_code)
