"""The APIs of committed offsets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import structlog
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import MessageFields, elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.observability.metrics import LIMITS_REACHED
from fetchproxy.runtime.cooperative import cooperative
from fetchproxy.serving.archive_only.committed_offsets import (
    CommittedOffset,
    OffsetKey,
    OffsetsFull,
)
from fetchproxy.serving.archive_only.groups import Membership
from fetchproxy.serving.archive_only.handling import ArchiveOnlyParts, Request, ServedApi

log = structlog.get_logger(__name__)
_MANY_GROUPS_FROM = 8
# Bytes that one commit takes while a response with it is made.
_COMMIT_WORK = 300
_ALL_TOPICS_FROM = 2
_ERROR_OF_GROUP_FROM = 2  # before: for each partition


async def _offset_commit(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Answered when the offsets are in the file, if one is configured.

    Members of a generation are checked (`groups`). A reader that assigns itself partitions commits
    without a generation, as long as the group has no members.
    """
    fields = await request.read()
    group = fields["group_id"]
    member = Membership(
        fields["member_id"], fields["group_instance_id"], fields["generation_id_or_member_epoch"]
    )
    refused = ErrorCode.GROUP_AUTHORIZATION_FAILED
    if request.may_join(group):
        refused = parts.groups.check_commit(group, member)
    changes: dict[OffsetKey, CommittedOffset | None] = {}
    errors: dict[OffsetKey, ErrorCode] = {}
    async for name, partition in cooperative(_partitions(fields["topics"])):
        key = OffsetKey(group, name, partition["partition_index"])
        error, committed = _committed(parts, request, key, partition)
        errors[key] = error if refused is ErrorCode.NONE else refused
        if errors[key] is ErrorCode.NONE:
            changes[key] = committed
    failed = await _commit(parts, changes)
    if failed is not ErrorCode.NONE:
        errors |= dict.fromkeys(changes, failed)
    return await request.respond({"topics": await _by_topic(errors)})


def _partitions(topics: Sequence[MessageFields] | None) -> Iterator[tuple[str, MessageFields]]:
    for topic in elements(topics):
        for partition in elements(topic["partitions"]):
            yield topic["name"], partition


def _committed(
    parts: ArchiveOnlyParts, request: Request, key: OffsetKey, fields: MessageFields
) -> tuple[ErrorCode, CommittedOffset | None]:
    topic = parts.archive.catalogue.by_name.get(key.topic)
    metadata = fields["committed_metadata"]
    is_known = topic is not None and topic.partition(key.partition) is not None
    if topic is None or not (is_known and request.may_read(key.topic)):
        return request.missing(key.topic), None
    if len((metadata or "").encode()) > parts.limits.offset_metadata_bytes_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE, None
    committed = CommittedOffset(
        topic.topic_id, fields["committed_offset"], fields["committed_leader_epoch"], metadata
    )
    return ErrorCode.NONE, committed


async def _commit(
    parts: ArchiveOnlyParts, changes: dict[OffsetKey, CommittedOffset | None]
) -> ErrorCode:
    if not changes:
        return ErrorCode.NONE
    try:
        await parts.offsets.commit(changes)
    except OffsetsFull as limit:
        LIMITS_REACHED.labels(str(limit)).inc()
        return ErrorCode.INVALID_COMMIT_OFFSET_SIZE
    except OSError as error:
        log.error(
            "offsets_not_written",
            error=str(error),
            hint="free space on the disk of archive_only.offsets_file, or replace the disk",
        )
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # retriable: the disk may have room again
    return ErrorCode.NONE


async def _by_topic(errors: dict[OffsetKey, ErrorCode]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    async for key, error in cooperative(errors.items()):
        entry = {"partition_index": key.partition, "error_code": error}
        topics.setdefault(key.topic, []).append(entry)
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


async def _offset_fetch(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """How far groups have read. Without a commit the offset is -1, without an error.

    A commit belongs to the incarnation of the topic that had the name at that time.
    """
    fields = await request.read()
    if request.version < _MANY_GROUPS_FROM:
        topics = fields["topics"] if request.version >= _ALL_TOPICS_FROM else fields["topics"] or []
        if request.may_join(fields["group_id"]):
            request.names_group(fields["group_id"])
        async with parts.place_for(request, _work_bytes(parts, {fields["group_id"]: topics})):
            return await request.respond(await _fetch(parts, request, fields["group_id"], topics))
    topics_of = {element["group_id"]: element["topics"] for element in elements(fields["groups"])}
    if len(topics_of) == 1 and request.may_join(group_id := next(iter(topics_of))):
        request.names_group(group_id)
    async with parts.place_for(request, _work_bytes(parts, topics_of)):
        groups = [
            {"group_id": group_id} | await _fetch(parts, request, group_id, topics)
            for group_id, topics in topics_of.items()
        ]
        return await request.respond({"groups": groups})


def _work_bytes(
    parts: ArchiveOnlyParts, topics_of: Mapping[str, Sequence[MessageFields] | None]
) -> int:
    """A short request may ask for all that groups have committed."""
    groups = (group for group, topics in topics_of.items() if topics is None)
    return _COMMIT_WORK * sum(map(parts.offsets.count_of, groups))


async def _fetch(
    parts: ArchiveOnlyParts, request: Request, group: str, topics: Sequence[MessageFields] | None
) -> dict[str, Any]:
    """`topics` None: all topics that the group has committed."""
    if not request.may_join(group):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        named = topics if request.version < _ERROR_OF_GROUP_FROM else ()
        refused = {t["name"]: list(elements(t["partition_indexes"])) for t in named or ()}
        return {"error_code": error, "topics": _refusals(refused, error)}
    by_name: dict[str, list[int]] = {}
    if topics is None:
        async for key, committed in cooperative(list(parts.offsets.of_group(group))):
            if not request.may_read(key.topic):
                continue
            if _current(parts, key.topic, committed) is not None:
                by_name.setdefault(key.topic, []).append(key.partition)
    else:
        by_name = {t["name"]: list(elements(t["partition_indexes"])) for t in topics}
    hidden = {n: by_name.pop(n) for n in list(by_name) if not request.may_read(n)}
    partitions_by_topic: dict[str, list[dict[str, Any]]] = {name: [] for name in by_name}
    async for name, number in cooperative(
        (n, p) for n, numbers in by_name.items() for p in numbers
    ):
        partitions_by_topic[name].append(_partition(parts, group, name, number))
    readable = [
        {"name": name, "partitions": partitions} for name, partitions in partitions_by_topic.items()
    ]
    return {"topics": readable + _refusals(hidden, ErrorCode.TOPIC_AUTHORIZATION_FAILED)}


def _refusals(by_name: Mapping[str, list[int]], error: ErrorCode) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "partitions": [_nothing(p) | {"error_code": error} for p in numbers],
        }
        for name, numbers in by_name.items()
    ]


def _nothing(number: int) -> dict[str, Any]:
    return {"partition_index": number, "committed_offset": -1, "metadata": ""}


def _partition(parts: ArchiveOnlyParts, group: str, name: str, number: int) -> dict[str, Any]:
    committed = _current(parts, name, parts.offsets.get(group, name, number))
    if committed is None:
        return _nothing(number)
    return {
        "partition_index": number,
        "committed_offset": committed.offset,
        "committed_leader_epoch": _known_epoch(parts, name, number, committed.leader_epoch),
        "metadata": committed.metadata or "",
    }


def _known_epoch(parts: ArchiveOnlyParts, name: str, number: int, leader_epoch: int) -> int:
    """-1 for one above that of Metadata, with which a Java client would wait for ever: this node
    may not have read the segments from which another one has it.
    """
    tp = parts.archive.catalogue.partition(name, number)
    known = -1 if tp is None else parts.archive.leader_epoch(tp)
    return leader_epoch if known < 0 or leader_epoch <= known else -1


def _current(
    parts: ArchiveOnlyParts, name: str, committed: CommittedOffset | None
) -> CommittedOffset | None:
    topic = parts.archive.catalogue.by_name.get(name)
    if committed is None or topic is None or topic.topic_id != committed.topic_id:
        return None
    return committed


async def _offset_delete(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Forgets commits, as `kafka-consumer-groups --delete-offsets` asks.

    Kafka refuses it for topics that members still read. Here the whole request is refused if the
    group has members, because their subscriptions are not decoded.
    """
    fields = await request.read()
    group = fields["group_id"]
    error = ErrorCode.NONE
    if not request.may_join(group):
        refused = {"error_code": ErrorCode.GROUP_AUTHORIZATION_FAILED, "topics": ()}
        return await request.respond(refused)
    if group in parts.groups.by_id:
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    elif not parts.offsets.has_group(group):
        return await request.respond({"error_code": ErrorCode.GROUP_ID_NOT_FOUND, "topics": ()})
    keys = [
        OffsetKey(group, name, partition["partition_index"])
        async for name, partition in cooperative(_partitions(fields["topics"]))
    ]
    if error is ErrorCode.NONE:
        try:
            allowed = (key for key in keys if request.may_read(key.topic))
            await parts.offsets.commit(dict.fromkeys(allowed))
        except OSError:
            error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    topics = [
        {
            "name": key.topic,
            "partitions": [
                {
                    "partition_index": key.partition,
                    "error_code": error
                    if request.may_read(key.topic)
                    else ErrorCode.TOPIC_AUTHORIZATION_FAILED,
                }
            ],
        }
        for key in keys
    ]
    return await request.respond({"topics": topics})


APIS = (
    ServedApi(ApiKey.OFFSET_COMMIT, 2, 9, _offset_commit),
    ServedApi(ApiKey.OFFSET_FETCH, 1, 9, _offset_fetch),
    ServedApi(ApiKey.OFFSET_DELETE, 0, 0, _offset_delete),
)
