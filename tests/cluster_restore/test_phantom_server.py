"""The phantoms' port: fetchers of brokers are answered, everybody else meets a real broker."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import Callable
from contextlib import suppress

import pytest
from confluent_kafka.admin import AdminClient
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.fetch import PARTITIONS_MAX
from fetchproxy_protocol.headers import request_header
from fetchproxy_protocol.primitives import INT32, encode_uvarint
from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from longest_turns import longest_turn

from fetchproxy.brokers.messages import decode_api_versions
from fetchproxy.cluster_restore.accepted_connections import CONNECTIONS_MAX
from fetchproxy.cluster_restore.client_relay import RealBroker, relaying
from fetchproxy.cluster_restore.led_partitions import LedPartitions
from fetchproxy.cluster_restore.phantom_server import (
    _FRAME_BYTES_MAX,
    PhantomServer,
)
from fetchproxy.config.values import HostPort, parse_host_port
from fetchproxy.errors import ConfigError
from lab.kafka import KafkaServer

NOBODY = None
BROKERS = (1, 2, 3)
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
    relay = RealBroker(parse_host_port(kafka_server.bootstrap))

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


async def all_received(port: int, *pieces: bytes) -> bytes:
    """All that comes until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for piece in pieces:
        writer.write(piece)
    writer.write_eof()
    received = await reader.read()
    writer.close()
    return received


def framed(payload: bytes) -> bytes:
    return INT32.pack(len(payload)) + payload


def fetch_of(topics: int, name: Callable[[int], bytes], version: int = 12) -> bytes:
    """A follower's fetch of one partition of each topic."""
    head = request_header(ApiKey.FETCH, version, 3, "broker-1-fetcher-0")
    entry = struct.pack(">iiqiqi", 0, -1, 0, -1, 0, 1 << 20) + b"\x00"
    body = struct.pack(">iiiibii", 1, 100, 1, 1 << 20, 0, 0, 0) + encode_uvarint(topics + 1)
    names = [name(number) for number in range(topics)]
    body += b"".join(
        encode_uvarint(len(text) + 1) + text + b"\x02" + entry + b"\x00" for text in names
    )
    return framed(head + body + b"\x01\x01\x00")


HOSTILE = {
    "a name that is no text": [fetch_of(1, lambda number: b"\xff\xfe")],
    "junk": [random.Random(1).randbytes(100_000)],
    "HTTP": [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"],
    "a negative size": [struct.pack(">i", -5)],
    "a size without a request": [struct.pack(">i", 2**31 - 1)],
    "an API of no follower": [framed(request_header(ApiKey.METADATA, 1, 3, "broker-1-fetcher-0"))],
    "a fetch that ends early": [framed(request_header(ApiKey.FETCH, 17, 3, "broker-1-fetcher-0"))],
    "a negative length of the name": [framed(struct.pack(">hhih", 1, 12, 3, -7) + bytes(50))],
}  # fmt: skip


@pytest.mark.parametrize("pieces", HOSTILE.values(), ids=HOSTILE)
async def test_no_stranger_ends_the_restore(pieces: list[bytes]) -> None:
    async with PhantomServer(LedPartitions(BROKERS), NOBODY).listening(ANY_PORT) as port:
        await all_received(port, *pieces)
        assert (await asked_as_fetcher(port, 4))[0] == 0


async def test_mutated_requests_are_answered_or_refused() -> None:
    """By seed: each comes on a connection of its own, and an ordinary follower is answered."""
    rng = random.Random(7)
    sound = fetch_of(3, lambda number: b"topic-%d" % number)
    async with PhantomServer(LedPartitions(BROKERS), NOBODY).listening(ANY_PORT) as port:
        for _ in range(10):
            frames = [bytearray(sound) for _ in range(30)]
            for frame in frames:
                for _ in range(rng.randint(1, 4)):
                    frame[rng.randrange(34, len(frame))] = rng.randrange(256)
            await asyncio.gather(*(all_received(port, bytes(frame)) for frame in frames))
        assert (await asked_as_fetcher(port, 4))[0] == 0


async def test_the_longest_fetch_is_made_in_steps() -> None:
    frame = fetch_of(PARTITIONS_MAX, lambda number: b"%06d" % number)
    async with PhantomServer(LedPartitions(BROKERS), NOBODY).listening(ANY_PORT) as port:
        async with longest_turn() as longest:
            response = await all_received(port, frame)
        assert len(response) > 10 * PARTITIONS_MAX
        assert longest[0] < 0.05
        assert not await all_received(
            port, fetch_of(PARTITIONS_MAX + 1, lambda number: b"%06d" % number)
        )


async def test_a_request_larger_than_any_followers_closes_the_connection() -> None:
    server = PhantomServer(LedPartitions(BROKERS), NOBODY)
    async with server.listening(ANY_PORT) as port:
        beginning = request_header(ApiKey.FETCH, 17, 3, "broker-1-fetcher-0")
        for size in (_FRAME_BYTES_MAX + 1, 2**31 - 1):
            assert not await all_received(port, INT32.pack(size) + beginning + bytes(200))
        assert not server.has_fetchers


async def test_strangers_give_way_to_a_follower() -> None:
    async with PhantomServer(LedPartitions(BROKERS), NOBODY).listening(ANY_PORT) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        assert (await asked_as_fetcher(port, 4))[0] == 0
        with suppress(ConnectionError):
            assert not await silent[0][0].read()
        silent[-1][1].write(fetch_of(1, lambda number: b"t"))
        assert await silent[-1][0].readexactly(4)
        for _, writer in silent:
            writer.transport.abort()


async def test_strangers_at_the_clients_port_give_way_to_the_next_client() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(5))
        writer.close()

    broker = await asyncio.start_server(echo, "127.0.0.1", 0)
    address = HostPort("127.0.0.1", broker.sockets[0].getsockname()[1])
    async with relaying("127.0.0.1", address) as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(CONNECTIONS_MAX)]
        reader, client = await asyncio.open_connection("127.0.0.1", port)
        client.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        with suppress(ConnectionError):
            assert not await silent[0][0].read()
        for _, writer in [*silent, (reader, client)]:
            writer.transport.abort()
    broker.close()
    await broker.wait_closed()
