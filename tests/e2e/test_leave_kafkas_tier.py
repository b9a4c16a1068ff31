"""docs/leave.md, from Kafka's own tiered storage: the archive has all of the tier's history before
the tier is disabled, and clients of the proxy read it afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from client_readers import read_confluent
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from fetchproxy_command import archive_once, output_of
from proxy_process import PROJECT, ProxyProcess, wait_for
from topic_data import TopicData, produce

from lab.kafka import KafkaServer, run_tool
from lab.kafka_versions import KAFKA_VERSION, local_tiered_storage_jars
from tests.conftest import FindPart

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

COUNT = 4000  # of 1 KB: three segments of the least size that a broker allows
_KAFKA = "org.apache.kafka.server.log.remote"
TIER = {
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": f"{_KAFKA}.storage.LocalTieredStorage",
    "remote.log.storage.manager.impl.prefix": "rsm.config.",
    "remote.log.metadata.manager.class.name": (
        f"{_KAFKA}.metadata.storage.TopicBasedRemoteLogMetadataManager"
    ),
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
    "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
    "rlmm.config.remote.log.metadata.topic.num.partitions": "1",
    "remote.log.manager.task.interval.ms": "50",
    "log.retention.check.interval.ms": "50",
    "log.initial.task.delay.ms": "50",
}
TOPIC = {
    "remote.storage.enable": "true",
    "segment.bytes": str(2**20),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}


@pytest.fixture
def tiered(find_part: FindPart[Path], tmp_path: Path) -> Iterator[KafkaServer]:
    jars = find_part("tiered storage", lambda: local_tiered_storage_jars(KAFKA_VERSION))
    settings = {**TIER, "rsm.config.dir": str(tmp_path / "tier")}
    with KafkaServer(settings, tmp_path / "kafka", jars_behind=jars) as kafka:
        yield kafka


def first_offset(bootstrap: str, of: str) -> int:
    """`of`: `earliest`, or `-4` for what the broker itself has."""
    tool = "org.apache.kafka.tools.GetOffsetShell"
    result = run_tool(tool, "--bootstrap-server", bootstrap, "--topic", "history", "--time", of)
    return int(result.stdout.rpartition(":")[2])


def alter(bootstrap: str, settings: str) -> None:
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (each.split("=") for each in settings.split(","))
    ]
    resource = ConfigResource(ResourceType.TOPIC, "history", incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.incremental_alter_configs([resource])[resource].result(timeout=60)


def test_history_outlives_kafkas_tier(tiered: KafkaServer, tmp_path: Path) -> None:
    page = (PROJECT / "docs" / "leave.md").read_text("utf-8")
    (disabled,) = re.findall(r"`(remote\.storage\.enable=false\S*)`", page)
    tiered.create_topic("history", 1, config=TOPIC)
    data, store = TopicData("history"), (tmp_path / "archive").as_uri()
    produce(tiered.bootstrap, data, COUNT, size=1000)
    wait_for("a tier", lambda: first_offset(tiered.bootstrap, "-4") > 0)
    result = archive_once(tiered.bootstrap, store, "history")
    assert result.returncode == 0, result.stderr
    assert output_of("verify", "--store", store).rstrip().endswith("clean")
    alter(tiered.bootstrap, disabled)
    wait_for("no tier", lambda: first_offset(tiered.bootstrap, "earliest") > 0)
    with ProxyProcess(tiered.bootstrap, store, tmp_path) as proxy:
        assert first_offset(proxy.bootstrap, "earliest") == 0
        records = read_confluent(proxy.bootstrap, "history", {0: COUNT})
    assert records == data.written
