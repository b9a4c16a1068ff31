"""A real S3 server counts what archiving, listing, reading and deleting segments take.

The server's own access log is the oracle. What it counts is what `fetchproxy.sizing` says, within
5%. Requests that follow from time alone (looks each few seconds) are left out: the constants behind
them are compared in `test_coefficients`.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from fetchproxy_command import command

from fetchproxy.sizing.coefficients import COEFFICIENTS
from fetchproxy.sizing.estimate import log_writes
from lab.kafka import KafkaServer
from lab.process import ServerProcess, free_port
from lab.s3 import S3Server

pytestmark = [pytest.mark.kafka, pytest.mark.s3]

LINE = re.compile(r"s3_(\w+) (\S+) (\S+) (\d{3}) ")
MIB = 1024 * 1024
TOPIC = "counted"
WRITES = frozenset(["PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"])


@dataclass(frozen=True, slots=True)
class CountingStore:
    server: S3Server
    log: Path
    bucket: str

    def since(self, at: int) -> Counter[str]:
        """Requests about the topic's folder by kind: `write`, `list`, `read`, `delete`."""
        found: Counter[str] = Counter()
        for operation, key, url, _ in LINE.findall(self.log.read_text()[at:]):
            if f"{TOPIC}-" in key or f"{TOPIC}-" in url:
                found[kind_of(operation)] += 1
        return found

    def size(self) -> int:
        return len(self.log.read_text())

    def segments(self) -> list[int]:
        """The sizes of finished segments' logs: the last write of a copy is `finished-offsets`."""
        return [path.stat().st_size for path in self.server.objects.rglob(f"{TOPIC}-*/*/*.log")]


def kind_of(operation: str) -> str:
    if operation in WRITES:
        return "write"
    return {"DeleteObject": "delete", "GetObject": "read", "HeadObject": "read"}.get(
        operation, "list"
    )


@pytest.fixture
def counting_store(
    tmp_path: Path, serve_part: Callable[[str, S3Server], Iterator[S3Server]]
) -> Iterator[CountingStore]:
    log = tmp_path / "access.log"
    for server in serve_part("s3", S3Server(access_log=log)):
        yield CountingStore(server, log, server.create_bucket("archive"))
