"""The commands in docker-compose.yml, run against real parts in the containers' place."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from compose_file import ROOT, SERVICES, command, environment
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType
from fetchproxy_command import COMMAND, fetchproxy

from lab.kafka import KafkaServer, run_tool, tool_command
from lab.process import ServerProcess, free_port
from lab.s3 import S3Server

# The classes behind the scripts of Kafka's image that the compose file calls.
TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-producer-perf-test.sh": "org.apache.kafka.tools.ProducerPerformance",
}
ROUND_S = 120.0


@pytest.mark.kafka
def test_kafka_knows_every_setting(kafka_server: KafkaServer) -> None:
    """The image makes `node.id` of KAFKA_NODE_ID; Kafka itself only warns of unknown names."""
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    resource = ConfigResource(ResourceType.BROKER, "1")
    known = set(admin.describe_configs([resource])[resource].result(timeout=30))
    for variable in environment("kafka"):
        if variable != "CLUSTER_ID":
            name = variable.removeprefix("KAFKA_").lower().replace("_", ".")
            assert name in known, variable


@pytest.mark.s3
def test_the_bucket_is_made_and_a_second_start_finds_it(s3_server: S3Server) -> None:
    variables = {**environment("create-bucket"), **s3_server.environment}
    variables["AWS_ENDPOINT_URL"] = s3_server.endpoint_url
    for _ in range(2):
        subprocess.run(
            [sys.executable, "-c", *command("create-bucket")],
            env={**os.environ, **variables},
            check=True,
        )
    client = s3_server.client()
    assert "kafka-archive" in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]
    client.close()


@contextmanager
def proxy(kafka: KafkaServer, store: Path, folder: Path) -> Iterator[str]:
    """`fetchproxy serve` with the compose file's settings but for addresses and store."""
    ports = {"listen": free_port(), "console": free_port()}
    variables = environment("fetchproxy") | {
        "FETCHPROXY_CLUSTER_BOOTSTRAP": kafka.bootstrap,
        "FETCHPROXY_STORE_URL": store.as_uri(),
        "FETCHPROXY_GATEWAY_LISTEN": f"127.0.0.1:{ports['listen']}",
        "FETCHPROXY_GATEWAY_ADVERTISE_HOST": "127.0.0.1",
        "FETCHPROXY_GATEWAY_NODE_PORT_BASE": "0",
        "FETCHPROXY_CONSOLE_LISTEN": f"127.0.0.1:{ports['console']}",
        "FETCHPROXY_ARCHIVE_SEGMENT_AGE_MAX_MS": "1000",
    }
    check = health_check(ports["console"])
    process = ServerProcess(
        "fetchproxy",
        [*COMMAND, *command("fetchproxy")],
        folder / "fetchproxy.log",
        variables,
        cwd=ROOT,
    )

    def healthy() -> bool:
        result = subprocess.run([sys.executable, "-c", check], capture_output=True, check=False)
        return result.returncode == 0

    try:
        process.start()
        process.wait_until(healthy, 60.0)
        yield f"127.0.0.1:{ports['listen']}"
    finally:
        process.stop()


def health_check(console_port: int) -> str:
    test: list[str] = SERVICES["fetchproxy"]["healthcheck"]["test"]
    assert test[:3] == ["CMD", "python", "-c"]
    return test[3].replace(":8080/", f":{console_port}/")


def archived_end(store: Path) -> int:
    result = fetchproxy("segments", "--store", store.as_uri(), "--json")
    assert result.returncode in (0, 2), result.stderr  # 2: nothing yet
    rows = json.loads(result.stdout or "[]")
    return max((row["last_offset"] + 1 for row in rows), default=0)


def write_scripts(folder: Path) -> None:
    for script, main_class in TOOLS.items():
        words = tool_command(folder, main_class)
        (folder / script).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / script).chmod(0o755)


@pytest.mark.kafka
def test_the_consumer_reads_what_the_broker_forgot(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    scripts, store = tmp_path / "tools", tmp_path / "store"
    scripts.mkdir()
    write_scripts(scripts)
    kafka = kafka_server.bootstrap

    def here(words: list[str]) -> list[str]:
        replaced = [word.replace("kafka:9092", kafka) for word in words]
        assert replaced[0].startswith("/opt/kafka/bin/")
        return [TOOLS[replaced[0].removeprefix("/opt/kafka/bin/")], *replaced[1:]]

    run_tool(*here(command("create-topic")))
    producer = here(command("producer"))
    few = [
        {"--num-records": "--num-records=3000", "--throughput": "--throughput=-1"}.get(
            word.partition("=")[0], word
        )
        for word in producer
    ]
    run_tool(*few)
    with proxy(kafka_server, store, tmp_path) as address:
        deadline = time.monotonic() + ROUND_S
        while archived_end(store) < 3000:
            assert time.monotonic() < deadline, (tmp_path / "fetchproxy.log").read_text()
            time.sleep(0.5)
        forgotten = TopicPartition("orders", 0, 2000)
        admin = AdminClient({"bootstrap.servers": kafka})
        admin.delete_records([forgotten])[forgotten].result(timeout=60)
        variables = {"TOOLS": str(scripts), "BROKER": kafka, "PROXY": address, "PAUSE_S": "0.1"}
        assert variables.keys() == environment("consumer").keys()
        *shell, script = command("consumer")
        once = [*shell, script.replace("\ndone", "\nbreak\ndone")]
        result = subprocess.run(
            once,
            env={**os.environ, **variables},
            capture_output=True,
            text=True,
            timeout=ROUND_S,
            check=True,
        )
    assert result.stdout == (
        "The broker begins at 2000. Read 0 to 2999: each offset once and in order.\n"
    ), result.stderr
