"""Metadata answers: which topic has which id. Brokers are `protocol.addresses`'s business.

The walk only has to get past each topic's partitions, and does so without reading them: a
relayed answer may list thousands, and it is walked for every client.
"""

from __future__ import annotations

from typing import NamedTuple
from uuid import UUID

from protocol.apis import ApiKey, is_flexible
from protocol.headers import response_body
from protocol.primitives import Buffer, Cursor

TOPIC_ID_FROM = 10
_ZERO_ID = bytes(16)


class TopicEntry(NamedTuple):
    """A topic as an answer names it.

    `topic_id` is None before v10 and where the broker has none (it then sends zeros); `name` is
    None for an id that the broker does not know (v12 and newer).
    """

    topic_id: UUID | None
    name: str | None
    error_code: int


def topics_in(payload: Buffer, api_version: int) -> list[TopicEntry]:
    """The topics of a Metadata answer without its size prefix, in order. Raises `WireError`."""
    cursor = response_body(payload, ApiKey.METADATA, api_version)
    flexible = is_flexible(ApiKey.METADATA, api_version)
    _skip_to_topics(cursor, api_version, flexible)
    return [_topic(cursor, api_version, flexible) for _ in range(cursor.count(flexible) or 0)]


def _skip_to_topics(cursor: Cursor, version: int, flexible: bool) -> None:
    if version >= 3:
        cursor.skip(4, "throttle time")
    for _ in range(cursor.count(flexible) or 0):
        cursor.skip(4, "node id")
        cursor.skip_string(flexible)
        cursor.skip(4, "port")
        if version >= 1:
            cursor.skip_string(flexible)
        if flexible:
            cursor.skip_tags()
    if version >= 2:
        cursor.skip_string(flexible)
    if version >= 1:
        cursor.skip(4, "controller id")


def _topic(cursor: Cursor, version: int, flexible: bool) -> TopicEntry:
    error_code = cursor.int16()
    name = cursor.nullable_string(flexible)
    topic_id = None
    if version >= TOPIC_ID_FROM:
        start = cursor.skip(16, "topic id")
        raw = bytes(cursor.buf[start : start + 16])
        topic_id = None if raw == _ZERO_ID else UUID(bytes=raw)
    if version >= 1:
        cursor.skip(1, "is internal")
    partitions = cursor.count(flexible) or 0
    if flexible:
        _skip_flexible_partitions(cursor, partitions)
    else:
        _skip_classic_partitions(cursor, version, partitions)
    if version >= 8:
        cursor.skip(4, "authorized operations")
    if flexible:
        cursor.skip_tags()
    return TopicEntry(topic_id, name, error_code)


def _skip_classic_partitions(cursor: Cursor, version: int, count: int) -> None:
    fixed = 14 if version >= 7 else 10
    lists = 3 if version >= 5 else 2
    for _ in range(count):
        cursor.skip(fixed, "partition")
        for _ in range(lists):
            cursor.skip(4 * (cursor.count(flexible=False) or 0), "replicas")


def _alike_partitions_end(buf: Buffer, pos: int, count: int) -> int:
    """The position behind `count` partitions that all have the first one's layout, else 0.

    Nearly every topic is so (same replication factor, nobody offline). Each length byte is
    compared, all those of one kind by one strided slice.
    """
    try:
        isr_at = pos + 11 + 4 * buf[pos + 14]
        offline_at = isr_at + 4 * buf[isr_at] - 3
        tags_at = offline_at + 4 * buf[offline_at] - 3
        stride = tags_at + 1 - pos
        end = pos + count * stride
        for at in (pos + 14, isr_at, offline_at, tags_at):
            length = buf[at]
            # 0 is the null list, from 128 on a length takes two bytes; tags are none or refused.
            if (at == tags_at) != (length == 0) or length > 0x7F:
                return 0
            if bytes(buf[at:end:stride]) != bytes((length,)) * count:
                return 0
    except IndexError:
        return 0
    return end


def _skip_flexible_partitions(cursor: Cursor, count: int) -> None:
    """v9 and newer."""
    alike = _alike_partitions_end(cursor.buf, cursor.pos, count)
    if alike:
        cursor.pos = alike
        return
    for _ in range(count):
        cursor.skip(14, "partition")
        for _ in range(3):
            cursor.skip(4 * (cursor.count(flexible=True) or 0), "replicas")
        cursor.skip_tags()
