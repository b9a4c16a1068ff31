"""deploy/drill/docker-compose.yml against command line, Kafka and itself: no test has Docker."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from compose_file import ROOT, image_environment
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from fetchproxy.cli import main
from fetchproxy.config.load import Setting, load_config
from lab.kafka import KafkaServer

FILE = ROOT / "deploy/drill/docker-compose.yml"
SERVICES: dict[str, Any] = yaml.safe_load(FILE.read_text("utf-8"))["services"]
PAGE = (ROOT / "docs/recover/rehearsal.md").read_text("utf-8")
OLD, NEW = ("kafka-1", "kafka-2", "kafka-3"), ("new-1", "new-2", "new-3")
BUILT_HERE = [name for name, service in SERVICES.items() if service.get("build")]
SETTING = re.compile(r"--set=([\w.]+)=(.*)")


def environment(service: str) -> dict[str, str]:
    return {key: str(value) for key, value in SERVICES[service]["environment"].items()}


def names_in(words: list[str]) -> list[str]:
    """Services that a command of the page names."""
    return [word for word in words if not word.startswith("-")]


@pytest.mark.parametrize("service", BUILT_HERE)
def test_each_command_and_setting_is_real(service: str) -> None:
    words = SERVICES[service]["command"]
    settings = [
        Setting(setting[1], setting[2], "compose")
        for one in words
        if (setting := SETTING.match(one))
    ]
    config = load_config(None, {**image_environment(), **environment(service)}, settings)
    assert config.store.url == "file:///archive"
    assert SERVICES[service]["volumes"] == ["archive:/archive"]
    name, *arguments = words
    command: Any = main.loaded(name)
    if name == "cluster":
        command = command.commands[arguments.pop(0)]
    command.make_context(name, arguments)


@pytest.mark.parametrize("nodes", [OLD, NEW])
def test_three_brokers_are_one_cluster(nodes: tuple[str, ...]) -> None:
    settings = [environment(node) for node in nodes]
    voters = ",".join(f"{n}@{node}:9093" for n, node in enumerate(nodes, 1))
    assert {one["KAFKA_CONTROLLER_QUORUM_VOTERS"] for one in settings} == {voters}
    assert len({one["CLUSTER_ID"] for one in settings}) == 1
    assert [one["KAFKA_NODE_ID"] for one in settings] == ["1", "2", "3"]
    for node, one in zip(nodes, settings, strict=True):
        assert one["KAFKA_ADVERTISED_LISTENERS"] == f"PLAINTEXT://{node}:9092"
        assert one["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"
        assert "volumes" not in SERVICES[node], "its disk goes with its container"


def test_the_new_cluster_is_another_one() -> None:
    assert environment(OLD[0])["CLUSTER_ID"] != environment(NEW[0])["CLUSTER_ID"]


@pytest.mark.kafka
def test_kafka_knows_every_setting(kafka_server: KafkaServer) -> None:
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    resource = ConfigResource(ResourceType.BROKER, "1")
    known = set(admin.describe_configs([resource])[resource].result(timeout=30))
    for variable in environment(OLD[0]):
        if variable != "CLUSTER_ID":
            name = variable.removeprefix("KAFKA_").lower().replace("_", ".")
            assert name in known, variable


def test_who_waits_for_another_waits_for_what_it_says() -> None:
    for name, service in SERVICES.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES, name
            if how["condition"] == "service_healthy":
                assert "healthcheck" in SERVICES[other], f"{name} waits for {other}"
            # A service without the profile does not start one that has it.
            assert service.get("profiles") or not SERVICES[other].get("profiles")


def test_the_brokers_reach_the_restore_by_the_name_of_its_service() -> None:
    words = SERVICES["restore"]["command"]
    assert "--advertise=restore" in words
    assert f"--bootstrap={','.join(f'{node}:9092' for node in NEW)}" in words


@pytest.mark.parametrize("text", [PAGE, FILE.read_text("utf-8")])
def test_the_steps_name_services_that_exist(text: str) -> None:
    commands = re.findall(r"docker compose ([^#\n]*)", text)
    removed = [line.split() for line in commands if line.startswith("rm ")]
    assert [set(names_in(words[1:])) for words in removed] == [{*OLD, "archiver", "producer"}]
    raised = [line.split(" up ")[1].split() for line in commands if "--profile restored up" in line]
    assert [names_in(words) for words in raised] == [
        list(NEW),
        ["recover-journal", "restore", "offsets"],
    ]
