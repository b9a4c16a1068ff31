"""The list of parts by name: how each is set up, whether it is there already, and what it is for.
Tests, CI and `python -m lab` speak of parts by these names only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from lab import cache, go_client, java, kafka, kcat, kroxylicious, s3
from lab.errors import PartMissing


@dataclass(frozen=True, slots=True)
class Part:
    """`set_up` returns one line on what is there now, or raises PartMissing; it may take minutes.
    `cached` is the name of the cache entry that shows that nothing is left to do."""

    name: str
    purpose: str
    cached: str
    set_up: Callable[[], str]


def set_up_kafka() -> str:
    runtime = java.find_java()
    jars = len(list(kafka.kafka_jars().glob("*.jar")))
    return (
        f"Apache Kafka {kafka.KAFKA_VERSION} ({jars} jars) on Java {runtime.version}"
        f" from {runtime.origin}"
    )


def set_up_s3() -> str:
    return f"versitygw {s3.VERSITYGW_VERSION} at {s3.versitygw_executable()}"


def set_up_kroxylicious() -> str:
    folder = kroxylicious.kroxylicious_classes()
    return f"Kroxylicious {kroxylicious.KROXYLICIOUS_VERSION} in {folder}"


def set_up_clients() -> str:
    """franz-go must be there; kcat is taken where it can be had, since only Debian has it."""
    line = f"franz-go reader at {go_client.franz_reader()}"
    try:
        return f"{line}; kcat at {kcat.find_kcat()}"
    except PartMissing as missing:
        return f"{line}; {missing}"


PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        Part(
            "kafka",
            "a real Apache Kafka broker",
            f"kafka-{kafka.KAFKA_VERSION}",
            set_up_kafka,
        ),
        Part("s3", "a real S3 server", f"versitygw-{s3.VERSITYGW_VERSION}", set_up_s3),
        Part(
            "kroxylicious",
            "another Kafka proxy, for benchmarks only",
            kroxylicious.KROXYLICIOUS_ENTRY,
            set_up_kroxylicious,
        ),
        Part(
            "clients",
            "consumers that are not Python: franz-go and kcat",
            go_client.franz_reader_entry(),
            set_up_clients,
        ),
    )
}


def is_cached(part: Part) -> bool:
    """Whether `set_up` would find everything in the cache; asks no registry."""
    return cache.entry(part.cached) is not None
