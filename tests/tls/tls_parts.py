"""A Kafka with a TLS listener, and what each client must be told to speak TLS."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from certificates import Authority
from client_readers import read_aiokafka, read_confluent, read_kafka_python
from confluent_kafka import Producer
from topic_data import TopicData, value_of

from lab.kafka import KafkaServer, run_tool
from lab.process import free_port

# Of the key of the proxy's own certificate.
KEY_PASSWORD = "open-sesame-17"
# Small segments and chunks, so that small topics cross borders; quick turns of the archiver.
ARCHIVE: dict[str, object] = {
    "archive.segment_bytes_max": 40_000,
    "archive.segment_age_max_ms": 300,
    "limits.writing.rlm_process_interval_ms": 100,
    "limits.writing.discovery_interval_ms": 200,
    "limits.reading.chunk_bytes": 16_384,
}


@dataclass(frozen=True)
class TlsKafka:
    """`server.bootstrap` is a plaintext listener beside it, for the test's own questions."""

    server: KafkaServer
    port: int

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"


@contextmanager
def tls_kafka(authority: Authority, certificate: Path) -> Iterator[TlsKafka]:
    """Client certificates are required; keystores are PEM files."""
    port = free_port()
    properties = {
        "listeners": f"PLAINTEXT://127.0.0.1:{{port}},SSL://127.0.0.1:{port},"
        "CONTROLLER://127.0.0.1:{controller_port}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SSL:SSL,CONTROLLER:PLAINTEXT",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(certificate),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
        "ssl.client.auth": "required",
    }
    with KafkaServer(properties, heap="384m") as server:
        yield TlsKafka(server, port)


def upstream_settings(authority: Authority, certificate: Path) -> dict[str, object]:
    return {
        "cluster.security_protocol": "SSL",
        "cluster.tls_ca_file": authority.file,
        "cluster.tls_certificate_file": certificate,
    }


def listener_settings(authority: Authority, certificate: Path) -> dict[str, object]:
    """Client certificates are required."""
    return {
        "gateway.tls_certificate_file": certificate,
        "gateway.tls_client_auth": "required",
        "gateway.tls_client_ca_file": authority.file,
    }


# -- clients: what to set. `own` None: without a certificate -------------------------------------
def confluent_tls(authority: Authority, certificate: Path | None) -> dict[str, str]:
    settings = {"security.protocol": "ssl", "ssl.ca.location": str(authority.file)}
    if certificate is not None:
        settings |= {
            "ssl.certificate.location": str(certificate),
            "ssl.key.location": str(certificate),
        }
    return settings


def kafka_python_tls(authority: Authority, certificate: Path | None) -> dict[str, object]:
    settings: dict[str, object] = {
        "security_protocol": "SSL",
        "ssl_cafile": str(authority.file),
    }
    if certificate is not None:
        settings |= {"ssl_certfile": str(certificate), "ssl_keyfile": str(certificate)}
    return settings


def client_context(authority: Authority, certificate: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=authority.file)
    if certificate is not None:
        context.load_cert_chain(certificate)
    return context


def aiokafka_tls(authority: Authority, certificate: Path | None) -> dict[str, object]:
    return {"security_protocol": "SSL", "ssl_context": client_context(authority, certificate)}


def java_tls(authority: Authority, certificate: Path | None, folder: Path) -> Path:
    """A properties file."""
    settings = {
        "security.protocol": "SSL",
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(authority.file),
    }
    if certificate is not None:
        settings |= {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(certificate)}
    file = folder / "client.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    return file


READERS: dict[str, tuple[Callable[..., object], Callable[..., Mapping[str, object]]]] = {
    "confluent-kafka": (read_confluent, confluent_tls),
    "kafka-python": (read_kafka_python, kafka_python_tls),
    "aiokafka": (read_aiokafka, aiokafka_tls),
}


def produce_tls(
    bootstrap: str, data: TopicData, count: int, settings: Mapping[str, object], size: int = 300
) -> None:
    """`count` more records for partition 0, in batches of 50, acknowledged."""
    producer = Producer(
        {"bootstrap.servers": bootstrap, "batch.num.messages": 50, "acks": "all", **settings}
    )
    written = data.written.setdefault(0, [])

    def delivered(error, message) -> None:
        assert error is None, error
        written.append((message.offset(), message.key(), message.value()))

    for number in range(len(written), len(written) + count):
        value = value_of(0, number, size)
        producer.produce(data.topic, value, b"k%d" % number, 0, on_delivery=delivered)
        producer.poll(0)
    assert producer.flush(60) == 0
    written.sort()


def read_by_java(
    bootstrap: str, topic: str, count: int, properties: Path
) -> list[tuple[int, str, str]]:
    """(offset, key, value) of partition 0 from offset 0 on, by Kafka's console consumer."""
    result: subprocess.CompletedProcess[str] = run_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        *("--bootstrap-server", bootstrap, "--topic", topic, "--partition", "0", "--offset", "0"),
        *("--max-messages", str(count), "--timeout-ms", "60000"),
        *("--consumer.config", str(properties)),
        *("--property", "print.offset=true"),
        *("--property", "print.key=true"),
        *("--property", "key.separator= "),
    )
    lines = [line.removeprefix("Offset:").split(" ", 2) for line in result.stdout.splitlines()]
    return [(int(offset), key, value) for offset, key, value in lines]
