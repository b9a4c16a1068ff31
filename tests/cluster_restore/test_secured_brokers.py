"""Restores into brokers that talk to each other by TLS and SASL: the phantom is their server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from folder_fixture import folder_fixture
from pydantic import SecretStr
from restore_process import order_of, topic

from fetchproxy.cli.user import user_lines
from fetchproxy.cluster_restore.new_cluster import InterBrokerListener
from fetchproxy.cluster_restore.phantom_security import phantom_security
from fetchproxy.cluster_restore.restore import ClusterRestore, RestoreOrder
from fetchproxy.config.schema import ClusterConfig, Config, GatewayConfig
from fetchproxy.errors import ConfigError
from lab.kafka import KafkaServer

STARTS = [5_000_000_000, 77, 0]
BROKER_PASSWORD, ADMIN_PASSWORD = "brokers-own", "admins-own"
_MODULES = "org.apache.kafka.common.security"


@folder_fixture
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@dataclass(frozen=True)
class Secured:
    """A broker whose listeners all have `protocol`; brokers log in by `mechanism`."""

    kafka: KafkaServer
    protocol: str
    mechanism: str
    authority: Authority

    def config(self) -> Config:
        """An administrator's, who is another user than the brokers."""
        cluster: dict[str, Any] = {
            "bootstrap": self.kafka.bootstrap,
            "security_protocol": self.protocol,
        }
        gateway: dict[str, Any] = {}
        if self.protocol.startswith("SASL"):
            cluster |= {"sasl_mechanism": "PLAIN", "sasl_username": "admin"}
            cluster |= {"sasl_password": SecretStr(ADMIN_PASSWORD)}
        if self.protocol.endswith("SSL"):
            cluster |= {"tls_ca_file": self.authority.file}
            gateway |= {"tls_certificate_file": self.authority.issue("phantom")}
        return Config(cluster=ClusterConfig(**cluster), gateway=GatewayConfig(**gateway))

    def client(self) -> dict[str, Any]:
        """Of librdkafka."""
        settings = {
            "bootstrap.servers": self.kafka.bootstrap,
            "security.protocol": self.protocol,
        }
        if self.protocol.startswith("SASL"):
            settings |= {"sasl.mechanism": "PLAIN", "sasl.username": "admin"}
            settings |= {"sasl.password": ADMIN_PASSWORD}
        if self.protocol.endswith("SSL"):
            settings |= {"ssl.ca.location": str(self.authority.file)}
        return settings

    def order(self, folder: Path, name: str, password: str = BROKER_PASSWORD) -> RestoreOrder:
        order = order_of(folder / "job", [topic(name, STARTS, epoch=3)])
        if not self.protocol.startswith("SASL"):
            return order
        users = folder / "brokers.toml"
        users.write_text(user_lines("broker", password, [], []))
        return replace(order, broker_users=users)


def properties(protocol: str, mechanism: str, authority: Authority) -> dict[str, str]:
    settings = {
        "listeners": "INSIDE://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map": f"INSIDE:{protocol},CONTROLLER:{protocol}",
        "inter.broker.listener.name": "INSIDE",
    }
    if protocol.endswith("SSL"):
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(authority.issue("kafka")),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.file),
        }
    if protocol.startswith("SASL"):
        login = f'username="broker" password="{BROKER_PASSWORD}"'
        users = f'user_broker="{BROKER_PASSWORD}" user_admin="{ADMIN_PASSWORD}"'
        plain = f"{_MODULES}.plain.PlainLoginModule required {login} {users};"
        scram = f"{_MODULES}.scram.ScramLoginModule required {login};"
        settings |= {
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            "sasl.mechanism.inter.broker.protocol": mechanism,
            "sasl.mechanism.controller.protocol": "PLAIN",
            "listener.name.controller.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.controller.plain.sasl.jaas.config": plain,
            "listener.name.inside.plain.sasl.jaas.config": plain,
            "listener.name.inside.scram-sha-512.sasl.jaas.config": scram,
        }
    return settings


@pytest.fixture(
    params=[
        pytest.param(("SSL", ""), marks=pytest.mark.slow),
        pytest.param(("SASL_PLAINTEXT", "PLAIN"), marks=pytest.mark.slow),
        ("SASL_SSL", "SCRAM-SHA-512"),
    ],
    ids=lambda param: "-".join(part for part in param if part),
)
def secured(
    request: pytest.FixtureRequest,
    serve_part: Callable[..., Iterator[KafkaServer]],
    authority: Authority,
) -> Iterator[Secured]:
    protocol, mechanism = request.param
    kafka = KafkaServer(properties(protocol, mechanism, authority), heap="384m")
    for running in serve_part("kafka", kafka):
        yield Secured(running, protocol, mechanism, authority)


@pytest.mark.kafka
async def test_brokers_follow_the_phantom_by_their_own_protocol(
    secured: Secured, tmp_path: Path
) -> None:
    order = secured.order(tmp_path, "secured")

    report = await ClusterRestore(secured.config(), order, lambda _: None).run()

    assert report.is_whole, list(report.lines())
    assert ends(secured, "secured") == [(start, start) for start in STARTS]
    producer, offsets = Producer(secured.client()), list[int]()
    producer.produce(
        "secured", b"next", partition=1, on_delivery=lambda _, m: offsets.append(m.offset())
    )
    assert producer.flush(60) == 0
    assert offsets == [77]
    metadata = AdminClient(secured.client()).list_topics(timeout=60)
    assert set(metadata.brokers) == {1}


def ends(secured: Secured, name: str) -> list[tuple[int, int]]:
    consumer = Consumer({**secured.client(), "group.id": "nobody"})
    try:
        places = [TopicPartition(name, n) for n in range(len(STARTS))]
        return [consumer.get_watermark_offsets(place, timeout=60) for place in places]
    finally:
        consumer.close()


@pytest.mark.kafka
@pytest.mark.parametrize("secured", [("SASL_PLAINTEXT", "PLAIN")], indirect=True)
async def test_a_wrong_password_is_said_and_the_restore_goes_on_with_the_right_one(
    secured: Secured, tmp_path: Path
) -> None:
    refused = asyncio.Event()
    lines: list[str] = []

    def say(line: str) -> None:
        lines.append(line)
        if "cannot log in" in line:
            refused.set()

    wrong = secured.order(tmp_path, "password", "another")
    running = asyncio.create_task(ClusterRestore(secured.config(), wrong, say).run())
    await refused.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [line for line in lines if "user 'broker': wrong user or password" in line]

    right = secured.order(tmp_path, "password")
    report = await ClusterRestore(secured.config(), right, lambda _: None).run()

    assert report.is_whole, list(report.lines())
    assert ends(secured, "password") == [(start, start) for start in STARTS]


# --- what is missing is said before anything is touched ---


def config_of(**cluster: Any) -> Config:
    return Config(cluster=ClusterConfig(bootstrap="127.0.0.1:9092", **cluster))


@pytest.mark.parametrize(
    ("listener", "words"),
    [
        (
            InterBrokerListener("INSIDE", 1),
            "use SSL .*listener INSIDE.*gateway.tls_certificate_file",
        ),
        (InterBrokerListener("INSIDE", 3, "PLAIN"), r"INSIDE \(SASL_SSL\).*--broker-users"),
        (InterBrokerListener("INSIDE", 2, "PLAIN"), r"INSIDE \(SASL_PLAINTEXT\).*--broker-users"),
        (InterBrokerListener("INSIDE", 2, "GSSAPI"), "with GSSAPI.*sasl.mechanism.inter.broker"),
    ],
)
def test_a_missing_option_is_named_with_listener_and_protocol(
    listener: InterBrokerListener, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        phantom_security(config_of(), listener, None)


def test_a_file_without_the_brokers_mechanism_is_named(tmp_path: Path) -> None:
    lines = user_lines("broker", "secret", [], []).splitlines()
    users = tmp_path / "users"
    users.write_text("\n".join(line for line in lines if "SHA-512" not in line))
    listener = InterBrokerListener("INSIDE", 2, "SCRAM-SHA-512")
    with pytest.raises(ConfigError, match=r"no user of .*users has a password for it"):
        phantom_security(config_of(), listener, users)
    with pytest.raises(ConfigError, match="cannot be read"):
        phantom_security(config_of(), listener, tmp_path / "none")


def test_the_commands_own_user_is_the_default() -> None:
    config = config_of(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username="broker",
        sasl_password=SecretStr("secret"),
    )
    security = phantom_security(config, InterBrokerListener("INSIDE", 2, "PLAIN"), None)
    assert security.users is not None
    assert list(security.users) == ["broker"]
    assert security.context is None
