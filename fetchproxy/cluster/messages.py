"""The requests that fetchproxy itself sends, through kafka-python's message classes. No I/O.

Used off the data path only; the answer to a Fetch is read by `fetched_partition`. Each function
names the versions it was written for; `VERSIONS` is the one table of them.
"""

from __future__ import annotations

import struct
from typing import Any, Protocol

from kafka.protocol.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse

from fetchproxy.cluster.answers import TopicInfo
from fetchproxy.errors import ClusterError
from fetchproxy.model import IsolationLevel
from protocol.errors import WireError
from protocol.primitives import Cursor

PRODUCE = 0
FETCH = 1
LIST_OFFSETS = 2
METADATA = 3
FIND_COORDINATOR = 10
JOIN_GROUP = 11
HEARTBEAT = 12
LEAVE_GROUP = 13
SYNC_GROUP = 14
SASL_HANDSHAKE = 17
API_VERSIONS = 18
DELETE_RECORDS = 21
OFFSET_FOR_LEADER_EPOCH = 23
CREATE_TOPICS = 19
DESCRIBE_ACLS = 29
DESCRIBE_CONFIGS = 32
SASL_AUTHENTICATE = 36

# (lowest, highest) version spoken. Below: no isolation level, no log start, no leader epochs.
VERSIONS: dict[int, tuple[int, int]] = {
    PRODUCE: (3, 13),
    FETCH: (5, 17),
    LIST_OFFSETS: (2, 10),
    METADATA: (5, 13),
    DELETE_RECORDS: (1, 2),
    OFFSET_FOR_LEADER_EPOCH: (2, 4),  # before: any replica's word, and without its epoch
    CREATE_TOPICS: (2, 7),
    FIND_COORDINATOR: (2, 6),
    JOIN_GROUP: (5, 9),  # before: no static members; so for the next three
    HEARTBEAT: (3, 4),
    LEAVE_GROUP: (3, 5),
    SYNC_GROUP: (3, 5),
    DESCRIBE_ACLS: (1, 3),  # before: no patterns of names
    DESCRIBE_CONFIGS: (1, 4),
    SASL_HANDSHAKE: (1, 1),  # after version 0 bare tokens follow
    SASL_AUTHENTICATE: (0, 2),
}

FETCH_BY_TOPIC_ID_VERSION = 13
METADATA_BY_TOPIC_ID_VERSION = 12
LIST_OFFSETS_LOCAL_VERSION = 8

LATEST = -1
EARLIEST = -2
EARLIEST_LOCAL = -4

_CONSUMER = -1  # replica_id
_NO_SESSION = -1  # session_epoch of a full fetch outside any session (KIP-227)
_TOPIC_RESOURCE = 2  # DescribeConfigs


class Request(Protocol):
    """The part of kafka-python's request classes that a connection needs."""

    API_KEY: int
    API_VERSION: int

    def with_header(self, correlation_id: int, client_id: str) -> None: ...
    def encode(self, *, header: bool, framed: bool) -> bytes: ...


def versioned(request: Any, version: int) -> Request:
    """One of kafka-python's requests, to be encoded in this version."""
    # `Any`: kafka-python makes its message classes at import time, without types for mypy.
    request.API_VERSION = version
    return request  # type: ignore[no-any-return]


def body_of(response: Any, payload: memoryview, version: int) -> Any:
    """Decode what follows the correlation id. (kafka-python's own header reader copies it all.)"""
    cursor = Cursor(payload)
    try:
        if response.flexible_version_q(version) and response is not ApiVersionsResponse:
            cursor.skip_tags()
        return response.decode(payload[cursor.pos :], version=version)
    except (WireError, struct.error, ValueError, IndexError, KeyError) as error:
        raise ClusterError(f"{response.__name__} version {version} is malformed: {error}") from None


def api_versions_request(version: int, software_version: str) -> Request:
    """Version 0 or 3; from 3 on the broker's metrics know who we are (KIP-511)."""
    named = {"client_software_name": "fetchproxy", "client_software_version": software_version}
    return versioned(ApiVersionsRequest(**named if version >= 3 else {}), version)


def decode_api_versions(
    payload: memoryview, version: int
) -> tuple[int, dict[int, tuple[int, int]]]:
    """(error code, api key -> lowest and highest version). An error comes without the table:
    brokers fill it in different ways then, and the answer to version 0 has it anyway."""
    error_code = Cursor(payload).int16()
    if error_code != 0:
        return error_code, {}
    answer = body_of(ApiVersionsResponse, payload, version)
    return 0, {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}


def fetch_request(
    version: int,
    topic: TopicInfo,
    partition: int,
    offset: int,
    *,
    bytes_max: int,
    wait_max_ms: int,
    isolation: IsolationLevel,
) -> Request:
    """One partition, outside any fetch session. By id from FETCH_BY_TOPIC_ID_VERSION on."""
    asked = FetchRequest.FetchTopic
    name = (
        {"topic_id": topic.topic_id}
        if version >= FETCH_BY_TOPIC_ID_VERSION
        else {"topic": topic.name}
    )
    place = asked.FetchPartition(
        partition=partition,
        current_leader_epoch=topic.leaders[partition][1],
        fetch_offset=offset,
        partition_max_bytes=bytes_max,
    )
    return versioned(
        FetchRequest(
            replica_id=_CONSUMER,
            max_wait_ms=wait_max_ms,
            min_bytes=1,
            max_bytes=bytes_max,
            isolation_level=int(isolation),
            session_id=0,
            session_epoch=_NO_SESSION,
            topics=[asked(partitions=[place], **name)],
            forgotten_topics_data=[],
            rack_id="",
        ),
        version,
    )


def describe_topic_request(version: int, topic: str) -> Request:
    resource = DescribeConfigsRequest.DescribeConfigsResource(
        resource_type=_TOPIC_RESOURCE, resource_name=topic, configuration_keys=None
    )
    return versioned(DescribeConfigsRequest(resources=[resource]), version)


def decode_configs(payload: memoryview, version: int) -> dict[str, str]:
    """Raises ClusterError. Sensitive values, which brokers leave out, are left out."""
    answer = body_of(DescribeConfigsResponse, payload, version)
    found: dict[str, str] = {}
    for result in answer.results:
        _raise_for(result.error_code, f"DescribeConfigs of {result.resource_name}")
        found.update({c.name: c.value for c in result.configs if c.value is not None})
    return found


def _raise_for(error_code: int, what: str) -> None:
    if error_code != 0:
        raise ClusterError(f"{what}: error {error_code}", error_code)


def pick_version(api_key: int, offered: dict[int, tuple[int, int]]) -> int:
    """The highest version both sides speak. Raises ClusterError (UNSUPPORTED_VERSION)."""
    lowest, highest = VERSIONS[api_key]
    theirs = offered.get(api_key, (0, -1))
    version = min(highest, theirs[1])
    if version < max(lowest, theirs[0]):
        raise ClusterError(f"no common version of API {api_key}: broker has {theirs}", 35)
    return version
