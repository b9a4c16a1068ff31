"""`python -m benchmarks.requests`: how many requests processes make to an S3 store.

A store charges for requests, so docs/deploy/sizing.md counts them. Here an S3 server (moto) logs
each request of an idle archiver, of copies of small segments, and of an idle proxy. It measures no
speed, so the machine does not matter.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import botocore.session
from confluent_kafka import Producer
from rich.console import Console

from benchmarks.report import Row, machine, row, table, write
from lab.mock_cluster import MockCluster
from lab.process import ServerProcess, free_port

RESULTS = Path(__file__).parent / "results" / "requests.json"
PARTITIONS = 4  # set by the mock cluster
SETTLED_S = 90  # views, topics and conditions have then been looked at once
DAY_S = 86_400
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "x",
    "AWS_SECRET_ACCESS_KEY": "y",
    "AWS_DEFAULT_REGION": "us-east-1",
}
REQUEST = re.compile(r'"(GET|PUT|POST|DELETE|HEAD) (\S+) HTTP')
OF_PARTITION = re.compile(r"prefix=[^&]*%2F\d+%2F(&|$)|prefix=[^&]*/\d+/(&|$)")


class CountingStore:
    """moto, and the requests in its log."""

    def __init__(self, folder: Path) -> None:
        self._log = folder / "moto.log"
        port = free_port()
        self.endpoint = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        self.server = ServerProcess("moto", command, self._log)

    def create_bucket(self) -> None:
        session = botocore.session.get_session()
        client = session.create_client(
            "s3", endpoint_url=self.endpoint, region_name="us-east-1",
            aws_access_key_id="x", aws_secret_access_key="y",
        )  # fmt: skip
        for _ in range(100):
            try:
                client.create_bucket(Bucket="archive")
                return
            except Exception:  # noqa: BLE001  # it does not listen yet
                time.sleep(0.2)
        raise SystemExit("moto does not answer")

    def size(self) -> int:
        return self._log.stat().st_size

    def requests(self, since: int) -> Counter[str]:
        """By kind: `write`, `listing of a partition`, `other listing`, `read`, `deletion`."""
        with self._log.open(encoding="utf-8", errors="replace") as log:
            log.seek(since)
            return Counter(kind_of(*match) for match in REQUEST.findall(log.read()))


def kind_of(method: str, target: str) -> str:
    if "list-type" in target:
        return "listing of a partition" if OF_PARTITION.search(target) else "other listing"
    if method == "DELETE":
        return "deletion"
    return "read" if method in ("GET", "HEAD") else "write"


@contextmanager
def running(name: str, arguments: list[str], folder: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "fetchproxy", *arguments]
    process = ServerProcess(name, command, folder / f"{name}.log", CREDENTIALS)
    process.start()
    try:
        yield
    finally:
        process.stop()


def measured(folder: Path, seconds: int) -> list[Row]:
    store = CountingStore(folder)
    store.server.start()
    try:
        store.create_bucket()
        with MockCluster() as cluster:
            return _rows(store, cluster.bootstrap, folder, seconds)
    finally:
        store.server.stop()


def _rows(store: CountingStore, bootstrap: str, folder: Path, seconds: int) -> list[Row]:
    url = f"s3://archive/kafka?endpoint_url={store.endpoint}&region=us-east-1"
    common = ["--store", url, "--bootstrap", bootstrap]
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(400):
        producer.produce("orders", os.urandom(100), partition=number % PARTITIONS)
    producer.flush()
    with running("archiver", ["archive", *common, "--archive", "orders",
                              "--set", "archive.segment_age_max_ms=1s"], folder):  # fmt: skip
        time.sleep(SETTLED_S)
        archiver = _a_day(store, seconds)
        before = store.size()
        for number in range(4):
            producer.produce("orders", os.urandom(100), partition=number % PARTITIONS)
            producer.flush()
        time.sleep(30)
        copied = store.requests(before)
        idle = {kind: count * 30 / DAY_S for kind, count in archiver.items()}
        listen = f"127.0.0.1:{free_port()}"
        with running("proxy", ["serve", *common, "--listen", listen], folder):
            time.sleep(SETTLED_S)
            both = _a_day(store, seconds)
    partition = archiver["listing of a partition"] / PARTITIONS
    proxy = both["other listing"] - archiver["other listing"]
    return [
        row("idle archiver: writes", "1/day", [archiver["write"]]),
        row("idle archiver: listings, without those of partitions", "1/day",
            [archiver["other listing"]]),
        row("idle archiver: listings of a partition", "1/day", [partition]),
        row("idle proxy: listings", "1/day", [proxy]),
        row("idle proxy: reads", "1/day", [both["read"] - archiver["read"]]),
        row("a small segment: writes", "requests",
            [(copied["write"] - idle.get("write", 0)) / PARTITIONS]),
        row("a small segment: listings", "requests",
            [(copied["listing of a partition"] - idle["listing of a partition"]) / PARTITIONS]),
    ]  # fmt: skip


def _a_day(store: CountingStore, seconds: int) -> Counter[str]:
    before = store.size()
    time.sleep(seconds)
    counts = store.requests(before)
    return Counter({kind: round(count * DAY_S / seconds) for kind, count in counts.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="requests-") as folder:
        rows = measured(Path(folder), options.seconds)
    facts: dict[str, object] = {
        "benchmark": "requests",
        "date": datetime.now(UTC).date().isoformat(),
        "machine": machine(),
        "seconds": options.seconds,
        "partitions": PARTITIONS,
    }
    write(options.results, facts, rows)
    Console().print(table("requests to the store", rows))


if __name__ == "__main__":
    main()
