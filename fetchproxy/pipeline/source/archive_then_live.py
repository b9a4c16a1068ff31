"""A topic from its first archived record to its live end: segments, then the brokers.

History comes from `remotelog`, all after it from Spark's own Kafka source, which begins at exactly
the offset at which the archive ended when it was looked at: the crossing. So there is no gap and
no duplicate, whatever the archiver does meanwhile, and where the brokers have forgotten the
crossing already, Spark's source fails (`failOnDataLoss`) and nothing is passed over in silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import structlog
from pyspark.sql import DataFrame, SparkSession

from fetchproxy.errors import ConfigError
from fetchproxy.pipeline.source.archive_reading import ArchiveReading, Views
from fetchproxy.pipeline.source.crossing import (
    Crossing,
    Halves,
    Place,
    as_assign,
    as_json,
    halves,
)
from fetchproxy.pipeline.source.crossing_file import CrossingFile
from fetchproxy.pipeline.source.kafka_admin import KafkaAdmin, LiveTopics, kafka_admin
from fetchproxy.pipeline.source.kafka_options import is_live_only
from fetchproxy.pipeline.source.options import EARLIEST, BoundKind, SourceOptions, parse_options
from fetchproxy.pipeline.source.spark_source import NAME, all_columns, register_source
from fetchproxy.pipeline.source.spark_versions import check_stream
from fetchproxy.pipeline.source.store_thread import LoopThread
from fetchproxy.storage.layout import uuid_text

log = structlog.get_logger(__name__)

_CHOICE = ("topics", "subscribe", "topicpattern", "subscribepattern", "assign")
_BOUNDS = ("startingoffsets", "endingoffsets")
# Options of both sources, besides those of Kafka's alone.
_SHARED = (
    "includeheaders",
    "failondataloss",
    "minpartitions",
    "maxrecordsperpartition",
    "maxoffsetspertrigger",
    "minoffsetspertrigger",
    "maxtriggerdelay",
)


def archive_then_live(
    spark: SparkSession, options: Mapping[str, str], *, crossing_at: str | None = None
) -> DataFrame:
    """All records of the chosen topics, archived and live, in the columns of both sources.

    `options` are those of `remotelog` and of Spark's Kafka source together (`store`, `topics`,
    `kafka.bootstrap.servers` …); reading begins and ends at offsets, and a batch ends at the
    brokers' ends by default. With `crossing_at` it is a streaming frame: the crossing is
    kept in a file of this name (any of Hadoop's file systems), beside the query's checkpoint, so
    that a restart crosses where the first start did. Within one micro-batch rows of both sources
    may come side by side.

    Raises ConfigError; a topic that was created again after it was archived is refused.
    """
    streaming = crossing_at is not None
    parsed = _parsed(options, streaming=streaming)
    register_source(spark)
    file = None if crossing_at is None else CrossingFile(spark, crossing_at)
    crossing = None if file is None else file.read()
    with kafka_admin(spark, options) as admin:
        brokers = admin.topics(parsed.topics)
        if crossing is None:
            found = find_crossing(admin, brokers, parsed)
            crossing = found if file is None else file.keep(found)
    parts = halves(crossing, parsed.starting, parsed.ending)
    live_only = [f"{topic}-{partition}" for topic, partition in sorted(crossing.live)]
    log.info("archive_then_live", archived=len(parts.history), read_live_alone=live_only)
    frames = []
    reader = spark.readStream if streaming else spark.read
    if parts.history:
        chosen = _history_options(options, parts)
        frames.append(reader.format(NAME).options(**chosen).load())
    if parts.live:
        reader = spark.readStream if streaming else spark.read  # each keeps its options for good
        chosen = _live_options(options, parsed, parts, brokers, streaming=streaming)
        frames.append(reader.format("kafka").options(**chosen).load())
    if not frames:
        return spark.createDataFrame([], all_columns(headers=parsed.include_headers))
    return reduce(DataFrame.unionByName, frames)


def find_crossing(admin: KafkaAdmin, brokers: LiveTopics, parsed: SourceOptions) -> Crossing:
    """Where the archive ends now, of every partition that the brokers have.

    They are asked first: what is copied and deleted between both looks is then missing at an offset
    that was named, and so an error. Raises ConfigError, RemoteStorageError, CorruptSegment.
    """
    earliest = admin.earliest(brokers.places)
    views = _views(parsed)
    archived_ids = {tip.topic: uuid_text(tip.topic_id) for tip in views}
    for topic, topic_id in brokers.ids.items():
        if archived_ids.get(topic, topic_id) != topic_id:
            raise ConfigError(
                f"archive then live: topic {topic} was created again after it was archived; its "
                "archive is another topic's history: read it by itself"
            )
    ends = {(t.topic, t.partition): view.log_end_offset or 0 for t, view in views.items()}
    missing = sorted(set(ends) - set(brokers.places))
    if missing:
        raise ConfigError(f"archive then live: the brokers have no partition {missing[0]}")
    return Crossing(ends, {place: earliest[place] for place in brokers.places if place not in ends})


def _parsed(options: Mapping[str, str], *, streaming: bool) -> SourceOptions:
    own = {name: value for name, value in options.items() if not is_live_only(name)}
    parsed = parse_options({"startingOffsets": "earliest", **own}, streaming=streaming)
    if BoundKind.TIMESTAMPS in (parsed.starting.kind, parsed.ending.kind):
        raise ConfigError("archive then live: begins and ends at offsets, not at timestamps")
    if streaming:
        check_stream(parsed)
        if parsed.ending.kind is not BoundKind.LATEST:
            raise ConfigError(
                "archive then live: endingOffsets: Spark's Kafka source has no end in a stream; "
                "take the option out, or read a batch"
            )
    return parsed


def _views(parsed: SourceOptions) -> Views:
    """By a loop of its own: a notebook's thread runs one already."""

    async def look() -> Views:
        async with ArchiveReading(parsed) as reading:
            return await reading.views()

    loop = LoopThread("archive")
    try:
        return loop.submit(look()).result()
    finally:
        loop.stop()


def _history_options(options: Mapping[str, str], parts: Halves) -> dict[str, str]:
    """By partition: those that were not archived at the crossing are the other half's for good."""
    chosen = {
        name: value
        for name, value in options.items()
        if name.lower() not in (*_CHOICE, *_BOUNDS) and not is_live_only(name)
    }
    return {
        **chosen,
        "assign": as_assign(parts.history),
        "startingOffsets": as_json({place: start for place, (start, _) in parts.history.items()}),
        "endingOffsets": as_json({place: end for place, (_, end) in parts.history.items()}),
    }


def _live_options(
    options: Mapping[str, str],
    parsed: SourceOptions,
    parts: Halves,
    brokers: LiveTopics,
    *,
    streaming: bool,
) -> dict[str, str]:
    """A stream subscribes as its options say, so partitions that appear later are read live."""
    chosen = {
        name: value
        for name, value in options.items()
        if is_live_only(name) or name.lower() in _SHARED
    }
    chosen["kafka.isolation.level"] = parsed.isolation.name.lower()
    starts: dict[Place, int] = {place: start for place, (start, _) in parts.live.items()}
    topics = parsed.topics
    if not streaming or topics.assigned is not None:
        chosen["assign"] = as_assign(parts.live)
    elif topics.names is not None:
        chosen["subscribe"] = ",".join(sorted(topics.names))
    else:
        chosen["subscribePattern"] = topics.pattern or ""
    if streaming and topics.assigned is None:
        starts = {place: starts.get(place, EARLIEST) for place in brokers.places}
    if not streaming:
        ends = {place: end for place, (_, end) in parts.live.items()}
        chosen["endingOffsets"] = as_json(ends)
    return {**chosen, "startingOffsets": as_json(starts)}
