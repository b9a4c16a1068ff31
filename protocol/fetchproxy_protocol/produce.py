"""Produce: `acks` of a request, as one with acks=0 has no answer, and the addresses in an answer.

NodeEndpoints are a tagged field of the whole answer from v10 on (KIP-951). Records are not read.
"""

from __future__ import annotations

from fetchproxy_protocol.addresses import (
    AnswerAddresses,
    Lookup,
    Place,
    splice_node_endpoints_tag,
    tagged_node_endpoints,
)
from fetchproxy_protocol.apis import ApiKey, Truncated, is_flexible
from fetchproxy_protocol.headers import response_body
from fetchproxy_protocol.primitives import Buffer, Cursor

ENDPOINTS_FROM = 10
_TRANSACTIONAL_ID_FROM = 3

# Null or empty record errors, null message, no tags: how a partition without an error ends.
_QUIET_PARTITION = frozenset((b"\x00\x00\x00", b"\x01\x00\x00"))


def acks_of(buf: Buffer, body_pos: int, api_version: int, end: int | None = None) -> int | None:
    """acks (0, 1 or -1) of a request whose body begins at `body_pos`; None: more bytes needed.
    Raises `MalformedMessage` for a transactional id with an impossible length.
    """
    cursor = Cursor(buf, body_pos, end)
    try:
        if api_version >= _TRANSACTIONAL_ID_FROM:
            cursor.skip_string(is_flexible(ApiKey.PRODUCE, api_version))
        return cursor.int16()
    except Truncated:
        return None


def _behind_single_quiet_partition(buf: Buffer, pos: int, version: int) -> int:
    """Most Produce answers: one topic, one partition, no error. 0 for any other.

    Every byte that has to be a length is looked at, so what passes here is not guessed.
    """
    try:
        if buf[pos] != 2:
            return 0
        name = buf[pos + 1]
        partitions = pos + (17 if version >= 13 else 1 + name)
        if version < 13 and not 0 < name < 0x80:
            return 0
        ends = partitions + 31
        quiet = buf[partitions] == 2 and bytes(buf[ends : ends + 3]) in _QUIET_PARTITION
        # Behind the partition: the topic's tags (none) and the throttle time.
        return ends + 4 if quiet and buf[ends + 3] == 0 and len(buf) >= ends + 8 else 0
    except IndexError:
        return 0


def _tags_position(cursor: Cursor, version: int) -> int:
    buf = cursor.buf
    single = _behind_single_quiet_partition(buf, cursor.pos, version)
    if single:
        return single + 4
    for _ in range(cursor.count(flexible=True) or 0):
        if version >= 13:
            cursor.skip(16, "topic id")
        else:
            cursor.skip_string(flexible=True)
        for _ in range(cursor.count(flexible=True) or 0):
            pos = cursor.skip(30, "partition result") + 30
            if bytes(buf[pos : pos + 3]) in _QUIET_PARTITION:
                cursor.pos = pos + 3
                continue
            for _ in range(cursor.count(flexible=True) or 0):
                cursor.skip(4, "batch index")
                cursor.skip_string(flexible=True)
                cursor.skip_tags()
            cursor.skip_string(flexible=True)
            cursor.skip_tags()
        cursor.skip_tags()
    cursor.skip(4, "throttle time")
    return cursor.pos


def _node_endpoints(cursor: Cursor, version: int) -> list[Place]:
    return tagged_node_endpoints(Cursor(cursor.buf, _tags_position(cursor, version)))


class _TaggedAddresses(AnswerAddresses):
    """They are in the last tagged-field section, whose size is told before them."""

    def splice(self, payload: Buffer, api_version: int, lookup: Lookup) -> bytes:
        tags = _tags_position(response_body(payload, ApiKey.PRODUCE, api_version), api_version)
        view = memoryview(payload)
        return b"".join((view[:tags], splice_node_endpoints_tag(view[tags:], lookup)))


# Answers from ENDPOINTS_FROM on; those before have none.
ADDRESSES = _TaggedAddresses(ApiKey.PRODUCE, _node_endpoints)
