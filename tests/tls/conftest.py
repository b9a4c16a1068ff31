"""One authority, one Kafka with client certificates required, one proxy with TLS on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from folder_fixture import folder_fixture
from proxy_process import ProxyProcess
from tls_parts import (
    ARCHIVE,
    KEY_PASSWORD,
    TlsKafka,
    listener_settings,
    tls_kafka,
    upstream_settings,
)

from lab.kafka import kafka_jars


@folder_fixture
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@folder_fixture
def client_certificate(authority: Authority) -> Path:
    return authority.issue("client", hosts=("client.example",))


@folder_fixture
def secured(authority: Authority, find_part) -> Iterator[TlsKafka]:
    find_part("kafka", kafka_jars)
    with tls_kafka(authority, authority.issue("broker", hosts=("127.0.0.1",))) as kafka:
        yield kafka


@folder_fixture
def tls_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("tls-store").as_uri()


@folder_fixture
def tls_proxy(
    secured: TlsKafka, authority: Authority, tls_store: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProxyProcess]:  # fmt: skip
    """Archives every topic named `tls-…`. Its own key has a password."""
    folder = tmp_path_factory.mktemp("tls-proxy")
    certificate = authority.issue("proxy", password=KEY_PASSWORD, key_file=True)
    settings = {
        **ARCHIVE,
        **upstream_settings(authority, authority.issue("proxy-upstream", hosts=("proxy",))),
        **listener_settings(authority, certificate),
        "gateway.tls_key_file": authority.key_of(certificate),
        "gateway.tls_key_password": KEY_PASSWORD,
    }
    with ProxyProcess(
        secured.bootstrap, tls_store, folder, archive="tls-.*", settings=settings
    ) as process:
        yield process
        assert process.running, process.log_text()[-4000:]
        crashed = process.logged("session_crashed") + process.logged("part_failed")
        assert not crashed, crashed[0]
