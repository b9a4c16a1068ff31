"""What is asked of brokers, and what they answer, as bytes and plain values. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID

from fetchproxy_protocol.apis import ErrorCode, WireError
from fetchproxy_protocol.fetch import FLEXIBLE_FROM, SESSIONS_FROM, TOPIC_IDS_FROM
from fetchproxy_protocol.headers import request_header, response_header_version
from fetchproxy_protocol.primitives import INT32, Cursor
from fetchproxy_protocol.record_batch import check_crc, walk
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.protocol.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.consumer.fetch import FetchRequest
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from kafka.protocol.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from fetchproxy.errors import ClusterError, ClusterUnavailable, CorruptSegment
from fetchproxy.model import IsolationLevel, TopicIdPartition

# What brokers say, as plain values.

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC_OR_PARTITION = 3
UNSUPPORTED_VERSION = 35
UNKNOWN_TOPIC_ID = 100

# Codes after which the same request may succeed once leaders are known afresh. Source: Kafka's
# Errors (RetriableException), as far as Metadata, ListOffsets and Fetch may answer them.
RETRIABLE = frozenset(
    {
        UNKNOWN_TOPIC_OR_PARTITION,  # a broker that has not heard of a new topic yet
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        7,  # REQUEST_TIMED_OUT
        9,  # REPLICA_NOT_AVAILABLE
        13,  # NETWORK_EXCEPTION
        56,  # KAFKA_STORAGE_ERROR
        74,  # FENCED_LEADER_EPOCH
        75,  # UNKNOWN_LEADER_EPOCH
        78,  # OFFSET_NOT_AVAILABLE: a new leader whose high watermark lags
        UNKNOWN_TOPIC_ID,
        103,  # INCONSISTENT_TOPIC_ID
    }
)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """Where one broker's clients reach it, by its own word."""

    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class TopicInfo:
    """`topic_id` is the zero UUID on brokers before 2.8. Leader -1: none at the moment."""

    topic_id: UUID
    name: str
    is_internal: bool
    leaders: Mapping[int, tuple[int, int]]  # partition -> (leader node id or -1, leader epoch)


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """`failed` has the topics that were asked for and refused, by name or by id."""

    brokers: Mapping[int, BrokerAddress]
    topics: tuple[TopicInfo, ...]
    failed: Mapping[str | UUID, int]  # -> error code
    cluster_id: str | None = None


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """One partition's part of a Fetch answer; `error_code` is 0 or OFFSET_OUT_OF_RANGE (1).

    With an error the offsets are -1 and there are no records. `records` may end in a part of a
    batch. `aborted` is empty unless read_committed was asked for.
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]  # (producer id, first offset)
    records: bytes | memoryview


# A request whose body was written by us, byte by byte: for those that may name very many topics.
#
# kafka-python makes an object for every partition: of 10,000 it would hold the event loop for
# half a second. No I/O.


class EncodedRequest:
    """One of `messages.Request`; `body` in pieces."""

    def __init__(self, api_key: int, version: int, body: list[bytes]) -> None:
        self.API_KEY = api_key
        self.API_VERSION = version
        self._body = body
        self._header = b""

    def with_header(self, correlation_id: int, client_id: str) -> None:
        self._header = request_header(self.API_KEY, self.API_VERSION, correlation_id, client_id)

    def encode(self, *, header: bool, framed: bool) -> bytes:
        message = b"".join([self._header if header else b"", *self._body])
        return INT32.pack(len(message)) + message if framed else message


def body_at(payload: memoryview, api_key: int, version: int) -> Cursor:
    """A cursor at the body of an answer, of which the correlation id was read. Raises WireError."""
    cursor = Cursor(payload)
    if response_header_version(api_key, version) == 1:
        cursor.skip_tags()
    return cursor


def whole(payload: memoryview, version: int) -> memoryview:
    """An answer as it came, for those who read it piece by piece."""
    return payload


# Reads a broker's answer to a Fetch of one partition; records stay where they arrived. No I/O.
#
# Kafka-python's decoder copies them, which takes milliseconds for a fetch of 8 MiB, on the loop
# that relays the tail, and as much memory again. Layout: Kafka's FetchResponse.json, versions 5
# to 17.

_UUID_BYTES = 16
_PREFERRED_REPLICA_FROM = 11


def decode_fetch(payload: memoryview, version: int, tip: TopicIdPartition) -> FetchedPartition:
    """`payload` follows the correlation id; `records` is a view of it. `tip` is for errors' texts.

    Raises ClusterError for all but 0 and OFFSET_OUT_OF_RANGE.
    """
    try:
        return _decoded(Cursor(payload), payload, version, tip)
    except WireError as error:
        raise ClusterError(f"FetchResponse version {version} is malformed: {error}") from None


def _decoded(
    cursor: Cursor, payload: memoryview, version: int, tip: TopicIdPartition
) -> FetchedPartition:
    flexible = version >= FLEXIBLE_FROM
    if flexible:
        cursor.skip_tags()
    cursor.int32()  # throttle time
    if version >= SESSIONS_FROM:
        _raise_for_fetch(cursor.int16(), tip)
        cursor.int32()  # session id
    for _ in range(cursor.count(flexible) or 0):
        if version >= TOPIC_IDS_FROM:
            cursor.skip(_UUID_BYTES)
        else:
            cursor.skip_string(flexible)
        if cursor.count(flexible):
            return _partition(cursor, payload, version, tip)
        if flexible:
            cursor.skip_tags()
    raise ClusterError("Fetch was answered without the partition")


def _partition(
    cursor: Cursor, payload: memoryview, version: int, tip: TopicIdPartition
) -> FetchedPartition:
    flexible = version >= FLEXIBLE_FROM
    cursor.int32()  # its number: no other was asked for
    error_code = cursor.int16()
    if error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
        _raise_for_fetch(error_code, tip)
    high_watermark, last_stable_offset = cursor.int64(), cursor.int64()
    log_start_offset = cursor.int64()
    aborted = []
    for _ in range(cursor.count(flexible) or 0):
        aborted.append((cursor.int64(), cursor.int64()))
        if flexible:
            cursor.skip_tags()
    if version >= _PREFERRED_REPLICA_FROM:
        cursor.int32()
    length = cursor.uvarint() - 1 if flexible else cursor.int32()
    start = cursor.skip(max(length, 0), "records")  # -1: null
    return FetchedPartition(
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        tuple(aborted),
        payload[start : cursor.pos],
    )


def _raise_for_fetch(error_code: int, tip: TopicIdPartition) -> None:
    if error_code != 0:
        raise ClusterError(f"Fetch of {tip}: error {error_code}", error_code)


# The requests that fetchproxy itself sends, through kafka-python's message classes. No I/O.
#
# Used off the data path only; the answer to a Fetch is read by `messages`. Each function
# names the versions it was written for; `VERSIONS` is the one table of them.

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


# The requests that only the metadata topic needs: create it, append to it. No I/O.

_ALL_REPLICAS = -1  # acks
_MAGIC = 2
_NO_PRODUCER = -1
_TOPIC_ALREADY_EXISTS = 36
_NOT_CONTROLLER = 41
# Too few replicas in sync: the same request succeeds once they are back. Source: Kafka's Errors.
_NOT_ENOUGH_REPLICAS = (19, 20)


def produce_request(
    version: int,
    topic: TopicInfo,
    partition: int,
    value: bytes,
    timestamp_ms: int,
    wait_max_ms: int,
) -> Request:
    """One record without a key, acknowledged by all replicas in sync."""
    asked = ProduceRequest.TopicProduceData
    builder = DefaultRecordBatchBuilder(
        _MAGIC, 0, False, _NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER, batch_size=0
    )
    builder.append(0, timestamp_ms, None, value, [])
    place = asked.PartitionProduceData(index=partition, records=bytes(builder.build()))
    return versioned(
        ProduceRequest(
            transactional_id=None,
            acks=_ALL_REPLICAS,
            timeout_ms=wait_max_ms,
            topic_data=[
                asked(name=topic.name, topic_id=topic.topic_id, partition_data=[place]),
            ],
        ),
        version,
    )


def decode_produce(payload: memoryview, version: int) -> int:
    """The record's offset. Raises ClusterError; ClusterUnavailable for too few replicas."""
    answer = body_of(ProduceResponse, payload, version)
    for topic in answer.responses:
        for partition in topic.partition_responses:
            code = partition.error_code
            if code in _NOT_ENOUGH_REPLICAS:
                raise ClusterUnavailable("Produce: too few replicas are in sync", code)
            if code != 0:
                raise ClusterError(f"Produce: error {code}", code)
            return int(partition.base_offset)
    raise ClusterError("Produce was answered without the partition")


def create_topic_request(
    version: int,
    name: str,
    partitions: int,
    replication_factor: int,
    configs: Mapping[str, str],
    wait_max_ms: int,
) -> Request:
    asked = CreateTopicsRequest.CreatableTopic
    topic = asked(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[],
        configs=[asked.CreatableTopicConfig(name=k, value=v) for k, v in configs.items()],
    )
    return versioned(
        CreateTopicsRequest(topics=[topic], timeout_ms=wait_max_ms, validate_only=False), version
    )


def decode_create_topic(payload: memoryview, version: int) -> None:
    """Raises ClusterError; ClusterUnavailable where another broker has to be asked.

    A topic that is there already was created by another instance meanwhile.
    """
    answer = body_of(CreateTopicsResponse, payload, version)
    for topic in answer.topics:
        code = topic.error_code
        if code == _NOT_CONTROLLER:
            raise ClusterUnavailable("CreateTopics: not the controller", code)
        if code not in (0, _TOPIC_ALREADY_EXISTS):
            why = f": {topic.error_message}" if topic.error_message else ""
            raise ClusterError(f"CreateTopics of {topic.name}: error {code}{why}", code)


def values_in(records: bytes | memoryview) -> Iterator[tuple[int, bytes | None]]:
    """(offset, value) of each record of the whole batches; control batches have none.

    Raises CorruptSegment for bytes that are no batch or fail their CRC.
    """
    try:
        for header in walk(records):
            if not check_crc(records, header):
                raise CorruptSegment(f"batch at offset {header.base_offset} fails its CRC-32C")
            if header.is_control:
                yield header.last_offset, None
                continue
            batch: Any = DefaultRecordBatch(records[header.position : header.end])
            for record in batch:
                yield record.offset, record.value
            # The broker may have left out records at the batch's end.
            yield header.last_offset, None
    except (WireError, CorruptRecordError, UnsupportedCodecError) as error:
        raise CorruptSegment(str(error)) from error


# SaslHandshake and SaslAuthenticate of the proxy's own connections. No I/O, no mechanism.


@dataclass(frozen=True, slots=True)
class HandshakeAnswer:
    error_code: int
    mechanisms: tuple[str, ...]  # that the broker's listener has


@dataclass(frozen=True, slots=True)
class AuthenticateAnswer:
    """`session_lifetime_ms` is 0 where the session does not end (KIP-368)."""

    error_code: int
    error_message: str | None
    token: bytes
    session_lifetime_ms: int

    def __repr__(self) -> str:  # the token is nobody's business
        return f"AuthenticateAnswer(error_code={self.error_code})"


def handshake_request(version: int, mechanism: str) -> Request:
    return versioned(SaslHandshakeRequest(mechanism=mechanism), version)


def decode_handshake(payload: memoryview, version: int) -> HandshakeAnswer:
    answer = body_of(SaslHandshakeResponse, payload, version)
    return HandshakeAnswer(answer.error_code, tuple(answer.mechanisms))


def authenticate_request(version: int, token: bytes) -> Request:
    return versioned(SaslAuthenticateRequest(auth_bytes=token), version)


def decode_authenticate(payload: memoryview, version: int) -> AuthenticateAnswer:
    answer = body_of(SaslAuthenticateResponse, payload, version)
    lifetime_ms = answer.session_lifetime_ms if version >= 1 else 0
    return AuthenticateAnswer(
        answer.error_code, answer.error_message, bytes(answer.auth_bytes), lifetime_ms or 0
    )
