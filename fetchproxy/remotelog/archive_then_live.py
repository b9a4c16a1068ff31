"""Reads a topic from its first archived record to its live end: segments, then the brokers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from functools import reduce
from typing import Any, TypeVar
from uuid import uuid4

import structlog
from py4j.protocol import Py4JJavaError
from pyspark.sql import DataFrame, SparkSession

from fetchproxy.archive import in_loop
from fetchproxy.errors import ConfigError
from fetchproxy.remotelog.archive_reading import ArchiveReading
from fetchproxy.remotelog.options import (
    EARLIEST,
    BoundKind,
    NextOffsets,
    SourceOptions,
    TopicChoice,
    TopicPartition,
    is_live_only,
    parse_options,
)
from fetchproxy.remotelog.rate_limits import Views
from fetchproxy.remotelog.source import NAME, all_columns, check_stream, register_source
from fetchproxy.remotelog.tier_boundary import (
    OffsetRanges,
    TierBoundary,
    as_assign,
    as_json,
    split_at_boundary,
)
from fetchproxy.segments.object_keys import uuid_text

T = TypeVar("T")
_PREFIX = "kafka."
# Kafka's own default is a minute, during which the client reports nothing.
_PATIENCE = {"default.api.timeout.ms": "15000", "request.timeout.ms": "10000"}
_TOPIC_OPTIONS = ("topics", "subscribe", "topicpattern", "subscribepattern", "assign")
_BOUNDS = ("startingoffsets", "endingoffsets")
# Options that both sources take. The Kafka source also takes those of `is_live_only`.
_SHARED = (
    "includeheaders",
    "failondataloss",
    "minpartitions",
    "maxrecordsperpartition",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
)

log = structlog.get_logger(__name__)


class TierBoundaryFile:
    """Keeps a stream's tier boundary in any of Hadoop's file systems.

    It writes another file and renames it, so the file is whole or absent.
    """

    def __init__(self, spark: SparkSession, name: str) -> None:
        self._jvm: Any = spark._jvm
        self._name = name
        self._path = self._jvm.org.apache.hadoop.fs.Path(name)
        self._files = self._path.getFileSystem(spark._jsc.hadoopConfiguration())

    def read(self) -> TierBoundary | None:
        """None: there is no file yet. Raises ConfigError if the file is damaged."""
        if not self._files.exists(self._path):
            return None
        with closing(self._files.open(self._path)) as stream:
            text = self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
        return TierBoundary.decode(text, self._name)

    def keep(self, tier_boundary: TierBoundary) -> TierBoundary:
        """Returns the kept tier boundary: this one, or the one that a faster start has written."""
        part_path = self._jvm.org.apache.hadoop.fs.Path(f"{self._name}.{uuid4().hex}.part")
        with closing(self._files.create(part_path, False)) as stream:
            stream.write(bytearray(tier_boundary.encode(), "utf-8"))
        if self._files.exists(self._path) or not self._files.rename(part_path, self._path):
            self._files.delete(part_path, False)
        boundary_before = self.read()
        if boundary_before is None:
            raise ConfigError(f"archive then live: {self._name} cannot be written")
        return boundary_before


class KafkaAdmin:
    """The Kafka client of Spark's source, in the driver's JVM, with that source's settings.

    The settings are `kafka.…`: Spark's source reaches every broker that this client reaches.
    Raises ConfigError, in one line, if the brokers or the client refuse a request.
    """

    def __init__(self, spark: SparkSession, options: Mapping[str, str]) -> None:
        consumer_settings = {
            name[len(_PREFIX) :]: value
            for name, value in options.items()
            if name.lower().startswith(_PREFIX)
        }
        if not consumer_settings.get("bootstrap.servers"):
            raise ConfigError("archive then live: the option 'kafka.bootstrap.servers' is needed")
        self._jvm: Any = spark._jvm
        settings = self._jvm.java.util.Properties()
        for name, value in {**_PATIENCE, **consumer_settings}.items():
            settings.setProperty(name, value)
        create = self._jvm.org.apache.kafka.clients.admin.AdminClient.create
        self._client = _result_of("the Kafka client", lambda: create(settings))

    def close(self) -> None:
        self._client.close()

    def topics(self, choice: TopicChoice) -> tuple[dict[str, str], list[TopicPartition]]:
        """The id of each chosen topic, and the chosen partitions."""
        names = sorted(choice.names or choice.assigned or ())
        if choice.pattern is not None:
            every = _result_of(
                "the list of topics", lambda: self._client.listTopics().names().get()
            )
            names = sorted(name for name in every if choice.includes(name, 0))
        names_list = self._jvm.java.util.ArrayList()
        for name in names:
            names_list.add(name)
        values = self._client.describeTopics(names_list).topicNameValues()
        ids: dict[str, str] = {}
        tps: list[TopicPartition] = []
        for name in names:
            description = _result_of(f"topic {name!r}", values[name].get)
            ids[name] = description.topicId().toString()
            numbers = {partition.partition() for partition in description.partitions()}
            missing = sorted((choice.assigned or {}).get(name, frozenset()) - numbers)
            if missing:
                raise ConfigError(
                    f"archive then live: the brokers have no partition {missing[0]} of {name!r}"
                )
            tps += [(name, number) for number in sorted(numbers) if choice.includes(name, number)]
        return ids, tps

    def earliest(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest()
        java_partitions = {tp: self._jvm.org.apache.kafka.common.TopicPartition(*tp) for tp in tps}
        specs = self._jvm.java.util.HashMap()
        for partition in java_partitions.values():
            specs.put(partition, spec)
        first_offsets = _result_of("the first offsets", self._client.listOffsets(specs).all().get)
        return {
            tp: first_offsets.get(partition).offset() for tp, partition in java_partitions.items()
        }


def _result_of(operation: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Py4JJavaError as error:
        reason = error.java_exception
        while reason.getCause() is not None:
            reason = reason.getCause()
        name = reason.getClass().getSimpleName()
        raise ConfigError(
            f"archive then live: {operation}: {name}: {reason.getMessage()}"
        ) from None


# `remotelog` reads the history, Spark's own Kafka source everything after it. The Kafka source
# begins at the tier boundary: exactly the offset at which the archive ended when it was looked at.
# If the brokers have deleted that offset already, Spark's source fails (`failOnDataLoss`).


def archive_then_live(
    spark: SparkSession, options: Mapping[str, str], *, tier_boundary_at: str | None = None
) -> DataFrame:
    """All records of the chosen topics, archived and live, in the columns of both sources.

    `options`: the options of `remotelog` and of Spark's Kafka source together (`store`, `topics`,
    `kafka.bootstrap.servers` …). Reading begins and ends at offsets; by default a batch ends at
    the brokers' ends. `tier_boundary_at`: a file beside the query's checkpoint, in any of Hadoop's
    file systems. If given, the frame is streaming, and the file keeps the tier boundary, so that a
    restart crosses at the same offset. One micro-batch may mix rows of both sources.

    Raises ConfigError, also for a topic that was created again after it was archived.
    """
    streaming = tier_boundary_at is not None
    source_options = _parsed(options, streaming=streaming)
    register_source(spark)
    file = None if tier_boundary_at is None else TierBoundaryFile(spark, tier_boundary_at)
    tier_boundary = None if file is None else file.read()
    with closing(KafkaAdmin(spark, options)) as admin:
        ids, tps = admin.topics(source_options.topics)
        if tier_boundary is None:
            boundary = find_tier_boundary(ids, admin.earliest(tps), source_options)
            tier_boundary = boundary if file is None else file.keep(boundary)
    history, live = split_at_boundary(tier_boundary, source_options.starting, source_options.ending)
    live_only = [f"{topic}-{partition}" for topic, partition in sorted(tier_boundary.live)]
    log.info("archive_then_live", archived=len(history), read_live_alone=live_only)
    sources = []
    if history:
        sources.append((NAME, _history_options(options, history)))
    if live:
        live_options = _live_options(options, source_options, live, tps, streaming=streaming)
        sources.append(("kafka", live_options))
    frames = []
    for name, option_texts in sources:
        reader = spark.readStream if streaming else spark.read  # readers keep options for good
        frames.append(reader.format(name).options(**option_texts).load())
    if not frames:
        return spark.createDataFrame([], all_columns(headers=source_options.include_headers))
    return reduce(DataFrame.unionByName, frames)


def find_tier_boundary(
    ids: Mapping[str, str], earliest: NextOffsets, source_options: SourceOptions
) -> TierBoundary:
    """The archive's current end of every partition that the brokers have.

    The caller asks the brokers first, for topics' `ids` and partitions' `earliest` offsets. If
    records are copied and deleted between both requests, the offset named then is missing, which is
    an error. Raises ConfigError, RemoteStorageError, CorruptSegment.
    """
    views, log_ids = in_loop(_views(source_options))
    archived_ids = {topic: uuid_text(view.tp.topic_id) for (topic, _), view in views.items()}
    for topic, topic_id in ids.items():
        log_id = log_ids.get(topic_id, topic_id)
        if archived_ids.get(topic, log_id) != log_id:
            raise ConfigError(
                f"archive then live: topic {topic} was created again after it was archived; its "
                "archive is the history of another topic: read that archive separately"
            )
    ends = {tp: view.log_end_offset or 0 for tp, view in views.items()}
    missing = sorted(set(ends) - set(earliest))
    if missing:
        raise ConfigError(f"archive then live: the brokers have no partition {missing[0]}")
    return TierBoundary(ends, {tp: offset for tp, offset in earliest.items() if tp not in ends})


def _parsed(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    archive_options = {name: value for name, value in options.items() if not is_live_only(name)}
    parsed = parse_options({"startingOffsets": "earliest", **archive_options}, streaming=streaming)
    if BoundKind.TIMESTAMPS in (parsed.starting.kind, parsed.ending.kind):
        raise ConfigError(
            "archive then live: give offsets as the beginning and the end, not timestamps"
        )
    if streaming:
        check_stream(parsed)
        if parsed.ending.kind is not BoundKind.LATEST:
            raise ConfigError(
                "archive then live: endingOffsets: Spark's Kafka source has no end in a stream; "
                "take the option out, or read a batch"
            )
    return parsed


async def _views(source_options: SourceOptions) -> tuple[Views, Mapping[str, str]]:
    """And the ids of the logs that brokers' topics continue, by the topics' ids."""
    async with ArchiveReading(source_options) as reading:
        views, objects = await reading.views(), reading.storage.objects
        await objects.renew_continued_topics()
        log_ids = objects.continued.log_ids
        return views, {uuid_text(one): uuid_text(log_id) for one, log_id in log_ids.items()}


def _history_options(options: Mapping[str, str], history: OffsetRanges) -> dict[str, str]:
    """Names partitions: the live half reads those not archived at the tier boundary, for good."""
    history_options = {
        name: value
        for name, value in options.items()
        if name.lower() not in (*_TOPIC_OPTIONS, *_BOUNDS) and not is_live_only(name)
    }
    return {
        **history_options,
        "assign": as_assign(history),
        "startingOffsets": as_json({tp: start for tp, (start, _) in history.items()}),
        "endingOffsets": as_json({tp: end for tp, (_, end) in history.items()}),
    }


def _live_options(
    options: Mapping[str, str],
    source_options: SourceOptions,
    live: OffsetRanges,
    tps: list[TopicPartition],
    *,
    streaming: bool,
) -> dict[str, str]:
    """A stream subscribes as its options say, so partitions that appear later are read live."""
    live_texts = {
        name: value
        for name, value in options.items()
        if is_live_only(name) or name.lower() in _SHARED
    }
    live_texts["kafka.isolation.level"] = source_options.isolation.name.lower()
    starts: dict[TopicPartition, int] = {tp: start for tp, (start, _) in live.items()}
    topics = source_options.topics
    if not streaming or topics.assigned is not None:
        live_texts["assign"] = as_assign(live)
    elif topics.names is not None:
        live_texts["subscribe"] = ",".join(sorted(topics.names))
    else:
        live_texts["subscribePattern"] = topics.pattern or ""
    if streaming and topics.assigned is None:
        starts = {tp: starts.get(tp, EARLIEST) for tp in tps}
    if not streaming:
        ends = {tp: end for tp, (_, end) in live.items()}
        live_texts["endingOffsets"] = as_json(ends)
    return {**live_texts, "startingOffsets": as_json(starts)}
