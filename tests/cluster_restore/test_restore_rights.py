"""Each right that a restore needs, at brokers with a real authorizer: missing, it is named with the
command that adds it, and nothing is changed; there, it works."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from folder_fixture import folder_fixture
from restore_process import group, order_of, topic
from test_cluster_restore import assert_no_phantom, ends, produced

from fetchproxy.cluster_restore.plan import LostTopic, RestoreBy, RestorePlan
from fetchproxy.cluster_restore.report import RestoreReport
from fetchproxy.cluster_restore.restore import ClusterRestore, RestoreOrder
from fetchproxy.cluster_state.state import AclState, GroupWithOffsets, QuotaState
from fetchproxy.config.schema import ClusterConfig, Config
from fetchproxy.errors import ConfigError
from lab.kafka import run_tool
from lab.secured_kafka import SecuredKafka

pytestmark = pytest.mark.kafka

USERS = {"broker": "b", "leader": "l", "padder": "p", "owner": "o"}
_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required"
_LOGINS = "".join(f' user_{user}="{password}"' for user, password in USERS.items())
# SASL for clients and controllers alike; brokers among themselves have a plain listener.
SASL_CONTROLLERS = {
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:SASL_PLAINTEXT,"
    "CLIENTS:SASL_PLAINTEXT,SHORT:SASL_PLAINTEXT",
    "sasl.mechanism.controller.protocol": "PLAIN",
    "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.controller.plain.sasl.jaas.config": f'{_PLAIN} username="broker" password="b"'
    f"{_LOGINS};",
    "super.users": "User:ANONYMOUS;User:broker",
    "allow.everyone.if.no.acl.found": "false",
}
ACL = AclState("TOPIC", "payments", "LITERAL", "User:ann", "*", "READ", "ALLOW")
QUOTA = QuotaState((("user", "ann"),), "producer_byte_rate", 1024.0)


@folder_fixture
def with_rights(serve_part: Callable[..., Iterator[SecuredKafka]]) -> Iterator[SecuredKafka]:
    yield from serve_part("kafka", SecuredKafka(USERS, SASL_CONTROLLERS))


def as_user(kafka: SecuredKafka, user: str) -> Config:
    return Config(
        cluster=ClusterConfig(
            bootstrap=kafka.sasl,
            security_protocol="SASL_PLAINTEXT",
            sasl_mechanism="PLAIN",
            sasl_username=user,
            sasl_password=USERS[user],
        )
    )


def restore_of(kafka: SecuredKafka, user: str, order: RestoreOrder) -> ClusterRestore:
    return ClusterRestore(as_user(kafka, user), order, lambda _: None)


async def plan_of(kafka: SecuredKafka, user: str, order: RestoreOrder) -> RestorePlan:
    return await restore_of(kafka, user, order).plan()


async def report_of(kafka: SecuredKafka, user: str, order: RestoreOrder) -> RestoreReport:
    return await restore_of(kafka, user, order).run()


def topics_of(kafka: SecuredKafka) -> set[str]:
    return set(AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=30).topics)


# Right, kind of resource, and the option of the command.
CLUSTER_RIGHTS = ["CLUSTER_ACTION", "ALTER", "DESCRIBE_CONFIGS", "DESCRIBE", "CREATE"]
WORDS = {
    "CLUSTER_ACTION": "ClusterAction",
    "DESCRIBE_CONFIGS": "DescribeConfigs",
    "ALTER_CONFIGS": "AlterConfigs",
    "ALTER": "Alter",
    "DESCRIBE": "Describe",
    "CREATE": "Create",
    "WRITE": "Write",
    "DELETE": "Delete",
    "READ": "Read",
}


def allow_phantoms(kafka: SecuredKafka, name: str, groups: Sequence[str] = ()) -> None:
    kafka.allow("leader", "kafka-cluster", *CLUSTER_RIGHTS, "ALTER_CONFIGS", resource="BROKER")
    kafka.allow("leader", name, "ALTER_CONFIGS", "READ")
    for one in groups:
        kafka.allow("leader", one, "READ", resource="GROUP")


def command_in(text: str, operation: str) -> list[str]:
    """The arguments of the command that adds the right."""
    start = text.index(f"{operation} on ")
    command = text[text.index("kafka-acls.sh", start) :]
    for end in ("; ", ". "):
        command = command.partition(end)[0]
    arguments = shlex.split(command)[1:]
    assert arguments[arguments.index("--operation") + 1] == WORDS[operation]
    return arguments


def add_by_command(kafka: SecuredKafka, arguments: list[str]) -> None:
    """As the text says, by an administrator. The command's own broker is this user's listener."""
    where = arguments.index("--bootstrap-server") + 1
    run_tool(
        "org.apache.kafka.tools.AclCommand",
        *arguments[:where],
        kafka.bootstrap,
        *arguments[where + 1 :],
    )


async def test_phantoms_lead_with_these_rights_alone(
    with_rights: SecuredKafka, tmp_path: Path
) -> None:
    name = "led-with-rights"
    allow_phantoms(with_rights, name, ["readers"])
    groups = [group("readers", {(name, 0): 5_000})]
    order = order_of(
        tmp_path / "job", [topic(name, [5_000], epoch=3)], groups, acls=(ACL,), quotas=(QUOTA,)
    )

    plan = await plan_of(with_rights, "leader", order)
    assert not [note for note in plan.notes if "is missing" in note]
    report = await report_of(with_rights, "leader", order)

    assert report.is_whole, list(report.lines())
    assert ends(with_rights.bootstrap, name, 1) == [(5_000, 5_000)]
    assert_no_phantom(with_rights.bootstrap, {1})


@pytest.mark.parametrize("operation", CLUSTER_RIGHTS)
async def test_a_right_of_phantoms_that_is_missing_is_named(
    with_rights: SecuredKafka, tmp_path: Path, operation: str
) -> None:
    name = f"led-without-{operation.lower()}"
    allow_phantoms(with_rights, name)
    # Kafka's authorizer lets these stand for others.
    implying = {"DESCRIBE": ["ALTER"], "DESCRIBE_CONFIGS": ["ALTER_CONFIGS"]}
    revoked = [operation, *implying.get(operation, [])]
    with_rights.revoke("leader", "kafka-cluster", *revoked, resource="BROKER")
    order = order_of(tmp_path / "job", [topic(name, [70])])
    try:
        with pytest.raises(ConfigError, match=f"{operation} on ") as refusal:
            await report_of(with_rights, "leader", order)
        text = str(refusal.value)
        assert "User:leader" in text
        assert name not in topics_of(with_rights)
        assert not (tmp_path / "job").exists()
        assert_no_phantom(with_rights.bootstrap, {1})
        add_by_command(with_rights, command_in(text, operation))
        if len(revoked) > 1:
            with_rights.allow("leader", "kafka-cluster", *revoked, resource="BROKER")
        report = await report_of(with_rights, "leader", order)
    finally:
        allow_phantoms(with_rights, name)
    assert report.is_whole, list(report.lines())
    assert ends(with_rights.bootstrap, name, 1) == [(70, 70)]


def order_to_pad(
    path: Path,
    topics: Sequence[LostTopic],
    groups: Sequence[GroupWithOffsets] = (),
    **parts: object,
) -> RestoreOrder:
    return order_of(path, topics, groups, RestoreBy.PADDING, **parts)


async def test_padding_needs_rights_on_the_topic_alone(
    with_rights: SecuredKafka, tmp_path: Path
) -> None:
    name = "padded-with-rights"
    with_rights.allow("padder", name, "CREATE", "WRITE", "DELETE")
    order = order_to_pad(tmp_path / "job", [topic(name, [5_000])])

    report = await report_of(with_rights, "padder", order)

    assert report.is_whole, list(report.lines())
    assert ends(with_rights.bootstrap, name, 1) == [(5_000, 5_000)]
    assert produced(with_rights.bootstrap, name, 0, b"next") == 5_000


@pytest.mark.parametrize(
    ("operation", "exists"),
    [("CREATE", False), ("WRITE", False), ("DELETE", False), ("WRITE", True), ("DELETE", True)],
)
async def test_a_right_to_pad_that_is_missing_is_named(
    with_rights: SecuredKafka, tmp_path: Path, operation: str, exists: bool
) -> None:
    name = f"padded-without-{operation.lower()}-{exists}"
    rights = {"CREATE", "WRITE", "DELETE"} - {operation}
    with_rights.allow("padder", name, *sorted(rights))
    if exists:
        with_rights.create_topic(name)
    order = order_to_pad(tmp_path / "job", [topic(name, [70])])

    with pytest.raises(ConfigError, match=f"{operation} on topic {name}") as refusal:
        await report_of(with_rights, "padder", order)

    assert (name in topics_of(with_rights)) == exists
    if exists:
        assert ends(with_rights.bootstrap, name, 1) == [(0, 0)]
    add_by_command(with_rights, command_in(str(refusal.value), operation))
    report = await report_of(with_rights, "padder", order)
    assert report.is_whole, list(report.lines())
    assert ends(with_rights.bootstrap, name, 1) == [(70, 70)]


async def test_a_topic_that_needs_other_settings_needs_the_right_to_set_them(
    with_rights: SecuredKafka, tmp_path: Path
) -> None:
    name = "padded-compacted"
    with_rights.allow("padder", name, "CREATE", "WRITE", "DELETE")
    order = order_to_pad(tmp_path / "job", [topic(name, [70], cleanup_policy="compact")])
    with pytest.raises(ConfigError, match=f"ALTER_CONFIGS on topic {name}") as refusal:
        await plan_of(with_rights, "padder", order)
    add_by_command(with_rights, command_in(str(refusal.value), "ALTER_CONFIGS"))
    report = await report_of(with_rights, "padder", order)
    assert report.is_whole, list(report.lines())


async def test_what_rights_do_not_allow_beside_the_topics_is_named_and_left_out(
    with_rights: SecuredKafka, tmp_path: Path
) -> None:
    name = "padded-alone"
    with_rights.allow("owner", name, "CREATE", "WRITE", "DELETE")
    groups = [group("strange-group", {(name, 0): 70})]
    order = order_to_pad(
        tmp_path / "job", [topic(name, [70])], groups, acls=(ACL, replace(ACL, host="10.0.0.1")),
        quotas=(QUOTA,),
    )  # fmt: skip

    plan = await plan_of(with_rights, "owner", order)
    notes = "\n".join(plan.notes)
    for needed in (
        "ALTER on the cluster",
        "ALTER_CONFIGS on the cluster",
        f"READ on topic {name}",
        "READ on group strange-group",
    ):
        assert f"{needed} is missing" in notes
    report = await report_of(with_rights, "owner", order)

    assert ends(with_rights.bootstrap, name, 1) == [(70, 70)]
    assert len(report.faults) == 3, report.faults
    assert any("ACLs" in fault for fault in report.faults)
    assert any("quotas" in fault for fault in report.faults)
    assert any("strange-group" in fault for fault in report.faults)

    with_rights.allow("owner", name, "READ")
    with_rights.allow("owner", "strange-group", "READ", resource="GROUP")
    with_rights.allow("owner", "kafka-cluster", "ALTER", "ALTER_CONFIGS", resource="BROKER")
    assert not [n for n in (await plan_of(with_rights, "owner", order)).notes if "is missing" in n]
    again = await report_of(with_rights, "owner", order)
    assert again.is_whole, list(again.lines())


async def test_a_topic_that_this_user_may_not_see_is_not_taken_for_absent(
    with_rights: SecuredKafka, tmp_path: Path
) -> None:
    name = "hidden"
    with_rights.create_topic(name)
    order = order_to_pad(tmp_path / "job", [topic(name, [70])])
    with pytest.raises(ConfigError, match=f"DESCRIBE on topic {name} is missing"):
        await plan_of(with_rights, "owner", order)
