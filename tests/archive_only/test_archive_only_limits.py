"""What a client cannot do to the others: limits, bad bytes, and a store that is away."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import pytest
from confluent_kafka import KafkaError, Producer
from kafka.protocol.consumer import FetchResponse, ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse
from memory_object_store import MemoryObjectStore
from planted_archive import PlantedArchive, batch
from served_archive import Client, ServedArchive, serve_archive
from test_archive_only_apis import ORDERS, fetch, fetch_request, offsets_request, one, plant
from test_timestamp_lookup import batch as timed_batch

from fetchproxy.errors import StorageUnavailable
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import LIMITS_REACHED, TIMESTAMP_SEARCHES
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.segment_reader import PARTITIONS_READ_MAX
from fetchproxy.serving.archive_only.apis.fetch import _pieces_in_turn
from fetchproxy.storage.contract import StoredObject


def api_versions() -> ApiVersionsRequest:
    return ApiVersionsRequest(client_software_name="x", client_software_version="1")


async def alive(client: Client) -> bool:
    return bool((await client.ask(api_versions(), ApiVersionsResponse, 3)).api_keys)


async def nobody_left(served: ServedArchive) -> None:
    await nobody_left_but(served, 0)


async def nobody_left_but(served: ServedArchive, connections: int) -> None:
    async with asyncio.timeout(20):
        while served.server.connections > connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("leave", [Client.reset, Client.leave])
async def test_one_look_up_by_time_waits_for_one_of_a_client_that_asks_for_many(
    leave: Callable[[Client], None],
) -> None:
    planted, partitions = PlantedArchive(chunk_bytes=1 << 20), 40
    long = timed_batch(0, [1_000] * 9_999 + [9_000], 1, value=b"v").content
    for n in range(partitions):
        await planted.add([long], tp=TopicIdPartition(UUID(int=7), "many", n))
    await planted.add([long], tp=TopicIdPartition(UUID(int=8), "one", 0))

    def request(topic: str, count: int) -> ListOffsetsRequest:
        made = offsets_request(5_000, topic)
        (first,) = made.topics[0].partitions
        partition = type(first)
        made.topics[0].partitions = [
            partition(partition_index=n, current_leader_epoch=-1, timestamp=5_000)
            for n in range(count)
        ]
        return made

    async with serve_archive(planted, ended_client_max_ms=100) as served:
        greedy, other = await served.client(), await served.client()
        greedy.client_id = "greedy"
        before = TIMESTAMP_SEARCHES._value.get()
        greedy.send(request("many", partitions), 4)
        while TIMESTAMP_SEARCHES._value.get() < before + 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        response = await other.ask(request("one", 1), ListOffsetsResponse, 4)
        assert response.topics[0].partitions[0].offset == 9_999
        assert TIMESTAMP_SEARCHES._value.get() - before < partitions / 2
        leave(greedy)
        await nobody_left_but(served, 1)
        searched = TIMESTAMP_SEARCHES._value.get()
        await other.ask(request("one", 1), ListOffsetsResponse, 4)
        assert (await other.ask(request("many", 1), ListOffsetsResponse, 4)).topics
        assert TIMESTAMP_SEARCHES._value.get() - searched <= 1, "what nobody waits for is dropped"


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", 1024 * 1024 + 1),  # above request_bytes_max
        struct.pack(">i", -1),
        struct.pack(">i", 3),
        struct.pack(">ihhih", 10, 3, 9, 1, -1),  # Metadata v9, cut short
        struct.pack(">ihhih", 10, 19, 99, 1, -1),  # a version that nobody knows
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhihh", 12, 12, 0, 1, -1, 32_000),  # a string longer than its frame
    ],
)
async def test_what_cannot_be_answered_closes_its_connection_alone(data: bytes) -> None:
    async with serve_archive(await plant()) as served:
        good, bad = await served.client(), await served.client()
        bad.writer.write(data)
        assert await bad.closed()
        assert await alive(good)


async def test_silence_and_half_requests_are_closed() -> None:
    settings = {"gateway": {"idle_max_ms": 400}}
    async with serve_archive(await plant(), settings, half_frame_max_ms=200) as served:
        silent, half = await served.client(), await served.client()
        half.writer.write(b"\0\0")
        assert await half.closed()
        assert await silent.closed()


async def test_connections_are_counted() -> None:
    async with serve_archive(await plant(), {"gateway": {"connections_max": 1}}) as served:
        first = await served.client()
        assert await alive(first)
        assert await (await served.client()).closed()
        await first.close()
        while served.server.connections:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert await alive(await served.client())


async def test_answers_come_in_the_order_of_requests() -> None:
    async with serve_archive(await plant()) as served:
        client = await served.client()
        client.send(fetch_request(11, {ORDERS: 80}, wait_ms=300), 11)
        for version in (0, 3, 4):
            client.send(api_versions(), version)
        ids = [struct.unpack(">i", (await client.receive())[:4])[0] for _ in range(4)]
        assert ids == [1, 2, 3, 4]


@pytest.mark.parametrize("ended", [False, True])
async def test_who_is_reset_while_waiting_leaves_nothing_behind(ended: bool) -> None:
    async with serve_archive(await plant()) as served:
        client = await served.client()
        client.send(fetch_request(11, {ORDERS: 80}, wait_ms=3_600_000), 11)
        if ended:
            client.end()
        await asyncio.sleep(0.1)
        assert served.server.connections == 1
        client.reset()
        await nobody_left(served)


async def test_who_is_reset_behind_unread_requests_leaves_nothing_behind() -> None:
    async with serve_archive(await plant()) as served:
        client = await served.client()
        client.send(fetch_request(11, {ORDERS: 80}, wait_ms=3_600_000), 11)
        client.writer.write(struct.pack(">i", 1_000_000) + bytes(300_000))  # more than is read
        await asyncio.sleep(0.2)
        assert served.server.connections == 1
        client.reset()
        await nobody_left(served)


async def test_who_waits_in_silence_is_let_go_after_a_while() -> None:
    """That he has ended his sending says nothing of whether he still reads."""
    async with serve_archive(await plant(), {"gateway": {"idle_max_ms": 1_500}}) as served:
        client = await served.client()
        client.send(fetch_request(11, {ORDERS: 80}, wait_ms=3_600_000), 11)
        client.end()
        await asyncio.sleep(0.5)
        assert served.server.connections == 1
        await nobody_left(served)


async def test_a_producer_without_acknowledgement_is_told_by_an_error() -> None:
    """librdkafka counts such records as delivered when they are sent; then the node is gone."""
    async with serve_archive(await plant()) as served:
        errors: list[int] = []

        def produce() -> None:
            producer = Producer(
                {
                    "bootstrap.servers": f"127.0.0.1:{served.server.port}",
                    "acks": 0,
                    "error_cb": lambda error: errors.append(error.code()),
                }
            )
            producer.produce("orders", b"lost", partition=0)
            producer.flush(20)
            deadline = time.monotonic() + 20
            while not errors and time.monotonic() < deadline:
                producer.poll(0.1)

        await asyncio.to_thread(produce)
        assert set(errors) & {KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT}


async def test_who_sends_no_more_is_answered_and_then_closed() -> None:
    async with serve_archive(await plant()) as served:
        client = await served.client()
        client.send(fetch_request(11, {ORDERS: 80}, wait_ms=500), 11)  # at the end: it waits
        client.send(fetch_request(11, {ORDERS: 0}), 11)
        client.send(api_versions(), 3)
        client.writer.write(b"\0\0")  # a request that never comes whole
        client.end()
        await client.receive()
        response = FetchResponse[11].decode(await client.receive(), header=True)
        assert response.responses[0].partitions[0].records
        assert struct.unpack(">i", (await client.receive())[:4])[0] == 3
        assert await client.closed()


async def test_who_sends_no_more_and_reads_slowly_gets_all() -> None:
    planted = PlantedArchive()
    await planted.add([batch(10 * i) for i in range(20_000)])
    async with serve_archive(planted) as served:
        slow = await served.client(receive_bytes_max=4096)
        slow.send(fetch_request(11, {ORDERS: 0}, bytes_max=200_000), 11)
        slow.end()
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await asyncio.sleep(2)  # longer than what is written has to leave after an error
        slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert len(await slow.receive()) > 150_000
        assert await slow.closed()


async def test_who_does_not_read_is_closed_and_disturbs_nobody() -> None:
    planted = PlantedArchive()
    await planted.add([batch(10 * i) for i in range(20_000)])
    limits = {"client_stall_max_ms": 500, "buffer_bytes_max": 1024}
    async with serve_archive(planted, **limits) as served:
        slow = await served.client()
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(12):
            slow.send(fetch_request(11, {ORDERS: 0}, bytes_max=1 << 24), 11)
        other = await served.client()
        async with asyncio.timeout(60):
            while served.server.connections > 1:
                assert await alive(other)
                await asyncio.sleep(0.05)


ONE_TURN = {"remote_answer_turns_max": 1, "remote_answer_turn_max_ms": 3_600_000}


async def test_who_waits_at_the_end_of_the_archive_keeps_no_turn() -> None:
    async with serve_archive(await plant(), **ONE_TURN) as served:
        waits, reads = await served.client(), await served.client()
        waits.send(fetch_request(11, {ORDERS: 80}, wait_ms=3_600_000), 11)
        async with asyncio.timeout(60):  # each fetch itself would wait for an hour
            for _ in range(3):
                assert one(await fetch(reads, 11, {ORDERS: 0}, wait_ms=3_600_000)).records


async def test_a_turn_is_not_waited_for_beyond_the_fetch() -> None:
    planted = PlantedArchive()
    await planted.add([batch(10 * i) for i in range(20_000)])
    before = turns_waited_for()
    async with serve_archive(planted, **ONE_TURN) as served:
        slow, other = await served.client(), await served.client()
        assert one(await fetch(other, 11, {ORDERS: 0}, wait_ms=30_000)).records  # now in memory
        slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(12):  # more than sockets hold: the turn is never given back
            slow.send(fetch_request(11, {ORDERS: 0}, bytes_max=1 << 24), 11)
        async with asyncio.timeout(60):
            while turns_waited_for() == before:
                assert one(await fetch(other, 11, {ORDERS: 0}, wait_ms=50)).records


def turns_waited_for() -> float:
    return LIMITS_REACHED.labels("remote_answer_turns_max")._value.get()


class Outage(MemoryObjectStore):
    """`away`: nothing can be read."""

    away = False

    def _check(self) -> None:
        if self.away:
            raise StorageUnavailable("away")

    async def get(self, *args, **more):  # type: ignore[no-untyped-def]
        self._check()
        return await super().get(*args, **more)

    async def list(self, *args, **more):  # type: ignore[no-untyped-def]
        self._check()
        async for stored_object in super().list(*args, **more):
            yield stored_object


async def test_an_outage_is_never_out_of_range_and_ends() -> None:
    store = Outage()
    planted = PlantedArchive(store)
    await planted.add([batch(0), batch(10)])
    settings = {"remote_fetch": {"remote_error_after_ms": 4_000}}
    quick = ReadingLimits(backoff_initial_ms=20)
    async with serve_archive(planted, settings, reading=quick) as served:
        client = await served.client()
        store.away = True
        empty = one(await fetch(client, 11, {ORDERS: 0}, wait_ms=50))
        assert (empty.error_code, bytes(empty.records or b"")) == (0, b"")
        beyond = one(await fetch(client, 11, {ORDERS: 999}, wait_ms=50))
        assert beyond.error_code == 0
        codes = set()
        async with asyncio.timeout(30):
            while 56 not in codes:
                codes.add(one(await fetch(client, 11, {ORDERS: 0}, wait_ms=200)).error_code)
        assert codes <= {0, 56}
        store.away = False
        while not (part := one(await fetch(client, 11, {ORDERS: 0}))).records:
            assert part.error_code in (0, 56)
            await asyncio.sleep(0.02)
        assert bytes(part.records) == batch(0) + batch(10)
        assert one(await fetch(client, 11, {ORDERS: 999})).error_code == 1


def test_a_wide_fetch_reads_others_first_in_each_half_second() -> None:
    tps = {(b"t", n): TopicIdPartition(UUID(int=1), "t", n) for n in range(450)}
    starts = []
    for now in (0.0, 0.4, 0.5, 1.0, 1.5):
        every = list(_pieces_in_turn(tps, now))
        assert max(map(len, every)) == PARTITIONS_READ_MAX
        assert {key for piece in every for key in piece} == tps.keys()
        starts.append(min(every[0])[1])
    assert starts == [0, 0, 200, 400, 0]
    assert list(_pieces_in_turn({}, 0.7)) == []


class RecordingStore(MemoryObjectStore):
    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        self.listed.append(prefix)
        async for stored_object in super().list(prefix, start_after):
            yield stored_object


async def test_very_many_ends_are_looked_at_by_topic() -> None:
    """Who waits at the end of each partition costs listings of topics, not of partitions."""
    store, topic_id, partitions = RecordingStore(), UUID(int=9), 60
    planted = PlantedArchive(store)
    for number in range(partitions):
        await planted.add([batch(0)], tp=TopicIdPartition(topic_id, "ends", number))
    async with serve_archive(planted) as served:
        client = await served.client()
        ends = {("ends", topic_id, number): 10 for number in range(partitions)}
        client.send(fetch_request(11, ends, wait_ms=3_600_000), 11)
        async with asyncio.timeout(60):
            await looks(store, 2)  # the fetch itself may look at each
            store.listed.clear()
            await looks(store, 3)
            assert len(store.listed) < partitions
            last = TopicIdPartition(topic_id, "ends", partitions - 1)
            await planted.add([batch(10)], tp=last)
            assert last.topic.encode() in await client.receive()


async def looks(store: RecordingStore, count: int) -> None:
    """Until the topic as a whole was listed so many times."""

    def of_topic(prefix: str) -> bool:
        return prefix.startswith("archive/ends-") and prefix.count("/") == 2

    while sum(map(of_topic, store.listed)) < count:  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def test_very_many_partitions_that_nobody_has_asked_for_are_listed_by_topic() -> None:
    store, topic_id, partitions = RecordingStore(), UUID(int=9), PARTITIONS_READ_MAX + 30
    planted = PlantedArchive(store)
    for number in range(partitions):
        await planted.add([batch(0)], tp=TopicIdPartition(topic_id, "ends", number))
    async with serve_archive(planted) as served, asyncio.timeout(60):
        client = await served.client()
        store.listed.clear()
        every = {("ends", topic_id, number): 10 for number in range(partitions)}
        client.send(fetch_request(11, every, wait_ms=2_000), 11)
        assert batch(0) not in await client.receive()
        of_ends = [prefix for prefix in store.listed if prefix.startswith("archive/ends-")]
        assert of_ends
        assert all(prefix.count("/") == 2 for prefix in of_ends)  # none of a partition
