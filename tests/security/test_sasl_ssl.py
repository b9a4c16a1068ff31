"""SASL inside TLS, on both sides: the proxy's own requests, and clients that are relayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from client_readers import read_confluent
from proxy_process import ProxyProcess
from secured_clients import as_user, confluent_login
from topic_data import TopicData

from lab.secured_kafka import SecuredKafka

pytestmark = pytest.mark.kafka


@pytest.fixture(scope="module")
def tls_proxy(
    secured: SecuredKafka, secured_store: str, authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[ProxyProcess]:  # fmt: skip
    settings = {
        **as_user("proxy", "SCRAM-SHA-512"),
        "cluster.security_protocol": "SASL_SSL",
        "cluster.tls_ca_file": authority.file,
        "gateway.tls_certificate_file": authority.issue("proxy"),
    }
    folder: Path = tmp_path_factory.mktemp("sasl-ssl")
    with ProxyProcess(secured.sasl_ssl, secured_store, folder, settings=settings) as process:
        yield process
        assert process.running, process.log_text()[-4000:]
        assert not process.logged("session_crashed")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "OAUTHBEARER"])
def test_a_client_reads_archive_and_tail(
    mechanism: str, tls_proxy: ProxyProcess, open_topic: TopicData, authority: Authority
) -> None:
    login = confluent_login("alice", mechanism) | {
        "security.protocol": "SASL_SSL",
        "ssl.ca.location": str(authority.file),
    }
    catches = tls_proxy.metric("fetchproxy_catches_total")
    records = read_confluent(
        tls_proxy.bootstrap, open_topic.topic, {0: len(open_topic.written[0])}, **login
    )
    assert records == open_topic.written
    # The archive is given only after the proxy's own requests were answered.
    assert tls_proxy.metric("fetchproxy_catches_total") > catches
    assert not tls_proxy.logged("cluster_authentication_refused")
