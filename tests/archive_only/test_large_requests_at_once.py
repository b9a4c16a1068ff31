"""Large requests of many clients at the same time: turns, and what those that wait may take."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

import pytest
from bomb_archive import MANY_TOPICS, PARTITIONS_EACH, many_name
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.headers import peek_request_header, request_header
from kafka.protocol.metadata import MetadataRequest, MetadataResponse
from longest_turns import longest_turn
from planted_archive import PlantedArchive, batch
from served_archive import Client, ServedArchive, serve_archive
from structlog.testing import capture_logs
from test_archive_only_apis import plant
from wire_attacks import _commit, _named_again, _one_name_of_many_ids

from fetchproxy.config.schema import KiB, MiB
from fetchproxy.model import EpochStart, TopicIdPartition
from fetchproxy.observability.metrics import LIMITS_REACHED
from fetchproxy.segments.topic_description import TopicDescription, encode_topic_description
from fetchproxy.serving.archive_only.apis.administration import _LOG_DIR_WORK
from fetchproxy.serving.archive_only.session import _FETCH_WORK, _OTHER_WORK, _work_bytes

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


async def many_topics() -> PlantedArchive:
    planted = await plant()
    for number in range(MANY_TOPICS):
        topic = TopicDescription(UUID(int=1_000 + number), many_name(number), PARTITIONS_EACH)
        await planted.storage.objects.put_topic_description(
            topic.topic_id, encode_topic_description(topic)
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


async def received(client: Client, count: list[int]) -> None:
    await client.receive()
    count[0] += 1


async def test_fetches_that_wait_for_records_are_all_answered_in_turn() -> None:
    """Two of them fill the memory; each would wait for an hour."""
    frame, budget, clients = long_fetch(wait_ms=3_600_000), 48 * MiB, 5
    places = budget // 2 // (len(frame) * _FETCH_WORK)
    assert 0 < places < clients
    settings = {"gateway": {"connection_buffers_bytes_max": budget}}
    closed_before = LIMITS_REACHED.labels("connection_buffers_bytes_max")._value.get()
    async with (
        serve_archive(await wide_archive(), settings, large_request_bytes=0) as served,
        asyncio.timeout(120),
    ):
        accumulated, most, count = served.server.accumulated, 0, [0]
        tasks = []
        for _ in range(clients):
            client = await served.client()
            client.writer.write(frame)
            tasks.append(asyncio.create_task(received(client, count)))
        while count[0] < clients - places:
            most = max(most, accumulated.total)
            await asyncio.sleep(0.01)
        assert await is_served(served)
        for task in tasks:
            task.cancel()
    assert most <= budget
    assert LIMITS_REACHED.labels("connection_buffers_bytes_max")._value.get() == closed_before


async def test_who_gets_no_memory_in_time_is_refused_with_the_setting_s_name() -> None:
    frame, one_fits = long_fetch(wait_ms=3_600_000), MiB
    settings = {"gateway": {"connection_buffers_bytes_max": one_fits}}
    limit = LIMITS_REACHED.labels("connection_buffers_bytes_max")
    before = limit._value.get()
    with capture_logs() as logs:
        async with serve_archive(
            await wide_archive(), settings, large_request_bytes=0, large_request_max_wait_ms=1
        ) as served:
            first, second = await served.client(), await served.client()
            first.writer.write(frame)
            async with asyncio.timeout(20):
                while not served.server.accumulated.reserved:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            second.writer.write(frame)
            assert await second.closed()
            assert served.server.connections == 1
            assert await is_served(served)
    assert limit._value.get() == before + 1
    (closed,) = [line for line in logs if line["event"] == "client_connection_closed"]
    assert closed["reason"] == "connection_buffers_bytes_max"
    assert closed["waited_s"] == 0.001


@pytest.mark.parametrize(
    ("make", "work"),
    [(lambda: long_fetch(wait_ms=0), _FETCH_WORK), (lambda: _commit("group", 1), _OTHER_WORK)],
    ids=["fetch", "commit"],
)
async def test_what_a_large_request_takes_is_what_it_counts(
    make: Callable[[], bytes], work: int
) -> None:
    frame = make()
    async with serve_archive(await many_topics()) as served:
        client = await served.client()
        for _ in range(2):  # what is looked up stays in memory, which is another part
            client.writer.write(frame)
            await client.receive()
        tracemalloc.start()
        try:
            before, _ = tracemalloc.get_traced_memory()
            client.writer.write(frame)
            await client.receive()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert 0.8 <= (peak - before) / len(frame) / work <= 1.1


async def test_the_size_of_each_partition_of_all_is_worked_out_in_turn() -> None:
    """A request of a few bytes makes a response for all partitions."""
    head = request_header(ApiKey.DESCRIBE_LOG_DIRS, 1, 7, "test") + struct.pack(">i", -1)
    frame = struct.pack(">i", len(head)) + head
    settings = {"archive_only": {"refresh_interval_ms": 600_000}}
    async with serve_archive(await wide_archive(), settings, large_request_bytes=0) as served:
        most, clients = 0, [await served.client() for _ in range(4)]
        tasks = [asyncio.create_task(answered(client, frame)) for client in clients]
        while not all(task.done() for task in tasks):
            most = max(most, served.server.accumulated.reserved)
            await asyncio.sleep(0.005)
        assert all(len(task.result()) > 10 * PARTITIONS for task in tasks)
    assert (
        _LOG_DIR_WORK * PARTITIONS <= most <= served.server.config.connection_buffers_bytes_max // 2
    )


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
