"""README's five steps, line by line, with only the ports and the store's folder changed."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Consumer, Producer
from proxy_process import PROJECT, wait_for

from lab.mock_cluster import MockCluster
from lab.process import ServerProcess, free_port

COUNT = 500
PARTITIONS = 4  # set by the mock cluster


class QuickStart:
    """The commands of README, for one upstream and one folder."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        blocks = re.findall(r"^ {4}(.*)$", (PROJECT / "README.md").read_text("utf-8"), re.MULTILINE)
        self._lines = re.sub(r"\\\n\s*", " ", "\n".join(blocks)).splitlines()
        self.listen, self.alone = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._places = {
            "localhost:9092": bootstrap,
            "127.0.0.1:9192": self.listen,
            "127.0.0.1:9292": self.alone,
            "127.0.0.1:8080": f"127.0.0.1:{free_port()}",
            "file:///tmp/kafka-archive": f"file://{folder}/kafka-archive",
        }

    def command(self, words: str) -> list[str]:
        """The only line that begins with `words`."""
        command_lines = [line.strip() for line in self._lines]
        (line,) = [
            line for line in command_lines if line.startswith(f".venv/bin/fetchproxy {words}")
        ]
        for written, here in self._places.items():
            line = line.replace(written, here)
        return [sys.executable, "-m", "fetchproxy", *shlex.split(line)[1:]]

    def run(self, words: str) -> str:
        result = subprocess.run(
            self.command(words), cwd=PROJECT, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout

    def read_all(self, place: str) -> list[bytes]:
        consumer = Consumer(
            {
                "bootstrap.servers": place,
                "group.id": "quick-start",
                "auto.offset.reset": "earliest",
                "log_level": 0,  # until the process listens
            }
        )
        consumer.subscribe(["orders"])
        values_read: list[bytes] = []

        def is_all() -> bool:
            polled = consumer.consume(COUNT, timeout=1.0)
            values_read.extend(each.value() or b"" for each in polled if each.error() is None)
            return len(values_read) >= COUNT

        wait_for("all records", is_all)
        consumer.close()
        return sorted(values_read)


def test_the_quick_start_does_what_it_says(mock_cluster: MockCluster, tmp_path: Path) -> None:
    written = [b"%06d" % number for number in range(COUNT)]
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap})
    for number, value in enumerate(written):
        producer.produce("orders", value, partition=number % PARTITIONS)
    producer.flush()
    start = QuickStart(mock_cluster.bootstrap, tmp_path)
    serve = ServerProcess(
        "fetchproxy", start.command("serve --bootstrap"), tmp_path / "log", cwd=PROJECT
    )

    def is_archived() -> bool:
        states = [path.read_text() for path in tmp_path.glob("kafka-archive/**/*.metadata")]
        return len([1 for state in states if "COPY_SEGMENT_FINISHED" in state]) == PARTITIONS

    alone = ServerProcess(
        "fetchproxy", start.command("serve --archive-only"), tmp_path / "alone", cwd=PROJECT
    )
    try:
        serve.start()
        assert start.read_all(start.listen) == written
        wait_for("archived", is_archived)
        assert "orders" in start.run("segments")
        assert start.run("verify").rstrip().endswith("clean")
        alone.start()  # README lets the first process run on
        assert start.read_all(start.alone) == written
    finally:
        alone.stop()
        serve.stop()
