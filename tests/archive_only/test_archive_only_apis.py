"""Each API in each version, asked and read by kafka-python's codec, over a planted archive."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.record_batch import walk
from kafka.protocol.admin.cluster import DescribeClusterRequest, DescribeClusterResponse
from kafka.protocol.admin.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kafka.protocol.admin.topics import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)
from kafka.protocol.producer import ProduceRequest, ProduceResponse
from planted_archive import TP, PlantedArchive, batch
from served_archive import Client, ServedArchive, serve_archive

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import AbortedTxn, EpochStart, TopicIdPartition
from fetchproxy.observability.metrics import ARCHIVE_ONLY_REFUSED
from fetchproxy.serving.archive_only.table import ADVERTISED

OLD = TopicIdPartition(UUID(int=8), "again", 0)
NEW = TopicIdPartition(UUID(int=3), "again", 0)
HOLED = TopicIdPartition(UUID(int=4), "holed", 2)  # nothing was archived of its partitions 0 and 1
FIRST = [
    batch(0),
    batch(10, epoch=2),
    batch(20, epoch=2, txn=7),
    batch(30, epoch=2, txn=7, control=0),
]
SECOND = [batch(31, epoch=2), batch(41, epoch=2)]
AFTER_GAP = [batch(60, epoch=5), batch(70, epoch=5)]
END = 80
ABORTED = (AbortedTxn(20, 30, 7, 31),)


async def plant() -> PlantedArchive:
    planted = PlantedArchive()
    await planted.add(
        FIRST, aborted=ABORTED, epochs=(EpochStart(0, 0), EpochStart(2, 10)),
    )  # fmt: skip
    await planted.add(SECOND, epochs=(EpochStart(2, 31),))
    await planted.add(AFTER_GAP, start=60, epochs=(EpochStart(5, 60),))
    old = await planted.add([batch(0)], tp=OLD)
    new = await planted.add([batch(5)], tp=NEW)
    await planted.restate(replace(old, event_timestamp_ms=1_000))
    await planted.restate(replace(new, event_timestamp_ms=2_000))
    await planted.add([batch(0)], tp=HOLED)
    return planted


@pytest.fixture
async def served() -> AsyncIterator[ServedArchive]:
    async with serve_archive(await plant()) as archive:
        yield archive


@pytest.fixture
async def client(served: ServedArchive) -> Client:
    return await served.client()


def versions(key: ApiKey) -> range:
    return range(ADVERTISED[key].lowest, ADVERTISED[key].highest + 1)


async def fetch(
    client: Client, version: int, partitions: dict[tuple[str, UUID, int], int], **more: Any
) -> Any:
    return await client.ask(fetch_request(version, partitions, **more), FetchResponse, version)


def fetch_request(
    version: int,
    partitions: dict[tuple[str, UUID, int], int],
    *,
    wait_ms: int = 20_000,
    bytes_max: int = 1 << 20,
    isolation: int = 0,
    session: tuple[int, int] = (0, -1),
) -> Any:
    topics = [
        FetchRequest.FetchTopic(
            topic=name,
            topic_id=topic_id,
            partitions=[
                FetchRequest.FetchTopic.FetchPartition(
                    partition=number,
                    current_leader_epoch=-1,
                    fetch_offset=offset,
                    last_fetched_epoch=-1,
                    log_start_offset=-1,
                    partition_max_bytes=bytes_max,
                )
            ],
        )
        for (name, topic_id, number), offset in partitions.items()
    ]
    return FetchRequest(
        replica_id=-1,
        max_wait_ms=wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=isolation,
        session_id=session[0],
        session_epoch=session[1],
        topics=topics,
        forgotten_topics_data=[],
        rack_id="",
    )


def one(response: Any) -> Any:
    return response.responses[0].partitions[0]


def describe_cluster() -> Any:
    return DescribeClusterRequest(include_cluster_authorized_operations=False, endpoint_type=1)


ORDERS = (TP.topic, TP.topic_id, 0)


@pytest.mark.parametrize("version", range(5))  # kafka-python knows no later one
async def test_api_versions_names_what_is_answered(client: Client, version: int) -> None:
    request = ApiVersionsRequest(client_software_name="x", client_software_version="1")
    response = await client.ask(request, ApiVersionsResponse, version)
    named = {api.api_key: (api.min_version, api.max_version) for api in response.api_keys}
    assert named == {int(k): (a.lowest, a.highest) for k, a in ADVERTISED.items()}


async def api_versions_of_today(
    client: Client, version: int, cluster: str | None = None, node: int = -1
) -> bytes:
    """The answer to a request as franz-go makes it, behind the correlation id."""
    name = b"\0" if cluster is None else bytes([len(cluster) + 1]) + cluster.encode()
    body = b"\x04kgo\x02v" + (name + struct.pack(">i", node) if version == 5 else b"") + b"\0"
    frame = struct.pack(">hhih", ApiKey.API_VERSIONS, version, 9, 3) + b"kgo\0" + body
    client.writer.write(struct.pack(">i", len(frame)) + frame)
    response = await client.receive()
    assert response[:4] == struct.pack(">i", 9)
    return response[4:]


async def test_api_versions_are_of_the_cluster_and_node_that_is_meant(client: Client) -> None:
    cluster_id = (await client.ask(describe_cluster(), DescribeClusterResponse, 0)).cluster_id
    expected = await api_versions_of_today(client, 4)
    for cluster, node in ((None, -1), (cluster_id, -1), (cluster_id, 0), (None, 0)):
        assert await api_versions_of_today(client, 5, cluster, node) == expected
    for cluster, node in (("another", -1), (cluster_id, 1)):  # REBOOTSTRAP_REQUIRED, and no ranges
        refusal = struct.pack(">hBiB", 129, 1, 0, 0)
        assert await api_versions_of_today(client, 5, cluster, node) == refusal


async def test_api_versions_of_the_future(client: Client) -> None:
    client.writer.write(bytes.fromhex("0000000c 0012 0063 00000009 0000 0000".replace(" ", "")))
    served = ADVERTISED[ApiKey.API_VERSIONS]
    # Error 35 and the versions that are answered: the client asks again with the highest.
    refusal = struct.pack(">ihihhh", 9, 35, 1, ApiKey.API_VERSIONS, served.lowest, served.highest)
    assert await client.receive() == refusal


@pytest.mark.parametrize("version", versions(ApiKey.METADATA))
async def test_metadata(client: Client, version: int, served: ServedArchive) -> None:
    response = await client.ask(MetadataRequest(topics=None), MetadataResponse, version)
    assert [(b.host, b.port) for b in response.brokers] == [("127.0.0.1", served.server.port)]
    partitions_by_topic = {
        t.name: [p.partition_index for p in t.partitions] for t in response.topics
    }
    assert partitions_by_topic == {"orders": [0], "again": [0], "holed": [0, 1, 2]}
    if version >= 10:
        ids = {t.name: t.topic_id for t in response.topics}
        assert ids == {"orders": TP.topic_id, "again": NEW.topic_id, "holed": HOLED.topic_id}
    request_topic = MetadataRequest.MetadataRequestTopic
    topics = [
        request_topic(name="nothing", topic_id=UUID(int=0)),
        request_topic(name="orders", topic_id=UUID(int=0)),
    ]
    response = await client.ask(MetadataRequest(topics=topics), MetadataResponse, version)
    assert [(t.name, t.error_code) for t in response.topics] == [("nothing", 3), ("orders", 0)]


@pytest.mark.parametrize("version", [12, 13])
async def test_metadata_by_id(client: Client, version: int) -> None:
    request_topic = MetadataRequest.MetadataRequestTopic
    topics = [
        request_topic(name=None, topic_id=i) for i in (OLD.topic_id, NEW.topic_id, UUID(int=99))
    ]
    response = await client.ask(MetadataRequest(topics=topics), MetadataResponse, version)
    assert [(t.name, t.error_code) for t in response.topics] == [
        ("again", 0),
        ("again", 0),
        (None, 100),
    ]


@pytest.mark.parametrize("version", versions(ApiKey.FETCH))
async def test_fetch(client: Client, version: int) -> None:
    part = one(await fetch(client, version, {ORDERS: 0}))
    assert (part.error_code, part.high_watermark, part.last_stable_offset) == (0, END, END)
    # How far the response goes on into the second segment depends on what is in memory.
    assert b"".join(FIRST + SECOND).startswith(bytes(part.records))
    assert bytes(part.records).startswith(FIRST[0])
    read_result = one(await fetch(client, version, {ORDERS: 15}, bytes_max=1, isolation=1))
    assert bytes(read_result.records) == FIRST[1]  # whole, although it is larger
    assert not read_result.aborted_transactions
    read_result = one(await fetch(client, version, {ORDERS: 20}, isolation=1))
    assert [(a.producer_id, a.first_offset) for a in read_result.aborted_transactions] == [(7, 20)]
    behind = one(await fetch(client, version, {ORDERS: 55}))  # in the gap, from 51 to 59
    assert behind.error_code == 0
    assert next(walk(bytes(behind.records))).base_offset == 60
    for offset in (-5, END + 1):  # below, above
        assert one(await fetch(client, version, {ORDERS: offset})).error_code == 1
    unknown = one(await fetch(client, version, {("nothing", UUID(int=99), 0): 0}))
    assert unknown.error_code == (100 if version >= 13 else 3)
    number = one(await fetch(client, version, {(TP.topic, TP.topic_id, 9): 0}))
    assert number.error_code == 3


async def test_a_view_is_looked_up_once_in_a_fetch_that_finds_records(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fetch(client, 12, {ORDERS: 0})  # now its records are in memory
    looked_up: list[TopicIdPartition] = []
    view_of = StoreBackedRemoteLogMetadataManager.view

    def counted(
        rlmm: StoreBackedRemoteLogMetadataManager, tp: TopicIdPartition
    ) -> PartitionView | None:
        looked_up.append(tp)
        return view_of(rlmm, tp)

    monkeypatch.setattr(StoreBackedRemoteLogMetadataManager, "view", counted)
    part = one(await fetch(client, 12, {ORDERS: 0}))
    assert part.records
    assert part.high_watermark == END
    assert looked_up == [TP]


async def test_the_name_means_the_incarnation_archived_last(client: Client) -> None:
    by_name = one(await fetch(client, 12, {("again", UUID(int=0), 0): 5}))
    assert bytes(by_name.records) == batch(5)
    by_id = one(await fetch(client, 13, {("", OLD.topic_id, 0): 0}))
    assert bytes(by_id.records) == batch(0)


async def test_no_fetch_sessions(client: Client) -> None:
    first = await fetch(client, 13, {ORDERS: 0}, session=(0, 0))
    assert first.session_id == 0
    assert (await fetch(client, 13, {ORDERS: 0}, session=(5, 1))).error_code == 70


async def test_at_the_end_a_fetch_waits_and_sees_the_archive_grow() -> None:
    planted = await plant()
    async with serve_archive(planted) as served:
        client = await served.client()
        empty = one(await fetch(client, 11, {ORDERS: END}, wait_ms=50))
        assert (empty.error_code, bytes(empty.records or b"")) == (0, b"")
        client.send(fetch_request(11, {ORDERS: END}, wait_ms=60_000), 11)
        await asyncio.sleep(0.3)
        await planted.add([batch(80, epoch=5)], epochs=(EpochStart(5, 80),))
        async with asyncio.timeout(30):
            response = FetchResponse[11].decode(await client.receive(), header=True)
        assert bytes(one(response).records) == batch(80, epoch=5)
        topic = TopicIdPartition(UUID(int=50), "new", 0)
        await planted.add([batch(0)], tp=topic)
        while one(await fetch(client, 11, {("new", UUID(int=0), 0): 0})).error_code == 3:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def offsets_request(timestamp: int, topic: str = "orders") -> Any:
    request_topic = ListOffsetsRequest.ListOffsetsTopic
    part = request_topic.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=timestamp
    )
    return ListOffsetsRequest(
        replica_id=-1,
        isolation_level=1,
        topics=[request_topic(name=topic, partitions=[part])],
        timeout_ms=1000,
    )


async def test_a_partition_that_is_named_twice_is_an_error_and_not_searched(client: Client) -> None:
    request = offsets_request(-1)
    (partition,) = request.topics[0].partitions
    request.topics[0].partitions = [partition] * 200
    (topic,) = (await client.ask(request, ListOffsetsResponse, 4)).topics
    assert [(p.partition_index, p.error_code) for p in topic.partitions] == [(0, 42)]


@pytest.mark.parametrize("version", versions(ApiKey.LIST_OFFSETS))
async def test_list_offsets(client: Client, version: int) -> None:
    async def ask(timestamp: int, topic: str = "orders") -> tuple[int, int, int]:
        request = offsets_request(timestamp, topic)
        part = (await client.ask(request, ListOffsetsResponse, version)).topics[0].partitions[0]
        return part.error_code, part.offset, part.leader_epoch if version >= 4 else -2

    def epoch(value: int) -> int:
        return value if version >= 4 else -2

    assert await ask(-1) == (0, END, epoch(5))
    assert await ask(-2) == (0, 0, epoch(0))
    if version < 7:  # above: see the clients' tests, as planted records cannot be decoded
        assert await ask(-3) == (35, -1, epoch(-1))
    assert await ask(-4) == ((0, END, epoch(5)) if version >= 8 else (35, -1, epoch(-1)))
    assert await ask(-5) == ((0, END - 1, epoch(5)) if version >= 9 else (35, -1, epoch(-1)))
    assert await ask(-6) == ((0, END, epoch(5)) if version >= 11 else (35, -1, epoch(-1)))
    assert await ask(1_000) == (0, -1, epoch(-1))
    assert (await ask(-2, "nothing"))[0] == 3


@pytest.mark.parametrize("version", versions(ApiKey.OFFSET_FOR_LEADER_EPOCH))
async def test_offset_for_leader_epoch(client: Client, version: int) -> None:
    topics = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    epochs = [-1, 0, 1, 2, 4, 5, 6]
    parts = [
        topics.OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=epoch)
        for epoch in epochs
    ]
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[topics(topic="orders", partitions=parts)]
    )
    response = await client.ask(request, OffsetForLeaderEpochResponse, version)
    end_offsets = [(p.leader_epoch, p.end_offset) for p in response.topics[0].partitions]
    assert end_offsets == [(-1, -1), (0, 10), (0, 10), (2, 60), (2, 60), (5, END), (-1, -1)]


@pytest.mark.parametrize("version", versions(ApiKey.FIND_COORDINATOR))
async def test_find_coordinator(client: Client, version: int, served: ServedArchive) -> None:
    for kind, error in ((0, 0), (1, 53), (2, 42)):
        request = FindCoordinatorRequest(key="g", key_type=kind, coordinator_keys=["g", "h"])
        response = await client.ask(request, FindCoordinatorResponse, version)
        coordinators = response.coordinators if version >= 4 else [response]
        assert len(coordinators) == (2 if version >= 4 else 1)
        expected = 0 if version == 0 else error
        assert {f.error_code for f in coordinators} == {expected}
        if expected == 0:
            assert {(f.host, f.port) for f in coordinators} == {("127.0.0.1", served.server.port)}


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CLUSTER))
async def test_describe_cluster(client: Client, version: int, served: ServedArchive) -> None:
    response = await client.ask(describe_cluster(), DescribeClusterResponse, version)
    assert [(b.host, b.port) for b in response.brokers] == [("127.0.0.1", served.server.port)]
    assert len(response.cluster_id) == 22


async def test_describe_topic_partitions_page_by_page(client: Client) -> None:
    pages: list[tuple[str, int]] = []
    cursor = None
    for _ in range(10):
        request = DescribeTopicPartitionsRequest(
            topics=[], response_partition_limit=2, cursor=cursor
        )
        response = await client.ask(request, DescribeTopicPartitionsResponse, 0)
        pages += [(t.name, p.partition_index) for t in response.topics for p in t.partitions]
        if response.next_cursor is None:
            break
        cursor = DescribeTopicPartitionsRequest.Cursor(
            topic_name=response.next_cursor.topic_name,
            partition_index=response.next_cursor.partition_index,
        )
    assert pages == [("again", 0), ("holed", 0), ("holed", 1), ("holed", 2), ("orders", 0)]


@pytest.mark.parametrize("version", versions(ApiKey.DESCRIBE_CONFIGS))
async def test_describe_configs(client: Client, version: int) -> None:
    resource = DescribeConfigsRequest.DescribeConfigsResource
    resources = [
        resource(resource_type=2, resource_name="orders", configuration_keys=["retention.ms"]),
        resource(resource_type=2, resource_name="nothing", configuration_keys=None),
    ]
    response = await client.ask(
        DescribeConfigsRequest(resources=resources), DescribeConfigsResponse, version
    )
    described, missing = response.results
    assert [(c.name, c.value, c.read_only) for c in described.configs] == [
        ("retention.ms", "-1", True)
    ]
    assert missing.error_code == 3


def produce_request(acks: int) -> Any:
    topic = ProduceRequest.TopicProduceData
    part = topic.PartitionProduceData(index=0, records=None)
    return ProduceRequest(
        transactional_id=None,
        acks=acks,
        timeout_ms=1,
        topic_data=[topic(name="orders", partition_data=[part])],
    )


@pytest.mark.parametrize("version", range(3, 13))
async def test_records_without_acknowledgement_are_refused_by_closing(
    client: Client, version: int
) -> None:
    """As by a broker that has an error to tell; what was asked before is answered."""
    refused = ARCHIVE_ONLY_REFUSED.labels("PRODUCE")._value
    before = refused.get()
    client.send(fetch_request(11, {ORDERS: 0}), 11)
    client.send(produce_request(0), version)
    client.send(fetch_request(11, {ORDERS: 0}), 11)
    response = FetchResponse[11].decode(await client.receive(), header=True)
    assert response.responses[0].partitions[0].records
    assert await client.closed()
    assert refused.get() == before + 1


@pytest.mark.parametrize("version", range(3, 13))
async def test_records_are_refused(client: Client, version: int) -> None:
    response = await client.ask(produce_request(-1), ProduceResponse, version)
    refused = response.responses[0].partition_responses[0]
    assert refused.error_code == 44
    if version >= 8:
        assert "archive" in refused.error_message
