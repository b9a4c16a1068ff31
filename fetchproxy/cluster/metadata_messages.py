"""The requests that only the metadata topic needs: create it, append to it. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.protocol.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

from fetchproxy.cluster.answers import TopicInfo
from fetchproxy.cluster.messages import Request, body_of, versioned
from fetchproxy.errors import ClusterError, ClusterUnavailable, CorruptSegment
from protocol.errors import WireError
from protocol.record_batch import check_crc, walk

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
