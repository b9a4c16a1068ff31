"""The options of `format("remotelog")`, and its treatment of Spark's Kafka source options."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from fetchproxy.errors import ConfigError
from fetchproxy.model import IsolationLevel

# The treatment of each option that Spark documents for its Kafka source. docs/spark/options.md has
# the same as a table, and a test compares both.

# They mean the same as in Spark's Kafka source.
HONOURED = (
    "assign",
    "subscribe",
    "subscribePattern",
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "includeHeaders",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "kafka.isolation.level",
)

# How to reach brokers. No broker is asked, so rows are the same with and without these options.
NOT_NEEDED = ("kafka.bootstrap.servers", "kafka.*")

_NO_GROUP = "the archive is read without a consumer group, so its ACLs and quotas do not apply"
_AS_BYTES = "key and value come as bytes; decode the columns"

# The source cannot give the rows, limits or names that these options ask for.
REFUSED_KAFKA_OPTIONS: Mapping[str, str] = {
    "kafka.group.id": _NO_GROUP,
    "groupIdPrefix": _NO_GROUP,
    "kafka.auto.offset.reset": "use startingOffsets to say where reading begins",
    "kafka.enable.auto.commit": "offsets are kept only in the query's checkpoint",
    "kafka.key.deserializer": _AS_BYTES,
    "kafka.value.deserializer": _AS_BYTES,
    "kafka.interceptor.classes": "records do not pass a Kafka consumer here",
    "kafkaConsumer.pollTimeoutMs": "no consumer polls; readMaxMs limits one read of the store",
    "fetchOffset.numRetries": "no broker is used; planMaxMs limits the reading of metadata",
    "fetchOffset.retryIntervalMs": "no broker is used; planMaxMs limits the reading of metadata",
}

_PREFIX = "kafka."
_REFUSED = {name.lower(): name for name in REFUSED_KAFKA_OPTIONS}
# Prefixes of options of the Kafka source alone, if both sources read one topic.
_LIVE_ONLY = ("kafkaconsumer.", "fetchoffset.", "groupidprefix")
# Stored bytes of one task, as Spark's default for files (spark.sql.files.maxPartitionBytes).
PARTITION_BYTES_MAX = 128 * 1024 * 1024
# Unpacked bytes of one record batch. A task takes up to four times as much beside its usual memory
# (a single record; Parquet's writer holds two or three of these copies), so the default keeps a
# worker within 512 MiB. Arrow's offsets have 31 bits, and text that is not UTF-8 becomes three
# times as long: above UNPACKED_BYTES_MOST a record may not fit.
TASK_UNPACKED_BYTES_MAX = 64 * 1024 * 1024
UNPACKED_BYTES_LIMIT = 512 * 1024 * 1024
# Time to read a range, index or transaction index, with retries. Then the task fails and names it.
_READ_MAX_MS = 300_000
# Time to read one partition's metadata; a million segments take minutes from an object store.
PLAN_MAX_MS = 600_000
# The longest wait of a stream for `minOffsetsPerTrigger`: Spark's own default.
TRIGGER_DELAY_MAX_MS = 15 * 60_000
# Offsets as in Spark's JSON and Kafka's ListOffsets.
LATEST, EARLIEST = -1, -2
_STORE_SETTING = "store."
_DURATION = re.compile(r"([0-9]{1,12})(ms|s|m|min|h|d)?")
_DURATION_MS = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_OPTIONS = (
    "store",
    "path",
    "topics",
    "topicPattern",
    "isolationLevel",
    "maxBytesPerPartition",
    "maxBytesPerTrigger",
    "maxUnpackedBytes",
    "corruptBatches",
    "corruptReport",
    "metadataCacheDir",
    "pushFilters",
    "readMaxMs",
    "planMaxMs",
)
_STREAM_ONLY_OPTIONS = (
    "maxBytesPerTrigger",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
)
# Topic and number of a partition.
TopicPartition = tuple[str, int]
# The next offset of each partition.
NextOffsets = Mapping[TopicPartition, int]
_KNOWN = {name.lower(): name for name in (*_OPTIONS, *HONOURED) if not name.startswith(_PREFIX)}


def is_not_needed(name: str) -> bool:
    """True: a setting of Kafka's client that changes no row of an archive."""
    lower = name.lower()
    return lower.startswith(_PREFIX) and lower != "kafka.isolation.level"


def is_live_only(name: str) -> bool:
    """True: Spark's Kafka source takes or refuses the option, and this one has no use for it."""
    return is_not_needed(name) or name.lower().startswith(_LIVE_ONLY)


# Any other option is refused; otherwise a mistyped one would go unnoticed.


def json_offsets(offsets: NextOffsets) -> dict[str, dict[str, int]]:
    """The form of Spark's JSON: {"topic": {"0": 23}}."""
    document: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        document.setdefault(topic, {})[str(partition)] = offset
    return document


def parse_offsets(document: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, int]:
    """The reverse of `json_offsets`. Raises AttributeError, TypeError, ValueError."""
    return {
        (topic, int(partition)): int(offset)
        for topic, partitions in document.items()
        for partition, offset in partitions.items()
    }


class BoundKind(StrEnum):
    EARLIEST = "earliest"
    LATEST = "latest"
    OFFSETS = "offsets"
    TIMESTAMPS = "timestamps"


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or end of reading. `by_partition`: offsets, or timestamps in ms.

    `everywhere`: one timestamp in ms for all partitions.
    """

    kind: BoundKind
    by_partition: NextOffsets = field(default_factory=dict)
    everywhere: int | None = None


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """One of the three fields is set. `assigned`: the partitions of each topic."""

    names: frozenset[str] | None = None
    pattern: str | None = None
    assigned: Mapping[str, frozenset[int]] | None = None

    def includes(self, topic: str, partition: int) -> bool:
        if self.names is not None:
            return topic in self.names
        if self.pattern is not None:
            return re.fullmatch(self.pattern, topic) is not None
        return partition in (self.assigned or {}).get(topic, ())


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The most stored bytes and offsets of one micro-batch; 0: no limit.

    A batch of fewer than `offsets_min` offsets waits for more, up to `delay_max_ms`. `names`: of
    the options that set them.
    """

    bytes_max: int = 0
    offsets_max: int = 0
    offsets_min: int = 0
    delay_max_ms: int = TRIGGER_DELAY_MAX_MS
    names: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceOptions:
    store: str
    topics: TopicChoice
    starting: Bound
    ending: Bound
    # True: a starting timestamp after the last record is an error. False: it means the end.
    starting_after_end_is_error: bool = True
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
    include_headers: bool = False
    partition_bytes_max: int = PARTITION_BYTES_MAX
    trigger: TriggerLimits = TriggerLimits()
    partitions_min: int = 0
    partition_records_max: int = 0  # 0: as many as its bytes hold
    unpacked_bytes_max: int = TASK_UNPACKED_BYTES_MAX
    push_filters: bool = False
    fail_on_data_loss: bool = True
    skip_corrupt: bool = False
    corrupt_report: str | None = None
    metadata_cache_dir: str | None = None
    read_max_ms: int = _READ_MAX_MS
    plan_max_ms: int = PLAN_MAX_MS
    store_settings: Mapping[str, str] = field(default_factory=dict)


def parse_options(texts: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """Option names may have any case. Raises ConfigError, naming the option."""
    options = _Options({name.lower(): value for name, value in texts.items()})
    if (refused := next((_REFUSED[n] for n in options.values if n in _REFUSED), None)) is not None:
        raise ConfigError(
            f"remotelog: {refused}: {REFUSED_KAFKA_OPTIONS[refused]}; take the option out"
        )
    for name in options.values:
        is_known = name in _KNOWN or name.startswith(_STORE_SETTING)
        if not is_known and name != "kafka.isolation.level" and not is_not_needed(name):
            known_names = ", ".join(sorted(_KNOWN.values()))
            raise ConfigError(f"remotelog: unknown option {name!r}; there are {known_names}")
    default = BoundKind.LATEST if streaming else BoundKind.EARLIEST
    return SourceOptions(
        store=_store(options),
        topics=_topics(options),
        starting=_bound(options, "starting", default, streaming=streaming),
        ending=_bound(options, "ending", BoundKind.LATEST, streaming=streaming),
        starting_after_end_is_error=options.one_of(
            "startingOffsetsByTimestampStrategy", ("error", "latest")
        )
        == "error",
        isolation=_isolation(options),
        include_headers=options.boolean("includeHeaders", False),
        partition_bytes_max=options.number("maxBytesPerPartition", PARTITION_BYTES_MAX, 1),
        trigger=_trigger(options, streaming=streaming),
        partitions_min=options.number("minPartitions", 0, 0),
        partition_records_max=options.number("maxRecordsPerPartition", 0, 0),
        unpacked_bytes_max=options.number(
            "maxUnpackedBytes", TASK_UNPACKED_BYTES_MAX, 1, UNPACKED_BYTES_LIMIT
        ),
        push_filters=options.boolean("pushFilters", False),
        fail_on_data_loss=options.boolean("failOnDataLoss", True),
        skip_corrupt=options.one_of("corruptBatches", ("fail", "skip")) == "skip",
        corrupt_report=options.text("corruptReport"),
        metadata_cache_dir=options.text("metadataCacheDir"),
        read_max_ms=options.number("readMaxMs", _READ_MAX_MS, 1),
        plan_max_ms=options.number("planMaxMs", PLAN_MAX_MS, 1),
        store_settings={
            name.removeprefix(_STORE_SETTING): value
            for name, value in options.values.items()
            if name.startswith(_STORE_SETTING)
        },
    )


@dataclass(frozen=True, slots=True)
class _Options:
    """`values` by lower-case name."""

    values: Mapping[str, str]

    def text(self, name: str) -> str | None:
        return self.values.get(name.lower())

    def either(self, name: str, other: str) -> str | None:
        """The value of an option that has two names."""
        first, second = self.text(name), self.text(other)
        if first and second and first != second:
            raise ConfigError(f"remotelog: {name} and {other} are both given, and differ")
        return first or second

    def duration_ms(self, name: str, default: int) -> int:
        """A duration in Spark's notation; a number alone is milliseconds."""
        text = self.values.get(name.lower(), f"{default}ms").strip().lower()
        matched = _DURATION.fullmatch(text)
        if matched is None:
            raise ConfigError(f"remotelog: {name} is {text!r}, expected a duration such as 15m")
        return int(matched[1]) * _DURATION_MS[matched[2] or "ms"]

    def boolean(self, name: str, default: bool) -> bool:
        return self.one_of(name, ("true", "false"), default=str(default)) == "true"

    def number(self, name: str, default: int, least: int, most: int = 10**18) -> int:
        text = self.values.get(name.lower(), str(default))
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
            raise ConfigError(f"remotelog: {name} is {text!r}, expected a number from {least} on")
        if int(text) > most:
            raise ConfigError(f"remotelog: {name} is {text!r}, expected a number up to {most}")
        return int(text)

    def one_of(self, name: str, choices: tuple[str, ...], default: str = "") -> str:
        """Without `default`, the first of `choices` is the default."""
        text = self.values.get(name.lower(), default or choices[0]).lower()
        if text not in choices:
            raise ConfigError(f"remotelog: {name} is {text!r}, expected {' or '.join(choices)}")
        return text

    def json(self, name: str) -> Any:
        try:
            return json.loads(self.values[name.lower()])
        except ValueError as error:
            raise ConfigError(f"remotelog: {name} is not JSON: {error}") from None


def _store(options: _Options) -> str:
    """`load(path)` sets the store too."""
    store, path = options.text("store"), options.text("path")
    if store and path and store != path:
        raise ConfigError(f"remotelog: path {path!r} and store {store!r} are two places")
    if not store and not path:
        raise ConfigError("remotelog: the option 'store' is required, such as s3://bucket/prefix")
    return store or path or ""


def _trigger(options: _Options, *, streaming: bool) -> TriggerLimits:
    stream_options = tuple(name for name in _STREAM_ONLY_OPTIONS if options.text(name) is not None)
    if stream_options and not streaming:
        raise ConfigError(
            f"remotelog: {stream_options[0]}: only streams have micro-batches; take it out"
        )
    limits = TriggerLimits(
        bytes_max=options.number("maxBytesPerTrigger", 0, 0),
        offsets_max=options.number("maxOffsetsPerTrigger", 0, 0),
        offsets_min=options.number("minOffsetsPerTrigger", 0, 0),
        delay_max_ms=options.duration_ms("maxTriggerDelay", TRIGGER_DELAY_MAX_MS),
        names=stream_options,
    )
    if limits.offsets_max and limits.offsets_min > limits.offsets_max:
        raise ConfigError(
            f"remotelog: minOffsetsPerTrigger is {limits.offsets_min}, above maxOffsetsPerTrigger"
        )
    return limits


def _topics(options: _Options) -> TopicChoice:
    names = options.either("topics", "subscribe")
    pattern = options.either("topicPattern", "subscribePattern")
    assign = options.text("assign")
    if sum(1 for each in (names, pattern, assign) if each) != 1:
        raise ConfigError("remotelog: use one of topics, topicPattern and assign")
    if names:
        chosen = frozenset(n.strip() for n in names.split(",") if n.strip())
        if not chosen:
            raise ConfigError(f"remotelog: topics is {names!r}, expected names")
        return TopicChoice(names=chosen)
    if pattern:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ConfigError(f"remotelog: topicPattern {pattern!r}: {error}") from None
        return TopicChoice(pattern=pattern)
    document = options.json("assign")
    try:
        assigned = {topic: frozenset(map(int, chosen)) for topic, chosen in document.items()}
    except (AttributeError, TypeError, ValueError):
        raise ConfigError('remotelog: assign is not like {"topic": [0, 1]}') from None
    if not assigned or not all(assigned.values()):
        raise ConfigError(f"remotelog: assign is {options.text('assign')}: no partition of a topic")
    return TopicChoice(assigned=assigned)


def _isolation(options: _Options) -> IsolationLevel:
    options.either("isolationLevel", "kafka.isolation.level")
    name = "isolationLevel" if options.text("isolationLevel") else "kafka.isolation.level"
    level = options.one_of(name, ("read_uncommitted", "read_committed"))
    return IsolationLevel[level.upper()]


def _bound(options: _Options, side: str, default: BoundKind, *, streaming: bool) -> Bound:
    """Precedence as in Spark's source: a timestamp, timestamps by partition, offsets."""
    timestamp = f"{side}Timestamp"
    by_timestamp = f"{side}OffsetsByTimestamp"
    offsets = f"{side}Offsets"
    if options.text(timestamp) is not None:
        return Bound(BoundKind.TIMESTAMPS, everywhere=options.number(timestamp, 0, 0))
    if options.text(by_timestamp) is not None:
        return Bound(BoundKind.TIMESTAMPS, _by_partition(by_timestamp, options.json(by_timestamp)))
    text = (options.text(offsets) or default).lower()
    if text in (BoundKind.EARLIEST, BoundKind.LATEST):
        useless = BoundKind.LATEST if side == "starting" else BoundKind.EARLIEST
        if text == useless and not streaming:
            raise ConfigError(f"remotelog: {offsets} cannot be {text!r} in a batch query")
        return Bound(BoundKind(text))
    bounds = _by_partition(offsets, options.json(offsets))
    useless_offset = LATEST if side == "starting" else EARLIEST
    if not streaming and useless_offset in bounds.values():
        raise ConfigError(f"remotelog: {offsets} cannot be {useless_offset} in a batch query")
    return Bound(BoundKind.OFFSETS, bounds)


def _by_partition(name: str, document: Any) -> dict[TopicPartition, int]:
    try:
        offsets = parse_offsets(document)
    except (AttributeError, TypeError, ValueError):
        raise ConfigError(f'remotelog: {name} is not like {{"topic": {{"0": 23}}}}') from None
    if any(value < EARLIEST for value in offsets.values()):
        raise ConfigError(f"remotelog: {name} has a number below {EARLIEST}")
    return offsets
