"""OffsetCommit: answered when the offsets are in the file, if one is configured.

Members of a generation are checked (`groups`); a reader that assigns itself its partitions
commits without generation, as long as the group has no members.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import structlog
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import Fields, elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.observability.metrics import LIMITS_REACHED
from fetchproxy.serving.standalone.committed_offsets import CommittedOffset, OffsetKey, OffsetsFull
from fetchproxy.serving.standalone.groups import Membership
from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi

log = structlog.get_logger(__name__)


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = request.read()
    group = asked["group_id"]
    member = Membership(
        asked["member_id"], asked["group_instance_id"], asked["generation_id_or_member_epoch"]
    )
    refused = (
        parts.groups.check_commit(group, member)
        if request.may_join(group)
        else ErrorCode.GROUP_AUTHORIZATION_FAILED
    )
    changes: dict[OffsetKey, CommittedOffset | None] = {}
    errors: dict[OffsetKey, ErrorCode] = {}
    for topic in elements(asked["topics"]):
        for partition in elements(topic["partitions"]):
            key = OffsetKey(group, topic["name"], partition["partition_index"])
            error, committed = _committed(parts, request, key, partition)
            errors[key] = error if refused is ErrorCode.NONE else refused
            if errors[key] is ErrorCode.NONE:
                changes[key] = committed
    failed = await _commit(parts, changes)
    if failed is not ErrorCode.NONE:
        errors |= dict.fromkeys(changes, failed)
    return request.respond({"topics": _by_topic(errors)})


def _committed(
    parts: ArchiveOnlyParts, request: Request, key: OffsetKey, asked: Fields
) -> tuple[ErrorCode, CommittedOffset | None]:
    if not request.may_read(key.topic):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED, None
    topic = parts.archive.catalogue.by_name.get(key.topic)
    metadata = asked["committed_metadata"]
    if topic is None or topic.partition(key.partition) is None:
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None
    if len((metadata or "").encode()) > parts.limits.offset_metadata_bytes_max:
        return ErrorCode.OFFSET_METADATA_TOO_LARGE, None
    committed = CommittedOffset(
        topic.topic_id, asked["committed_offset"], asked["committed_leader_epoch"], metadata
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
        log.error("offsets_not_written", error=str(error))
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # retriable: the disk may have room again
    return ErrorCode.NONE


def _by_topic(errors: dict[OffsetKey, ErrorCode]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for key, error in errors.items():
        entry = {"partition_index": key.partition, "error_code": error}
        topics.setdefault(key.topic, []).append(entry)
    return [{"name": name, "partitions": partitions} for name, partitions in topics.items()]


OFFSET_COMMIT = ServedApi(ApiKey.OFFSET_COMMIT, 2, 9, answer)
