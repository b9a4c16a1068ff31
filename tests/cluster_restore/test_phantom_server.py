"""The phantoms' port: fetchers of brokers are answered, everybody else meets a real broker."""

from __future__ import annotations

import asyncio

import pytest
from confluent_kafka.admin import AdminClient
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.headers import request_header
from fetchproxy_protocol.primitives import INT32
from kafka.protocol.metadata.api_versions import ApiVersionsRequest

from fetchproxy.brokers.messages import decode_api_versions
from fetchproxy.cluster_restore.led_partitions import LedPartitions
from fetchproxy.cluster_restore.phantom_server import PhantomServer, Relay
from fetchproxy.config.values import HostPort, parse_host_port
from fetchproxy.errors import ConfigError
from lab.kafka import KafkaServer

NOBODY = None
ANY_PORT = HostPort("127.0.0.1", 0)


async def asked_as_fetcher(port: int, version: int) -> tuple[int, dict[int, tuple[int, int]]]:
    body = ApiVersionsRequest(
        client_software_name="kafka", client_software_version="1"
    ).encode(version=min(version, 4))  # fmt: skip
    frame = request_header(ApiKey.API_VERSIONS, version, 3, "broker-1-fetcher-0") + body
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(INT32.pack(len(frame)) + frame)
    [size] = INT32.unpack(await reader.readexactly(4))
    payload = await reader.readexactly(size)
    writer.close()
    return decode_api_versions(memoryview(payload), version if version <= 4 else 0)


@pytest.mark.parametrize("version", range(5))
async def test_a_fetcher_is_offered_what_followers_use(version: int) -> None:
    async with PhantomServer(LedPartitions(), NOBODY).listening(ANY_PORT) as port:
        error, offered = await asked_as_fetcher(port, version)
    assert error == 0
    assert offered[ApiKey.FETCH] == (12, 18)
    assert offered.keys() == {
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.API_VERSIONS,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
    }


async def test_a_newer_api_versions_is_refused_in_its_oldest_form() -> None:
    async with PhantomServer(LedPartitions(), NOBODY).listening(ANY_PORT) as port:
        error, _ = await asked_as_fetcher(port, 5)
    assert error == ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.kafka
async def test_a_clients_connection_is_passed_on_to_a_real_broker(
    kafka_server: KafkaServer,
) -> None:
    kafka_server.create_topic("seen-through-the-phantom")
    relay = Relay(parse_host_port(kafka_server.bootstrap))

    def topics(port: int) -> set[str]:
        client = AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"})
        return set(client.list_topics(timeout=60).topics)

    async with PhantomServer(LedPartitions(), relay).listening(ANY_PORT) as port:
        assert "seen-through-the-phantom" in await asyncio.to_thread(topics, port)


async def test_a_port_in_use_is_an_error_that_names_it() -> None:
    async with PhantomServer(LedPartitions(), NOBODY).listening(ANY_PORT) as port:
        second = PhantomServer(LedPartitions(), NOBODY)
        with pytest.raises(ExceptionGroup) as raised:
            async with second.listening(HostPort("127.0.0.1", port)):
                pass
    [error] = raised.value.exceptions
    assert isinstance(error, ConfigError)
    assert str(port) in str(error)
