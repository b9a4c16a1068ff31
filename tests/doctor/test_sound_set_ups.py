"""Sound set-ups: the doctor finds nothing, whether they run already or are about to."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import uuid4

import pytest
from certificates import Authority
from host_names import names_here
from secured_clients import as_user
from set_up import SetUp, findings, identified, running_proxy, this_machine

from fetchproxy.doctor.report import state
from fetchproxy.storage.archive_identity import ArchiveIdentity
from fetchproxy.storage.key_rings import NO_KEYS, write_keys
from lab.process import free_port
from lab.secured_kafka import SecuredKafka

Built = Callable[[SetUp, pytest.FixtureRequest], AsyncIterator[SetUp]]
CASES: list[object] = []
RIGHTS = ("READ", "DESCRIBE_CONFIGS")


def sound(base: str = "plain", *marks: pytest.MarkDecorator) -> Callable[[Built], Built]:
    def register(build: Built) -> Built:
        name = build.__name__.strip("_")
        CASES.append(pytest.param(base, asynccontextmanager(build), id=name, marks=marks))
        return build

    return register


@pytest.mark.parametrize(("base", "build"), CASES)
async def test_a_sound_set_up_has_no_findings(
    base: str, build: Callable, request: pytest.FixtureRequest
) -> None:
    setup: SetUp = request.getfixturevalue(base)
    async with build(setup, request) as whole:
        examination = await whole.examined()
    assert findings(examination) == {}
    assert examination.exit_code == 0
    states = [state(result) for result in examination.results]
    assert states.count("ok") >= 12, states
    assert [one for one in examination.results if state(one) == "not checked"] == []


def test_at_least_ten_sound_set_ups_are_examined() -> None:
    assert len(CASES) >= 10


@sound()
async def _an_archive_in_a_folder(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup


@sound()
async def _an_archive_that_this_machine_has_not_used(
    setup: SetUp, _: object
) -> AsyncIterator[SetUp]:
    identified(setup, ArchiveIdentity(uuid4(), None, "store"))
    yield setup


@sound()
async def _the_machine_as_it_is(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    yield setup.having({"process.memory_bytes_max": "900MiB"}, machine=this_machine())


@sound("plain", pytest.mark.s3)
async def _an_archive_on_s3(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    bucket = request.getfixturevalue("s3_bucket")
    url = request.getfixturevalue("s3_server").store_url(bucket, "archive")
    yield setup.having({"store.url": url})


@sound()
async def _an_encrypted_archive(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    ring = setup.folder / "ring.json"
    write_keys(ring, NO_KEYS.with_new("k", bytes(32)), new=True)
    yield setup.having({"store.encryption_keys": f"{ring}?required=true"})


@sound()
async def _tls_and_ports_for_each_broker(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    authority = Authority(setup.folder / "ca")
    certificate = authority.issue("proxy")
    certificate.write_bytes(certificate.read_bytes() + authority.file.read_bytes())
    yield setup.having(
        {
            "gateway.tls_certificate_file": str(certificate),
            "gateway.tls_client_ca_file": str(authority.file),
            "gateway.tls_client_auth": "required",
            "gateway.node_map": f"1={free_port()}",
            "gateway.advertise_host": "localhost",
            "console.listen": f"127.0.0.1:{free_port()}",
        }
    )


def _topic(kafka: SecuredKafka, **settings: str) -> str:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return kafka.create_topic(f"sound-{uuid4().hex[:8]}", config=named)


@sound()
async def _one_port_for_all_brokers_by_their_names(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    """The certificate has the names of the brokers that there are, and of no other node."""
    names = ("kafka.example", "broker-1.kafka.example")
    certificate = Authority(setup.folder / "ca").issue("a", hosts=names)
    with names_here(names):
        yield setup.having(
            {
                "gateway.tls_certificate_file": str(certificate),
                "gateway.sni_bootstrap_host": "kafka.example",
                "gateway.sni_node_pattern": "broker-{node_id}.kafka.example",
            }
        )


@sound("real", pytest.mark.kafka)
async def _a_real_broker_with_retention(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    kafka: SecuredKafka = request.getfixturevalue("secured")
    topic = _topic(kafka, retention_ms="604800000")
    yield setup.having({"archive.topics": topic, "archive.remote_log_retention_ms": "365d"})


@sound("real", pytest.mark.kafka)
async def _local_retention_and_a_metadata_topic(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    kafka: SecuredKafka = request.getfixturevalue("secured")
    topic = _topic(kafka, retention_ms="-1", retention_bytes="-1")
    yield setup.having(
        {
            "archive.topics": topic,
            "archive.local_retention_ms": "1d",
            "metadata.manager": "topic",
            "metadata.topic_name": "sound-metadata-to-be",
            "metadata.topic_replication_factor": 1,
        }
    )


@sound("real", pytest.mark.kafka)
async def _a_group_with_the_rights_that_it_needs(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    kafka: SecuredKafka = request.getfixturevalue("secured")
    topic = _topic(kafka)
    kafka.allow("archiver", topic, *RIGHTS)
    kafka.allow("archiver", "sound-archivers", "READ", resource="GROUP")
    yield setup.having(
        {
            "cluster.bootstrap": kafka.sasl,
            "archive.topics": topic,
            "archive.group_id": "sound-archivers",
            **as_user("archiver", "SCRAM-SHA-256"),
        }
    )


@sound("real", pytest.mark.kafka)
async def _sasl_over_tls(setup: SetUp, request: pytest.FixtureRequest) -> AsyncIterator[SetUp]:
    kafka: SecuredKafka = request.getfixturevalue("secured")
    topic = _topic(kafka)
    kafka.allow("archiver", topic, *RIGHTS)
    authority: Authority = request.getfixturevalue("authority")
    yield setup.having(
        {
            "cluster.bootstrap": kafka.sasl_ssl,
            "cluster.tls_ca_file": str(authority.file),
            "archive.topics": topic,
            **as_user("archiver", "PLAIN"),
            "cluster.security_protocol": "SASL_SSL",
        }
    )


@sound()
async def _a_proxy_that_runs(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    async with running_proxy(setup, {}) as running:
        yield running


@sound()
async def _a_proxy_that_runs_with_tls(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    certificate = Authority(setup.folder / "ca").issue("proxy")
    async with running_proxy(setup, {"gateway.tls_certificate_file": str(certificate)}) as running:
        yield running


@sound("real", pytest.mark.kafka)
async def _a_proxy_that_runs_before_a_broker_with_users(
    setup: SetUp, request: pytest.FixtureRequest
) -> AsyncIterator[SetUp]:
    kafka: SecuredKafka = request.getfixturevalue("secured")
    login = as_user("proxy", "SCRAM-SHA-512")
    async with running_proxy(
        setup.having({"cluster.bootstrap": kafka.sasl, **login}), login
    ) as running:
        yield running


@sound()
async def _an_archive_without_its_cluster(setup: SetUp, _: object) -> AsyncIterator[SetUp]:
    """Before its start."""
    identified(setup)
    yield setup.having(
        {
            "cluster.bootstrap": None,
            "archive.topics": None,
            "archive_only.enabled": True,
            "archive_only.offsets_file": str(setup.folder / "offsets" / "file"),
        }
    )
