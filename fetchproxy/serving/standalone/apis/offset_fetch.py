"""OffsetFetch: how far groups have read. Without a commit it is offset -1, and no error.

A commit belongs to the incarnation of the topic that its name meant then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import Fields, elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.committed_offsets import CommittedOffset
from fetchproxy.serving.standalone.handling import ArchiveOnlyParts, Request, ServedApi

_MANY_GROUPS_FROM = 8
_ALL_TOPICS_FROM = 2
_ERROR_OF_GROUP_FROM = 2  # before: of each partition


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    asked = request.read()
    if request.version < _MANY_GROUPS_FROM:
        topics = asked["topics"] if request.version >= _ALL_TOPICS_FROM else asked["topics"] or []
        return request.respond(_fetch(parts, request, asked["group_id"], topics))
    wanted = {one["group_id"]: one["topics"] for one in elements(asked["groups"])}
    groups = [
        {"group_id": group_id} | _fetch(parts, request, group_id, topics)
        for group_id, topics in wanted.items()
    ]
    return request.respond({"groups": groups})


def _fetch(
    parts: ArchiveOnlyParts, request: Request, group: str, topics: Sequence[Fields] | None
) -> dict[str, Any]:
    """`topics` is None for all that the group has committed."""
    if not request.may_join(group):
        error = ErrorCode.GROUP_AUTHORIZATION_FAILED
        asked = topics if request.version < _ERROR_OF_GROUP_FROM else ()
        refused = {t["name"]: list(elements(t["partition_indexes"])) for t in asked or ()}
        return {"error_code": error, "topics": _refused(refused, error)}
    by_name: dict[str, list[int]] = {}
    if topics is None:
        for key, committed in parts.offsets.of_group(group):
            if not request.may_read(key.topic):
                continue
            if _current(parts, key.topic, committed) is not None:
                by_name.setdefault(key.topic, []).append(key.partition)
    else:
        by_name = {t["name"]: list(elements(t["partition_indexes"])) for t in topics}
    hidden = {n: by_name.pop(n) for n in list(by_name) if not request.may_read(n)}
    found = [
        {"name": name, "partitions": [_partition(parts, group, name, p) for p in numbers]}
        for name, numbers in by_name.items()
    ]
    return {"topics": found + _refused(hidden, ErrorCode.TOPIC_AUTHORIZATION_FAILED)}


def _refused(by_name: Mapping[str, list[int]], error: ErrorCode) -> list[dict[str, Any]]:
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
        "committed_leader_epoch": committed.leader_epoch,
        "metadata": committed.metadata or "",
    }


def _current(
    parts: ArchiveOnlyParts, name: str, committed: CommittedOffset | None
) -> CommittedOffset | None:
    topic = parts.archive.catalogue.by_name.get(name)
    if committed is None or topic is None or topic.topic_id != committed.topic_id:
        return None
    return committed


OFFSET_FETCH = ServedApi(ApiKey.OFFSET_FETCH, 1, 9, answer)
