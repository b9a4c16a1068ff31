"""Beginnings of archiving: `archive --once` of very many partitions with one small segment each.

In each round the archiver begins an archive in an S3 server. Then the library that it writes with
puts the same objects bare: of the same sizes, as often, and as many at a time as the archiver puts
at most. What the archiver takes beyond that are its looks at brokers and store, and its work.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka import Producer
from rich.console import Console

from benchmarks.bare_upload import AT_ONCE
from benchmarks.frame import child
from benchmarks.goals import ARCHIVE_BEGINNINGS
from benchmarks.report import Row, goal_rows, ratios, row
from fetchproxy.storage.remote_storage_manager import OBJECTS_AT_ONCE
from fetchproxy.writing.archive_pass import SHORT_A_WORKER
from lab.errors import PartFailed
from lab.kafka import KafkaServer
from lab.s3 import S3Server

TOPIC = "benchmark-beginnings"
# The copy's start and its end; and where the archive begins, and what is finished.
WRITTEN_TWICE = (".metadata", "/finished-offsets")
_OBJECTS_A_PARTITION = 5  # of these, `.index`, `.epochs` and `.log` are written once
_RECORD_BYTES = 100
PUT_AT_ONCE = AT_ONCE * SHORT_A_WORKER * OBJECTS_AT_ONCE
_SENT_MAX_S = 300.0


@dataclass(slots=True)
class Beginnings:
    """Seconds, and seconds of CPU, with an entry for each round."""

    partitions: int
    archiving: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    archiver_cpu: list[float] = field(default_factory=list)
    bare_cpu: list[float] = field(default_factory=list)


def rows_of(beginnings: Beginnings) -> list[Row]:
    rows = goal_rows(ARCHIVE_BEGINNINGS, ratios(beginnings.archiving, beginnings.bare))
    rows.append(row("beginnings of archiving, with the S3 server", "s", beginnings.archiving))
    rows.append(row("the bare puts of the same objects", "s", beginnings.bare))
    for name, seconds in (("archiver", beginnings.archiver_cpu), ("bare", beginnings.bare_cpu)):
        milliseconds = [1000 * each / beginnings.partitions for each in seconds]
        rows.append(row(f"beginnings of archiving: CPU a partition, {name}", "ms", milliseconds))
    return rows


def measure(
    kafka: KafkaServer,
    s3: S3Server,
    bucket: str,
    folder: Path,
    partitions: int,
    rounds: int,
    console: Console,
) -> Beginnings:
    _fill(kafka, partitions)
    beginnings = Beginnings(partitions)
    for number in range(1, rounds + 1):
        prefix, file = f"beginnings-{number}", folder / "puts"
        arguments = ["archive", "--once", "--bootstrap", kafka.bootstrap, "--topics", TOPIC]
        arguments += ["--store", s3.store_url(bucket, prefix), "--set", "log.level=warning"]
        took = child("benchmarks.archive_run", *arguments, environment=s3.environment)
        beginnings.archiving.append(took["seconds"])
        beginnings.archiver_cpu.append(took["cpu_seconds"])
        file.write_text(json.dumps(_puts(s3, bucket, prefix, partitions)))
        bare_arguments = (s3.endpoint_url, bucket, str(PUT_AT_ONCE), str(file))
        took = child("benchmarks.bare_puts", *bare_arguments, environment=s3.environment)
        beginnings.bare.append(took["seconds"])
        beginnings.bare_cpu.append(took["cpu_seconds"])
        console.print(
            f"beginnings, round {number} of {rounds}: {beginnings.archiving[-1]:.1f} s, "
            f"bare {beginnings.bare[-1]:.1f} s"
        )
    return beginnings


def _puts(s3: S3Server, bucket: str, prefix: str, partitions: int) -> Sequence[tuple[str, int]]:
    """Keys and sizes of the puts, under another prefix. Raises PartFailed if objects lack."""
    root = s3.objects / bucket
    files = [file for file in (root / prefix).glob(f"{TOPIC}-*/*/*") if file.is_file()]
    if len(files) != _OBJECTS_A_PARTITION * partitions:
        raise PartFailed(f"{len(files)} objects of {partitions} partitions")
    puts: list[tuple[str, int]] = []
    for file in files:
        key = f"bare-{file.relative_to(root)}"
        puts += [(key, file.stat().st_size)] * (1 + key.endswith(WRITTEN_TWICE))
    return puts


def _fill(kafka: KafkaServer, partitions: int) -> None:
    kafka.create_topic(TOPIC, partitions)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "linger.ms": 50, "log_level": 0})
    for partition in range(partitions):
        producer.produce(TOPIC, b"v" * _RECORD_BYTES, partition=partition)
        producer.poll(0)
    if producer.flush(_SENT_MAX_S):
        raise PartFailed("the broker does not take the benchmark's records")
