"""What becomes of each option that Spark documents for its Kafka source. Pure; names in any case.

`docs/pipeline.md` has the same as a table, and a test compares both: no option is passed over
without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fetchproxy.errors import ConfigError

# They mean here what they mean there.
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

# Whom to ask and how: no broker is asked, so rows are the same with them and without.
NOT_NEEDED = ("kafka.bootstrap.servers", "kafka.*")

_NO_GROUP = "an archive is read in no consumer group, so no right or quota of one applies"
_AS_BYTES = "key and value come as bytes; decode the columns"

# Rows, limits or names would not be those that the option asks for.
REFUSED: Mapping[str, str] = {
    "kafka.group.id": _NO_GROUP,
    "groupIdPrefix": _NO_GROUP,
    "kafka.auto.offset.reset": "startingOffsets says where reading begins",
    "kafka.enable.auto.commit": "offsets are kept in the query's checkpoint alone",
    "kafka.key.deserializer": _AS_BYTES,
    "kafka.value.deserializer": _AS_BYTES,
    "kafka.interceptor.classes": "records do not pass a Kafka consumer here",
    "kafkaConsumer.pollTimeoutMs": "no consumer polls; readMaxMs bounds one read of the store",
    "fetchOffset.numRetries": "no broker is asked; planMaxMs bounds the reading of metadata",
    "fetchOffset.retryIntervalMs": "no broker is asked; planMaxMs bounds the reading of metadata",
}

_KAFKA = "kafka."
_REFUSED = {name.lower(): name for name in REFUSED}
# Of the Kafka source alone, where both sources read one topic.
_LIVE_ONLY = ("kafkaconsumer.", "fetchoffset.", "groupidprefix")


def check_not_refused(names: Iterable[str]) -> None:
    """Raises ConfigError with the reason."""
    for name in names:
        known = _REFUSED.get(name.lower())
        if known is not None:
            raise ConfigError(f"remotelog: {known}: {REFUSED[known]}; take the option out")


def is_not_needed(name: str) -> bool:
    """A setting of Kafka's client that changes no row of an archive."""
    lower = name.lower()
    return lower.startswith(_KAFKA) and lower != "kafka.isolation.level"


def is_live_only(name: str) -> bool:
    """An option that Spark's Kafka source takes, or refuses, where this one has no use for it."""
    return is_not_needed(name) or name.lower().startswith(_LIVE_ONLY)
