"""One broker with users and ACLs, one archive, and proxies that have users of their own.

The archive is written by `fetchproxy archive` under a user that has what docs/security/access.md
asks for and nothing else, so every test here also shows that this is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from archive_process import archive_process
from archived_topics import archive_and_trim
from certificates import Authority
from folder_fixture import folder_fixture
from proxy_process import ProxyProcess
from secured_clients import PERMIT_TTL_MS, USERS, as_user
from topic_data import TopicData, produce

from lab.process import ServerProcess
from lab.secured_kafka import SecuredKafka

READ_ALL = "sec-open"  # alice may read it, mallory may not
RECORDS = 600


@folder_fixture
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@folder_fixture
def secured(serve_part, authority: Authority) -> Iterator[SecuredKafka]:
    """Never stop it; topics and ACLs of your own, please."""
    keystore = authority.issue("broker", hosts=("127.0.0.1",))
    for kafka in serve_part("kafka", SecuredKafka(USERS, keystore=keystore)):
        kafka.allow("alice", "*", "READ", resource="GROUP")
        yield kafka


@folder_fixture
def secured_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("secured-store").as_uri()


@folder_fixture
def archiver(
    secured: SecuredKafka, secured_store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Archives what `sec-…` topics user archiver may read: see `replayed`."""
    process = archive_process(
        secured.sasl,
        secured_store,
        "sec-.*",
        tmp_path_factory.mktemp("secured-archiver"),
        as_user("archiver", "SCRAM-SHA-256"),
    )
    process.start()
    yield process
    assert process.running, process.log_tail()
    process.stop()


def _proxy(bootstrap: str, store: str, folder: Path) -> ProxyProcess:
    settings = {"gateway.permit_ttl_ms": PERMIT_TTL_MS, **as_user("proxy", "SCRAM-SHA-512")}
    return ProxyProcess(bootstrap, store, folder, settings=settings)


@folder_fixture
def proxy(
    secured: SecuredKafka, secured_store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """In front of the listener whose sessions do not end."""
    with _proxy(secured.sasl, secured_store, tmp_path_factory.mktemp("secured-proxy")) as process:
        yield process
        assert process.running, process.log_text()[-4000:]
        assert not process.logged("session_crashed")


@folder_fixture
def short_proxy(
    secured: SecuredKafka, secured_store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """In front of the listener whose sessions last SESSION_MS, the proxy's own too."""
    folder = tmp_path_factory.mktemp("short-proxy")
    with _proxy(secured.short_sessions, secured_store, folder) as process:
        yield process
        assert process.running, process.log_text()[-4000:]
        assert not process.logged("session_crashed")


@folder_fixture
def make_replayed(secured: SecuredKafka, secured_store: str, archiver: ServerProcess):
    """`make_replayed("sec-a", "alice")` → a topic whose beginning only the archive has."""

    def make(
        name: str, *readers: str, records: int = RECORDS, proxy_describes: bool = True
    ) -> TopicData:
        secured.create_topic(name)
        secured.allow("archiver", name, "READ", "DESCRIBE_CONFIGS")
        if proxy_describes:
            secured.allow("proxy", name, "DESCRIBE")
        for reader in readers:
            secured.allow(reader, name, "READ")
        data = TopicData(name)
        produce(secured.bootstrap, data, records)
        archive_and_trim(secured.bootstrap, secured_store, data)
        return data

    return make


@folder_fixture
def open_topic(make_replayed) -> TopicData:
    """Alice reads it, mallory may not. Change no ACL of it."""
    data: TopicData = make_replayed(READ_ALL, "alice")
    return data
