"""What admin clients ask of a cluster and an archive does not have, or cannot do.

A client takes an API that is not advertised for one that the broker is too old for: MirrorMaker 2
then waits a minute for each record, and consoles hide a page. So these APIs are advertised. A
question gets the true answer in Kafka's own words: no quotas, no reassignments, no producers, no
transactions, one log dir with the archive's sizes; for ACLs see `kept_acls`. A change gets
POLICY_VIOLATION with the reason, if there is room for it.

Two errors are others, as clients retry POLICY_VIOLATION there: InitProducerId gets
CLUSTER_AUTHORIZATION_FAILED, and FindCoordinator for a transaction
TRANSACTIONAL_ID_AUTHORIZATION_FAILED. With these two errors every client's producer fails at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import MessageFields, elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.errors import RemoteStorageError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.cooperative import cooperative
from fetchproxy.serving.archive_only.apis.kept_acls import NO_ACLS
from fetchproxy.serving.archive_only.apis.lookups import LOOKUP_TOPICS_AT_ONCE
from fetchproxy.serving.archive_only.handling import (
    NODE_ID,
    READ_ONLY,
    ArchiveOnlyParts,
    Request,
    ServedApi,
)

_Handler = Callable[[ArchiveOnlyParts, Request], Awaitable[Sequence[Buffer]]]

_REFUSAL = {"error_code": ErrorCode.POLICY_VIOLATION, "error_message": READ_ONLY}
_SECURITY_DISABLED = {"error_code": ErrorCode.SECURITY_DISABLED, "error_message": NO_ACLS}
_TOPIC, _BROKER = 2, 4  # ConfigResource.Type
# The name of the one log dir. The store's URL is not shown to clients.
_LOG_DIR = "archive"
# Bytes that one partition takes while a response with it is made.
_LOG_DIR_WORK = 800


def _each(
    request_field: str, responded: str, *copied_fields: str, refusal: Mapping[str, Any] = _REFUSAL
) -> _Handler:
    """Refuses each element of the array `request_field`; `kept`: its fields in the response."""

    async def refuse(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
        requested = elements((await request.read())[request_field])
        results = [{**refusal, **{name: one[name] for name in copied_fields}} for one in requested]
        return await request.respond({responded: results})

    return refuse


def _always(**response: Any) -> _Handler:
    """The same response to everybody."""

    async def respond(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
        return await request.respond(response)

    return respond


async def _delete_topics(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    fields = await request.read()
    topics = [_REFUSAL | topic for topic in elements(fields["topics"])]
    topics += [_REFUSAL | {"name": name} for name in elements(fields["topic_names"])]
    return await request.respond({"responses": topics})


async def _delete_records(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    refusal = {"error_code": ErrorCode.POLICY_VIOLATION, "low_watermark": -1}
    topics = [
        {
            "name": topic["name"],
            "partitions": [
                refusal | {"partition_index": partition["partition_index"]}
                for partition in elements(topic["partitions"])
            ],
        }
        for topic in elements((await request.read())["topics"])
    ]
    return await request.respond({"topics": topics})


async def _alter_scram_credentials(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    fields = await request.read()
    names = {
        one["name"] for one in (*elements(fields["deletions"]), *elements(fields["upsertions"]))
    }
    return await request.respond({"results": [_REFUSAL | {"user": name} for name in sorted(names)]})


async def _describe_scram_credentials(
    parts: ArchiveOnlyParts, request: Request
) -> Sequence[Buffer]:
    """Of all users: none. The users of an archive are in a file, and nobody else's business."""
    missing = {
        "error_code": ErrorCode.RESOURCE_NOT_FOUND,
        "error_message": "an archive has no users that clients can describe",
    }
    users = elements((await request.read())["users"])
    return await request.respond({"results": [missing | {"user": user["name"]} for user in users]})


async def _elect_leaders(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """The only node is every partition's preferred leader already."""
    catalogue = parts.archive.catalogue

    def result(topic: str, number: int) -> MessageFields:
        error = ErrorCode.ELECTION_NOT_NEEDED
        if not request.may_read(topic) or catalogue.partition(topic, number) is None:
            error = request.missing(topic)
        return {"partition_id": number, "error_code": error}

    results = [
        {
            "topic": topic["topic"],
            "partition_result": [result(topic["topic"], n) for n in elements(topic["partitions"])],
        }
        for topic in elements((await request.read())["topic_partitions"])
    ]
    return await request.respond({"replica_election_results": results})


async def _describe_producers(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    catalogue = parts.archive.catalogue

    def partition(topic: str, number: int) -> MessageFields:
        is_known = request.may_read(topic) and catalogue.partition(topic, number) is not None
        error = ErrorCode.NONE if is_known else request.missing(topic)
        return {"partition_index": number, "error_code": error}

    topics = [
        {
            "name": topic["name"],
            "partitions": [
                partition(topic["name"], number) for number in elements(topic["partition_indexes"])
            ],
        }
        for topic in elements((await request.read())["topics"])
    ]
    return await request.respond({"topics": topics})


async def _describe_transactions(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    missing = {"error_code": ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, "producer_id": -1}
    ids = elements((await request.read())["transactional_ids"])
    return await request.respond(
        {"transaction_states": [missing | {"transactional_id": i} for i in ids]}
    )


async def _list_config_resources(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    types = set(elements((await request.read()).get("resource_types")))
    if request.version == 0:
        return await request.respond({"config_resources": ()})  # client metrics only
    config_resources = [{"resource_name": str(NODE_ID), "resource_type": _BROKER}]
    async for name in cooperative(parts.archive.catalogue.by_name):
        if request.may_read(name):
            config_resources.append({"resource_name": name, "resource_type": _TOPIC})
    resources = [
        resource for resource in config_resources if not types or resource["resource_type"] in types
    ]
    return await request.respond({"config_resources": resources})


async def _describe_log_dirs(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """The bytes of each partition's archived log, as `kafka-log-dirs` and exporters ask for them.

    A partition that the store has not shown yet is left out, as one that a broker does not have.
    """
    named, by_name = (await request.read())["topics"], parts.archive.catalogue.by_name
    if named is None:
        partitions_of = {name: range(topic.partition_count) for name, topic in by_name.items()}
    else:
        partitions_of = {topic["topic"]: topic["partitions"] for topic in named}
    tps: list[TopicIdPartition] = []
    async for name, numbers in cooperative(partitions_of.items(), LOOKUP_TOPICS_AT_ONCE):
        topic = by_name.get(name) if request.may_read(name) else None
        topic_tps = (topic.partition(number) for number in numbers) if topic is not None else ()
        tps += [tp for tp in topic_tps if tp is not None]
    async with parts.place_for(request, _LOG_DIR_WORK * len(tps)):
        return await request.respond({"results": [await _log_dir(parts, tps)]})


async def _log_dir(parts: ArchiveOnlyParts, tps: Sequence[TopicIdPartition]) -> dict[str, Any]:
    topics: dict[str, list[MessageFields]] = {}
    views = await parts.archive.views(tps)
    async for tp, view in cooperative(views.items()):
        if not isinstance(view, RemoteStorageError):
            size = {"partition_index": tp.partition, "partition_size": _size_bytes(view)}
            topics.setdefault(tp.topic, []).append(size)
    log_dir_topics = [
        {"name": name, "partitions": partitions} for name, partitions in topics.items()
    ]
    return {"log_dir": _LOG_DIR, "topics": log_dir_topics}


def _size_bytes(view: PartitionView) -> int:
    return view.segments.size_bytes


# The versions are Kafka's own, of 2.8 to 4.4.
APIS = (
    ServedApi(
        ApiKey.INIT_PRODUCER_ID,
        0,
        5,
        _always(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, producer_epoch=-1),
    ),
    ServedApi(ApiKey.CREATE_TOPICS, 0, 7, _each("topics", "topics", "name")),
    ServedApi(ApiKey.DELETE_TOPICS, 0, 6, _delete_topics),
    ServedApi(ApiKey.DELETE_RECORDS, 0, 2, _delete_records),
    ServedApi(ApiKey.CREATE_PARTITIONS, 0, 3, _each("topics", "results", "name")),
    ServedApi(
        ApiKey.ALTER_CONFIGS,
        0,
        2,
        _each("resources", "responses", "resource_type", "resource_name"),
    ),
    ServedApi(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        0,
        1,
        _each("resources", "responses", "resource_type", "resource_name"),
    ),
    ServedApi(ApiKey.CREATE_ACLS, 0, 3, _each("creations", "results", refusal=_SECURITY_DISABLED)),
    ServedApi(
        ApiKey.DELETE_ACLS, 0, 3, _each("filters", "filter_results", refusal=_SECURITY_DISABLED)
    ),
    ServedApi(ApiKey.DESCRIBE_LOG_DIRS, 0, 4, _describe_log_dirs),
    ServedApi(ApiKey.ELECT_LEADERS, 0, 2, _elect_leaders),
    ServedApi(ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, 0, _always(**_REFUSAL, responses=())),
    ServedApi(ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, 0, _always(topics=())),
    ServedApi(ApiKey.DESCRIBE_CLIENT_QUOTAS, 0, 1, _always(entries=())),
    ServedApi(ApiKey.ALTER_CLIENT_QUOTAS, 0, 1, _each("entries", "entries", "entity")),
    ServedApi(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, 0, 0, _describe_scram_credentials),
    ServedApi(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, 0, 0, _alter_scram_credentials),
    ServedApi(ApiKey.UPDATE_FEATURES, 0, 1, _always(**_REFUSAL, results=())),
    ServedApi(ApiKey.DESCRIBE_PRODUCERS, 0, 0, _describe_producers),
    ServedApi(ApiKey.DESCRIBE_TRANSACTIONS, 0, 0, _describe_transactions),
    ServedApi(ApiKey.LIST_TRANSACTIONS, 0, 1, _always(transaction_states=())),
    ServedApi(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, _list_config_resources),
)
