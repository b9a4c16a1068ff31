"""Metadata for the proxy's own use: the request's body, and a response.

A response may name 10,000 partitions, so both are processed step by step, and the caller may let
other tasks run between steps. Responses to clients are not read here: see `addresses`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from struct import Struct, calcsize
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


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """`topic_id` is the zero UUID on brokers before 2.8. Leader -1: no leader at the moment.

    `renamed_from`: the id that brokers know, if the caller has replaced it by another one.
    """

    topic_id: UUID
    name: str
    is_internal: bool
    leaders: Mapping[int, tuple[int, int]]  # partition -> (leader node id or -1, leader epoch)
    renamed_from: UUID | None = None

    @property
    def id_at_brokers(self) -> UUID:
        return self.renamed_from or self.topic_id


@dataclass(slots=True)
class ClusterMetadata:
    """`failed`: the refused topics of the request, by name or by id."""

    brokers: dict[int, tuple[str, int]] = field(default_factory=dict)  # by id: host, port
    topics: list[TopicInfo] = field(default_factory=list)
    failed: dict[str | UUID, int] = field(default_factory=dict)  # -> error code
    cluster_id: str | None = None

    def read(self, cursor: Cursor, api_version: int) -> Iterator[None]:
        """Read a response from its body on, v5 to v13, step by step. Raises `WireError`."""
        flexible = is_flexible(ApiKey.METADATA, api_version)
        cursor.skip(4, "throttle time")
        for _ in range(cursor.count(flexible) or 0):
            node_id, host, port = cursor.int32(), cursor.string(flexible), cursor.int32()
            if node_id >= 0:  # no broker has another id; negative ids mean "none"
                self.brokers[node_id] = host, port
            cursor.skip_string(flexible)  # rack
            cursor.skip_tags(flexible)
            yield
        self.cluster_id = cursor.nullable_string(flexible)
        cursor.skip(4, "controller id")
        for _ in range(cursor.count(flexible) or 0):
            error_code = cursor.int16()
            name = cursor.nullable_string(flexible)  # None: the id is unknown
            topic_id = cursor.uuid() if api_version >= _TOPIC_ID_FROM else _ZERO
            leaders: dict[int, tuple[int, int]] = {}
            topic = TopicInfo(topic_id, name or "", cursor.boolean(), leaders)
            for some_leaders in _leaders_in(cursor, api_version, flexible):
                leaders.update(some_leaders)
                yield
            if api_version >= _AUTHORIZED_OPERATIONS_FROM:
                cursor.skip(4, "authorized operations")
            cursor.skip_tags(flexible)
            if error_code:
                self.failed[topic_id if name is None else name] = error_code
            elif name is not None:
                self.topics.append(topic)
            yield


def write_request(api_version: int, topics: Sequence[str | UUID] | None) -> Iterator[bytes]:
    """A request's body, v5 to v13, in pieces. `topics` None: all topics. Ids need v12.

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


def _leaders_in(
    cursor: Cursor, api_version: int, flexible: bool
) -> Iterator[dict[int, tuple[int, int]]]:
    """(leader id, leader epoch) by partition, some partitions at a time. Reads one partition field
    by field, then in rows all that follow with equally many replicas of each kind.
    """
    entry_struct = _PARTITION_WITH_EPOCH if api_version >= _EPOCH_FROM else _PARTITION
    topics_left = cursor.count(flexible) or 0
    while topics_left:
        begin = cursor.pos
        lengths = _skip_partition(cursor, calcsize(entry_struct), flexible)
        row = Struct(f"{entry_struct}{cursor.pos - begin - calcsize(entry_struct)}x")
        cursor.pos = begin
        plain = 1
        while plain and topics_left:
            plain, rows = cursor.rows(row, min(topics_left, _LEADERS_AT_ONCE), lengths)
            # (error code, partition, leader[, epoch])
            yield {fields[1]: (fields[2:] + _NO_EPOCH)[:2] for fields in rows}
            topics_left -= plain


def _skip_partition(cursor: Cursor, fields_size: int, flexible: bool) -> dict[int, int]:
    """The bytes that determine the partition's length, by their place in the partition."""
    begin = cursor.skip(fields_size, "partition")
    lengths: dict[int, int] = {}

    def note(index: int) -> None:
        lengths.update({n - begin: cursor.buf[n] for n in range(index, cursor.pos)})

    for list_name in ("replicas", "in-sync replicas", "offline replicas"):
        position = cursor.pos
        count = cursor.count(flexible) or 0
        note(position)
        cursor.skip(4 * count, list_name)
    if flexible:
        position = cursor.pos
        cursor.skip_tags()
        note(position)
    return lengths
