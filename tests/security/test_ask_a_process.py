"""Who reads history, by user and group, of real clients; and no secret in any file of a bundle."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from confluent_kafka import Consumer
from fetchproxy_command import fetchproxy, output_of
from proxy_process import ProxyProcess
from secured_clients import USERS, as_user, confluent_login, java_login
from test_secrets_never_shown import assert_clean
from topic_data import TopicData

from lab.kafka import run_tool
from lab.secured_kafka import SecuredKafka

pytestmark = pytest.mark.kafka

TOKEN = "pl4nted-token-of-the-console"
PROXY_URL = "http://u:pl4nted-proxy-password@127.0.0.1:9"
S3_SECRET = "pl4nted-s3-secret-key"


@pytest.fixture
def proxy(
    secured: SecuredKafka,
    secured_store: str,
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[ProxyProcess]:
    """A proxy with secrets, at debug level. `test_bundle_secrets` has one in each setting."""
    (tmp_path / "token").write_text(TOKEN)
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AK1A-pl4nted",
        "AWS_SECRET_ACCESS_KEY": S3_SECRET,
        "HTTPS_PROXY": PROXY_URL,
    }.items():
        monkeypatch.setenv(name, value)
    settings = {
        **as_user("proxy", "SCRAM-SHA-256"),
        "log.level": "debug",
        "console.token_file": tmp_path / "token",
        "prices.get_usd_per_1000": "0.4",
        "prices.egress_usd_per_gb": "90",
    }
    with ProxyProcess(secured.sasl, secured_store, tmp_path, settings=settings) as process:
        yield process


def ask(proxy: ProxyProcess, tmp_path: Path, *command: str) -> Any:
    url = f"http://127.0.0.1:{proxy.console_port}"
    options = ("--console", url, "--token-file", str(tmp_path / "token"), "--json")
    return json.loads(output_of(*command, *options))


def test_users_and_groups_of_real_clients_and_a_bundle_without_secrets(
    proxy: ProxyProcess, open_topic: TopicData, tmp_path: Path
) -> None:
    ends = {0: len(open_topic.written[0])}
    client_config = {
        "group.id": "billing",
        "client.id": "billing-app",
        "auto.offset.reset": "earliest",
    }
    consumer = Consumer(
        {"bootstrap.servers": proxy.bootstrap, **confluent_login("alice", "PLAIN"), **client_config}
    )
    consumer.subscribe([open_topic.topic])
    values = []
    while len(values) < ends[0]:
        message = consumer.poll(1.0)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.commit(asynchronous=False)
    run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", proxy.bootstrap, "--topic", open_topic.topic, "--group", "audit"),
        *("--from-beginning", "--max-messages", str(ends[0]), "--timeout-ms", "60000"),
        *java_login("alice", "SCRAM-SHA-512"),
    )
    readers = ask(proxy, tmp_path, "top")
    of_group = {row["group"]: row for row in readers if row["user"] == "alice"}
    billing, audit = of_group["billing"], of_group["audit"]
    assert billing["client_id"] == "billing-app"
    assert billing["gets"] > 0
    assert billing["store_bytes"] > 0
    assert billing["usd"] > 0
    assert billing["served_bytes"] > 0
    assert audit["served_bytes"] > 0
    assert audit["store_bytes"] == 0  # the first that asked has paid
    listed = ask(proxy, tmp_path, "groups", "list")
    assert "billing" in [row["group"] for row in listed]
    bundled(proxy, open_topic, tmp_path, {value for value in values if len(value) > 8})
    consumer.close()


def bundled(process: ProxyProcess, data: TopicData, tmp_path: Path, contents: set[bytes]) -> None:
    out = tmp_path / "bundle.zip"
    result = fetchproxy(
        "bundle",
        *("--console", f"http://127.0.0.1:{process.console_port}", "--interval", "0"),
        *("--token-file", str(tmp_path / "token"), "--out", str(out)),
        *("--partition", f"{data.topic}:0"),
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert contents
    with zipfile.ZipFile(out) as zipped:
        parts = {name: zipped.read(name).decode() for name in zipped.namelist()}
    assert "missing" not in parts["README.txt"]
    assert json.loads(parts[f"segments/{data.topic}-0.json"])
    assert "gateway_listening" in parts["log.jsonl"]
    assert "cluster.sasl_password = " in parts["process.json"]
    secrets = [*USERS.values(), TOKEN, S3_SECRET, "pl4nted"]
    for name, text in {**parts, "what it prints": result.stdout + result.stderr}.items():
        assert_clean(text, *secrets)
        for content in contents:
            assert content.decode(errors="replace") not in text, name


def test_topics_lag_and_groups_of_store_and_brokers_without_a_process(
    secured: SecuredKafka, secured_store: str, open_topic: TopicData
) -> None:
    where = ("--bootstrap", secured.bootstrap, "--store", secured_store, "--json")
    topics = {row["topic"]: row for row in json.loads(output_of("topics", *where))}
    assert topics[open_topic.topic]["size_bytes"] > 0
    [row] = json.loads(output_of("lag", "--topic", open_topic.topic, *where))
    assert row["lag_offsets"] == row["log_end_offset"] - row["archive_end"]
    assert row["log_start_offset"] > 0
    consumer = Consumer(
        {
            "bootstrap.servers": secured.sasl,
            "group.id": "direct",
            "auto.offset.reset": "earliest",
            **confluent_login("alice", "PLAIN"),
        }
    )
    consumer.subscribe([open_topic.topic])
    while consumer.poll(1.0) is None:
        pass
    consumer.commit(asynchronous=False)
    consumer.close()
    of_brokers = ("--bootstrap", secured.bootstrap, "--json")
    groups = json.loads(output_of("groups", "list", *of_brokers))
    assert "direct" in [row["group"] for row in groups]
    [row] = json.loads(output_of("groups", "show", "direct", *of_brokers))
    assert row["reads_from"] == "brokers"
    assert row["lag_offsets"] == row["log_end_offset"] - row["committed_offset"]
    assert fetchproxy("groups", "show", "no-such", *of_brokers).returncode == 2
