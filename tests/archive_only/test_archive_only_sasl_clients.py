"""Stock clients log in to an archive of its own: PLAIN, SCRAM, wrong passwords, foreign topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka.errors
import confluent_kafka
import kafka.errors
import pytest
from archive_only_process import PARTITIONS, RECORDS, Archived, ArchiveOnlyProcess
from certificates import Authority
from client_readers import read_aiokafka, read_confluent, read_kafka_python
from fetchproxy_command import output_of
from folder_fixture import folder_fixture

from lab.kafka import run_tool

pytestmark = pytest.mark.kafka

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
PASSWORD = "pass, wörd="
ENDS = dict.fromkeys(range(PARTITIONS), RECORDS)


def lines_of(name: str, *options: str) -> str:
    return output_of("user", name, *options, stdin=f"{PASSWORD}\n")


@folder_fixture
def users_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("users") / "users.toml"
    lines = lines_of("reader", "--topic", "ao-p*", "--group", "*")
    path.write_text(lines + lines_of("a,b=c", "--topic", "*", "--group", "*"), encoding="utf-8")
    return path


@folder_fixture
def closed_node(
    archived: Archived, users_file: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ArchiveOnlyProcess]:
    settings = {"archive_only.users_file": users_file}
    folder = tmp_path_factory.mktemp("closed-node")
    with ArchiveOnlyProcess(archived.store, folder, settings) as process:
        yield process
        assert process.running
        for event in ("session_crashed", "part_failed", "library_message"):
            assert not process.logged(event), process.logged(event)[0]
        assert PASSWORD not in process.log_text()


def confluent(mechanism: str, user: str, password: str) -> dict[str, str]:
    return {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "sasl.username": user,
        "sasl.password": password,
    }


def python(mechanism: str, user: str, password: str) -> dict[str, str]:
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        "sasl_plain_username": user,
        "sasl_plain_password": password,
    }


READERS: dict[str, tuple[Any, Any]] = {
    "confluent": (read_confluent, confluent),
    "kafka-python": (read_kafka_python, python),
    "aiokafka": (read_aiokafka, python),
}


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", READERS)
def test_python_clients_log_in_and_read(
    archived: Archived, closed_node: ArchiveOnlyProcess, client: str, mechanism: str
) -> None:
    read_all, login = READERS[client]
    settings = login(mechanism, "reader", PASSWORD)
    assert read_all(closed_node.bootstrap, "ao-plain", ENDS, **settings) == archived.plain.written


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_name_with_signs_of_scram(
    archived: Archived, closed_node: ArchiveOnlyProcess, mechanism: str
) -> None:
    settings = confluent(mechanism, "a,b=c", PASSWORD)
    records = read_confluent(closed_node.bootstrap, "ao-plain", ENDS, **settings)
    assert records == archived.plain.written


def error_of_confluent(
    bootstrap: str, topic: str, settings: dict[str, str], polls: int = 300
) -> set[str]:
    """The errors that its user sees, until there is one that is not a lost connection."""
    error_names: set[str] = set()
    config = {"bootstrap.servers": bootstrap, "group.id": "g", **settings}
    consumer = confluent_kafka.Consumer({**config, "error_cb": lambda e: error_names.add(e.name())})
    try:
        consumer.subscribe([topic])
        for _ in range(polls):
            for message in consumer.consume(1, timeout=0.2):
                assert message.error() is not None, "it has read a record"
                error_names.add(message.error().name())
            if error_names - {"_TRANSPORT", "_ALL_BROKERS_DOWN"}:
                return set(error_names)  # without what it says when it is closed
    finally:
        consumer.close()
    return error_names


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("reader", "wrong"), ("nobody", PASSWORD)])
def test_who_does_not_know_the_password_is_told_so(
    closed_node: ArchiveOnlyProcess, mechanism: str, user: str, password: str
) -> None:
    settings = confluent(mechanism, user, password)
    assert "_AUTHENTICATION" in error_of_confluent(closed_node.bootstrap, "ao-plain", settings)
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaAdminClient(
            bootstrap_servers=closed_node.bootstrap,
            bootstrap_timeout_ms=5000,
            **python(mechanism, user, password),
        )
    refused = [line.get("user") for line in closed_node.logged("client_connection_closed")]
    assert user in refused


async def test_aiokafka_is_told_so(closed_node: ArchiveOnlyProcess) -> None:
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=closed_node.bootstrap, **python("SCRAM-SHA-512", "reader", "wrong")
    )
    try:
        with pytest.raises(aiokafka.errors.KafkaError):
            await consumer.start()
    finally:
        await consumer.stop()


def test_a_client_without_a_login_gets_nothing(closed_node: ArchiveOnlyProcess) -> None:
    settings = {"socket.timeout.ms": "1000"}
    errors = error_of_confluent(closed_node.bootstrap, "ao-plain", settings, polls=50)
    assert errors
    assert errors <= {"_TRANSPORT", "_ALL_BROKERS_DOWN"}


def test_a_topic_of_others_is_refused_and_not_listed(closed_node: ArchiveOnlyProcess) -> None:
    settings = confluent("SCRAM-SHA-256", "reader", PASSWORD)
    errors = error_of_confluent(closed_node.bootstrap, "ao-txn", settings)
    assert errors == {"TOPIC_AUTHORIZATION_FAILED"}
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": closed_node.bootstrap, "group.id": "g", **settings}
    )
    assert set(consumer.list_topics(timeout=30).topics) == {"ao-plain"}
    consumer.close()


def java_properties(path: Path, mechanism: str, user: str, password: str) -> Path:
    module = "plain.Plain" if mechanism == "PLAIN" else "scram.Scram"
    path.write_text(
        f"security.protocol=SASL_PLAINTEXT\nsasl.mechanism={mechanism}\n"
        f"sasl.jaas.config=org.apache.kafka.common.security.{module}LoginModule required "
        f'username="{user}" password="{password}";\n',
        encoding="utf-8",
    )
    return path


def console_consumer(bootstrap: str, topic: str, properties: Path) -> tuple[list[str], str]:
    """In a group of its own."""
    result = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic),
        *("--from-beginning", "--max-messages", str(RECORDS * PARTITIONS)),
        *("--timeout-ms", "60000", "--consumer.config", str(properties)),
        check=False,
    )
    return result.stdout.splitlines(), result.stdout + result.stderr


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_java_consumer(
    archived: Archived, closed_node: ArchiveOnlyProcess, tmp_path: Path, mechanism: str
) -> None:
    right = java_properties(tmp_path / "right", mechanism, "reader", "pass, w\\u00f6rd=")
    lines, output = console_consumer(closed_node.bootstrap, "ao-plain", right)
    values = sorted(
        v.decode() for values_of_key in archived.plain.written.values() for _, _, v in values_of_key
    )
    assert sorted(lines) == values, output[-2000:]
    lines, output = console_consumer(closed_node.bootstrap, "ao-txn", right)
    assert not lines
    assert "Not authorized to access topics: [ao-txn]" in output
    wrong = java_properties(tmp_path / "wrong", mechanism, "reader", "wrong")
    lines, output = console_consumer(closed_node.bootstrap, "ao-plain", wrong)
    assert not lines
    assert "SaslAuthenticationException" in output


def test_users_under_tls(archived: Archived, users_file: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("node", hosts=("127.0.0.1",))
    settings = {"archive_only.users_file": users_file, "gateway.tls_certificate_file": certificate}
    with ArchiveOnlyProcess(archived.store, tmp_path, settings) as node:
        for mechanism in MECHANISMS:
            login = {
                **confluent(mechanism, "reader", PASSWORD),
                "security.protocol": "SASL_SSL",
                "ssl.ca.location": str(authority.file),
            }
            records = read_confluent(node.bootstrap, "ao-plain", ENDS, **login)
            assert records == archived.plain.written
        node.assert_sound()
