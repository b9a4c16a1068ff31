"""Broken set-ups: the doctor names the cause of each, and a remedy that exists.

Each is a sound set-up with one fault. Those with a fault in brokers' topics or rights have a real
broker, and share it.
"""

from __future__ import annotations

import functools
import json
import re
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import formatdate
from pathlib import Path
from uuid import uuid4

import pytest
from certificates import DAY, Authority
from scripted_broker import ScriptedBroker, serving
from secured_clients import as_user
from set_up import (
    ENOUGH,
    SetUp,
    a_server,
    findings,
    identified,
    running_proxy,
    speaks_http,
)
from tampering import Tampering, tampered

from fetchproxy.cli import main
from fetchproxy.config.load import all_keys
from fetchproxy.doctor.catalogue import CHECKS, Severity
from fetchproxy.doctor.machine import Machine
from fetchproxy.doctor.runner import unusable
from fetchproxy.errors import ConfigError
from fetchproxy.storage.archive_identity import ArchiveIdentity
from fetchproxy.storage.key_rings import NO_KEYS, encode_keys
from lab.process import free_port
from lab.s3 import MotoServer, S3Endpoint, S3Server
from lab.secured_kafka import SecuredKafka

MiB = 1024 * 1024
Built = Callable[[SetUp, pytest.FixtureRequest], AsyncIterator[SetUp]]
CASES: list[object] = []
_KAFKA = (pytest.mark.kafka,)
_S3 = (pytest.mark.s3,)


def broken(
    id: str, remedy: str, base: str = "plain", marks: tuple[pytest.MarkDecorator, ...] = ()
) -> Callable[[Built], Built]:
    """A case of the table: `id` is found, and its remedy has the text `remedy`."""

    def register(build: Built) -> Built:
        name = build.__name__.strip("_")
        param = pytest.param(id, remedy, base, asynccontextmanager(build), id=name, marks=marks)
        CASES.append(param)
        return build

    return register


@pytest.mark.parametrize(("id", "remedy", "base", "build"), CASES)
async def test_the_cause_is_named_and_mended(
    id: str, remedy: str, base: str, build: Callable, request: pytest.FixtureRequest
) -> None:
    setup: SetUp = request.getfixturevalue(base)
    async with build(setup, request) as faulty:
        try:
            examination = await faulty.examined()
        except ConfigError as error:
            examination = unusable(error)
    findings_by_id = findings(examination)
    assert list(findings_by_id) == [id], findings_by_id
    assert remedy in findings_by_id[id], findings_by_id[id]
    assert examination.exit_code == (2 if CHECKS[id].severity is Severity.FATAL else 1)
    for finding in (one for result in examination.results for one in result.findings):
        assert names_what_exists(finding.remedy), finding.remedy


KEY = re.compile(r"\b([a-z_]+\.[a-z_0-9]+)\b")
OWN_COMMAND = re.compile(r"fetchproxy ([a-z]+)((?: --[a-z-]+)*)")
COMMANDS_OF_OTHERS = (
    *("nc -vz", "openssl s_client -connect", "openssl x509 -noout", "openssl verify", "getent"),
    *("kafka-configs.sh", "kafka-acls.sh", "kafka-topics.sh", "kafka-broker-api-versions.sh"),
    *(
        "advertised.listeners",
        "chmod o-rwx",
        "chown",
        "timedatectl",
        "aws s3api",
        "ss -ltnp",
        "curl",
        "ulimit -n",
        "df -h",
    ),
)


def names_what_exists(remedy: str) -> bool:
    """Whether it has a command or a setting, and each of ours exists."""
    keys = set(KEY.findall(remedy)) & {key for key in all_keys()}
    commands = OWN_COMMAND.findall(remedy)
    for name, options in commands:
        known = {o for p in main.loaded(name).params for o in p.opts}
        assert known >= set(options.split()), remedy
    return bool(keys or commands or any(one in remedy for one in COMMANDS_OF_OTHERS))


def test_there_are_forty_and_each_check_has_one() -> None:
    causes = {case.values[0] for case in CASES}  # type: ignore[attr-defined]
    assert len(CASES) >= 40
    assert causes == set(CHECKS)


# --- settings ---


@broken("FP0001", "fetchproxy config --check")
async def _a_mistyped_key(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"gateway.listn": "127.0.0.1:1"})


@broken("FP0001", "fetchproxy config --check")
async def _a_value_out_of_range(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"gateway.node_port_base": "70000"})


@broken("FP0001", "fetchproxy config --check")
async def _a_ceiling_below_the_parts(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"process.memory_bytes_max": "64MiB"})


@broken("FP0001", "fetchproxy config --check")
async def _sasl_without_a_password(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"cluster.security_protocol": "SASL_SSL", "cluster.sasl_mechanism": "PLAIN"})


@broken("FP0002", "store.url")
async def _no_store(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"store.url": None})


@broken("FP0003", "cluster.bootstrap")
async def _the_proxy_itself_as_bootstrap(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    bootstrap = str(setup.values["cluster.bootstrap"])
    port = bootstrap.rpartition(":")[2]
    yield setup.having({"gateway.listen": f"127.0.0.1:{port}"}, before=False)


@broken("FP0004", "chmod o-rwx")
async def _a_password_that_all_may_read(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    file = setup.folder / "password"
    file.write_text("s3cret\n")
    file.chmod(0o644)
    key = setup.folder / "key.pem"
    Authority(setup.folder / "ca").issue("proxy", password="s3cret")
    yield setup.having(
        {
            "gateway.tls_certificate_file": str(setup.folder / "ca" / "proxy.pem"),
            "gateway.tls_key_password.file": str(file),
        }
    )
    assert not key.exists()


# --- brokers ---


@broken("FP0101", "nc -vz 127.0.0.1")
async def _no_broker(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"cluster.bootstrap": f"127.0.0.1:{free_port()}"})


@broken("FP0101", "cluster.bootstrap")
async def _a_broker_whose_name_is_unknown(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"cluster.bootstrap": "no-such-broker.invalid:9092"})


@broken("FP0102", "cluster.bootstrap")
async def _one_bootstrap_address_is_away(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having(
        {"cluster.bootstrap": f"{setup.values['cluster.bootstrap']},127.0.0.1:{free_port()}"}
    )


@broken("FP0103", "openssl s_client -connect")
async def _a_broker_of_another_authority(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    foreign_authority, own_authority = (
        Authority(setup.folder / "theirs"),
        Authority(setup.folder / "ours"),
    )
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(foreign_authority.issue("broker"))
    async with a_server(None, context) as port:
        yield setup.having(
            {
                "cluster.bootstrap": f"127.0.0.1:{port}",
                "cluster.security_protocol": "SSL",
                "cluster.tls_ca_file": str(own_authority.file),
            }
        )


@broken("FP0103", "cluster.security_protocol")
async def _tls_to_a_plaintext_listener(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    async with a_server(speaks_http) as port:
        yield setup.having(
            {"cluster.bootstrap": f"127.0.0.1:{port}", "cluster.security_protocol": "SSL"}
        )


@broken("FP0104", "cluster.bootstrap")
async def _a_web_server_as_broker(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    async with a_server(speaks_http) as port:
        yield setup.having({"cluster.bootstrap": f"127.0.0.1:{port}"})


@broken("FP0104", "cluster.bootstrap")
async def _a_broker_that_hangs(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    async with a_server(None) as port:
        yield setup.having(
            {"cluster.bootstrap": f"127.0.0.1:{port}", "cluster.request_max_ms": 300}
        )


@broken("FP0104", "cluster.security_protocol")
async def _plaintext_to_a_tls_listener(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    alert = b"\x15\x03\x03\x00\x02\x02\x46"
    async with a_server(lambda heard: alert) as port:
        yield setup.having({"cluster.bootstrap": f"127.0.0.1:{port}"})


@broken("FP0104", "listener.security.protocol.map", "real", _KAFKA)
async def _no_login_at_a_sasl_listener(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    kafka: SecuredKafka = request.getfixturevalue("secured")
    yield setup.having({"cluster.bootstrap": kafka.sasl})


@broken("FP0105", "kafka-configs.sh", "real", _KAFKA)
async def _a_wrong_password(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    kafka: SecuredKafka = request.getfixturevalue("secured")
    login = as_user("archiver", "SCRAM-SHA-256") | {"cluster.sasl_password": "wrong"}
    yield setup.having({"cluster.bootstrap": kafka.sasl, **login})


@broken("FP0105", "cluster.sasl_mechanism", "real", _KAFKA)
async def _a_login_at_a_listener_without_sasl(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having(as_user("archiver", "PLAIN"))


@broken("FP0106", "kafka-broker-api-versions.sh")
async def _old_brokers(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    async with serving(ScriptedBroker()) as bootstrap:
        # It has no groups.
        yield setup.having({"cluster.bootstrap": bootstrap, "archive.group_id": "archivers"})


@broken("FP0107", "advertised.listeners")
async def _brokers_that_advertise_what_nobody_reaches(
    setup: SetUp, _: object
) -> AsyncIterator[SetUp]:
    broker = ScriptedBroker(hosts={1: "broker-1.invalid"})
    async with serving(broker) as bootstrap:
        yield setup.having({"cluster.bootstrap": bootstrap})


@broken("FP0108", "advertised.listeners")
async def _one_of_two_brokers_is_away(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    async with serving(ScriptedBroker(peers={2: free_port()})) as bootstrap:
        yield setup.having({"cluster.bootstrap": bootstrap})


def topic_of(kafka: SecuredKafka, **settings: str) -> str:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return kafka.create_topic(f"orders-{uuid4().hex[:8]}", config=named)


def rights(*operations: str, group: str | None = None) -> Built:
    """A topic on which the archiver has these rights."""

    async def build(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
        kafka: SecuredKafka = request.getfixturevalue("secured")
        topic = topic_of(kafka)
        kafka.allow("archiver", topic, *operations)
        yield setup.having(
            {
                "cluster.bootstrap": kafka.sasl,
                "archive.topics": topic,
                "archive.group_id": group,
                **as_user("archiver", "SCRAM-SHA-512"),
            }
        )

    build.__name__ = f"no_right_{'_'.join(operations).lower()}_{group}"
    return build


broken("FP0109", "--operation Read --topic", "real", _KAFKA)(rights("DESCRIBE_CONFIGS", "DESCRIBE"))
broken("FP0109", "--operation DescribeConfigs", "real", _KAFKA)(rights("READ"))
broken("FP0110", "--operation Read --group strangers", "real", _KAFKA)(
    rights("READ", "DESCRIBE_CONFIGS", group="strangers")
)


def with_topic(values: dict[str, object], **settings: str) -> Built:
    """A topic of a real broker with these settings of the topic, archived with these values."""

    async def build(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
        topic = topic_of(request.getfixturevalue("secured"), **settings)
        yield setup.having({"archive.topics": topic, **values})

    build.__name__ = "_".join(["topic", *settings, *values]).replace(".", "_")
    return build


of_topics = functools.partial(broken, base="real", marks=_KAFKA)
of_topics("FP0115", "cluster.frame_bytes_max")(
    with_topic({"cluster.frame_bytes_max": "16MiB"}, max_message_bytes="20000000")
)
of_topics("FP0116", "retention.ms=-1,retention.bytes=-1")(
    with_topic({"archive.local_retention_ms": "1d"}, retention_ms="604800000")
)
of_topics("FP0117", "--add-config retention.ms=")(with_topic({}, retention_ms="60000"))
of_topics("FP0118", "--add-config retention.bytes=")(with_topic({}, retention_bytes="65536"))
of_topics("FP0119", "cleanup.policy=delete")(with_topic({}, cleanup_policy="compact"))
of_topics("FP0114", "message.timestamp.after.max.ms=3600000")(
    with_topic(
        {"archive.remote_log_retention_ms": "365d"},
        **{"message_timestamp_after_max_ms": "9223372036854775807"},
    )
)


@of_topics("FP0111", "kafka-configs.sh --alter")
async def _a_compacted_metadata_topic(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    kafka: SecuredKafka = request.getfixturevalue("secured")
    yield setup.having(
        {
            "archive.topics": topic_of(kafka),
            "metadata.manager": "topic",
            "metadata.topic_name": topic_of(kafka, cleanup_policy="compact"),
            "metadata.topic_partitions": 1,
            "metadata.topic_replication_factor": 1,
        }
    )


@of_topics("FP0111", "metadata.topic_replication_factor")
async def _more_replicas_than_brokers(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    topic = topic_of(request.getfixturevalue("secured"))
    changes = {"metadata.manager": "topic", "metadata.topic_name": "metadata-to-be"}
    yield setup.having({"archive.topics": topic, **changes})


@broken("FP0112", "archive.topics")
async def _an_expression_that_matches_nothing(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"archive.topics": "nothing-of-this-name"})


@of_topics("FP0113", "timedatectl")
async def _a_clock_that_is_ahead(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    from confluent_kafka import Producer

    kafka: SecuredKafka = request.getfixturevalue("secured")
    topic = topic_of(kafka)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(topic, b"x", timestamp=int(time.time() * 1000) + 30 * 60_000)
    assert producer.flush(60) == 0
    yield setup.having({"archive.topics": topic})


# --- store ---


def credentials(request: pytest.FixtureRequest, server: S3Endpoint) -> None:
    patch: pytest.MonkeyPatch = request.getfixturevalue("monkeypatch")
    for name, value in server.environment.items():
        patch.setenv(name, value)


def s3(request: pytest.FixtureRequest) -> tuple[S3Server, str]:
    """The server, and a new bucket. Its credentials are in the environment."""
    return request.getfixturevalue("s3_server"), request.getfixturevalue("s3_bucket")


@broken("FP0201", "store.url")
async def _no_s3_server(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    request.getfixturevalue("monkeypatch").setenv("AWS_ACCESS_KEY_ID", "a")
    request.getfixturevalue("monkeypatch").setenv("AWS_SECRET_ACCESS_KEY", "b")
    endpoint = f"http%3A%2F%2F127.0.0.1%3A{free_port()}"
    yield setup.having({"store.url": f"s3://bucket/a?endpoint_url={endpoint}&region=us-east-1"})


@broken("FP0201", "store.url")
async def _an_s3_server_that_hangs(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    request.getfixturevalue("monkeypatch").setenv("AWS_ACCESS_KEY_ID", "a")
    request.getfixturevalue("monkeypatch").setenv("AWS_SECRET_ACCESS_KEY", "b")
    async with a_server(None) as port:
        endpoint = f"http%3A%2F%2F127.0.0.1%3A{port}"
        url = f"s3://bucket/a?endpoint_url={endpoint}&region=us-east-1"
        yield setup.having({"store.url": url}, check_max_s=5.0)


@broken("FP0201", "credentials", marks=_S3)
async def _a_wrong_secret_key(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    server, bucket = s3(request)
    request.getfixturevalue("monkeypatch").setenv("AWS_SECRET_ACCESS_KEY", "another")
    yield setup.having({"store.url": server.store_url(bucket, "a")})


@broken("FP0201", "store.url", marks=_S3)
async def _no_bucket(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    server, _ = s3(request)
    yield setup.having({"store.url": server.store_url("no-such-bucket", "a")})


@broken("FP0201", "store.url")
async def _a_mount_that_is_missing(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    url = (setup.folder / "not" / "mounted").as_uri()
    yield setup.having({"store.url": url, "archive.topics": None})


@broken("FP0202", "cluster.bootstrap")
async def _the_archive_of_another_cluster(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    identified(setup, ArchiveIdentity(uuid4(), "another-cluster", "store"))
    async with serving(ScriptedBroker()) as bootstrap:
        yield setup.having({"cluster.bootstrap": bootstrap})


@broken("FP0202", "metadata.manager")
async def _an_archive_of_another_manager(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    identified(setup, ArchiveIdentity(uuid4(), None, "topic __remote_log_metadata"))
    yield setup


@broken("FP0202", "store.url")
async def _a_mirror_as_archive(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    identified(setup, ArchiveIdentity(uuid4(), None, "mirror"))
    yield setup


@broken("FP0203", "fetchproxy archive --topics")
async def _a_proxy_without_an_archive(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"archive.topics": None})


@broken("FP0204", "s3:PutObject", marks=_S3)
async def _no_right_to_write(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    how = Tampering(refuses=lambda request: request.method in ("PUT", "POST"))
    async with tampered(*s3(request), how) as url:
        yield setup.having({"store.url": url})


@broken("FP0204", "store.url")
async def _a_read_only_folder(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"store.url": "file:///sys/kernel"})  # nobody writes there, not even root


@broken("FP0205", "Range", marks=_S3)
async def _a_cache_that_drops_ranges(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    async with tampered(*s3(request), Tampering(whole=True)) as url:
        yield setup.having({"store.url": url})


@broken("FP0206", "s3:ListBucket", marks=_S3)
async def _listings_that_show_nothing(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    server, bucket = s3(request)
    nothing = f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>false</IsTruncated>"
    how = Tampering(hides=f"{nothing}<KeyCount>0</KeyCount></ListBucketResult>".encode())
    async with tampered(server, bucket, how) as url:
        yield setup.having({"store.url": url})


@broken("FP0207", "If-None-Match", marks=_S3)
async def _conditions_that_are_ignored(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    async with tampered(*s3(request), Tampering(statuses={412: 200})) as url:
        yield setup.having({"store.url": url})


@broken("FP0208", "archive.topic_deletion", marks=_S3)
async def _no_right_to_delete(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    how = Tampering(refuses=lambda request: request.method == "DELETE")
    async with tampered(*s3(request), how) as url:
        yield setup.having({"store.url": url})


@broken("FP0209", "timedatectl", marks=_S3)
async def _a_clock_behind_the_stores(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    how = Tampering(date=formatdate(time.time() + 600, usegmt=True))
    async with tampered(*s3(request), how) as url:
        yield setup.having({"store.url": url})


@broken("FP0210", "store.timeout_ms", marks=(*_S3, pytest.mark.slow))
async def _a_store_far_away(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    async with tampered(*s3(request), Tampering(pause_s=1.2)) as url:
        yield setup.having({"store.url": url}, check_max_s=120.0)


@broken("FP0211", "put-bucket-lifecycle-configuration", marks=(pytest.mark.slow,))
async def _a_lifecycle_rule(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    rule = {"ID": "tidy", "Status": "Enabled", "Filter": {"Prefix": ""}, "Expiration": {"Days": 30}}
    with MotoServer() as server:
        credentials(request, server)
        client = server.client()
        client.create_bucket(Bucket="ruled")
        client.put_bucket_lifecycle_configuration(
            Bucket="ruled", LifecycleConfiguration={"Rules": [rule]}
        )
        client.close()
        yield setup.having({"store.url": server.store_url("ruled", "a")})


@broken("FP0212", "NoncurrentVersionExpiration", marks=_S3)
async def _versions_for_ever(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    server, bucket = s3(request)
    client = server.client()
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    client.close()
    yield setup.having({"store.url": server.store_url(bucket, "a")})


# --- listeners ---


@asynccontextmanager
async def _port_in_use() -> AsyncIterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@broken("FP0301", "ss -ltnp")
async def _a_port_in_use(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    async with _port_in_use() as port:
        yield setup.having({"gateway.listen": f"127.0.0.1:{port}"})


@broken("FP0301", "`console.listen`")
async def _the_consoles_port_in_use(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    async with _port_in_use() as port:
        yield setup.having({"console.listen": f"127.0.0.1:{port}"})


@broken("FP0301", "`gateway.node_map`")
async def _a_nodes_port_in_use(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    async with _port_in_use() as port:
        yield setup.having({"gateway.node_map": f"1={port}"})


@broken("FP0302", "gateway.advertise_host")
async def _a_name_that_nobody_knows(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"gateway.advertise_host": "kafka.no-such-name.invalid"})


@broken("FP0303", "gateway.advertise_host")
async def _loopback_told_to_others(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having(
        {"gateway.listen": f"0.0.0.0:{free_port()}", "gateway.advertise_host": "127.0.0.1"}
    )


@broken("FP0304", "fetchproxy serve")
async def _nothing_runs(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having(before=False)


@broken("FP0305", "gateway.listen")
async def _a_web_server_at_the_proxys_port(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    async with a_server(speaks_http) as port:
        yield setup.having({"gateway.listen": f"127.0.0.1:{port}"}, before=False)


@broken("FP0306", "gateway.node_map")
async def _an_advertised_port_that_is_closed(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    places = {"gateway.node_map": f"1={free_port()}/127.0.0.1:{free_port()}"}
    async with running_proxy(setup, places) as running:
        yield running


@broken("FP0307", "readyz")
async def _a_console_that_is_not_there(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    async with running_proxy(setup, {}) as running:
        yield running.having({"console.listen": f"127.0.0.1:{free_port()}"})


# --- certificates and keys ---


def tls(file: Path, **more: str) -> dict[str, object]:
    settings = {f"gateway.{key}": value for key, value in more.items()}
    return {"gateway.tls_certificate_file": str(file), **settings}


@broken("FP0401", "openssl x509 -noout -text")
async def _a_key_of_another_certificate(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    authority = Authority(setup.folder / "ca")
    one, other = (authority.issue(name, key_file=True) for name in ("one", "other"))
    authority.key_of(other).chmod(0o600)
    yield setup.having(tls(one, tls_key_file=str(authority.key_of(other))))


@broken("FP0401", "gateway.tls_certificate_file")
async def _a_certificate_that_is_missing(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having(tls(setup.folder / "nothing.pem"))


@broken("FP0402", "cluster.tls_ca_file")
async def _authorities_that_are_none(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    (setup.folder / "ca.pem").write_text("no certificates\n")
    yield setup.having(
        {
            "cluster.security_protocol": "SSL",
            "cluster.tls_ca_file": str(setup.folder / "ca.pem"),
            "archive_only.enabled": None,
        }
    )


@broken("FP0403", "openssl x509 -noout -enddate")
async def _an_expired_certificate(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having(tls(Authority(setup.folder / "ca").issue("old", ends=_in(-2 * DAY))))


@broken("FP0404", "openssl x509 -noout -enddate")
async def _a_certificate_that_ends_in_days(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having(tls(Authority(setup.folder / "ca").issue("soon", ends=_in(5 * DAY))))


def _in(time_left: timedelta) -> datetime:
    return datetime.now(UTC) + time_left


@broken("FP0405", "gateway.advertise_host")
async def _a_certificate_for_other_names(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having(tls(Authority(setup.folder / "ca").issue("a", hosts=("kafka.example",))))


@broken("FP0406", "openssl verify")
async def _a_chain_of_another_authority(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    file = Authority(setup.folder / "ca").issue("a")
    file.write_bytes(file.read_bytes() + Authority(setup.folder / "b", "other").file.read_bytes())
    yield setup.having(tls(file))


@broken("FP0407", "fetchproxy keys list")
async def _a_key_ring_that_is_no_key_ring(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    ring = setup.folder / "ring.json"
    ring.write_text("{}")
    ring.chmod(0o600)
    yield setup.having({"store.encryption_keys": str(ring)})


@broken("FP0407", "store.encryption_keys")
async def _a_key_ring_open_to_others(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"store.encryption_keys": str(_ring(setup, mode=0o644))})


def _ring(setup: SetUp, *, active: bool = True, mode: int = 0o600) -> Path:
    ring = setup.folder / "ring.json"
    keys = json.loads(encode_keys(NO_KEYS.with_new("k", bytes(32))))
    ring.write_text(json.dumps(keys | ({} if active else {"active": None})))
    ring.chmod(mode)
    return ring


@broken("FP0408", "kms:Encrypt")
async def _a_key_service_that_is_away(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    request.getfixturevalue("monkeypatch").setenv("AWS_ACCESS_KEY_ID", "a")
    request.getfixturevalue("monkeypatch").setenv("AWS_SECRET_ACCESS_KEY", "b")
    endpoint = f"http%3A%2F%2F127.0.0.1%3A{free_port()}"
    ring = f"aws-kms://eu-central-1/alias/archive?endpoint_url={endpoint}"
    yield setup.having({"store.encryption_keys": ring})


@broken("FP0409", "fetchproxy keys rotate")
async def _a_key_ring_without_an_active_key(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"store.encryption_keys": str(_ring(setup, active=False))})


@broken("FP0410", "fetchproxy user")
async def _a_users_file_with_a_bad_line(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    identified(setup, ArchiveIdentity(uuid4(), None, "store"))
    users = setup.folder / "users.toml"
    users.write_text("alice = nonsense")
    users.chmod(0o600)
    yield setup.having(
        {
            "cluster.bootstrap": None,
            "archive.topics": None,
            "archive_only.enabled": True,
            "archive_only.users_file": str(users),
        }
    )


# --- machine ---


@broken("FP0501", "ulimit -n")
async def _few_open_files(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having(machine=Machine(1024, ENOUGH.memory_bytes, ""))


@broken("FP0502", "process.memory_bytes_max")
async def _a_small_cgroup(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having(machine=Machine(ENOUGH.open_files_max, 512 * MiB, "its cgroup"))


@broken("FP0503", "archive.spool_dir")
async def _a_spool_that_cannot_be_written(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"archive.spool_dir": "/sys/kernel", "archive.spool_bytes_max": MiB})


@broken("FP0504", "df -h")
async def _a_full_disk(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    place = request.getfixturevalue("small_disk")
    yield setup.having({"archive.spool_dir": str(place), "archive.spool_bytes_max": MiB})


@broken("FP0505", "archive.spool_bytes_max")
async def _a_spool_larger_than_its_disk(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"archive.spool_bytes_max": "1000TiB"})


@broken("FP0506", "chown")
async def _a_cache_that_cannot_be_made(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"archive.local_index_dir": "/sys/kernel"})


@broken("FP0507", "remote_fetch.disk_cache_bytes_max")
async def _a_cache_larger_than_its_disk(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    cache = {"remote_fetch.disk_cache_dir": str(setup.folder / "cache")}
    yield setup.having({**cache, "remote_fetch.disk_cache_bytes_max": "1000TiB"})


@broken("FP0508", "archive.log_dirs")
async def _a_folder_that_is_no_log_dir(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    (setup.folder / "logs").mkdir()
    yield setup.having({"archive.log_dirs": str(setup.folder / "logs")})


# --- a change ---


def changing(id: str, remedy: str, now: dict[str, object], then: dict[str, object]) -> None:
    """The settings `now` are in force, and `then` are examined."""

    async def build(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
        folder = setup.folder / "elsewhere"
        folder.mkdir()
        present = setup.having(now).loaded()
        changes = {k: v.format(folder=folder) if isinstance(v, str) else v for k, v in then.items()}
        yield setup.having({**now, **changes}, present=present)

    build.__name__ = f"change_of_{'_'.join(then)}".replace(".", "_")
    broken(id, remedy)(build)


changing("FP0601", "archive.topics", {}, {"archive.topics": "orders-2"})
changing("FP0602", "fetchproxy mirror --cut-over", {}, {"store.url": "file://{folder}"})
changing(
    "FP0604",
    "archive.remote_log_retention_ms",
    {"archive.remote_log_retention_ms": "-1"},
    {"archive.remote_log_retention_ms": "30d"},
)


@of_topics("FP0603", "metadata.topic_partitions")
async def _a_change_of_the_metadata_topic(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    by_topic = {"metadata.manager": "topic", "metadata.topic_name": "metadata-to-be"}
    topic = topic_of(request.getfixturevalue("secured"))
    values = {"archive.topics": topic, "metadata.topic_replication_factor": 1, **by_topic}
    present = setup.having(values).loaded()
    yield setup.having({**values, "metadata.topic_partitions": 7}, present=present)
