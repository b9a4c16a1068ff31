"""The versions of Apache Kafka that the lab runs, and the published jars of each.

lab/kafka.py starts a broker of any version in the same way.
"""

from __future__ import annotations

from pathlib import Path

from lab import jars
from lab.jars import Artifact

KAFKA_VERSION = "4.1.1"  # the default for all that name no version
KAFKA_OLDEST = "3.3.2"  # the first release line with KRaft for production
KAFKA_3_9 = "3.9.2"
KAFKA_NEWEST = "4.4.0"
_BEFORE_NEWEST = "4.3.1"
_LOG4J_VERSION = "2.24.3"

_KAFKA = "org.apache.kafka"
_LOG4J = "org.apache.logging.log4j"


def kafka_entry(version: str = KAFKA_VERSION) -> str:
    return f"kafka-{version}"


def kafka_jars(version: str = KAFKA_VERSION) -> Path:
    """The folder of one version's jars, downloaded on first use. Raises PartMissing.

    Only `KAFKA_VERSION` includes Kafka's command-line tools; they work with any broker.
    """
    artifacts = [Artifact(_KAFKA, "kafka_2.13", version)]
    if version == KAFKA_VERSION:
        artifacts += [
            Artifact(_KAFKA, "kafka-tools", version),
            Artifact(_KAFKA, "kafka-storage", version),
            # The test jar has LocalTieredStorage, Kafka's own tiered storage, for comparisons.
            Artifact(_KAFKA, "kafka-storage", version, "test"),
        ]
    if version == KAFKA_NEWEST:
        # 4.4.0 was published without its kafka-tools-api. A broker loads no class of it.
        artifacts.append(Artifact(_KAFKA, "kafka-tools-api", _BEFORE_NEWEST))
    artifacts += [
        # No other artifact brings a log back end, and the lab detects readiness in the log.
        Artifact(_LOG4J, "log4j-core", _LOG4J_VERSION),
        Artifact(_LOG4J, "log4j-slf4j-impl", _LOG4J_VERSION),
    ]
    if version.startswith("3."):
        # Kafka 3 gets its loggers from log4j 1 by name. This artifact is that interface over log4j
        # 2.
        artifacts.append(Artifact(_LOG4J, "log4j-1.2-api", _LOG4J_VERSION))
    return jars.fetch(kafka_entry(version), artifacts)


def local_tiered_storage_jars(version: str) -> Path | None:
    """Jars for the end of a broker's class path that add LocalTieredStorage. Raises PartMissing.

    None: the version's own jars include it. The newest version was published without it, so the jar
    of the version before is used, with the classes that have been moved since (LogContext).
    """
    if version != KAFKA_NEWEST:
        return None
    entry = f"kafka-tiered-storage-{_BEFORE_NEWEST}"
    return jars.fetch(entry, [Artifact(_KAFKA, "kafka-storage", _BEFORE_NEWEST, "test")])
