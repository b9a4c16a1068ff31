"""What the brokers say of the chosen topics, asked by the Kafka client that Spark's source brings.

It runs in the driver's JVM, with the settings of that source (`kafka.…`): what it reaches, the
source reaches too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from fetchproxy.errors import ConfigError
from fetchproxy.pipeline.source.crossing import Place
from fetchproxy.pipeline.source.options import TopicChoice

T = TypeVar("T")

_KAFKA = "kafka."
# Kafka's own default is a minute, in which nothing is said.
_PATIENCE = {"default.api.timeout.ms": "15000", "request.timeout.ms": "10000"}


@dataclass(frozen=True, slots=True)
class LiveTopics:
    """`ids`: of each topic; `places`: its partitions, those that are chosen."""

    ids: Mapping[str, str]
    places: tuple[Place, ...]


class KafkaAdmin:
    """Raises ConfigError, in one line, for whatever the brokers or the client refuse."""

    def __init__(self, jvm: Any, client: Any) -> None:
        self._jvm = jvm
        self._client = client

    def topics(self, chosen: TopicChoice) -> LiveTopics:
        names = sorted(chosen.names or chosen.assigned or ())
        if chosen.pattern is not None:
            every = _asked("the list of topics", lambda: self._client.listTopics().names().get())
            names = sorted(name for name in every if chosen.takes(name, 0))
        asked = self._jvm.java.util.ArrayList()
        for name in names:
            asked.add(name)
        values = self._client.describeTopics(asked).topicNameValues()
        ids: dict[str, str] = {}
        places: list[Place] = []
        for name in names:
            said = _asked(f"topic {name!r}", values[name].get)
            ids[name] = said.topicId().toString()
            numbers = {each.partition() for each in said.partitions()}
            missing = sorted((chosen.assigned or {}).get(name, frozenset()) - numbers)
            if missing:
                raise ConfigError(
                    f"archive then live: the brokers have no partition {missing[0]} of {name!r}"
                )
            places += [(name, number) for number in sorted(numbers) if chosen.takes(name, number)]
        return LiveTopics(ids, tuple(places))

    def earliest(self, places: tuple[Place, ...]) -> dict[Place, int]:
        spec = self._jvm.org.apache.kafka.clients.admin.OffsetSpec.earliest()
        made = {place: self._jvm.org.apache.kafka.common.TopicPartition(*place) for place in places}
        asked = self._jvm.java.util.HashMap()
        for partition in made.values():
            asked.put(partition, spec)
        found = _asked("the first offsets", self._client.listOffsets(asked).all().get)
        return {place: found.get(partition).offset() for place, partition in made.items()}


@contextmanager
def kafka_admin(spark: SparkSession, options: Mapping[str, str]) -> Iterator[KafkaAdmin]:
    """Raises ConfigError."""
    given = {
        name[len(_KAFKA) :]: value
        for name, value in options.items()
        if name.lower().startswith(_KAFKA)
    }
    if not given.get("bootstrap.servers"):
        raise ConfigError("archive then live: the option 'kafka.bootstrap.servers' is needed")
    jvm: Any = spark._jvm
    settings = jvm.java.util.Properties()
    for name, value in {**_PATIENCE, **given}.items():
        settings.setProperty(name, value)
    create = jvm.org.apache.kafka.clients.admin.AdminClient.create
    client = _asked("the Kafka client", lambda: create(settings))
    try:
        yield KafkaAdmin(jvm, client)
    finally:
        client.close()


def _asked(what: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except Py4JJavaError as error:
        reason = error.java_exception
        while reason.getCause() is not None:
            reason = reason.getCause()
        name = reason.getClass().getSimpleName()
        raise ConfigError(f"archive then live: {what}: {name}: {reason.getMessage()}") from None
