"""Metadata by whoever wants to know of topics: the request's body, and an answer entry by entry.

An answer may name 10,000 partitions, so both are made piece by piece, and who reads them may
let others run in between. What clients are answered is not read here: see `addresses`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from struct import Struct, calcsize
from typing import NamedTuple
from uuid import UUID

from fetchproxy_protocol.apis import ApiKey, is_flexible
from fetchproxy_protocol.primitives import Cursor, encode_count, encode_string

_TOPIC_ID_FROM = 10
_EPOCH_FROM = 7
_AUTHORIZED_OPERATIONS_FROM = 8
_CLUSTER_OPERATIONS_TO = 10
_PARTITION = ">hii"  # error code, partition, leader
_PARTITION_WITH_EPOCH = ">hiii"
_LEADERS_AT_ONCE = 100
_ZERO = UUID(int=0)
_NO_EPOCH = (-1,)


class BrokerEntry(NamedTuple):
    node_id: int
    host: str
    port: int
    rack: str | None


class ClusterEntry(NamedTuple):
    cluster_id: str | None


class TopicEntry(NamedTuple):
    """Its partitions follow. `topic_id` is zero before v10; `name` None where the id is unknown."""

    error_code: int
    name: str | None
    topic_id: UUID
    is_internal: bool


class LeaderEntries(NamedTuple):
    """Leader id and leader epoch of some partitions of the topic before it."""

    leaders: dict[int, tuple[int, int]]


Entry = BrokerEntry | ClusterEntry | TopicEntry | LeaderEntries


def write_request(api_version: int, topics: Sequence[str | UUID] | None) -> Iterator[bytes]:
    """A request's body, v5 to v13, in pieces; None for all topics, by id from v12 on.

    Creates no topic, and asks for no authorized operations.
    """
    flexible = is_flexible(ApiKey.METADATA, api_version)
    tags = b"\x00" if flexible else b""
    yield encode_count(None if topics is None else len(topics), flexible)
    for topic in topics or ():
        by_id = isinstance(topic, UUID)
        topic_id = topic.bytes if isinstance(topic, UUID) else _ZERO.bytes
        name = encode_string(None if by_id else str(topic), flexible)
        yield (topic_id if api_version >= _TOPIC_ID_FROM else b"") + name + tags
    operations = b""
    if api_version >= _AUTHORIZED_OPERATIONS_FROM:
        operations = b"\x00\x00" if api_version <= _CLUSTER_OPERATIONS_TO else b"\x00"
    yield b"\x00" + operations + tags


def entries_in(cursor: Cursor, api_version: int) -> Iterator[Entry]:
    """Of an answer from its body on, v5 to v13. Raises `WireError`."""
    flexible = is_flexible(ApiKey.METADATA, api_version)
    cursor.skip(4, "throttle time")
    for _ in range(cursor.count(flexible) or 0):
        node_id, host, port = cursor.int32(), cursor.string(flexible), cursor.int32()
        yield BrokerEntry(node_id, host, port, cursor.nullable_string(flexible))
        cursor.skip_tags(flexible)
    yield ClusterEntry(cursor.nullable_string(flexible))
    cursor.skip(4, "controller id")
    for _ in range(cursor.count(flexible) or 0):
        error_code = cursor.int16()
        name = cursor.nullable_string(flexible)
        topic_id = cursor.uuid() if api_version >= _TOPIC_ID_FROM else _ZERO
        yield TopicEntry(error_code, name, topic_id, cursor.boolean())
        yield from _leaders_in(cursor, api_version, flexible)
        if api_version >= _AUTHORIZED_OPERATIONS_FROM:
            cursor.skip(4, "authorized operations")
        cursor.skip_tags(flexible)


def _leaders_in(cursor: Cursor, api_version: int, flexible: bool) -> Iterator[LeaderEntries]:
    """One partition field by field, then as rows those that have as many replicas of each kind."""
    form = _PARTITION_WITH_EPOCH if api_version >= _EPOCH_FROM else _PARTITION
    left = cursor.count(flexible) or 0
    while left:
        begin = cursor.pos
        lengths = _skip_partition(cursor, calcsize(form), flexible)
        row = Struct(f"{form}{cursor.pos - begin - calcsize(form)}x")
        cursor.pos = begin
        plain = 1
        while plain and left:
            plain, rows = cursor.rows(row, min(left, _LEADERS_AT_ONCE), lengths)
            # (error code, partition, leader[, epoch])
            yield LeaderEntries({each[1]: (each[2:] + _NO_EPOCH)[:2] for each in rows})
            left -= plain


def _skip_partition(cursor: Cursor, fields_size: int, flexible: bool) -> dict[int, int]:
    """The bytes that make it as long as it is, by their place in it."""
    begin = cursor.skip(fields_size, "partition")
    lengths: dict[int, int] = {}

    def note(at: int) -> None:
        lengths.update({n - begin: cursor.buf[n] for n in range(at, cursor.pos)})

    for what in ("replicas", "in-sync replicas", "offline replicas"):
        at = cursor.pos
        count = cursor.count(flexible) or 0
        note(at)
        cursor.skip(4 * count, what)
    if flexible:
        at = cursor.pos
        cursor.skip_tags()
        note(at)
    return lengths
