"""The job `backfill` into another topic: key, value, headers, timestamp and partition stay.

Each partition is one task that writes in source order, in transactions. Each transaction also
commits the position in the source, as an offset of a consumer group. So after a task is killed or
runs twice, a reader of the target with read_committed sees each record exactly once.

The target assigns its own offsets. In the target, every timestamp is of type CreateTime.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, NamedTuple

from fetchproxy_protocol.apis import ErrorCode
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import (
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerFencedError,
)
from kafka.serializer import Serializer
from kafka.structs import OffsetAndMetadata

from fetchproxy.archive import for_executors, in_loop, open_cluster
from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.brokers.connections import CLIENT_ID
from fetchproxy.config.schema import ClusterConfig, Config
from fetchproxy.config.values import secret_from
from fetchproxy.errors import ClusterError, ClusterUnavailable, ConfigError
from fetchproxy.jobs.backfill_plan import backfill_input, described_partitions
from fetchproxy.jobs.runner import Done, ItemFailure, Runner, Work
from fetchproxy.remotelog.decoder.arrow_batches import COLUMNS
from fetchproxy.remotelog.options import SourceOptions, parse_options
from fetchproxy.remotelog.planning import ReadTask, plan_tasks
from fetchproxy.remotelog.task_reader import SkippedRecords, read_task

# The work that a killed task has to do again, and the data that waits in the producer's memory.
TRANSACTION_RECORDS_MAX = 20_000
TRANSACTION_BYTES_MAX = 16 * 1024 * 1024
# A batch in the target. A larger record gets its own batch, up to the brokers' limit.
BATCH_BYTES = 256 * 1024
REQUEST_BYTES_MAX = 100 * 1024 * 1024  # the brokers' own limit is message.max.bytes
LINGER_MS = 20
# While a transaction is being committed, the target is looked at every 5 s. The end comes after
# twice the brokers' own time for a transaction (transaction.timeout.ms, a minute).
LOOK_EVERY_S = 5
TRANSACTION_LOOKS_MAX = 24
CLOSE_MAX_S = 5
_TIMESTAMP_MIN, _TIMESTAMP_MAX = -(2**63), 2**63 - 1

COPIED_SCHEMA = "partition int, records bigint, source_end bigint, passed_over bigint, faults int"
# What brokers may refuse in a copy, and the topic's setting that lets it in.
_REMEDIES = {
    InvalidTimestampError: "; records keep their timestamps, which lie too far ahead or back for "
    "the topic: set message.timestamp.after.max.ms and message.timestamp.before.max.ms of {topic} "
    "to 9223372036854775807 (retention.ms=-1 keeps old records from being deleted), and run it "
    "again",
    MessageSizeTooLargeError: "; set max.message.bytes of {topic} to that of the source or above, "
    "and run it again",
    InvalidRecordError: "; a compacted topic takes no record without a key: copy into one with "
    "cleanup.policy=delete",
}


class PartitionTask(NamedTuple):
    """The whole requested span of a partition, including records that may be copied already.

    `target_id`: the id of the topic that is written to, as text; empty: its brokers have no topic
    ids.
    """

    task: ReadTask
    end: int
    target_id: str


@dataclass(frozen=True, slots=True)
class TopicTarget:
    """`append`: allow a target with records that no backfill of this topic has written."""

    cluster: ClusterConfig
    topic: str
    options: SourceOptions
    append: bool = False


@dataclass(frozen=True, slots=True)
class CopiedPartition:
    """`records`: copied in this run. `source_end`: the target has all source records below it.

    `skipped_records`: the maximum number of records that were left out. `faults`: the damaged
    batches and missing objects that held them. They are not copied later, as the target already has
    the records after them. `not_encrypted`: see `SkippedRecords`.
    """

    partition: int
    records: int
    source_end: int
    skipped_records: int = 0
    faults: int = 0
    not_encrypted: tuple[str, ...] = ()


def backfill_topic(
    runner: Runner, config: Config, source: Mapping[str, str], topic: str, *, append: bool = False
) -> Done[CopiedPartition]:
    """Copies into `topic` of `cluster.*`, which must have at least as many partitions. `source`:
    see `backfill`. Raises ConfigError, ClusterError, and the errors of `backfill`.
    """
    config = for_executors(config)
    target = TopicTarget(config.cluster, topic, parse_options(source), append)
    tasks, left_out = plan_topic(config, target)
    work = Work(
        "backfill",
        partial(copy_partition, target),
        name=lambda one: f"{one.task.tp} to {topic}",
        size=lambda copied: copied.records,
    )
    outcome = runner.each(tasks, work)
    frame = runner.frame([astuple(result)[:-1] for result in outcome.results], COPIED_SCHEMA)
    return Done(outcome.results, (*left_out, *outcome.failures), frame)


def plan_topic(
    config: Config, target: TopicTarget
) -> tuple[list[PartitionTask], tuple[ItemFailure, ...]]:
    """Runs on the driver. Returns the tasks and the partitions left out. Raises as
    `backfill_topic`.
    """
    kafka_settings(target.cluster)  # raises for unsupported settings before any work starts
    selections, left_out = in_loop(backfill_input(target.options))
    topics = {view.tp.topic for view, _ in selections}
    if len(topics) > 1:
        raise ConfigError(
            f"--to-topic takes records of one topic, not of {', '.join(sorted(topics))}"
        )
    try:
        info = in_loop(_topic(config, target.topic))
    except ClusterError as error:
        if error.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        raise ClusterError(
            f"topic {target.topic} does not exist: create it first", error.error_code
        ) from error
    partition_count = len(info.leaders)
    partitions_needed = max((view.tp.partition for view, _ in selections), default=-1) + 1
    reason = None
    if selections:
        reason = in_loop(described_partitions(target.options, selections[0][0].tp.topic_id))
    if partition_count < max(partitions_needed, reason or 0):
        amount = f"at least {partitions_needed}" if reason is None else str(reason)
        raise ConfigError(
            f"topic {target.topic} has {partition_count} partitions, the source has {amount}"
        )
    tasks = [
        PartitionTask(task, span.end, _id_text(info))
        for view, span in sorted(selections, key=lambda selection: selection[0].tp)
        for task in plan_tasks([(view, span)], partition_bytes_max=2**62)
    ]
    return tasks, left_out


def copy_partition(target: TopicTarget, partition_task: PartitionTask) -> CopiedPartition:
    """Runs in a worker process. Raises ConfigError, ClusterError, CorruptSegment, RecordsTooLarge,
    RemoteStorageError.
    """
    tp, target_partition = (
        partition_task.task.tp,
        TopicPartition(target.topic, partition_task.task.tp.partition),
    )
    group = f"fetchproxy-backfill-{tp.topic}"
    origin = _Origin(str(tp.topic_id), partition_task.target_id)
    records_copied, skipped_records = (
        _Transactions(target_partition, group, origin.encode()),
        SkippedRecords(),
    )
    try:
        # Closing the producer aborts an open transaction.
        with closing(_producer(target, partition_task)) as producer:
            try:
                # Fences an earlier producer of this partition and aborts its open transaction.
                producer.init_transactions()
                position_before = _committed_position(target, group, target_partition, origin)
                records_copied.begin(producer, position_before)
                end = max(partition_task.end, position_before or 0)
                if (task := _from_offset(partition_task.task, position_before or 0)) is not None:
                    for batch in read_task(
                        target.options, task, COLUMNS, skipped_records=skipped_records, exact=True
                    ):
                        records_copied.add(batch)
                records_copied.commit_if_sent(end)
            except KafkaError as error:
                raise producer.cause_of(error) from error
    except ClusterError as error:
        raise ClusterError(f"{tp}: {error}", error.error_code) from error
    except KafkaError as error:
        raise _in_words(error, target, partition_task, records_copied.refused_from) from error
    if (reason := _why_target_changed(target, partition_task.target_id)) is not None:
        raise ClusterError(f"{tp}: {reason}")
    left_out = skipped_records.records, skipped_records.faults
    plain = tuple(sorted(skipped_records.not_encrypted))
    return CopiedPartition(
        target_partition.partition, records_copied.records, end, *left_out, plain
    )


class _Origin(NamedTuple):
    """Which topic was copied into which: kept beside the position. Earlier programs kept only the
    first id.
    """

    source_id: str
    target_id: str

    def encode(self) -> str:
        return f"{self.source_id} {self.target_id}"

    @classmethod
    def decode(cls, text: str) -> _Origin:
        source, _, to = text.partition(" ")
        return cls(source, to)


def _from_offset(task: ReadTask, first: int) -> ReadTask | None:
    """The part of `task` from offset `first` on. None: there is none."""
    parts = tuple(
        part._replace(offset_from=max(part.offset_from, first))
        for part in task.parts
        if part.offset_end > first
    )
    return ReadTask(task.tp, parts) if parts else None


class _Null(bytes):
    """Stands for null as a header's value, and as a value without a key. kafka-python's `send`
    refuses null there, but Kafka and kafka-python's encoder allow it.
    """


_NULL = _Null()


class _HeaderKey(str):
    """A header's key of any bytes. kafka-python takes text alone, and encodes it by `encode`."""

    __slots__ = ("raw",)
    raw: bytes

    def encode(self, *_: object) -> bytes:
        return self.raw


class _Nulls(Serializer):  # type: ignore[misc]  # kafka-python has no types here
    """A kafka-python serializer, which gets each record after the checks of `send`."""

    def serialize(
        self, topic: str, headers: list[tuple[str, bytes | None]], value: bytes
    ) -> bytes | None:
        headers[:] = [(k, None if isinstance(v, _Null) else v) for k, v in headers]
        return None if isinstance(value, _Null) else value


class _HeadersWithNulls(list[tuple[str, bytes | None]]):
    """kafka-python sums the sizes of headers, and null has no size. It skips an empty list, so this
    list claims to be empty.
    """

    def __bool__(self) -> bool:
        return False


def _or_null(value: bytes | None) -> bytes:
    return _NULL if value is None else value


def _header_key(raw: bytes) -> str:
    key = _HeaderKey()
    key.raw = raw
    return key


def _headers(headers: Iterable[Mapping[str, Any]]) -> list[tuple[str, bytes | None]]:
    pairs: list[tuple[str, bytes | None]] = [
        (_header_key(h["key"]), _or_null(h["value"])) for h in headers
    ]
    if any(value is _NULL for _, value in pairs):
        return _HeadersWithNulls(pairs)
    return pairs


class _Producer(KafkaProducer):  # type: ignore[misc]
    """kafka-python waits without end for the end of a transaction, as when the topic is gone. Here
    every wait asks `moved` again and again, and ends at last.
    """

    def __init__(self, moved: Callable[[], str | None], **settings: Any) -> None:
        self._why_target_changed = moved
        super().__init__(**settings)

    def send_offsets_to_transaction(self, offsets: Any, group: str) -> None:
        manager = self._transaction_manager
        self._raise_if_failed(manager.send_offsets_to_transaction(offsets, group))

    def commit_transaction(self) -> None:
        self._raise_if_failed(self._transaction_manager.begin_commit())

    def cause_of(self, error: KafkaError) -> KafkaError:
        """What the brokers refused, if `error` only says that the transaction has failed."""
        cause = self._transaction_manager._last_error
        return cause if type(error) is KafkaError and isinstance(cause, KafkaError) else error

    def close(self, timeout: float | None = None, null_logger: bool = False) -> None:
        """Aborts an open transaction, if the brokers answer within CLOSE_MAX_S."""
        timeout = CLOSE_MAX_S if timeout is None else timeout
        try:
            super().close(timeout, null_logger)
        except KafkaTimeoutError:
            self._sender.force_close()
            super().close(timeout, null_logger)

    def _raise_if_failed(self, result: Any) -> None:
        """Raises ClusterError, KafkaError."""
        self._sender.wakeup()
        for _ in range(TRANSACTION_LOOKS_MAX):
            if result.wait(timeout_ms=LOOK_EVERY_S * 1000):
                return
            if (reason := self._why_target_changed()) is not None:
                raise ClusterError(reason)
        waited_s = TRANSACTION_LOOKS_MAX * LOOK_EVERY_S
        raise KafkaTimeoutError(f"the brokers have not ended a transaction within {waited_s} s")


class _Transactions:
    """Sends records in transactions. Each transaction commits the source offset reached by it."""

    def __init__(self, place: Any, group: str, origin: str) -> None:
        self._producer: Any = None
        self._place = place
        self._group = group
        self._origin = origin
        self._deliveries: dict[int, Any] = {}  # by the source's offset
        self._bytes = 0
        self._times = (_TIMESTAMP_MAX, _TIMESTAMP_MIN)  # least and greatest of unsent records
        self.records = 0

    def add(self, batch: Any) -> None:
        names = ("key", "value", "offset", "headers", "timestamp")
        columns = [batch.column(name).to_pylist() for name in names]
        for key, value, offset, headers, timestamp in zip(*columns, strict=True):
            if not self._deliveries:
                self._producer.begin_transaction()
            self._part_if_too_far(timestamp)
            self._deliveries[offset] = self._producer.send(
                self._place.topic,
                value=_or_null(value),
                key=key,
                headers=_headers(headers or ()),
                partition=self._place.partition,
                timestamp_ms=timestamp,
            )
            self._bytes += len(key or b"") + len(value or b"")
            if (
                len(self._deliveries) >= TRANSACTION_RECORDS_MAX
                or self._bytes >= TRANSACTION_BYTES_MAX
            ):
                self._commit(offset + 1)

    def _part_if_too_far(self, timestamp: int) -> None:
        """A batch holds timestamps as distances of 64 bits, so two that lie further apart go in two
        batches.
        """
        earliest, latest = min(self._times[0], timestamp), max(self._times[1], timestamp)
        if latest - earliest > _TIMESTAMP_MAX:
            self._producer.flush(TRANSACTION_LOOKS_MAX * LOOK_EVERY_S)
            earliest = latest = timestamp
        self._times = earliest, latest

    def begin(self, producer: Any, come_to: int | None) -> None:
        """`come_to` None: commit offset 0, which marks the target's records as this source's,
        aborted ones too.
        """
        self._producer = producer
        if come_to is None:
            producer.begin_transaction()
            self._commit(0)

    @property
    def refused_from(self) -> int | None:
        """The source's offset of the first record that the brokers have refused."""
        return next(
            (offset for offset, delivery in self._deliveries.items() if delivery.failed()), None
        )

    def commit_if_sent(self, next_offset: int) -> None:
        if self._deliveries:
            self._commit(next_offset)

    def _commit(self, next_offset: int) -> None:
        come_to = OffsetAndMetadata(next_offset, self._origin, -1)
        self._producer.send_offsets_to_transaction({self._place: come_to}, self._group)
        self._producer.commit_transaction()
        for delivery in self._deliveries.values():
            delivery.get(timeout=0)  # raises the send's error; all sends have ended
        self.records += len(self._deliveries)
        self._deliveries, self._bytes, self._times = {}, 0, (_TIMESTAMP_MAX, _TIMESTAMP_MIN)


def kafka_settings(config: ClusterConfig) -> dict[str, Any]:
    """Settings for kafka-python's clients. Raises ConfigError for unsupported ones."""
    settings: dict[str, Any] = {
        "bootstrap_servers": config.bootstrap.split(","),
        "client_id": CLIENT_ID,
        "security_protocol": config.security_protocol,
        "request_timeout_ms": max(config.request_max_ms, 1_000),
    }
    if config.security_protocol.startswith("SASL"):
        if config.sasl_mechanism not in ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"):
            raise ConfigError(
                f"cluster.sasl_mechanism = {config.sasl_mechanism}: a backfill into a topic "
                "supports PLAIN and SCRAM"
            )
        password = secret_from(config.sasl_password, "cluster.sasl_password")
        settings |= {
            "sasl_mechanism": config.sasl_mechanism,
            "sasl_plain_username": config.sasl_username,
            "sasl_plain_password": password,
        }
    if config.security_protocol.endswith("SSL"):
        settings |= {
            "ssl_cafile": _text(config.tls_ca_file),
            "ssl_certfile": _text(config.tls_certificate_file),
            "ssl_keyfile": _text(config.tls_key_file or config.tls_certificate_file),
            "ssl_check_hostname": config.tls_verify_hostname,
            "ssl_password": secret_from(config.tls_key_password, "cluster.tls_key_password"),
        }
    return settings


def _producer(target: TopicTarget, task: PartitionTask) -> _Producer:
    tp = task.task.tp
    return _Producer(
        partial(_why_target_changed, target, task.target_id),
        **kafka_settings(target.cluster),
        transactional_id=f"fetchproxy-backfill-{tp.topic_id}-{tp.partition}-{target.topic}",
        value_serializer=_Nulls(),
        enable_idempotence=True,
        acks="all",
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
        max_request_size=REQUEST_BYTES_MAX,
    )


def _committed_position(
    target: TopicTarget, group: str, partition: Any, origin: _Origin
) -> int | None:
    """The first source offset that the target does not have. None: the backfill has not begun.
    Raises ConfigError if the origin of the target's records is unknown or another topic.
    """
    settings = kafka_settings(target.cluster)
    with closing(KafkaConsumer(**settings, group_id=group, enable_auto_commit=False)) as consumer:
        committed = consumer.committed(partition, metadata=True)
        if committed is None:
            end = consumer.end_offsets([partition])[partition]
            if end > 0 and not target.append:
                raise ConfigError(
                    f"{partition.topic}-{partition.partition} has records, and it is not known "
                    "whether they are of this backfill (brokers forget it after "
                    "offsets.retention.minutes); use a new topic, or add --append"
                )
            return None
    origin_before = _Origin.decode(committed.metadata)
    if origin_before.source_id not in ("", origin.source_id):
        raise ConfigError(
            f"{partition.topic}-{partition.partition} has records of another topic of that name, "
            f"with the id {origin_before.source_id}"
        )
    if origin_before.target_id not in ("", origin.target_id):
        raise ConfigError(
            f"{partition.topic}-{partition.partition}: {_recreated_message(partition.topic)}"
        )
    return int(committed.offset)


def _recreated_message(topic: str) -> str:
    return (
        f"topic {topic} was deleted and recreated after this backfill had started, so it lacks "
        "what was copied before: delete it, create it again, and rerun the backfill"
    )


def _why_target_changed(target: TopicTarget, target_id: str) -> str | None:
    """Why the plan's target is gone. None: it is there, or no broker answers."""
    try:
        info = in_loop(_topic(Config(cluster=target.cluster), target.topic))
    except ClusterError as error:
        if error.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            return None
        return f"topic {target.topic} no longer exists: create it again, and rerun the backfill"
    return None if _id_text(info) == target_id else _recreated_message(target.topic)


def _id_text(info: TopicInfo) -> str:
    return str(info.topic_id) if info.topic_id.int else ""


async def _topic(config: Config, topic: str) -> TopicInfo:
    async with open_cluster(config) as cluster:
        return await cluster.topic_by_name(topic, max_age_ms=0)


def _in_words(
    error: KafkaError, target: TopicTarget, task: PartitionTask, refused_from: int | None
) -> ClusterError:
    tp_text = str(task.task.tp)
    if refused_from is not None:
        tp_text += f", at or after offset {refused_from}"
    if isinstance(error, ProducerFencedError):
        return ClusterError(f"{tp_text}: another backfill into the same topic has taken over")
    if (reason := _why_target_changed(target, task.target_id)) is not None:
        return ClusterError(f"{tp_text}: {reason}")
    kind = ClusterUnavailable if getattr(error, "retriable", False) else ClusterError
    remedy = _REMEDIES.get(type(error), "").format(topic=target.topic)
    return kind(f"{tp_text}: {type(error).__name__}: {error}{remedy}")


def _text(path: object) -> str | None:
    return None if path is None else str(path)
