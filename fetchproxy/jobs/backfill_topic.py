"""The job `backfill` into another topic: key, value, headers, timestamp and partition stay.

Each partition is one task that writes in source order, in transactions. Each transaction also
commits the position in the source, as an offset of a consumer group. So after a task is killed or
runs twice, a reader of the target with read_committed sees each record exactly once.

The target assigns its own offsets. In the target, every timestamp is of type CreateTime.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from functools import partial
from typing import Any, NamedTuple

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, ProducerFencedError
from kafka.serializer import Serializer
from kafka.structs import OffsetAndMetadata

from fetchproxy.archive import for_executors, in_loop, open_cluster
from fetchproxy.brokers.connections import CLIENT_ID
from fetchproxy.config.schema import ClusterConfig, Config
from fetchproxy.config.values import secret_from
from fetchproxy.errors import ClusterError, ClusterUnavailable, ConfigError
from fetchproxy.jobs.backfill_plan import backfill_input
from fetchproxy.jobs.runner import Done, Failure, Runner, Work
from fetchproxy.model import TopicIdPartition
from fetchproxy.remotelog.decoder.arrow_batches import COLUMNS
from fetchproxy.remotelog.options import SourceOptions, parse_options
from fetchproxy.remotelog.planning import ReadTask, plan_tasks
from fetchproxy.remotelog.task_reader import PassedOver, read_task

# The work that a killed task has to do again, and the data that waits in the producer's memory.
TRANSACTION_RECORDS_MAX = 20_000
TRANSACTION_BYTES_MAX = 16 * 1024 * 1024
# A batch in the target. A larger record gets its own batch, up to the brokers' limit.
BATCH_BYTES = 256 * 1024
REQUEST_BYTES_MAX = 100 * 1024 * 1024  # the brokers' own limit is message.max.bytes
LINGER_MS = 20

COPIED_SCHEMA = "partition int, records bigint, source_end bigint, passed_over bigint, faults int"


class PartitionTask(NamedTuple):
    """The whole requested span of a partition, including records that may be copied already."""

    task: ReadTask
    end: int


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

    `passed_over`: the maximum number of records that were left out. `faults`: the damaged batches
    and missing objects that held them. They are not copied later, as the target already has the
    records after them.
    """

    partition: int
    records: int
    source_end: int
    passed_over: int = 0
    faults: int = 0


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
        name=lambda one: f"{one.task.tip} to {topic}",
        size=lambda copied: copied.records,
    )
    done = runner.each(tasks, work)
    frame = runner.frame([astuple(one) for one in done.results], COPIED_SCHEMA)
    return Done(done.results, (*left_out, *done.failures), frame)


def plan_topic(
    config: Config, target: TopicTarget
) -> tuple[list[PartitionTask], tuple[Failure, ...]]:
    """Runs on the driver. Returns the tasks and the partitions left out. Raises as
    `backfill_topic`.
    """
    kafka_settings(target.cluster)  # raises for unsupported settings before any work starts
    asked, left_out = in_loop(backfill_input(target.options))
    topics = {view.tip.topic for view, _ in asked}
    if len(topics) > 1:
        raise ConfigError(
            f"--to-topic takes records of one topic, not of {', '.join(sorted(topics))}"
        )
    there = in_loop(_partition_count(config, target.topic))
    needed = max((view.tip.partition for view, _ in asked), default=-1) + 1
    if there < needed:
        raise ConfigError(f"topic {target.topic} has {there} partitions, the source has {needed}")
    found = [
        PartitionTask(task, span.end)
        for view, span in sorted(asked, key=lambda one: one[0].tip)
        for task in plan_tasks([(view, span)], partition_bytes_max=2**62)
    ]
    return found, left_out


def copy_partition(target: TopicTarget, wanted: PartitionTask) -> CopiedPartition:
    """Runs in a worker process. Raises ConfigError, ClusterError, CorruptSegment,
    RemoteStorageError.
    """
    tip, place = wanted.task.tip, TopicPartition(target.topic, wanted.task.tip.partition)
    group, topic_id = f"fetchproxy-backfill-{tip.topic}", str(tip.topic_id)
    # Closing the producer aborts an open transaction.
    with _kafka_errors(str(tip)), closing(_producer(target, tip)) as producer:
        # Fences an earlier producer of this partition and aborts its open transaction.
        producer.init_transactions()
        copied = _Transactions(producer, place, group, topic_id)
        done = _come_to(target, group, place, topic_id)
        if done is None:
            done = 0
            copied.begin()
        end = max(wanted.end, done)
        task, passed_over = from_offset(wanted.task, done), PassedOver()
        if task is not None:
            for batch in read_task(target.options, task, COLUMNS, passed_over=passed_over):
                copied.add(batch)
        copied.end(end)
    left_out = passed_over.records, passed_over.faults
    return CopiedPartition(place.partition, copied.records, end, *left_out)


def from_offset(task: ReadTask, first: int) -> ReadTask | None:
    """The part of `task` from offset `first` on. None: there is none."""
    parts = tuple(
        part._replace(offset_from=max(part.offset_from, first))
        for part in task.parts
        if part.offset_end > first
    )
    return ReadTask(task.tip, parts) if parts else None


class _Null(bytes):
    """Stands for null as a header's value, and as a value without a key. kafka-python's `send`
    refuses null there, but Kafka and kafka-python's encoder allow it.
    """


_NULL = _Null()


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


def _headers(found: Iterable[Mapping[str, Any]]) -> list[tuple[str, bytes | None]]:
    pairs: list[tuple[str, bytes | None]] = [(h["key"], _or_null(h["value"])) for h in found]
    if any(value is _NULL for _, value in pairs):
        return _HeadersWithNulls(pairs)
    return pairs


class _Transactions:
    """Sends records in transactions. Each transaction commits the source offset reached by it."""

    def __init__(self, producer: Any, place: Any, group: str, topic_id: str) -> None:
        self._producer = producer
        self._place = place
        self._group = group
        self._topic_id = topic_id
        self._sent: list[Any] = []
        self._bytes = 0
        self.records = 0

    def add(self, batch: Any) -> None:
        columns = [batch.column(name).to_pylist() for name in ("key", "value", "offset", "headers")]
        times = batch.column("timestamp").cast("int64").to_pylist()
        for key, value, offset, headers, micros in zip(*columns, times, strict=True):
            if not self._sent:
                self._producer.begin_transaction()
            self._sent.append(
                self._producer.send(
                    self._place.topic,
                    value=_or_null(value),
                    key=key,
                    headers=_headers(headers or ()),
                    partition=self._place.partition,
                    timestamp_ms=micros // 1000,
                )
            )
            self._bytes += len(key or b"") + len(value or b"")
            if len(self._sent) >= TRANSACTION_RECORDS_MAX or self._bytes >= TRANSACTION_BYTES_MAX:
                self._commit(offset + 1)

    def begin(self) -> None:
        """Commit offset 0, which marks the target's records as this source's, aborted ones too."""
        self._producer.begin_transaction()
        self._commit(0)

    def end(self, next_offset: int) -> None:
        if self._sent:
            self._commit(next_offset)

    def _commit(self, next_offset: int) -> None:
        come_to = OffsetAndMetadata(next_offset, self._topic_id, -1)
        self._producer.send_offsets_to_transaction({self._place: come_to}, self._group)
        self._producer.commit_transaction()
        for sent in self._sent:
            sent.get(timeout=0)  # raises the send's error; all sends have ended
        self.records += len(self._sent)
        self._sent, self._bytes = [], 0


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


def _producer(target: TopicTarget, tip: TopicIdPartition) -> Any:
    return KafkaProducer(
        **kafka_settings(target.cluster),
        transactional_id=f"fetchproxy-backfill-{tip.topic_id}-{tip.partition}-{target.topic}",
        value_serializer=_Nulls(),
        enable_idempotence=True,
        acks="all",
        linger_ms=LINGER_MS,
        batch_size=BATCH_BYTES,
        max_request_size=REQUEST_BYTES_MAX,
    )


def _come_to(target: TopicTarget, group: str, place: Any, topic_id: str) -> int | None:
    """The first source offset that the target does not have. None: the backfill has not begun.
    Raises ConfigError if the origin of the target's records is unknown or another topic.
    """
    settings = kafka_settings(target.cluster)
    with closing(KafkaConsumer(**settings, group_id=group, enable_auto_commit=False)) as consumer:
        committed = consumer.committed(place, metadata=True)
        if committed is None:
            end = consumer.end_offsets([place])[place]
            if end > 0 and not target.append:
                raise ConfigError(
                    f"{place.topic}-{place.partition} has records, and it is not known whether "
                    "they are of this backfill (brokers forget it after "
                    "offsets.retention.minutes); use a new topic, or give --append"
                )
            return None
    if committed.metadata not in ("", topic_id):
        raise ConfigError(
            f"{place.topic}-{place.partition} has records of another topic of that name, with the "
            f"id {committed.metadata}"
        )
    return int(committed.offset)


async def _partition_count(config: Config, topic: str) -> int:
    async with open_cluster(config) as cluster:
        return len((await cluster.topic_by_name(topic, max_age_ms=0)).leaders)


@contextmanager
def _kafka_errors(what: str) -> Iterator[None]:
    try:
        yield
    except ProducerFencedError as error:
        raise ClusterError(
            f"{what}: another backfill into the same topic has taken over"
        ) from error
    except KafkaError as error:
        kind = ClusterUnavailable if getattr(error, "retriable", False) else ClusterError
        raise kind(f"{what}: {type(error).__name__}: {error}") from error


def _text(path: object) -> str | None:
    return None if path is None else str(path)
