"""A topic from its first archived record to its live end: segments, then the brokers.

History comes from `remotelog`, all after it from Spark's own Kafka source, which begins at exactly
the offset at which the archive ended when it was looked at: the crossing. So there is no gap and
no duplicate, whatever the archiver does meanwhile, and where the brokers have forgotten the
crossing already, Spark's source fails (`failOnDataLoss`) and nothing is passed over in silence.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fetchproxy.errors import ConfigError
from fetchproxy.pipeline.source.archive_reading import ArchiveReading, Views
from fetchproxy.pipeline.source.options import EARLIEST, BoundKind, SourceOptions, parse_options
from fetchproxy.pipeline.source.spark_source import NAME, RemoteLogDataSource
from fetchproxy.storage.layout import uuid_text

# (topic, partition) -> offset; EARLIEST for partitions that the archive does not have.
Crossing = dict[tuple[str, int], int]

_KAFKA = "kafka."
# Options of both sources, and of the Kafka source alone.
_SHARED = ("includeheaders", "failondataloss")
_LIVE_ONLY = ("maxoffsetspertrigger", "minoffsetspertrigger", "maxtriggerdelay", "groupidprefix")


def archive_then_live(
    spark: SparkSession, options: Mapping[str, str], *, crossing_at: str | None = None
) -> DataFrame:
    """All records of the chosen topics, archived and live, in the columns of both sources.

    `options` are those of `remotelog` and of Spark's Kafka source together (`store`, `topics`,
    `kafka.bootstrap.servers` …); reading begins at `earliest` or at offsets by partition, and a
    batch ends at the brokers' ends. With `crossing_at` it is a streaming frame: the crossing is
    kept in a file of this name (any of Hadoop's file systems), beside the query's checkpoint, so
    that a restart crosses where the first start did. Within one micro-batch rows of both sources
    may come side by side.

    Raises ConfigError; a topic that was created again after it was archived is refused.
    """
    streaming = crossing_at is not None
    parsed = parse_options({"startingOffsets": "earliest", **options}, streaming=streaming)
    if BoundKind.TIMESTAMPS in (parsed.starting.kind, parsed.ending.kind):
        raise ConfigError("archive then live: begins and ends at offsets, not at timestamps")
    spark.dataSource.register(RemoteLogDataSource)
    crossing = None if crossing_at is None else _kept_crossing(spark, crossing_at)
    if crossing is None:
        crossing = find_crossing(spark, options, parsed)
        if crossing_at is not None:
            _keep_crossing(spark, crossing_at, crossing)

    def read(source: str, chosen: Mapping[str, str]) -> DataFrame:
        reader = spark.readStream if streaming else spark.read  # each keeps its options for good
        return reader.format(source).options(**chosen).load()

    history = read(NAME, _history_options(options, parsed, crossing))
    return history.unionByName(read("kafka", _live_options(options, parsed, crossing)))


def find_crossing(
    spark: SparkSession, options: Mapping[str, str], parsed: SourceOptions
) -> Crossing:
    """Where the archive ends now, of every partition that the brokers have."""
    views = asyncio.run(_views(parsed))
    ends = {(t.topic, t.partition): view.log_end_offset or 0 for t, view in views.items()}
    archived_ids = {tip.topic: uuid_text(tip.topic_id) for tip in views}
    crossing: Crossing = {}
    for topic, (topic_id, partitions) in _live_topics(spark, options, parsed).items():
        if archived_ids.get(topic, topic_id) != topic_id:
            raise ConfigError(
                f"archive then live: topic {topic} was created again after it was archived; its "
                "archive is another topic's history: read it by itself"
            )
        for partition in partitions:
            if parsed.topics.takes(topic, partition):
                crossing[(topic, partition)] = ends.get((topic, partition), EARLIEST)
    missing = sorted(set(ends) - set(crossing))
    if missing:
        raise ConfigError(f"archive then live: the brokers have no partition {missing[0]}")
    return crossing


async def _views(parsed: SourceOptions) -> Views:
    async with ArchiveReading(parsed) as reading:
        return await reading.views()


def _live_topics(
    spark: SparkSession, options: Mapping[str, str], parsed: SourceOptions
) -> dict[str, tuple[str, list[int]]]:
    """Id and partitions of each chosen topic, asked with the Kafka source's own settings."""
    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    for name, value in options.items():
        if name.lower().startswith(_KAFKA):
            settings.setProperty(name[len(_KAFKA) :], value)
    admin = jvm.org.apache.kafka.clients.admin.AdminClient.create(settings)
    try:
        names = list(parsed.topics.names or parsed.topics.assigned or ())
        if parsed.topics.pattern is not None:
            every = admin.listTopics().names().get()
            names = [name for name in every if parsed.topics.takes(name, 0)]
        asked = jvm.java.util.ArrayList()
        for name in names:
            asked.add(name)
        described = admin.describeTopics(asked).allTopicNames().get()
        return {
            name: (
                described[name].topicId().toString(),
                [each.partition() for each in described[name].partitions()],
            )
            for name in described
        }
    finally:
        admin.close()


def _history_options(
    options: Mapping[str, str], parsed: SourceOptions, crossing: Crossing
) -> dict[str, str]:
    chosen = {
        name: value
        for name, value in options.items()
        if name.lower() not in ("startingoffsets", "endingoffsets")
    }
    archived = {key: end for key, end in crossing.items() if end != EARLIEST}
    starts = {key: min(_start(parsed, key), end) for key, end in archived.items()}
    return {
        **chosen,
        "startingOffsets": _as_json(starts),
        "endingOffsets": _as_json(archived),
    }


def _live_options(
    options: Mapping[str, str], parsed: SourceOptions, crossing: Crossing
) -> dict[str, str]:
    chosen = {
        name: value
        for name, value in options.items()
        if name.lower().startswith(_KAFKA) or name.lower() in (*_SHARED, *_LIVE_ONLY)
    }
    starts = {key: max(end, _start(parsed, key)) for key, end in crossing.items()}
    partitions: dict[str, list[int]] = {}
    for topic, partition in sorted(crossing):
        partitions.setdefault(topic, []).append(partition)
    return {
        **chosen,
        "kafka.isolation.level": parsed.isolation.name.lower(),
        "assign": json.dumps(partitions),
        "startingOffsets": _as_json(starts),
    }


def _start(parsed: SourceOptions, key: tuple[str, int]) -> int:
    """Where this partition begins by the options; EARLIEST, below every offset, by default."""
    return parsed.starting.by_partition.get(key, EARLIEST)


def _as_json(offsets: Crossing) -> str:
    document: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    return json.dumps(document)


def _kept_crossing(spark: SparkSession, name: str) -> Crossing | None:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(name)
    files = path.getFileSystem(spark._jsc.hadoopConfiguration())
    if not files.exists(path):
        return None
    stream = files.open(path)
    try:
        text = jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8")
    finally:
        stream.close()
    return {
        (topic, int(partition)): offset
        for topic, partitions in json.loads(text).items()
        for partition, offset in partitions.items()
    }


def _keep_crossing(spark: SparkSession, name: str, crossing: Crossing) -> None:
    """Of two that start at once one fails here."""
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(name)
    stream = path.getFileSystem(spark._jsc.hadoopConfiguration()).create(path, False)
    try:
        stream.write(bytearray(_as_json(crossing), "utf-8"))
    finally:
        stream.close()
