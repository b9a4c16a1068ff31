"""Requests to brokers and their responses, as bytes and plain values. No I/O."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fetchproxy_protocol.apis import ApiKey, ErrorCode, WireError, error_text
from fetchproxy_protocol.fetch_layout import (
    FETCH_FLEXIBLE_FROM,
    PREFERRED_REPLICA_FROM,
    SESSIONS_FROM,
    TOPIC_IDS_FROM,
)
from fetchproxy_protocol.headers import response_body
from fetchproxy_protocol.primitives import Cursor
from fetchproxy_protocol.record_batch import check_crc, walk
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from kafka.record.default_records import DefaultRecordBatch

from fetchproxy.errors import ClusterError, CorruptSegment
from fetchproxy.model import TopicIdPartition

# The same request may succeed after a new look-up of the leaders. Source: Kafka's Errors
# (RetriableException), as far as Metadata, ListOffsets and Fetch may return them.
RETRIABLE = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,  # a broker that has not heard of a new topic yet
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,  # a new leader whose high watermark lags
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
    }
)
_UUID_BYTES = 16
# (lowest, highest) version spoken. Lower versions lack isolation level, log start or leader epochs.
VERSIONS: dict[int, tuple[int, int]] = {
    ApiKey.PRODUCE: (3, 13),
    ApiKey.FETCH: (5, 17),
    ApiKey.LIST_OFFSETS: (2, 10),
    ApiKey.METADATA: (5, 13),
    ApiKey.DELETE_RECORDS: (1, 2),
    ApiKey.INIT_PRODUCER_ID: (2, 4),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: (2, 4),  # before: from any replica, without its epoch
    ApiKey.CREATE_TOPICS: (2, 7),
    ApiKey.FIND_COORDINATOR: (2, 6),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.OFFSET_FETCH: (5, 7),  # before: no leader epochs; after: a list of groups
    ApiKey.OFFSET_COMMIT: (6, 8),  # as above
    ApiKey.JOIN_GROUP: (5, 9),  # before: no static members; the same for the next three
    ApiKey.HEARTBEAT: (3, 4),
    ApiKey.LEAVE_GROUP: (3, 5),
    ApiKey.SYNC_GROUP: (3, 5),
    ApiKey.DESCRIBE_ACLS: (1, 3),  # before: no name patterns
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.DESCRIBE_CLUSTER: (0, 1),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.CREATE_ACLS: (1, 3),  # before: no name patterns
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ELECT_LEADERS: (1, 2),  # before: only preferred leaders, without saying so
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.DESCRIBE_QUORUM: (2, 2),  # before: without the controllers' addresses
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 0),
    ApiKey.SASL_HANDSHAKE: (1, 1),  # after version 0, tokens come without a header
    ApiKey.SASL_AUTHENTICATE: (0, 2),
}
METADATA_BY_TOPIC_ID_VERSION = 12

# What kafka-python's decoders raise for bytes that are no response; it has assertions, too.
_MALFORMED = (
    *(WireError, struct.error, ValueError, OverflowError, LookupError),
    *(AssertionError, AttributeError, TypeError),
)


@dataclass(frozen=True, slots=True)
class FetchedPartition:
    """`error_code`: 0 or OFFSET_OUT_OF_RANGE (1); with 1 the offsets are -1 and there are no
    records.

    `records` may end in a partial batch. `aborted`: filled only for read_committed. `leader_epoch`:
    of the leader that answered; -1: not known.
    """

    error_code: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: tuple[tuple[int, int], ...]  # (producer id, first offset)
    records: bytes | memoryview
    leader_epoch: int = -1


def decode_fetch(payload: memoryview, version: int, tp: TopicIdPartition) -> FetchedPartition:
    """Decode a response to a Fetch of one partition, v5 to v17.

    `records` is a view of the payload: kafka-python's decoder copies them, which takes milliseconds
    for a fetch of 8 MiB on the loop that relays the tail. `tp` is for error texts. Raises
    ClusterError on every code except 0 and OFFSET_OUT_OF_RANGE.
    """
    flexible = version >= FETCH_FLEXIBLE_FROM
    try:
        cursor = response_body(payload, ApiKey.FETCH, version)
        cursor.int32()  # throttle time
        if version >= SESSIONS_FROM:
            raise_for(cursor.int16(), f"Fetch of {tp}")
            cursor.int32()  # session id
        for _ in range(cursor.count(flexible) or 0):
            if version >= TOPIC_IDS_FROM:
                cursor.skip(_UUID_BYTES)
            else:
                cursor.skip_string(flexible)
            if cursor.count(flexible):
                return _partition(cursor, payload, version, tp)
            cursor.skip_tags(flexible)
    except WireError as error:
        raise ClusterError(f"FetchResponse version {version} is malformed: {error}") from None
    raise ClusterError("Fetch was answered without the partition")


def _partition(
    cursor: Cursor, payload: memoryview, version: int, tp: TopicIdPartition
) -> FetchedPartition:
    flexible = version >= FETCH_FLEXIBLE_FROM
    cursor.int32()  # the partition number: only one was asked for
    error_code = cursor.int16()
    if error_code != ErrorCode.OFFSET_OUT_OF_RANGE:
        raise_for(error_code, f"Fetch of {tp}")
    high_watermark, last_stable_offset = cursor.int64(), cursor.int64()
    log_start_offset = cursor.int64()
    aborted = []
    for _ in range(cursor.count(flexible) or 0):
        aborted.append((cursor.int64(), cursor.int64()))
        cursor.skip_tags(flexible)
    if version >= PREFERRED_REPLICA_FROM:
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


# kafka-python writes only the fields of the message's version, so callers give all fields.


def body_of(response: Any, payload: memoryview, version: int) -> Any:
    """Decode a response without size prefix. (kafka-python's own header reader copies it all.)"""
    try:
        body = response_body(payload, response.API_KEY, version)
        return response.decode(payload[body.pos :], version=version)
    except _MALFORMED as error:
        raise ClusterError(f"{response.__name__} version {version} is malformed: {error}") from None


def decode_api_versions(
    payload: memoryview, version: int
) -> tuple[int, dict[int, tuple[int, int]]]:
    """(error code, api key -> lowest and highest version). On an error the table is empty, because
    brokers fill it in different ways then.
    """
    try:
        error_code = response_body(payload, ApiKey.API_VERSIONS, version).int16()
    except WireError as error:
        raise ClusterError(f"ApiVersionsResponse is malformed: {error}") from None
    if error_code != 0:
        return error_code, {}
    response = body_of(ApiVersionsResponse, payload, version)
    return 0, {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}


def raise_for(error_code: int, operation: str) -> None:
    if error_code != 0:
        raise ClusterError(f"{operation}: {error_text(error_code)}", error_code)


def pick_version(api_key: int, offered: dict[int, tuple[int, int]]) -> int:
    """The highest version that both sides speak. Raises ClusterError (UNSUPPORTED_VERSION)."""
    lowest, highest = VERSIONS[api_key]
    broker_range = offered.get(api_key, (0, -1))
    version = min(highest, broker_range[1])
    if version < max(lowest, broker_range[0]):
        message = f"no common version of API {api_key}: broker has {broker_range}"
        raise ClusterError(message, ErrorCode.UNSUPPORTED_VERSION)
    return version


def values_in(records: bytes | memoryview) -> Iterator[tuple[int, bytes | None]]:
    """(offset, value) of each record in the whole batches; None as the value of control batches.
    Raises CorruptSegment for malformed batches and failed CRCs.
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
            # The broker may have removed records at the batch's end.
            yield header.last_offset, None
    except (WireError, CorruptRecordError, UnsupportedCodecError) as error:
        raise CorruptSegment(str(error)) from error
