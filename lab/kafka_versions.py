"""Which versions of Apache Kafka the lab runs, and the published jars of each. How a broker of a
version is started is lab/kafka.py's business: the same way for all of them."""

from __future__ import annotations

from pathlib import Path

from lab import jars
from lab.jars import Artifact

KAFKA_VERSION = "4.1.1"  # what everything runs that does not name a version
KAFKA_OLDEST = "3.3.2"  # the first release line in which KRaft is meant for production
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

    Kafka's command-line tools are among those of `KAFKA_VERSION` alone; they speak to any broker.
    """
    artifacts = [Artifact(_KAFKA, "kafka_2.13", version)]
    if version == KAFKA_VERSION:
        artifacts += [
            Artifact(_KAFKA, "kafka-tools", version),
            Artifact(_KAFKA, "kafka-storage", version),
            # LocalTieredStorage, Kafka's own tiered storage to compare with, is in the test jar.
            Artifact(_KAFKA, "kafka-storage", version, "test"),
        ]
    if version == KAFKA_NEWEST:
        # 4.4.0 was published without its kafka-tools-api, of which a broker loads nothing.
        artifacts.append(Artifact(_KAFKA, "kafka-tools-api", _BEFORE_NEWEST))
    artifacts += [
        # Nothing else brings a log back end, and readiness is read from the log.
        Artifact(_LOG4J, "log4j-core", _LOG4J_VERSION),
        Artifact(_LOG4J, "log4j-slf4j-impl", _LOG4J_VERSION),
    ]
    if version.startswith("3."):
        # Kafka 3 asks log4j 1 for its loggers by name; this is that interface over log4j 2.
        artifacts.append(Artifact(_LOG4J, "log4j-1.2-api", _LOG4J_VERSION))
    return jars.fetch(kafka_entry(version), artifacts)


def local_tiered_storage_jars(version: str) -> Path | None:
    """For the end of a broker's class path, so that it has LocalTieredStorage. Raises PartMissing.

    None: it is among the version's own. The newest was published without it: there it is the
    version before it that is used, with the classes that have been moved since (LogContext).
    """
    if version != KAFKA_NEWEST:
        return None
    entry = f"kafka-tiered-storage-{_BEFORE_NEWEST}"
    return jars.fetch(entry, [Artifact(_KAFKA, "kafka-storage", _BEFORE_NEWEST, "test")])
