"""What a node tells of its cluster besides records, from the state in the archive: each response is
that of the broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from archive_only_process import ArchiveOnlyProcess
from archive_process import archive_process
from archived_topics import new_store
from confluent_kafka import Consumer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    ResourcePatternType,
    ResourceType,
)
from fetchproxy_command import fetchproxy, output_of
from folder_fixture import folder_fixture
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from proxy_process import wait_for
from served_archive import Client
from topic_data import TopicData, archived_ends, produce

from lab.kafka import run_tool
from lab.secured_kafka import SecuredKafka

pytestmark = pytest.mark.kafka

NAME, HALF = "kept", 200
ANY = AclBindingFilter(
    ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY,
    AclPermissionType.ANY,
)  # fmt: skip


def acl(
    kind: ResourceType,
    name: str,
    pattern: ResourcePatternType,
    who: str,
    what: AclOperation,
    permission: AclPermissionType = AclPermissionType.ALLOW,
    host: str = "*",
) -> AclBinding:
    return AclBinding(kind, name, pattern, f"User:{who}", host, what, permission)


LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
ACLS = [
    acl(ResourceType.TOPIC, NAME, LITERAL, "ann", AclOperation.READ),
    acl(
        ResourceType.TOPIC,
        NAME,
        LITERAL,
        "bob",
        AclOperation.ALL,
        AclPermissionType.DENY,
        "1.2.3.4",
    ),
    acl(ResourceType.TOPIC, "*", LITERAL, "ann", AclOperation.DESCRIBE),
    acl(ResourceType.TOPIC, "ke", PREFIXED, "ann", AclOperation.WRITE),
    acl(ResourceType.GROUP, "readers", PREFIXED, "ann", AclOperation.READ),
    acl(ResourceType.BROKER, "kafka-cluster", LITERAL, "root", AclOperation.CLUSTER_ACTION),
]


def matching(
    kind: ResourceType = ResourceType.ANY,
    name: str | None = None,
    pattern: ResourcePatternType = ResourcePatternType.ANY,
    who: str | None = None,
    host: str | None = None,
    what: AclOperation = AclOperation.ANY,
    permission: AclPermissionType = AclPermissionType.ANY,
) -> AclBindingFilter:
    return AclBindingFilter(kind, name, pattern, who, host, what, permission)


FILTERS = [
    ANY,
    matching(ResourceType.TOPIC),
    matching(ResourceType.GROUP),
    matching(name=NAME),
    matching(ResourceType.TOPIC, NAME, ResourcePatternType.MATCH),
    matching(ResourceType.TOPIC, "other", ResourcePatternType.MATCH),
    matching(ResourceType.TOPIC, NAME, LITERAL),
    matching(ResourceType.TOPIC, "ke", PREFIXED),
    matching(ResourceType.TOPIC, "ke", LITERAL),
    matching(who="User:ann"),
    matching(host="1.2.3.4"),
    matching(what=AclOperation.READ),
    matching(permission=AclPermissionType.DENY),
    matching(who="User:nobody"),
]


def acls(bootstrap: str, one: AclBindingFilter) -> list[str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    bindings = admin.describe_acls(one, request_timeout=30).result(timeout=60)
    return sorted(str(binding) for binding in bindings)


def settings(bootstrap: str) -> dict[str, tuple[object, ...]]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, NAME)
    entries = admin.describe_configs([resource])[resource].result(timeout=60)
    return {
        name: (e.value, e.source, e.is_default, e.is_read_only, e.is_sensitive)
        for name, e in entries.items()
    }


async def leader_epochs(bootstrap: str) -> dict[int, int]:
    client = await Client.connect(int(bootstrap.rpartition(":")[2]))
    topic = MetadataRequest.MetadataRequestTopic
    request = MetadataRequest(topics=[topic(name=NAME)], allow_auto_topic_creation=False)
    [of_topic] = (await client.ask(request, MetadataResponse, 9)).topics
    await client.close()
    return {one.partition_index: one.leader_epoch for one in of_topic.partitions}


@dataclass(frozen=True)
class BrokersResponses:
    """`store`: the archive. The others: what the broker has told."""

    store: str
    epochs: dict[int, int]
    settings: dict[str, tuple[object, ...]]
    acls: list[list[str]]


def archived_with_state(kafka: SecuredKafka, folder: Path) -> BrokersResponses:
    store = new_store(folder)
    kafka.create_topic(NAME, 2, {"retention.ms": "123456789", "max.message.bytes": "77777"})
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    for future in admin.create_acls(ACLS, request_timeout=30).values():
        future.result(timeout=60)
    wait_for("the ACLs", lambda: len(acls(kafka.bootstrap, ANY)) == len(ACLS))
    data = TopicData(NAME)
    produce(kafka.bootstrap, data, HALF, partition_count=2)
    kafka.restart()  # the next leader has another epoch
    produce(kafka.bootstrap, data, HALF, partition_count=2)
    often = {"archive.cluster_state_interval_ms": 300}
    archiver = archive_process(kafka.bootstrap, store, NAME, folder, often)
    archiver.start()
    try:
        whole = {0: 2 * HALF, 1: 2 * HALF}
        wait_for("the archive", lambda: archived_ends(store, NAME) == whole)
        wait_for("the state", lambda: has_state(store))
    finally:
        archiver.stop()
    return BrokersResponses(
        store,
        asyncio.run(leader_epochs(kafka.bootstrap)),
        settings(kafka.bootstrap),
        [acls(kafka.bootstrap, one) for one in FILTERS],
    )


@folder_fixture
def of_broker(
    serve_part: Callable[..., Iterator[SecuredKafka]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BrokersResponses]:
    for kafka in serve_part("kafka", SecuredKafka({"ann": "a"})):
        yield archived_with_state(kafka, tmp_path_factory.mktemp("kept-state"))


def has_state(store: str) -> bool:
    response = fetchproxy("cluster", "show", "--store", store, "--json")
    if response.returncode:
        return False
    state = json.loads(response.stdout)
    ends = {one["log_end_offset"] for one in state["partitions"]}
    return ends == {2 * HALF} and int(state["acls"]) == len(ACLS)


@folder_fixture
def knowing_node(
    of_broker: BrokersResponses, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArchiveOnlyProcess]:
    with ArchiveOnlyProcess(of_broker.store, tmp_path_factory.mktemp("knowing-node")) as process:
        yield process
        process.assert_sound()


async def test_metadata_has_the_leader_epochs_of_the_broker(
    of_broker: BrokersResponses, knowing_node: ArchiveOnlyProcess
) -> None:
    assert min(of_broker.epochs.values()) > 0
    assert await leader_epochs(knowing_node.bootstrap) == of_broker.epochs


def test_settings_are_those_of_the_broker(
    of_broker: BrokersResponses, knowing_node: ArchiveOnlyProcess
) -> None:
    assert of_broker.settings["retention.ms"][0] == "123456789"
    assert settings(knowing_node.bootstrap) == of_broker.settings


@pytest.mark.parametrize("number", range(len(FILTERS)))
def test_acls_are_those_of_the_broker(
    of_broker: BrokersResponses, knowing_node: ArchiveOnlyProcess, number: int
) -> None:
    assert acls(knowing_node.bootstrap, FILTERS[number]) == of_broker.acls[number]


def test_only_who_may_read_all_topics_may_see_rights(
    of_broker: BrokersResponses, tmp_path: Path
) -> None:
    users = tmp_path / "users.toml"
    lines = [
        output_of("user", name, "--topic", topics, "--group", "*", stdin=f"{name}\n")
        for name, topics in (("some", f"{NAME}*"), ("every", "*"))
    ]
    users.write_text("".join(lines), encoding="utf-8")
    with ArchiveOnlyProcess(of_broker.store, tmp_path, {"archive_only.users_file": users}) as node:

        def acls_for(user: str) -> list[str]:
            admin = AdminClient(
                {
                    "bootstrap.servers": node.bootstrap,
                    "security.protocol": "SASL_PLAINTEXT",
                    "sasl.mechanism": "PLAIN",
                    "sasl.username": user,
                    "sasl.password": user,
                }
            )
            bindings = admin.describe_acls(ANY, request_timeout=30).result(timeout=60)
            return sorted(str(one) for one in bindings)

        assert acls_for("every") == of_broker.acls[0]
        assert acls_for("some") == []  # so librdkafka shows CLUSTER_AUTHORIZATION_FAILED


def test_librdkafka_goes_on_over_the_border_of_epochs(knowing_node: ArchiveOnlyProcess) -> None:
    """It commits with an epoch, and validates its position by that at the next start."""
    read: list[tuple[int, int]] = []
    for _ in range(4):
        consumer = Consumer(
            {
                "bootstrap.servers": knowing_node.bootstrap,
                "group.id": "over-epochs",
                # A partition that no round has read has no commit yet.
                "auto.offset.reset": "error" if len(dict(read)) == 2 else "earliest",
            }
        )
        consumer.subscribe([NAME])
        for _ in range(HALF):
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None, message.error()
            read.append((message.partition(), message.offset()))
            consumer.commit(message, asynchronous=False)
        consumer.close()
    assert sorted(read) == [(p, offset) for p in (0, 1) for offset in range(2 * HALF)]


def test_the_java_consumer_goes_on_over_the_border_of_epochs(
    knowing_node: ArchiveOnlyProcess,
) -> None:
    lines: list[str] = []
    for _ in range(4):
        result = run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", knowing_node.bootstrap, "--topic", NAME),
            *("--group", "java-over-epochs", "--from-beginning"),
            *("--max-messages", str(HALF), "--timeout-ms", "60000"),
        )
        lines += result.stdout.splitlines()
    assert len(lines) == len(set(lines)) == 4 * HALF
