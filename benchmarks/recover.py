"""`python -m benchmarks.recover`: how long the steps of docs/recover take, on a real Kafka and S3.

The runbooks say how long a recovery takes. That is a start (of a proxy, of a node without a
cluster), or a rate (of segments that are restored, of bytes that are checked or written back): so
a reader can count with an archive of his own. The small segments are for what goes by segment, the
large ones for what goes by byte.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from rich.console import Console

from benchmarks.filling import Shape, fill
from benchmarks.report import Row, machine, row, table, write
from lab.kafka import KafkaServer
from lab.process import ServerProcess, free_port
from lab.s3 import S3Server

FETCHPROXY = [sys.executable, "-m", "fetchproxy"]
RESULTS = Path(__file__).parent / "results" / "recover.json"
START_MAX_S = 300.0
PARTITIONS = 8
SMALL, LARGE, COPY, METADATA = "small", "large", "copy", "__remote_log_metadata"
RECORD_BYTES = 1024


class Place:
    """A broker and a store, and the commands of the runbooks on them."""

    def __init__(self, kafka: KafkaServer, s3: S3Server, folder: Path) -> None:
        self._kafka, self._folder = kafka, folder
        self._environment: Mapping[str, str] = {**os.environ, **s3.environment}
        for bucket in ("archive", "backup"):
            s3.create_bucket(bucket)
        self._store = s3.store_url("archive", "kafka")
        self._backup = s3.store_url("backup", "kafka")
        self._both = ("--bootstrap", kafka.bootstrap, "--store", self._store)

    def archive(self, segments: int, mib: int) -> None:
        """A topic of so many segments of one record, and one of so many MiB."""
        for topic in (SMALL, LARGE, COPY):
            self._kafka.create_topic(topic, PARTITIONS)
        # A batch for each record, since a segment holds whole batches.
        producer = Producer(
            {"bootstrap.servers": self._kafka.bootstrap, "batch.num.messages": 1, "linger.ms": 0}
        )
        for number in range(segments):
            producer.produce(SMALL, bytes(RECORD_BYTES), partition=number % PARTITIONS)
            producer.poll(0)
        producer.flush()
        self._took("archive", "--once", *self._both, "--topics", SMALL,
                   "--set", f"archive.segment_bytes_max={RECORD_BYTES}")  # fmt: skip
        records = mib * 2**20 // RECORD_BYTES
        fill(self._kafka.bootstrap, LARGE, PARTITIONS, records, Shape(RECORD_BYTES, "none"))
        self._took("archive", "--once", *self._both, "--topics", LARGE)

    def segments(self) -> int:
        command = [*FETCHPROXY, "segments", "--store", self._store, "--json"]
        result = subprocess.run(command, env=self._environment, stdout=subprocess.PIPE, check=True)
        return len(json.loads(result.stdout))

    def start_of_proxy(self) -> float:
        return self._ready(*self._both)

    def start_of_node(self) -> float:
        return self._ready("--archive-only", "--store", self._store)

    def restore(self) -> float:
        took = self._took("restore", *self._both, "--set", "metadata.topic_replication_factor=1")
        admin = AdminClient({"bootstrap.servers": self._kafka.bootstrap})
        admin.delete_topics([METADATA])[METADATA].result(timeout=60)
        return took

    def verify(self) -> float:
        return self._took("verify", "--store", self._store, "--topic", LARGE)

    def backfill(self) -> float:
        return self._took("backfill", *self._both, "--topics", LARGE, "--to-topic", COPY)

    def mirror(self) -> float:
        return self._took("mirror", "--from", self._store, "--to", self._backup)

    def _took(self, *words: str) -> float:
        began = time.monotonic()
        subprocess.run(
            [*FETCHPROXY, *words], env=self._environment, stdout=subprocess.DEVNULL, check=True
        )
        return time.monotonic() - began

    def _ready(self, *words: str) -> float:
        """From the start of `fetchproxy serve` until `/readyz` is 200."""
        console = f"127.0.0.1:{free_port()}"
        command = [*FETCHPROXY, "serve", *words, "--console", console]
        command += ["--listen", f"127.0.0.1:{free_port()}"]
        process = ServerProcess("serve", command, self._folder / "log", self._environment)
        began = time.monotonic()
        process.start()
        try:
            process.wait_until(lambda: _is_ready(console), START_MAX_S)
            return time.monotonic() - began
        finally:
            process.stop()


def _is_ready(console: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{console}/readyz") as response:
            return bool(response.status == 200)
    except OSError:  # it does not listen yet, or says 503
        return False


def rows(place: Place, segments: int, mib: int, rounds: int) -> list[Row]:
    place.archive(segments, mib)
    segment_count = place.segments()
    mb = mib * 2**20 / 1e6
    _first, *mirrored = [place.mirror() for _ in range(rounds + 1)]
    return [
        row("segments of the archive", "", [segment_count]),
        row("start of a proxy", "s", [place.start_of_proxy() for _ in range(rounds)]),
        row("start of an archive-only node", "s", [place.start_of_node() for _ in range(rounds)]),
        row("restore of the metadata topic", "segments/s",
            [segment_count / place.restore() for _ in range(rounds)]),
        row("verify", "MB/s", [mb / place.verify() for _ in range(rounds)]),
        row("mirror with nothing new", "s", mirrored),
        row("backfill into a topic", "MB/s", [mb / place.backfill()]),
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=4000)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="recover-") as folder,
        KafkaServer() as kafka,
        S3Server() as s3,
    ):
        place = Place(kafka, s3, Path(folder))
        result_rows = rows(place, options.segments, options.mib, options.rounds)
    facts: dict[str, object] = {
        "benchmark": "recover",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "rounds": options.rounds,
        "segments": options.segments,
        "mib": options.mib,
        "partitions": PARTITIONS,
    }
    write(options.results, facts, result_rows)
    Console().print(table("recovery", result_rows))


if __name__ == "__main__":
    main()
