"""Who else may write to the metadata topic is told at the start, as far as the brokers tell."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

import pytest
from kafka.protocol.admin.acl import DescribeAclsResponse
from memory_object_store import MemoryObjectStore
from secured_clients import as_user
from structlog.testing import capture_logs

from fetchproxy.archive import metadata_manager
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.topic_writers import own_principal, writers
from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.storage.remote_storage import RemoteStorage
from lab.kafka import KafkaServer
from lab.secured_kafka import SecuredKafka

ALLOW, DENY = 3, 2
ALL, READ, WRITE = 2, 3, 4
_numbers = itertools.count(1)


def acl(principal: str, host: str, operation: int, permission: int) -> Any:
    return DescribeAclsResponse.DescribeAclsResource.AclDescription(
        principal=principal, host=host, operation=operation, permission_type=permission
    )


def test_who_may_write_by_the_rules() -> None:
    rules = [
        acl("User:archiver", "*", WRITE, ALLOW),
        acl("User:from-one-host", "10.0.0.1", ALL, ALLOW),
        acl("User:reader", "*", READ, ALLOW),
        acl("User:was-allowed", "*", WRITE, ALLOW),
        acl("User:was-allowed", "*", ALL, DENY),
        acl("User:elsewhere", "*", WRITE, ALLOW),
        acl("User:elsewhere", "10.0.0.1", WRITE, DENY),
    ]
    assert writers(rules) == {"User:archiver", "User:from-one-host", "User:elsewhere"}
    assert writers([*rules, acl("User:*", "*", WRITE, DENY)]) == set()
    assert writers([]) == set()


def test_who_this_process_is() -> None:
    assert own_principal(ClusterConfig()) == "User:ANONYMOUS"
    by_certificate = ClusterConfig(security_protocol="SSL")
    assert own_principal(by_certificate) is None
    named = ClusterConfig(
        security_protocol="SASL_SSL", sasl_mechanism="PLAIN", sasl_username="archiver"
    )
    assert own_principal(named) == "User:archiver"


async def events_logged(bootstrap: str, name: str, more: Mapping[str, object]) -> list[Any]:
    """What is logged while the topic is opened, by the manager that a process has."""
    values = {
        "cluster.bootstrap": bootstrap,
        "metadata.manager": "topic",
        "metadata.topic_name": name,
        "metadata.topic_partitions": 1,
        "metadata.topic_replication_factor": 1,
        **more,
    }
    config = load_config(None, {}, [Setting(k, str(v), "test") for k, v in values.items()])
    storage = RemoteStorage(MemoryObjectStore())
    with capture_logs() as logs:
        async with (
            Cluster(config.cluster) as cluster,
            metadata_manager(config, storage, cluster, lambda: 1),
        ):
            pass
    return [line for line in logs if line["event"].startswith("metadata_topic_") and "hint" in line]


def new_topic(kafka: KafkaServer) -> str:
    name = f"__writers_{next(_numbers)}"
    kafka.create_topic(
        name, 1, config={"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    )
    return name


@pytest.mark.kafka
async def test_others_who_may_write_are_named_once(secured: SecuredKafka) -> None:
    name = new_topic(secured)
    who = as_user("archiver", "SCRAM-SHA-256")
    secured.allow("archiver", name, "READ", "WRITE", "DESCRIBE_CONFIGS")
    secured.allow("proxy", name, "READ", "DESCRIBE_CONFIGS")
    (unknown,) = await events_logged(secured.sasl, name, who)
    assert unknown["event"] == "metadata_topic_writers_not_known"
    assert unknown["log_level"] == "info"
    secured.allow("archiver", "kafka-cluster", "DESCRIBE", resource="BROKER")
    try:
        assert await events_logged(secured.sasl, name, who) == []
        secured.allow("mallory", name, "WRITE")
        (warning,) = await events_logged(secured.sasl, name, who)
        assert warning["event"] == "metadata_topic_open_to_others"
        assert warning["writers"] == ["User:mallory"]
        assert warning["log_level"] == "warning"
        assert "WRITE" in warning["hint"]
    finally:
        secured.revoke("archiver", "kafka-cluster", "DESCRIBE", resource="BROKER")


@pytest.mark.kafka
@pytest.mark.parametrize(
    ("listen", "level"), [("127.0.0.1:9192", "info"), ("0.0.0.0:9192", "warning")]
)
async def test_without_an_authorizer_anybody_may(
    kafka_server: KafkaServer, listen: str, level: str
) -> None:
    name = new_topic(kafka_server)
    (line,) = await events_logged(kafka_server.bootstrap, name, {"gateway.listen": listen})
    assert (line["event"], line["log_level"]) == ("metadata_topic_open_to_anybody", level)
