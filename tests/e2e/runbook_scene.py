"""The scene of docs/recover: services, their files, a cluster and a store, as its pages name them.

`systemctl` starts and stops real processes of fetchproxy here, and `aws` is `aws_s3_cp.py`.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from page_commands import Step, Terminal, is_as_shown
from proxy_process import PROJECT, wait_for

from lab.kafka import KafkaServer
from lab.process import ServerProcess, free_port
from lab.s3 import S3Server

# Commands that change nothing are repeated until they print what the page shows.
LOOKS = re.compile(r"curl |kafka-get-offsets|fetchproxy (verify|segments) ")
LOOKS_MAX_S = 120.0
DOCS = PROJECT / "docs"


def toml_on(page: Path) -> str:
    """The first file of settings that the page shows."""
    block = re.search(r"^```toml\n(.*?)^```$", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert block, page
    return block[1]


FILES = {
    "archiver": """\
[cluster]
bootstrap = "kafka:9092"
[store]
url = "s3://archive/kafka"
[metadata]
manager = "MANAGER"
topic_partitions = 2
topic_replication_factor = 1
[archive]
topics = "orders"
segment_age_max_ms = "3s"
#topic_deletion = "delete"
""",
    "proxy": """\
[cluster]
bootstrap = "kafka:9092"
[store]
url = "s3://archive/kafka"
[metadata]
manager = "MANAGER"
topic_partitions = 2
topic_replication_factor = 1
[gateway]
listen = "127.0.0.1:9192"
node_map = "1=9301"
[console]
listen = "127.0.0.1:8080"
""",
    # As the pages show them.
    "archive-only": toml_on(DOCS / "deploy" / "archive-only.md"),
    "fail-over": toml_on(DOCS / "recover" / "fail-over.md"),
}
SERVICES = {
    "fetchproxy": ("serve", "proxy"),
    "fetchproxy-archiver": ("archive", "archiver"),
    "fetchproxy@archive-only": ("serve", "archive-only"),
}


@dataclass(eq=False)
class Scene:
    kafka: KafkaServer
    s3: S3Server
    folder: Path
    new_kafka: KafkaServer | None = None
    manager: str = "store"
    services: dict[str, ServerProcess] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.etc = self.folder / "etc"
        self.etc.mkdir()
        places = {
            "kafka:9092": self.kafka.bootstrap,
            "1=9301": f"1={free_port()}",
            "/etc/fetchproxy": str(self.etc),
            "/var/lib/fetchproxy/archive-only": str(self.folder),
            "/tmp/recover": f"{self.folder}/recover",
            "MANAGER": self.manager,
        }
        if self.new_kafka is not None:
            places = {"new-kafka:9092": self.new_kafka.bootstrap} | places
        for port in (9192, 9292, 8080):
            places[f"127.0.0.1:{port}"] = f"127.0.0.1:{free_port()}"
        for bucket, prefix in (("archive", "kafka"), ("backup", "kafka"), ("archive", "new-kafka")):
            # In quotes and in files it is the store's URL; `aws` takes it without what follows.
            for quote in "'\"":
                url = self.s3.store_url(bucket, prefix)
                places[f"{quote}s3://{bucket}/{prefix}{quote}"] = f"{quote}{url}{quote}"
        self.terminal = Terminal(
            self.folder,
            places,
            {
                "fetchproxy": [sys.executable, "-m", "fetchproxy"],
                "aws": [sys.executable, str(Path(__file__).with_name("aws_s3_cp.py"))],
            },
            self.s3.environment | {"LAB_S3_ENDPOINT": self.s3.endpoint_url},
        )
        for name, text in FILES.items():
            (self.etc / f"{name}.toml").write_text(self.terminal.here(text))

    def systemctl(self, verb: str, service: str) -> None:
        if verb in ("stop", "restart") and service in self.services:
            self.services.pop(service).stop()
        if verb in ("start", "restart"):
            command, file = SERVICES[service]
            words = [sys.executable, "-m", "fetchproxy", command]
            words += ["--config", str(self.etc / f"{file}.toml")]
            process = ServerProcess(
                service, words, self.folder / f"{service}.log", self.s3.environment, PROJECT
            )
            process.start()
            self.services[service] = process

    def kill(self, service: str) -> None:
        self.services.pop(service).kill()

    def stop(self) -> None:
        while self.services:
            self.services.popitem()[1].stop()

    def follow(self, step: Step) -> None:
        """Run the step; it must print what the page shows."""
        if step.command.startswith("systemctl "):
            self.systemctl(*step.command.split()[1:])
            return
        ends = time.monotonic() + (LOOKS_MAX_S if LOOKS.match(step.command) else 0)
        while True:
            try:
                printed = self.terminal.run(step.command)
            except AssertionError:
                if time.monotonic() >= ends:
                    raise
            else:
                if is_as_shown(tuple(map(self.terminal.here, step.output)), printed):
                    return
                assert time.monotonic() < ends, (step, printed)
            time.sleep(0.5)

    def prepare(self) -> None:
        """As the section `The examples` says."""
        for bucket in ("archive", "backup"):
            self.s3.create_bucket(bucket)
        self.run("kafka-topics.sh --bootstrap-server kafka:9092 --create --topic orders")
        self.run(
            "seq 10000 | kafka-console-producer.sh --bootstrap-server kafka:9092 --topic orders"
        )
        self.systemctl("start", "fetchproxy-archiver")
        self.systemctl("start", "fetchproxy")
        wait_for("the archive", self._is_archived)
        offsets = (
            '{"version": 1, "partitions": [{"topic": "orders", "partition": 0, "offset": 8000}]}'
        )
        self.run(f"echo '{offsets}' > /tmp/recover-delete.json")
        self.run(
            "kafka-delete-records.sh --bootstrap-server kafka:9092"
            " --offset-json-file /tmp/recover-delete.json"
        )
        self.run(
            "kafka-console-consumer.sh --bootstrap-server 127.0.0.1:9192 --topic orders"
            " --group billing --from-beginning --max-messages 2"
        )

    def run(self, command: str) -> str:
        return self.terminal.run(command)

    def _is_archived(self) -> bool:
        try:
            return " 9999 " in self.run("fetchproxy segments --store 's3://archive/kafka'")
        except AssertionError:  # there is no archive yet
            return False


@contextmanager
def prepared(scene: Scene) -> Iterator[Scene]:
    try:
        scene.prepare()
        yield scene
    finally:
        scene.stop()
