"""A state as the bytes of one object. Pure. docs/reference/archive-layout.md shows the format.

It is JSON of one version. Each topic, group, right and quota is one line, so that people can search
and compare states with line tools, and so that a writer makes the lines one by one. The line with
`read_at_ms` is the only one that differs between two readings of a cluster that did not change.

Partitions and offsets are rows of numbers, because there may be hundreds of thousands of them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from fetchproxy.cluster_state.state import (
    EPOCH_UNKNOWN,
    PRODUCER_ID_UNKNOWN,
    STATE_VERSION,
    AclState,
    ClusterState,
    GroupKind,
    GroupWithOffsets,
    MissingPart,
    NamedValues,
    OffsetOfGroup,
    PartitionState,
    QuotaState,
    TopicState,
)
from fetchproxy.errors import CorruptSegment
from fetchproxy.model import is_topic_name
from fetchproxy.segments.json_fields import (
    INT32_LIMIT,
    INT64_LIMIT,
    JsonFields,
    decode_document,
)
from fetchproxy.segments.object_keys import uuid_text

# Ten times what one cluster was tested with. A document of more is refused, when it is written and
# when it is read.
STATE_TOPICS_MAX = 100_000
STATE_PARTITIONS_MAX = 1_000_000
STATE_GROUPS_MAX = 100_000
STATE_GROUP_OFFSETS_MAX = 2_000_000
STATE_ENTRIES_MAX = 100_000  # of any other list
_TEXT_CHARS_MAX = 32_767  # a Kafka string of the old format; no name or value is longer
_SHOWN_CHARS_MAX = 80
_READ_AT = b'"read_at_ms"'
# At the beginning of a line, so it is in no text: the groups are the last field.
_GROUPS = b'\n"groups": ['
_NO_GROUPS = _GROUPS + b"]\n}\n"
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
T = TypeVar("T")


# --- writing --------------------------------------------------------------------------------------


def state_lines(state: ClusterState) -> Iterator[bytes]:
    """The document, line by line, so that a caller may pause between them."""
    yield b"{\n"
    yield _field("version", state.version)
    yield _field("cluster_id", state.cluster_id)
    yield _field("read_at_ms", state.read_at_ms)
    yield _field("producer_id_max", state.producer_id_max)
    yield _field("broker_configs", dict(state.broker_configs))
    yield from _list("scram_users", state.scram_users, str)
    yield from _list("missing", state.missing, _missing_fields)
    yield from _list("acls", state.acls, _acl_row)
    yield from _list("quotas", state.quotas, _quota_fields)
    yield from _list("topics", state.topics, _topic_fields)
    yield from _list("groups", state.groups, _group_fields, last=True)
    yield b"}\n"


def encode_state(state: ClusterState) -> bytes:
    """Raises CorruptSegment if `decode_state` would refuse the document for what it has too much
    of, or twice.
    """
    _check(state)
    return b"".join(state_lines(state))


def without_time(document: bytes) -> bytes:
    """`document` without the line that differs in each reading."""
    start = document.find(_READ_AT)
    end = document.find(b"\n", start)
    return document if start < 0 or end < 0 else document[:start] + document[end:]


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def _field(name: str, value: object) -> bytes:
    return _json(name) + b": " + _json(value) + b",\n"


def _list(
    name: str, values: Iterable[T], written: Callable[[T], object], *, last: bool = False
) -> Iterator[bytes]:
    yield _json(name) + b": ["
    for number, value in enumerate(values):
        yield (b",\n " if number else b"\n ") + _json(written(value))
    yield b"\n]\n" if last else b"\n],\n"


def _topic_fields(topic: TopicState) -> dict[str, object]:
    return {
        "name": topic.name,
        "topic_id": uuid_text(topic.topic_id),
        "replication_factor": topic.replication_factor,
        "partition_count": topic.partition_count,
        "configs": dict(topic.configs),
        "inherited": dict(topic.inherited),
        "partitions": [
            [one.partition, one.log_start_offset, one.log_end_offset, one.leader_epoch]
            for one in topic.partitions
        ],
    }


def _group_fields(group: GroupWithOffsets) -> dict[str, object]:
    by_topic: dict[str, list[list[object]]] = {}
    for one in group.offsets:
        row: list[object] = [one.partition, one.offset, one.leader_epoch]
        by_topic.setdefault(one.topic, []).append([*row, one.metadata] if one.metadata else row)
    return {"group_id": group.group_id, "kind": group.kind.value, "offsets": by_topic}


def _acl_row(acl: AclState) -> list[str]:
    return [
        acl.resource_type,
        acl.resource_name,
        acl.pattern_type,
        acl.principal,
        acl.host,
        acl.operation,
        acl.permission_type,
    ]


def _quota_fields(quota: QuotaState) -> dict[str, object]:
    return {"entity": dict(quota.entity), "key": quota.key, "value": quota.value}


def _missing_fields(missing: MissingPart) -> dict[str, object]:
    return {"what": missing.what, "why": missing.why, "right": missing.right}


# --- reading --------------------------------------------------------------------------------------


def decode_state(raw: bytes, key: str) -> ClusterState:
    """Raises CorruptSegment, naming `key` and the field; NewerMetadataVersion."""
    return decode_document(raw, key, STATE_VERSION, _state)


def decode_without_groups(raw: bytes, key: str) -> ClusterState:
    """As `decode_state`, without the groups, which are the most of a document: a million offsets
    take 7 s and 100 MiB, and change every minute.
    """
    groups_at = raw.find(_GROUPS)
    return decode_state(raw if groups_at < 0 else raw[:groups_at] + _NO_GROUPS, key)


def _check(state: ClusterState) -> None:
    """Raises CorruptSegment."""
    topics, groups = state.topics, state.groups
    _at_most("topics", len(topics), STATE_TOPICS_MAX)
    _at_most("groups", len(groups), STATE_GROUPS_MAX)
    _at_most("partitions", sum(len(topic.partitions) for topic in topics), STATE_PARTITIONS_MAX)
    _at_most("offsets", sum(len(group.offsets) for group in groups), STATE_GROUP_OFFSETS_MAX)
    for name in ("acls", "quotas", "scram_users", "broker_configs", "missing"):
        _at_most(name, len(getattr(state, name)), STATE_ENTRIES_MAX)
    _once("topics", [topic.name for topic in topics])
    _once("groups", [group.group_id for group in groups])


def _state(fields: JsonFields) -> ClusterState:
    topics = tuple(_each(fields, "topics", STATE_TOPICS_MAX, _topic))
    groups = tuple(_each(fields, "groups", STATE_GROUPS_MAX, _group))
    users = fields.texts("scram_users")
    state = ClusterState(
        _text(fields, "cluster_id"),
        fields.integer("read_at_ms", 0, INT64_LIMIT),
        topics,
        groups,
        tuple(_acls(fields)),
        tuple(_each(fields, "quotas", STATE_ENTRIES_MAX, _quota)),
        tuple(_legal_text("scram_users", user) for user in users),
        _named_values(fields, "broker_configs"),
        fields.integer("producer_id_max", PRODUCER_ID_UNKNOWN, INT64_LIMIT),
        tuple(_each(fields, "missing", STATE_ENTRIES_MAX, _missing)),
        fields.integer("version", 1, STATE_VERSION + 1),
    )
    _check(state)
    return state


def _each(
    fields: JsonFields, name: str, number_max: int, read: Callable[[JsonFields], T]
) -> Iterator[T]:
    entries = fields.objects(name)
    _at_most(name, len(entries), number_max)
    for number, entry in enumerate(entries):
        try:
            yield read(entry)
        except CorruptSegment as error:
            raise type(error)(f"{name}[{number}]: {error}") from None


def _topic(fields: JsonFields) -> TopicState:
    name = _topic_name(fields.text("name"))
    count = fields.integer("partition_count", 0, STATE_PARTITIONS_MAX + 1)
    rows = [
        PartitionState(*_row("partitions", row, (0, 0, 0, EPOCH_UNKNOWN)))
        for row in fields.lists("partitions")
    ]
    for one in rows:
        if one.partition >= count or one.log_start_offset > one.log_end_offset:
            raise CorruptSegment(
                f"field partitions: {name}-{one.partition} from {one.log_start_offset} to "
                f"{one.log_end_offset} is not a partition of {count} with a start below its end"
            )
    _once("partitions", [one.partition for one in rows])
    return TopicState(
        name,
        fields.uuid("topic_id"),
        fields.integer("replication_factor", -1, 2**15),
        count,
        _named_values(fields, "configs"),
        _named_values(fields, "inherited"),
        tuple(rows),
    )


def _group(fields: JsonFields) -> GroupWithOffsets:
    kind = fields.text("kind")
    if kind not in list(GroupKind):
        raise CorruptSegment(f"field kind: {kind[:_SHOWN_CHARS_MAX]!r} is no kind of group")
    by_topic = JsonFields(fields.mapping("offsets"))
    offsets: list[OffsetOfGroup] = []
    for topic in by_topic.names():
        _topic_name(topic)
        for row in by_topic.lists(topic):
            numbers, metadata = (row[:3], row[3]) if len(row) == 4 else (row, "")
            number, offset, epoch = _row(topic, numbers, (0, 0, EPOCH_UNKNOWN))
            metadata = _legal_text("metadata", metadata)
            offsets.append(OffsetOfGroup(topic, number, offset, epoch, metadata))
    _once("offsets", [(one.topic, one.partition) for one in offsets])
    return GroupWithOffsets(_text(fields, "group_id"), GroupKind(kind), tuple(offsets))


def _acls(fields: JsonFields) -> Iterator[AclState]:
    rows = fields.lists("acls")
    _at_most("acls", len(rows), STATE_ENTRIES_MAX)
    for row in rows:
        if len(row) != 7:
            raise CorruptSegment("field acls has a row without the seven texts of an ACL")
        yield AclState(*(_legal_text("acls", value) for value in row))


def _quota(fields: JsonFields) -> QuotaState:
    entity = sorted(fields.mapping("entity").items())
    for kind, name in entity:
        _legal_text("entity", kind)
        if name is not None:
            _legal_text("entity", name)
    value = fields.number("value")
    if not math.isfinite(value):
        raise CorruptSegment("field value is not a finite number")
    return QuotaState(tuple(entity), _text(fields, "key"), value)


def _missing(fields: JsonFields) -> MissingPart:
    return MissingPart(_text(fields, "what"), _text(fields, "why"), _text(fields, "right"))


def _named_values(fields: JsonFields, name: str) -> NamedValues:
    pairs = sorted(fields.mapping(name).items())
    _at_most(name, len(pairs), STATE_ENTRIES_MAX)
    return tuple((_legal_text(name, key), _legal_text(name, value)) for key, value in pairs)


def _text(fields: JsonFields, name: str) -> str:
    return _legal_text(name, fields.text(name))


def _legal_text(name: str, value: Any) -> str:
    if not isinstance(value, str) or len(value) > _TEXT_CHARS_MAX:
        raise CorruptSegment(f"field {name} is not text of at most {_TEXT_CHARS_MAX} characters")
    if _LONE_SURROGATE.search(value):  # JSON can have one, and no request to a broker can
        raise CorruptSegment(f"field {name} has half a character")
    return value


def _topic_name(text: str) -> str:
    if not is_topic_name(text):
        raise CorruptSegment(f"{text[:_SHOWN_CHARS_MAX]!r} is not a topic name")
    return text


def _row(name: str, row: list[Any], lows: tuple[int, ...]) -> list[int]:
    """A partition, offsets, and a leader epoch, from `lows` on."""
    limits = (INT32_LIMIT, *[INT64_LIMIT] * (len(lows) - 2), INT32_LIMIT)
    if len(row) != len(lows) or not all(
        type(value) is int and low <= value < limit
        for value, low, limit in zip(row, lows, limits, strict=True)
    ):
        raise CorruptSegment(
            f"field {name} has {str(row)[:_SHOWN_CHARS_MAX]}, not a partition, "
            f"{'an offset' if len(lows) == 3 else 'two offsets'} and a leader epoch"
        )
    return row


def _at_most(name: str, number: int, number_max: int) -> None:
    if number > number_max:
        raise CorruptSegment(f"field {name} has {number} entries, it can have {number_max} at most")


def _once(name: str, values: list[Any]) -> None:
    if len(set(values)) != len(values):
        raise CorruptSegment(f"field {name} names one of its entries twice")
