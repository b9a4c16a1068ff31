"""One Metadata request for all topics, three ListOffsets a broker, whatever their number."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any
from uuid import UUID

import pytest
from fetchproxy_protocol import list_offsets, offset_for_leader_epoch
from fetchproxy_protocol import topic_entries as topic_metadata
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.headers import peek_request_header
from fetchproxy_protocol.topic_entries import ClusterMetadata
from kafka.protocol.consumer.offsets import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from kafka.protocol.metadata.metadata import MetadataRequest, MetadataResponse
from scripted_broker import ScriptedBroker, encode, serving

from fetchproxy.brokers import cluster as cluster_client
from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.brokers.topic_metadata import (
    KEPT_RESPONSES_MAX,
    ClusterMetadataCache,
    decode_metadata,
)
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.metadata.leader_views import LeaderLog
from fetchproxy.model import EpochEnd, LogOffsets, TopicIdPartition
from fetchproxy.runtime.cooperative import ITEMS_AT_ONCE

NODES = (1, 2, 3)
PARTITIONS = 600
TOPICS = {f"topic-{n}": UUID(int=n + 1) for n in range(4)}
SECRET = "secret"
NOT_AUTHORIZED, UNKNOWN_TOPIC, NOT_LEADER, BROKEN_DISK = 29, 3, 6, 56


class Fleet:
    """Brokers that share the partitions among themselves, and what they were asked."""

    def __init__(self) -> None:
        self.brokers = {node: _Broker(self, node) for node in NODES}
        self.requests: Counter[ApiKey] = Counter()
        self.names: list[set[str]] = []  # of each Metadata request
        self.moved = 0
        self.broken: tuple[str, int] | None = None  # a partition of which nothing can be said
        self.door = asyncio.Event()
        self.door.set()

    def leader(self, partition: int) -> int:
        return NODES[(partition + self.moved) % len(NODES)]

    def metadata(self, request: Any) -> Any:
        names = [t.name or _name(t.topic_id) for t in request.topics]
        self.names.append(set(names))
        broker = MetadataResponse.MetadataResponseBroker
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[
                broker(node_id=node, host="127.0.0.1", port=its.port, rack=None)
                for node, its in self.brokers.items()
            ],
            cluster_id="c",
            controller_id=1,
            topics=[self._topic(name) for name in names],
        )

    def _topic(self, name: str) -> Any:
        topic = MetadataResponse.MetadataResponseTopic
        known = name in TOPICS
        code = NOT_AUTHORIZED if name == SECRET else 0 if known else UNKNOWN_TOPIC
        partition = topic.MetadataResponsePartition
        return topic(
            error_code=code,
            name=name,
            topic_id=TOPICS.get(name, UUID(int=0)),
            is_internal=False,
            partitions=[
                partition(
                    error_code=0,
                    partition_index=n,
                    leader_id=self.leader(n),
                    leader_epoch=7,
                    replica_nodes=[1, 2],
                    isr_nodes=[1],
                    offline_replicas=[],
                )
                for n in range(PARTITIONS * known)
            ],
        )

    def offsets(self, node: int, request: Any) -> Any:
        """The log of partition n begins at n and ends at 10 n; the last stable offset is 9 n."""
        factor = (
            1 if request.topics[0].partitions[0].timestamp == -2 else 10 - request.isolation_level
        )
        responded = ListOffsetsResponse.ListOffsetsTopicResponse
        place = responded.ListOffsetsPartitionResponse

        def result(name: str, n: int, epoch: int) -> Any:
            assert epoch == 7
            code = 0 if self.leader(n) == node else NOT_LEADER
            if (name, n) == self.broken:
                code = BROKEN_DISK
            offset = -1 if code else n * factor
            return place(
                partition_index=n, error_code=code, timestamp=-1, offset=offset, leader_epoch=5
            )

        return ListOffsetsResponse(
            throttle_time_ms=0,
            topics=[
                responded(
                    name=t.name,
                    partitions=[
                        result(t.name, p.partition_index, p.current_leader_epoch)
                        for p in t.partitions
                    ],
                )
                for t in request.topics
            ],
        )

    def epoch_ends(self, node: int, request: Any) -> Any:
        """Epoch e of partition n ended at 100 e + n."""
        responded = OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult
        end = responded.EpochEndOffset

        def result(name: str, p: Any) -> Any:
            assert p.current_leader_epoch == 7
            code = 0 if self.leader(p.partition) == node else NOT_LEADER
            if (name, p.partition) == self.broken:
                code = BROKEN_DISK
            return end(
                error_code=code,
                partition=p.partition,
                leader_epoch=p.leader_epoch,
                end_offset=100 * p.leader_epoch + p.partition,
            )

        topics = [
            responded(topic=t.topic, partitions=[result(t.topic, p) for p in t.partitions])
            for t in request.topics
        ]
        return OffsetForLeaderEpochResponse(throttle_time_ms=0, topics=topics)


class _Broker(ScriptedBroker):
    def __init__(self, fleet: Fleet, node_id: int) -> None:
        super().__init__(node_id=node_id)
        self._fleet = fleet

    def response_to(self, request: bytes) -> bytes | None:
        head = peek_request_header(request)
        self._fleet.requests[ApiKey(head.api_key)] += 1
        body = request[head.body_position :]
        if head.api_key == ApiKey.METADATA:
            message = self._fleet.metadata(MetadataRequest.decode(body, version=head.api_version))
        elif head.api_key == ApiKey.LIST_OFFSETS:
            parsed_request = ListOffsetsRequest.decode(body, version=head.api_version)
            message = self._fleet.offsets(self.node_id, parsed_request)
        elif head.api_key == ApiKey.OFFSET_FOR_LEADER_EPOCH:
            parsed_request = OffsetForLeaderEpochRequest.decode(body, version=head.api_version)
            message = self._fleet.epoch_ends(self.node_id, parsed_request)
        elif head.api_key == ApiKey.API_VERSIONS:
            message = self._offered()
        else:
            return super().response_to(request)
        return encode(message, head.api_version, head.correlation_id)

    def _offered(self) -> Any:
        message = self._versions()
        message.api_keys.append(
            ApiVersionsResponse.ApiVersion(
                api_key=ApiKey.OFFSET_FOR_LEADER_EPOCH, min_version=2, max_version=4
            )
        )
        return message


def _name(topic_id: UUID) -> str:
    return next(name for name, known in TOPICS.items() if known == topic_id)


@asynccontextmanager
async def running(fleet: Fleet, request_max_ms: int = 5_000) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as opened:
        at = [await opened.enter_async_context(serving(b)) for b in fleet.brokers.values()]
        config = ClusterConfig(bootstrap=at[0], request_max_ms=request_max_ms)
        yield await opened.enter_async_context(Cluster(config))


def metadata_request(*names: str) -> Any:
    request_topic = MetadataRequest.MetadataRequestTopic
    return MetadataRequest(
        topics=[request_topic(name=name, topic_id=UUID(int=0)) for name in names]
    )


def tps_of(name: str, partitions: int = PARTITIONS) -> list[TopicIdPartition]:
    return [TopicIdPartition(TOPICS[name], name, n) for n in range(partitions)]


def log_offsets_of(tp: TopicIdPartition) -> LogOffsets:
    return LogOffsets(tp.partition, tp.partition * 10, tp.partition * 9, 5)


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_topics_are_asked_for_in_one_request_and_known_afterwards() -> None:
    fleet = Fleet()
    async with running(fleet) as cluster:
        impossible = "no/topic"
        topics = await cluster.topics_by_name([*TOPICS, SECRET, "absent", impossible], 0)
        assert fleet.names == [{*TOPICS, SECRET, "absent"}]
        for name, topic_id in TOPICS.items():
            topic = topics[name]
            assert isinstance(topic, TopicInfo)
            assert (topic.name, topic.topic_id) == (name, topic_id)
            assert topic.leaders == {n: (fleet.leader(n), 7) for n in range(PARTITIONS)}
        codes = {n: e.error_code for n, e in topics.items() if isinstance(e, ClusterError)}
        assert codes == {SECRET: NOT_AUTHORIZED, "absent": UNKNOWN_TOPIC, impossible: UNKNOWN_TOPIC}
        again = await cluster.topics_by_name([*TOPICS, SECRET], 60_000)
        assert again["topic-0"] is topics["topic-0"]
        assert fleet.names[1:] == [{SECRET}]
        with pytest.raises(ClusterError) as raised:
            await cluster.topic_by_name(SECRET)
        assert raised.value.error_code == NOT_AUTHORIZED


async def test_absent_topics_are_told_apart_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each error takes 4 µs, and a client names thousands."""
    refused: Counter[int] = Counter()  # by turn of the loop
    refusal, turns = cluster_client._metadata_error, 0

    def counted(key: Any, response: Any) -> ClusterError:
        refused[turns] += 1
        return refusal(key, response)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(cluster_client, "_metadata_error", counted)
    async with running(Fleet()) as cluster:
        counting = asyncio.create_task(count_turns())
        await cluster.topics_by_name([f"absent-{n}" for n in range(5 * ITEMS_AT_ONCE)], 0)
        counting.cancel()
    assert sum(refused.values()) == 5 * ITEMS_AT_ONCE
    assert max(refused.values()) <= ITEMS_AT_ONCE


async def test_without_brokers_topics_are_not_known() -> None:
    async with Cluster(ClusterConfig(bootstrap="127.0.0.1:1", request_max_ms=200)) as cluster:
        with pytest.raises(ClusterUnavailable):
            await cluster.topics_by_name(["orders"])
        assert await cluster.topics_by_name([]) == {}


async def test_edges_of_many_take_three_requests_a_broker() -> None:
    fleet = Fleet()
    tps = [*tps_of("topic-0"), *tps_of("topic-1"), *tps_of("topic-2")]
    async with running(fleet) as cluster:
        not_before = now()
        log_offsets = await cluster.fetch_log_offsets(tps, not_older_than=not_before)
        assert log_offsets == {tp: log_offsets_of(tp) for tp in tps}
        assert fleet.requests[ApiKey.LIST_OFFSETS] == 3 * len(NODES)
        assert len(fleet.names) == 1
        # Kept, for one and for many.
        assert await cluster.log_offsets(tps[5], not_older_than=not_before) == log_offsets_of(
            tps[5]
        )
        assert cluster.cached_log_offsets(tps[7]) == log_offsets_of(tps[7])
        await cluster.fetch_log_offsets(tps, not_older_than=not_before)
        assert fleet.requests[ApiKey.LIST_OFFSETS] == 3 * len(NODES)
        await cluster.fetch_log_offsets(tps, not_older_than=now())
        assert fleet.requests[ApiKey.LIST_OFFSETS] == 6 * len(NODES)


async def test_who_asks_at_the_same_time_shares_the_requests() -> None:
    fleet = Fleet()
    tps = tps_of("topic-0")
    async with running(fleet) as cluster, asyncio.TaskGroup() as group:
        await cluster.topics_by_name(TOPICS)
        since = now()
        many = [group.create_task(cluster.fetch_log_offsets(tps, not_older_than=since))]
        while not fleet.requests[ApiKey.LIST_OFFSETS]:  # noqa: ASYNC110 - a request under way
            await asyncio.sleep(0)
        many.append(group.create_task(cluster.fetch_log_offsets(tps[:9], not_older_than=since)))
        one = group.create_task(cluster.log_offsets(tps[3], not_older_than=since))
        await asyncio.wait([*many, one])
        assert fleet.requests[ApiKey.LIST_OFFSETS] == 3 * len(NODES)
        assert one.result() == log_offsets_of(tps[3])


async def test_who_leaves_takes_the_answer_from_nobody() -> None:
    fleet = Fleet()
    tps = tps_of("topic-0")
    async with running(fleet) as cluster, asyncio.TaskGroup() as group:
        since = now()
        first = group.create_task(cluster.fetch_log_offsets(tps, not_older_than=since))
        await asyncio.sleep(0)
        second = group.create_task(cluster.fetch_log_offsets(tps, not_older_than=since))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == {tp: log_offsets_of(tp) for tp in tps}


async def test_leaders_that_moved_are_found() -> None:
    fleet = Fleet()
    tps = tps_of("topic-0")
    async with running(fleet) as cluster:
        await cluster.topics_by_name(TOPICS)
        fleet.moved = 1
        log_offsets = await cluster.fetch_log_offsets(tps, not_older_than=now())
        assert log_offsets == {tp: log_offsets_of(tp) for tp in tps}


async def test_a_partition_that_cannot_be_asked_about_harms_no_other() -> None:
    fleet = Fleet()
    fleet.broken = ("topic-0", 4)
    tps = tps_of("topic-0", 10)
    absent = TopicIdPartition(TOPICS["topic-0"], "topic-0", PARTITIONS)
    async with running(fleet, request_max_ms=1_500) as cluster:
        tps_and_absent = [*tps, absent]
        asking = asyncio.ensure_future(
            cluster.fetch_log_offsets(tps_and_absent, not_older_than=now())
        )
        while cluster.cached_log_offsets(tps[3]) is None:  # noqa: ASYNC110 - a broker's response
            await asyncio.sleep(0.001)
        assert not asking.done()  # known although the whole is not
        results = await asking
        assert {t: e for t, e in results.items() if isinstance(e, LogOffsets)} == {
            tp: log_offsets_of(tp) for tp in tps if tp.partition != 4
        }
        codes = {
            t.partition: e.error_code for t, e in results.items() if isinstance(e, ClusterError)
        }
        assert codes == {4: BROKEN_DISK, PARTITIONS: UNKNOWN_TOPIC}


async def test_the_event_loop_is_left_to_others() -> None:
    payload = memoryview(encode(Fleet().metadata(metadata_request(*TOPICS)), 12, 9))[4:]
    turns = 0

    async def watch() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with asyncio.TaskGroup() as group:
        watching = group.create_task(watch())
        decoded = await decode_metadata(payload, 12)
        watching.cancel()
    assert len(decoded.topics) == len(TOPICS)
    assert turns >= len(TOPICS) * PARTITIONS // (10 * ITEMS_AT_ONCE)


@pytest.mark.parametrize("version", range(5, 14))
async def test_metadata_is_read_and_written_as_kafka_does(version: int) -> None:
    by_id = version >= 12
    topics: list[str | UUID] = list(TOPICS.values()) if by_id else ["topic-0", "topic-1", "é"]
    request = b"".join(topic_metadata.write_request(version, topics))
    parsed_request = MetadataRequest.decode(request, version=version)
    assert [t.topic_id if by_id else t.name for t in parsed_request.topics] == topics
    assert not parsed_request.allow_auto_topic_creation
    everything = b"".join(topic_metadata.write_request(version, None))
    assert MetadataRequest.decode(everything, version=version).topics is None

    fleet = Fleet()
    response = fleet.metadata(metadata_request("topic-1", SECRET))
    decoded = await decode_metadata(memoryview(encode(response, version, 9))[4:], version)
    topic_key = TOPICS["topic-1"] if version >= 10 else UUID(int=0)
    leaders = {n: (fleet.leader(n), 7 if version >= 7 else -1) for n in range(PARTITIONS)}
    assert decoded == ClusterMetadata(
        dict.fromkeys(NODES, ("127.0.0.1", 0)),
        [TopicInfo(topic_key, "topic-1", False, leaders)],
        {SECRET: NOT_AUTHORIZED},
        "c",
    )


async def test_an_answer_that_says_the_same_is_not_read_again() -> None:
    fleet, same = Fleet(), ClusterMetadataCache()

    async def decode_told(*names: str, version: int = 12) -> ClusterMetadata:
        payload = memoryview(encode(fleet.metadata(metadata_request(*names)), version, 9))[4:]
        decoded = await same.decode(payload, version, names)
        assert decoded == await decode_metadata(payload, version)
        return decoded

    first, other = await decode_told("topic-1"), await decode_told("topic-2")
    assert await decode_told("topic-1") is first
    assert await decode_told("topic-2") is not first
    older = await decode_told("topic-1", version=7)
    assert older is not first
    fleet.moved += 1
    moved = await decode_told("topic-1")
    assert moved.topics[0].leaders != first.topics[0].leaders
    assert await decode_told("topic-1") is moved
    for name in [*TOPICS, SECRET] * 20:
        await decode_told(name)
    assert len(same._responses) <= KEPT_RESPONSES_MAX
    assert other.topics[0].name == "topic-2"


@pytest.mark.parametrize("version", [5, 7, 9, 12])
async def test_partitions_whose_replicas_differ_are_read_as_well(version: int) -> None:
    fleet = Fleet()
    response = fleet.metadata(metadata_request("topic-1"))
    for entry in response.topics[0].partitions:
        lost = entry.partition_index % 7 == 3 or 250 <= entry.partition_index < 260
        entry.isr_nodes = [] if lost else [1]
        entry.offline_replicas = [2] * (entry.partition_index // 300)
        entry.leader_id = -1 if lost else fleet.leader(entry.partition_index)
    decoded = await decode_metadata(memoryview(encode(response, version, 9))[4:], version)
    assert decoded.topics[0].leaders == {
        entry.partition_index: (entry.leader_id, 7 if version >= 7 else -1)
        for entry in response.topics[0].partitions
    }


@pytest.mark.parametrize("version", range(2, 12))
def test_list_offsets_is_written_as_kafka_does(version: int) -> None:
    partitions_by_topic = {"a": [(0, 5), (300, -1)], "b": [(1, 0)]}
    body = b"".join(list_offsets.write_request(version, 1, partitions_by_topic, -2))
    parsed = list(list_offsets.partitions_in(body, 0, version))
    assert body.startswith(b"\xff\xff\xff\xff\x01")  # replica id and isolation level
    assert parsed == [(("a", 0), -2), (("a", 300), -2), (("b", 1), -2)]
    if version <= 10:  # as far as kafka-python knows
        request = ListOffsetsRequest.decode(body, version=version)
        assert {t.name: [p.partition_index for p in t.partitions] for t in request.topics} == {
            "a": [0, 300],
            "b": [1],
        }
        epochs = [p.current_leader_epoch for t in request.topics for p in t.partitions]
        assert epochs == ([5, -1, 0] if version >= 4 else [-1, -1, -1])
    else:
        assert body == b"".join(list_offsets.write_request(10, 1, partitions_by_topic, -2))


@pytest.mark.parametrize("version", [2, 3, 4])
def test_epoch_questions_are_written_as_kafka_does(version: int) -> None:
    body = b"".join(offset_for_leader_epoch.write_request(version, {"a": [(0, 5, 4), (3, 6, 1)]}))
    parsed = list(offset_for_leader_epoch.partitions_in(body, 0, version))
    assert parsed == [(("a", 0), 4), (("a", 3), 1)]
    request = OffsetForLeaderEpochRequest.decode(body, version=version)
    assert [p.current_leader_epoch for p in request.topics[0].partitions] == [5, 6]
    assert [p.leader_epoch for p in request.topics[0].partitions] == [4, 1]
    assert version < 3 or request.replica_id == -1


async def test_epochs_of_many_take_one_request_a_broker() -> None:
    fleet = Fleet()
    tps = [*tps_of("topic-0"), *tps_of("topic-1")]
    async with running(fleet) as cluster:
        log = LeaderLog(cluster)
        async with asyncio.TaskGroup() as group:
            ends = [group.create_task(log.epoch_end(tp, 3)) for tp in tps]
            other = group.create_task(log.epoch_end(tps[1], 4))
        for tp, end in zip(tps, ends, strict=True):
            assert end.result() == (7, EpochEnd(3, 300 + tp.partition))
        assert other.result() == (7, EpochEnd(4, 401))
        assert fleet.requests[ApiKey.OFFSET_FOR_LEADER_EPOCH] == len(NODES) + 1


async def test_epochs_are_told_while_another_partition_is_still_asked_about() -> None:
    fleet = Fleet()
    fleet.broken = ("topic-0", 4)
    tps = tps_of("topic-0", 10)
    async with running(fleet, request_max_ms=1_500) as cluster, asyncio.TaskGroup() as group:
        log = LeaderLog(cluster)
        asking = [group.create_task(refused(log, tp)) for tp in tps]
        await asking[3]
        assert not asking[4].done()
        await asyncio.wait(asking)
        assert [task.result() for task in asking] == [tp.partition == 4 for tp in tps]


async def refused(log: LeaderLog, tp: TopicIdPartition) -> bool:
    try:
        await log.epoch_end(tp, 3)
    except ClusterError as error:
        return error.error_code == BROKEN_DISK
    return False


async def test_who_asks_first_and_leaves_takes_the_answer_from_nobody() -> None:
    fleet = Fleet()
    tps = tps_of("topic-0", 3)
    async with running(fleet) as cluster, asyncio.TaskGroup() as group:
        log = LeaderLog(cluster)
        asking = [group.create_task(log.epoch_end(tp, 3)) for tp in tps]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        asking[0].cancel()
        for tp, task in zip(tps[1:], asking[1:], strict=True):
            assert await task == (7, EpochEnd(3, 300 + tp.partition))
