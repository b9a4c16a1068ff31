"""Large requests of many clients at the same time: turns, and what those that wait may take."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress
from uuid import UUID

from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.headers import peek_request_header, request_header
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from longest_turns import longest_turn
from planted_archive import PlantedArchive, batch
from served_archive import Client, ServedArchive, serve_archive
from test_archive_only_apis import plant
from wire_attacks import _named_again, _one_name_of_many_ids

from fetchproxy.config.schema import KiB, MiB
from fetchproxy.model import EpochStart, TopicIdPartition
from fetchproxy.observability.metrics import LIMITS_REACHED
from fetchproxy.segments.topic_description import TopicDescription, encode_topic_description
from fetchproxy.serving.archive_only.session import _FETCH_WORK, _work_bytes

CPU_S_MAX = 0.05
PARTITIONS = 20_000


async def wide_archive() -> PlantedArchive:
    """A topic with very many partitions that never had a record."""
    planted = await plant()
    wide = TopicDescription(UUID(int=77), "many-001", PARTITIONS)
    await planted.storage.objects.put_topic_description(
        wide.topic_id, encode_topic_description(wide)
    )
    return planted


def long_fetch(wait_ms: int) -> bytes:
    head = request_header(ApiKey.FETCH, 4, 7, "test")
    rows = b"".join(struct.pack(">iqi", number, 0, 1_024) for number in range(PARTITIONS))
    body = struct.pack(">iiiib", -1, wait_ms, 1, MiB, 0) + struct.pack(">ih", 1, 8) + b"many-001"
    frame = head + body + struct.pack(">i", PARTITIONS) + rows
    return struct.pack(">i", len(frame)) + frame


async def is_served(served: ServedArchive) -> bool:
    client = await served.client()
    request = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name="orders")])
    return bool((await client.ask(request, MetadataResponse, 4)).topics)


async def test_fetches_that_wait_are_counted_and_the_largest_give_way() -> None:
    frame, budget = long_fetch(wait_ms=3_600_000), 16 * MiB
    each = len(frame) * _FETCH_WORK
    settings = {"gateway": {"connection_buffers_bytes_max": budget}}
    limit = LIMITS_REACHED.labels("connection_buffers_bytes_max")
    async with serve_archive(await wide_archive(), settings) as served:
        before, clients = limit._value.get(), [await served.client() for _ in range(12)]
        for client in clients:
            client.writer.write(frame)
        remaining = budget // each
        assert 0 < remaining < len(clients)
        while served.server.connections > remaining:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert limit._value.get() - before >= len(clients) - remaining
        assert await is_served(served)
        assert served.server.connections > 1


async def test_one_alone_always_fits() -> None:
    """Although it counts for more than all connections may take."""
    frame = long_fetch(wait_ms=0)
    settings = {"gateway": {"connection_buffers_bytes_max": MiB}}
    assert len(frame) * _FETCH_WORK > MiB
    async with serve_archive(await wide_archive(), settings) as served:
        client = await served.client()
        client.writer.write(frame)
        assert len(await client.receive()) > PARTITIONS


def test_a_short_request_counts_nothing() -> None:
    head = struct.pack(">hhih", ApiKey.METADATA, 1, 7, -1)
    assert _work_bytes(peek_request_header(head), 8 * KiB) == 0
    assert _work_bytes(peek_request_header(head), 8 * KiB + 1) > 8 * KiB


async def answered(client: Client, frame: bytes) -> bytes:
    client.writer.write(frame)
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        return await client.receive()
    return b""


async def test_many_clients_that_name_much_are_all_answered_in_turn() -> None:
    async with serve_archive(await plant()) as served:
        frame = _named_again(3, 4, ("Topics",))
        clients = [await served.client() for _ in range(12)]
        async with longest_turn() as longest:
            responses = await asyncio.gather(*(answered(client, frame) for client in clients))
        assert all(responses)
        assert longest[0] < CPU_S_MAX


async def test_a_topic_that_is_named_with_many_ids_is_answered_once() -> None:
    """A request of half a MB would make a response of many GB."""
    async with serve_archive(await wide_archive()) as served:
        response = await answered(await served.client(), _one_name_of_many_ids())
        assert PARTITIONS < len(response) < 60 * PARTITIONS


async def test_epochs_of_one_partition_that_is_named_again_and_again() -> None:
    """Its lineage is made once: a partition may have very many segments."""
    planted = PlantedArchive()
    tp = TopicIdPartition(UUID(int=5), "orders", 0)
    for number in range(300):
        epochs = (EpochStart(number, 10 * number),)
        await planted.add([batch(10 * number)], tp=tp, epochs=epochs)
    frame = _named_again(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, ("Topics", "Partitions"))
    async with serve_archive(planted) as served:
        client = await served.client()
        async with longest_turn() as longest:
            assert len(await answered(client, frame)) > 100_000
        assert longest[0] < CPU_S_MAX
