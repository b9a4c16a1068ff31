"""The metadata topic over the proxy's own connections to the brokers. Creates it, refuses it if it
would lose events, appends to it and reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import structlog
from fetchproxy_protocol.apis import ErrorCode
from kafka.protocol.admin.topics import CreateTopicsRequest, CreateTopicsResponse
from kafka.protocol.producer.produce import ProduceRequest, ProduceResponse
from kafka.record.default_records import DefaultRecordBatchBuilder

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.messages import raise_for, values_in
from fetchproxy.config.schema import ClusterConfig, KiB, MetadataConfig
from fetchproxy.errors import (
    ClusterError,
    ClusterUnavailable,
    ConfigError,
    CorruptSegment,
    RemoteStorageError,
    StorageDenied,
    StorageUnavailable,
)
from fetchproxy.model import IsolationLevel, TopicIdPartition

# These settings make a topic keep every event for ever.
SETTINGS = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
_READ_WAIT_MS = 500  # for a new leader whose high watermark lags after an election
_VISIBLE_PAUSE_S = 0.1  # all brokers know a new topic after some of these pauses
_DENIED = (29, 31)  # TOPIC_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED
_ALL_REPLICAS = -1  # acks
_MAGIC = 2
_NO_PRODUCER = -1
# Too few replicas in sync: the same request succeeds once they are back. Source: Kafka's Errors.
_NOT_ENOUGH_REPLICAS = (ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
# Bytes of the metadata topic per fetch. Decoding them blocks everything else for some 20 ms.
READ_BYTES = 256 * KiB

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class LogChunk:
    """Values by rising offset. The next read begins at `next_offset`."""

    values: tuple[tuple[int, bytes], ...]
    next_offset: int


class KafkaMetadataLog:
    """Knows bytes and offsets, not segments, and keeps nothing that it read. Every method raises
    RemoteStorageError if the log cannot be reached or refuses.

    The caller opens and closes `cluster`. `wall_clock_ms` stamps the records. `log_writers` logs
    who else may write, in processes that act on the events; False: not possible yet.
    """

    def __init__(
        self,
        cluster: Cluster,
        cluster_config: ClusterConfig,
        config: MetadataConfig,
        wall_clock_ms: Callable[[], int],
        tell_writers: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._cluster = cluster
        self._cluster_config = cluster_config
        self._config = config
        self._wall_clock_ms = wall_clock_ms
        self._tell_writers = tell_writers
        self._topic: TopicInfo | None = None

    async def open(self) -> TopicInfo:
        """Create the topic if it is absent, else check it; may be called again. Raises ConfigError
        if the topic would lose events; the message says how to fix it.
        """
        with _as_storage_errors(f"topic {self._config.topic_name}"):
            topic = await self._find()
            if topic is None:
                topic = await self._create()
            await self._check(topic)
            if self._tell_writers is not None and await self._tell_writers():
                self._tell_writers = None
        self._topic = topic
        return topic

    async def check(self) -> bool:
        """As `open`, but creates nothing. False: the topic is absent."""
        with _as_storage_errors(f"topic {self._config.topic_name}"):
            topic = await self._find()
            if topic is not None:
                await self._check(topic)
            return topic is not None

    async def exists(self) -> bool:
        """Whether the topic exists; creates none. Raises RemoteStorageError."""
        with _as_storage_errors(f"topic {self._config.topic_name}"):
            return await self._find() is not None

    async def append(self, partition: int, value: bytes) -> int:
        """The value's offset; durable on return. After an error the value may have been appended or
        not, or may be later, also more than once.
        """
        tp = self._tp(partition)
        wait_max_ms = self._cluster_config.request_max_ms
        batch = DefaultRecordBatchBuilder(
            _MAGIC, 0, False, _NO_PRODUCER, _NO_PRODUCER, _NO_PRODUCER, batch_size=0
        )
        batch.append(0, self._wall_clock_ms(), None, value, [])
        topic_type = ProduceRequest.TopicProduceData
        place = topic_type.PartitionProduceData(index=partition, records=bytes(batch.build()))

        async def ask(connection: BrokerConnection, topic: TopicInfo) -> int:
            data = topic_type(name=topic.name, topic_id=topic.id_at_brokers, partition_data=[place])
            request = ProduceRequest(
                transactional_id=None, acks=_ALL_REPLICAS, timeout_ms=wait_max_ms, topic_data=[data]
            )
            return _produced_offset(await connection.call(request, ProduceResponse, wait_max_ms))

        with _as_storage_errors(f"append to {tp}"):
            return await self._cluster.ask_leader(tp, ask)

    async def bounds(self, partition: int) -> tuple[int, int]:
        """(first offset, next offset). Values appended before the call are below the second."""
        # By ListOffsets: a newly elected leader answers it only once it knows every acknowledged
        # record (KIP-207); the high watermark in a Fetch may lag then.
        tp = self._tp(partition)
        with _as_storage_errors(f"end of {tp}"):
            log_offsets = await self._cluster.log_offsets(tp)
        return log_offsets.log_start_offset, log_offsets.high_watermark

    async def read(self, partition: int, from_offset: int) -> LogChunk:
        """Some values from `from_offset` on, within `bounds`; waits a little if there are none."""
        tp = self._tp(partition)
        with _as_storage_errors(f"read of {tp} at {from_offset}"):
            fetched = await self._cluster.fetch(
                tp,
                from_offset,
                bytes_max=READ_BYTES,
                wait_max_ms=_READ_WAIT_MS,
                isolation=IsolationLevel.READ_UNCOMMITTED,
            )
            if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                raise StorageUnavailable("offset out of range; its bounds have to be read again")
            return _chunk(fetched.records, from_offset)

    def _tp(self, partition: int) -> TopicIdPartition:
        if self._topic is None:
            raise StorageUnavailable(f"topic {self._config.topic_name} was not opened yet")
        return TopicIdPartition(self._topic.topic_id, self._topic.name, partition)

    # --- the topic itself ---
    async def _find(self) -> TopicInfo | None:
        try:
            return await self._cluster.topic_by_name(self._config.topic_name, max_age_ms=0)
        except ClusterError as error:
            if error.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return None
            raise

    async def _create(self) -> TopicInfo:
        name, partitions = self._config.topic_name, self._config.topic_partitions
        replicas = self._config.topic_replication_factor
        wait_max_ms = self._cluster_config.request_max_ms

        settings = {**SETTINGS, "min.insync.replicas": str(max(1, replicas - 1))}
        topic_type = CreateTopicsRequest.CreatableTopic
        topic = topic_type(
            name=name,
            num_partitions=partitions,
            replication_factor=replicas,
            assignments=[],
            configs=[topic_type.CreatableTopicConfig(name=k, value=v) for k, v in settings.items()],
        )
        request = CreateTopicsRequest(topics=[topic], timeout_ms=wait_max_ms, validate_only=False)

        async def ask(connection: BrokerConnection) -> None:
            _check_created(await connection.call(request, CreateTopicsResponse, wait_max_ms))

        try:
            await self._cluster.ask_any(ask)
        except ClusterError as error:
            if error.retriable or error.error_code in _DENIED:
                raise
            raise ConfigError(f"topic {name} cannot be created: {error}") from error
        log.info("metadata_topic_created", topic=name, partitions=partitions, replicas=replicas)
        return await self._wait_until_visible()

    async def _wait_until_visible(self) -> TopicInfo:
        try:
            async with asyncio.timeout(self._cluster_config.request_max_ms / 1000):
                while True:
                    topic = await self._find()
                    if topic is not None and all(n >= 0 for n, _ in topic.leaders.values()):
                        return topic
                    await asyncio.sleep(_VISIBLE_PAUSE_S)
        except TimeoutError:
            raise StorageUnavailable("it was created, but has no leaders yet") from None

    async def _check(self, topic: TopicInfo) -> None:
        total = len(topic.leaders)
        if total != self._config.topic_partitions:
            raise ConfigError(
                f"topic {topic.name} has {total} partitions, but metadata.topic_partitions = "
                f"{self._config.topic_partitions}: set metadata.topic_partitions={total} if it was "
                f"created with that number; if partitions were added later, delete the topic and "
                f"rebuild it with `fetchproxy restore`"
            )
        fault = settings_fault(topic.name, await self._cluster.topic_config(topic.name))
        if fault is not None:
            raise ConfigError(f"{fault} --bootstrap-server {self._cluster_config.bootstrap}")


def settings_fault(name: str, settings: dict[str, str]) -> str | None:
    """Why a topic with these settings would lose events, with the command that fixes it. A setting
    that the broker does not report counts as right.
    """
    wrong = {
        key: settings[key]
        for key, right in SETTINGS.items()
        if settings.get(key, right).strip() != right
    }
    if not wrong:
        return None
    faulty = ", ".join(f"{key}={value}" for key, value in wrong.items())
    mend = ",".join(f"{key}={SETTINGS[key]}" for key in wrong)
    return (
        f"topic {name} has {faulty} and would lose metadata of the archive. Correct it with: "
        f"kafka-configs.sh --alter --entity-type topics --entity-name {name} --add-config {mend}"
    )


def _produced_offset(response: Any) -> int:
    """The record's offset. Raises ClusterError; ClusterUnavailable for too few replicas."""
    for topic in response.responses:
        for partition in topic.partition_responses:
            code = partition.error_code
            if code in _NOT_ENOUGH_REPLICAS:
                raise ClusterUnavailable("Produce: too few replicas are in sync", code)
            raise_for(code, "Produce")
            return int(partition.base_offset)
    raise ClusterError("Produce was answered without the partition")


def _check_created(response: Any) -> None:
    """Raises ClusterError; ClusterUnavailable if another broker must be asked. The topic may exist
    already: another instance may have created it meanwhile.
    """
    for topic in response.topics:
        code = topic.error_code
        if code == ErrorCode.NOT_CONTROLLER:
            raise ClusterUnavailable("CreateTopics: not the controller", code)
        if code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            detail = f": {topic.error_message}" if topic.error_message else ""
            raise ClusterError(f"CreateTopics of {topic.name}: error {code}{detail}", code)


def _chunk(records: bytes | memoryview, from_offset: int) -> LogChunk:
    values: list[tuple[int, bytes]] = []
    next_offset = from_offset
    for offset, value in values_in(records):
        if value is not None and offset >= from_offset:
            values.append((offset, value))
        next_offset = max(next_offset, offset + 1)
    return LogChunk(tuple(values), next_offset)


@contextmanager
def _as_storage_errors(operation: str) -> Iterator[None]:
    """For the metadata manager the topic is a store like any other."""
    try:
        yield
    except RemoteStorageError as error:
        raise type(error)(f"{operation}: {error}") from error
    except (ClusterError, CorruptSegment) as error:
        is_denied = isinstance(error, ClusterError) and error.error_code in _DENIED
        raise (StorageDenied if is_denied else StorageUnavailable)(
            f"{operation}: {error}"
        ) from error
