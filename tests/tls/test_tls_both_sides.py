"""TLS with client certificates towards clients and towards the broker, by stock clients."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import aiokafka
import confluent_kafka
import kafka
import pytest
from certificates import Authority
from confluent_kafka.admin import AdminClient
from proxy_process import ProxyProcess, wait_for
from raw_tls import RawTls
from test_limits import _fetch_without_reading as fetch_without_reading
from test_limits import rss_bytes
from tls_parts import (
    KEY_PASSWORD,
    READERS,
    TlsKafka,
    aiokafka_tls,
    confluent_tls,
    java_tls,
    kafka_python_tls,
    produce_tls,
    read_by_java,
)
from topic_data import TopicData, archived_ends, produce, trim

pytestmark = pytest.mark.kafka

COUNT = 1_000
TAIL_RECORDS = 100


@pytest.fixture(scope="module")
def replayed(
    secured: TlsKafka, tls_proxy: ProxyProcess, tls_store: str, authority: Authority,
    client_certificate: Path,
) -> TopicData:  # fmt: skip
    """Written through the proxy; the broker has forgotten all but the end."""
    data = TopicData(secured.server.create_topic("tls-replayed"))
    settings = confluent_tls(authority, client_certificate)
    produce_tls(tls_proxy.bootstrap, data, COUNT, settings)
    wait_for("archive", lambda: archived_ends(tls_store, data.topic) == {0: COUNT})
    trim(secured.server.bootstrap, data.topic, {0: COUNT - TAIL_RECORDS + 3})
    return data


@pytest.mark.parametrize("client", READERS)
def test_a_client_reads_both_tiers(
    replayed: TopicData, tls_proxy: ProxyProcess, authority: Authority, client_certificate: Path,
    client: str,
) -> None:  # fmt: skip
    read_all, settings = READERS[client]
    catches = tls_proxy.metric("fetchproxy_catches_total")
    records = read_all(
        tls_proxy.bootstrap, replayed.topic, {0: COUNT}, **settings(authority, client_certificate)
    )
    assert records == replayed.written
    assert tls_proxy.metric("fetchproxy_catches_total") > catches, "it was read from the archive"


def test_the_java_consumer_reads_both_tiers(
    replayed: TopicData, tls_proxy: ProxyProcess, authority: Authority, client_certificate: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    properties = java_tls(authority, client_certificate, tmp_path)
    records = read_by_java(tls_proxy.bootstrap, replayed.topic, COUNT, properties)
    assert records == [(o, k.decode(), v.decode()) for o, k, v in replayed.written[0]]


def test_other_clients_produce(
    secured: TlsKafka, tls_proxy: ProxyProcess, authority: Authority, client_certificate: Path
) -> None:
    topic = secured.server.create_topic("plain-produced")
    producer = kafka.KafkaProducer(
        bootstrap_servers=tls_proxy.bootstrap, **kafka_python_tls(authority, client_certificate)
    )
    assert producer.send(topic, b"from kafka-python").get(30).offset == 0
    producer.close()

    async def send() -> int:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=tls_proxy.bootstrap, **aiokafka_tls(authority, client_certificate)
        ) as sender:
            return (await sender.send_and_wait(topic, b"from aiokafka")).offset

    assert asyncio.run(send()) == 1


def test_a_client_without_a_certificate_is_told_so(
    tls_proxy: ProxyProcess, authority: Authority
) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    client = AdminClient(
        {
            "bootstrap.servers": tls_proxy.bootstrap,
            "error_cb": errors.append,
            **confluent_tls(authority, None),
        }
    )

    def is_alerted() -> bool:
        client.poll(0.5)
        return any("certificate required" in error.str() for error in errors)

    with pytest.raises(confluent_kafka.KafkaException):
        client.list_topics(timeout=3)
    wait_for("the alert", is_alerted)
    refused = tls_proxy.logged("tls_handshake_failed")
    assert "no_certificate" in {entry["reason"] for entry in refused}
    assert tls_proxy.metric("fetchproxy_tls_handshakes_failed_total", 'no_certificate"') >= 1


@pytest.mark.slow  # kafka-python goes on trying, now and then for minutes
def test_kafka_python_without_a_certificate_is_refused(
    tls_proxy: ProxyProcess, authority: Authority
) -> None:
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaConsumer(
            bootstrap_servers=tls_proxy.bootstrap,
            bootstrap_timeout_ms=2_000,
            **kafka_python_tls(authority, None),
        )
    assert tls_proxy.metric("fetchproxy_tls_handshakes_failed_total", 'no_certificate"') >= 1


@pytest.mark.slow  # the same
def test_a_certificate_of_another_authority_is_refused(
    tls_proxy: ProxyProcess, authority: Authority, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "foreign").issue("stranger")
    with pytest.raises(kafka.errors.KafkaError):
        kafka.KafkaConsumer(
            bootstrap_servers=tls_proxy.bootstrap,
            bootstrap_timeout_ms=2_000,
            **kafka_python_tls(authority, foreign),
        )
    assert tls_proxy.metric("fetchproxy_tls_handshakes_failed_total", '"certificate"') >= 1


def test_a_reader_that_does_not_read_pauses_the_broker(
    secured: TlsKafka, tls_proxy: ProxyProcess, authority: Authority, client_certificate: Path
) -> None:
    topic = secured.server.create_topic("plain-big-answer")
    data = TopicData(topic)
    produce(secured.server.bootstrap, data, 4_000, size=8_000, batch_records=100)
    before = rss_bytes(tls_proxy.pid)
    with RawTls(tls_proxy, authority, certificate=client_certificate) as reader:
        response = fetch_without_reading(reader, topic, bytes_max=28 << 20)
        time.sleep(2)  # time enough for 28 MiB on loopback, were nobody to pause
        grown = rss_bytes(tls_proxy.pid) - before
        with RawTls(tls_proxy, authority, certificate=client_certificate) as other:
            assert other.list_offset(5, topic, -1)[2] == 4_000
        assert len(response()) > 20 << 20, "and then it arrives whole"
    assert grown < 12 << 20, f"{grown} bytes for one slow reader"


def test_the_password_of_the_key_is_shown_nowhere(tls_proxy: ProxyProcess) -> None:
    assert KEY_PASSWORD not in tls_proxy.log_text()
    for path in ("/", "/api/status", "/metrics", "/console.js"):
        assert KEY_PASSWORD not in tls_proxy.get(path)
