"""A deleted topic's archive: the conditions of its deletion, and that nothing of it stays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest
from failing_store import FailingStore
from kafka.protocol.metadata.metadata import MetadataResponse
from memory_metadata_log import MemoryMetadataLog
from planted_archive import PlantedArchive, batch
from scripted_broker import TOPIC, TOPIC_ID, ScriptedBroker, encode, serving
from taken_settings import take_into

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ArchiveConfig, ClusterConfig, MetadataConfig
from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicBasedRemoteLogMetadataManager, metadata_partition
from fetchproxy.model import RemoteLogSegmentState, TopicIdPartition
from fetchproxy.observability.health import headlines
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.records import encode_message
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.deletion.partition_deletion import (
    ClusterTopics,
    PartitionDeletion,
    decode_cluster_topics,
    doubt_of_cluster,
    encode_cluster_topics,
    moved_on,
)
from fetchproxy.writing.published_conditions import PublishedConditions

TPS = [TopicIdPartition(TOPIC_ID, TOPIC, partition) for partition in (0, 1)]
BYSTANDER = TopicIdPartition(UUID(int=8), "other", 0)
METADATA = 3
UNKNOWN_TOPIC, LEADER_NOT_AVAILABLE, NOT_AUTHORIZED, UNKNOWN_ID = 3, 5, 29, 100

Topic = tuple[str | None, UUID, int]  # name, id, error code
ALIVE: Topic = (TOPIC, TOPIC_ID, 0)
OTHER: Topic = ("other", BYSTANDER.topic_id, 0)
NO_NAME: Topic = (TOPIC, UUID(int=0), UNKNOWN_TOPIC)
NO_ID: Topic = (None, TOPIC_ID, UNKNOWN_ID)
GONE = (OTHER, NO_NAME, NO_ID)


@dataclass
class DecidedBroker(ScriptedBroker):
    """Answers every Metadata request with the same topics."""

    cluster_id: str | None = "c"
    topics: tuple[Topic, ...] = (ALIVE, OTHER)

    def response(self, api_key: int, version: int, correlation_id: int) -> bytes | None:
        if api_key != METADATA:
            return super().response(api_key, version, correlation_id)
        message = self._metadata()
        message.cluster_id = self.cluster_id
        [sample] = message.topics
        message.topics = [self._topic(sample, *topic) for topic in self.topics]
        return encode(message, version, correlation_id)

    @staticmethod
    def _topic(sample: Any, name: str | None, topic_id: UUID, error_code: int) -> Any:
        return MetadataResponse.MetadataResponseTopic(
            error_code=error_code,
            name=name,
            topic_id=topic_id,
            is_internal=False,
            partitions=[] if error_code else sample.partitions,
        )


@dataclass
class Life:
    broker: DecidedBroker
    cluster: Cluster
    store: FailingStore
    planted: PlantedArchive
    log: MemoryMetadataLog | None  # None: metadata is managed in the store

    @asynccontextmanager
    async def process(
        self,
        grace_ms: int = 0,
        topic_deletion: Any = "delete",
        published_conditions: PublishedConditions | None = None,
    ) -> AsyncIterator[PartitionDeletion]:
        storage = RemoteStorage(self.store, "archive")
        config = ArchiveConfig(topic_deletion_grace_ms=grace_ms, topic_deletion=topic_deletion)
        async with AsyncExitStack() as opened:
            rlmm: RemoteLogMetadataManager
            if self.log is None:
                rlmm = await opened.enter_async_context(
                    StoreBackedRemoteLogMetadataManager(storage, MetadataConfig())
                )
            else:
                rlmm = await opened.enter_async_context(
                    TopicBasedRemoteLogMetadataManager(
                        self.log, storage, MetadataConfig(), wall_clock_ms=lambda: 1_000
                    )
                )
            yield PartitionDeletion(
                config,
                self.cluster,
                storage.rsm,
                storage.objects,
                rlmm,
                wall_clock_ms=lambda: 1_000,
                published_conditions=published_conditions or PublishedConditions(),
            )

    async def look(self) -> None:
        """Look as a new process, without earlier knowledge."""
        async with self.process() as deletion:
            await deletion.look()

    def of_the_topic(self) -> set[str]:
        return {key for key in self.store.objects() if f"/{TOPIC}-" in key}


@asynccontextmanager
async def life(manager: str = "store") -> AsyncIterator[Life]:
    store = FailingStore()
    log = MemoryMetadataLog() if manager == "topic" else None
    planted = PlantedArchive(store, recorded=False)
    for tp in (*TPS, BYSTANDER):
        await planted.add([batch(0)], tp=tp)
    await planted.add([batch(10)], tp=TPS[0])
    for metadata in planted.segments if log is not None else ():
        number = metadata_partition(metadata.topic_id_partition, len(log.logs))
        begun = replace(metadata, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
        for event in (begun, metadata):
            await log.append(number, encode_message(event))
    broker = DecidedBroker()
    async with (
        serving(broker) as bootstrap,
        Cluster(ClusterConfig(bootstrap=bootstrap, request_max_ms=30_000)) as cluster,
    ):
        yield Life(broker, cluster, store, planted, log)


with_both = pytest.mark.parametrize("manager", ["store", "topic"])


@with_both
async def test_nothing_of_it_stays(manager: str) -> None:
    async with life(manager) as world:
        first, second = world.planted.segments[0], world.planted.segments[3]
        await world.look()
        # Any leftovers: an orphan, a log start, unreadable metadata, an attempt.
        orphan = replace(first, segment_id=replace(first.segment_id, id=UUID(int=77)))
        await world.store.put(world.planted.key(orphan, SegmentFile.LOG), b"left")
        await world.planted.storage.objects.put_log_start_offset(TPS[0], 3, b"3")
        await world.planted.change(first, SegmentFile.METADATA, lambda _: b"{")
        begun = RemoteLogSegmentState.COPY_SEGMENT_STARTED
        await world.planted.restate(replace(second, state=begun))
        others = world.store.objects() - world.of_the_topic()
        world.broker.topics = GONE
        await world.look()
        assert world.of_the_topic() == set()
        assert world.store.objects() == others
        await world.look()  # it finds nothing to do


@pytest.mark.parametrize(
    ("topics", "cluster_id"),
    [
        pytest.param((OTHER, (TOPIC, TOPIC_ID, NOT_AUTHORIZED)), "c", id="not authorized"),
        pytest.param((OTHER, NO_NAME, (None, TOPIC_ID, NOT_AUTHORIZED)), "c", id="id forbidden"),
        pytest.param(((TOPIC, UUID(int=0), NOT_AUTHORIZED), NO_ID), "c", id="name forbidden"),
        pytest.param((ALIVE, NO_ID), "c", id="alive by name"),
        pytest.param(((TOPIC, TOPIC_ID, LEADER_NOT_AVAILABLE),), "c", id="no leader"),
        pytest.param(GONE, "another", id="another cluster"),
        pytest.param(GONE, None, id="a cluster without id"),
    ],
)
async def test_misunderstandings(topics: tuple[Topic, ...], cluster_id: str | None) -> None:
    async with life() as world:
        await world.look()
        before = world.of_the_topic()
        world.broker.topics, world.broker.cluster_id = topics, cluster_id
        async with world.process() as deletion:
            for _ in range(3):
                await deletion.look()
        assert world.of_the_topic() == before


async def test_an_archive_that_nobody_has_seen_alive_here() -> None:
    """It may be attached, restored, or older than this rule."""
    async with life() as world:
        world.broker.topics = GONE
        before = world.of_the_topic()
        async with world.process() as deletion:
            for _ in range(3):
                await deletion.look()
        assert world.of_the_topic() == before


async def test_brokers_that_are_away_deny_nothing() -> None:
    async with life() as world:
        await world.look()
        before = world.of_the_topic()
        gone = ClusterConfig(bootstrap="127.0.0.1:1", request_max_ms=200)
        async with (
            Cluster(gone) as nowhere,
            replace(world, cluster=nowhere).process() as deletion,
        ):
            with pytest.raises(ClusterError):
                await deletion.look()
        assert world.of_the_topic() == before


async def test_the_grace_begins_anew_whenever_it_is_seen() -> None:
    async with life() as world:
        await world.look()
        async with world.process(grace_ms=300) as deletion:
            for _ in range(8):
                world.broker.topics = GONE
                await deletion.look()
                await asyncio.sleep(0.1)
                world.broker.topics = (ALIVE, OTHER)
                await deletion.look()
            assert len(world.of_the_topic()) == 3 * 4 + 1
            world.broker.topics = GONE
            began_at = asyncio.get_running_loop().time()
            while world.of_the_topic():
                await deletion.look()
            assert asyncio.get_running_loop().time() - began_at >= 0.3


async def test_created_again_under_its_name() -> None:
    async with life() as world:
        await world.look()
        again = TopicIdPartition(UUID(int=9), TOPIC, 0)
        added = await world.planted.add([batch(0)], tp=again)
        world.broker.topics = (OTHER, (TOPIC, again.topic_id, 0), NO_ID)
        await world.look()
        objects_left = world.of_the_topic()
        assert {world.planted.key(added, SegmentFile.LOG)} < objects_left
        assert all(
            key.split("/")[1] == objects_left.copy().pop().split("/")[1] for key in objects_left
        )


@with_both
@pytest.mark.parametrize("response_lost", [False, True])
async def test_every_write_may_be_the_last(response_lost: bool, manager: str) -> None:
    """Another process continues and does not wait for a grace of the deletion in progress."""
    at = 0
    while True:
        async with life(manager) as world:
            await world.look()
            others = world.store.objects() - world.of_the_topic()
            world.broker.topics = GONE
            world.store.fail(at, response_lost=response_lost)
            try:
                await world.look()
            except RemoteStorageError:
                assert world.store.failed
            if not world.store.failed:
                break
            async with world.process() as deletion:
                await deletion.look()
            assert world.store.objects() == others
        at += 1
    assert at > 20


async def test_one_that_was_started_waits_for_no_second_grace() -> None:
    async with life() as world:
        await world.look()
        world.broker.topics = GONE
        world.store.fail(8)
        with pytest.raises(RemoteStorageError):
            await world.look()
        objects_left = {key for key in world.of_the_topic() if f"/{TPS[0].partition}/" in key}
        assert objects_left
        async with world.process(grace_ms=3_600_000) as deletion:
            await deletion.look()
        # The other partition's deletion had not begun, so it waits.
        assert {key.split("/")[2] for key in world.of_the_topic()} == {"1", "cluster-id"}


@with_both
async def test_two_archivers_delete_a_partition_at_once(manager: str) -> None:
    async with life(manager) as world:
        await world.look()
        world.broker.topics = GONE
        async with world.process() as one, world.process() as two, asyncio.TaskGroup() as tasks:
            tasks.create_task(one.look())
            tasks.create_task(two.look())
        await world.look()
        assert world.of_the_topic() == set()


# --- the same cluster id, another cluster ---
NEW: Topic = ("orders", UUID(int=101), 0)
NEW_OTHER: Topic = ("other", UUID(int=102), 0)
NO_OTHER_ID: Topic = (None, BYSTANDER.topic_id, UNKNOWN_ID)
WIPED = (NO_NAME, NO_ID, ("other", UUID(int=0), UNKNOWN_TOPIC), NO_OTHER_ID)


@with_both
@pytest.mark.parametrize(
    "topics",
    [
        pytest.param(WIPED, id="empty"),
        pytest.param((NEW, NEW_OTHER, NO_ID, NO_OTHER_ID), id="all made again"),
        pytest.param((NEW_OTHER, NO_NAME, NO_ID, NO_OTHER_ID), id="one made again"),
    ],
)
@pytest.mark.remedy("topic_deletion_stopped")
async def test_a_cluster_that_was_formatted_anew_with_its_id(
    topics: tuple[Topic, ...], manager: str
) -> None:
    """Also after restarts, and when the new cluster's topics are archived themselves."""
    async with life(manager) as world:
        await world.look()
        for number in (101, 102):
            await world.planted.add([batch(0)], tp=TopicIdPartition(UUID(int=number), "orders", 0))
        before = {key for key in world.store.objects() if not key.endswith("/cluster-id")}
        world.broker.topics = topics
        published_conditions = PublishedConditions()
        for _ in range(3):
            async with world.process(published_conditions=published_conditions) as deletion:
                for _ in range(3):
                    await deletion.look()
            assert before <= world.store.objects()
            [headline] = headlines(published_conditions.health.conditions(0.0))
            assert "none of the 2 topics" in headline
            assert "archive.topic_deletion=delete-all" in headline
        # The operator's decision.
        async with world.process(
            topic_deletion="delete-all", published_conditions=published_conditions
        ) as deletion:
            await deletion.look()
        assert headlines(published_conditions.health.conditions(0.0)) == ()
        logs = [world.planted.key(s, SegmentFile.LOG) for s in world.planted.segments]
        assert not set(logs[:4]) & world.store.objects()


async def test_kept_by_a_persons_word_for_good() -> None:
    async with life() as world:
        await world.look()
        before = world.store.objects()
        world.broker.topics = (NEW, NEW_OTHER, NO_ID, NO_OTHER_ID)
        async with world.process(topic_deletion="keep") as deletion:
            await deletion.look()
        published_conditions = PublishedConditions()
        async with world.process(published_conditions=published_conditions) as deletion:
            for _ in range(3):
                await deletion.look()
        assert headlines(published_conditions.health.conditions(0.0)) == ()
        assert before <= world.store.objects()


async def test_it_shows_itself_again() -> None:
    async with life() as world:
        await world.look()
        before = world.store.objects()
        published_conditions = PublishedConditions()
        async with world.process(published_conditions=published_conditions) as deletion:
            world.broker.topics = WIPED
            await deletion.look()
            assert len(headlines(published_conditions.health.conditions(0.0))) == 1
            world.broker.topics = (ALIVE, OTHER)
            await deletion.look()
            assert headlines(published_conditions.health.conditions(0.0)) == ()
        assert world.store.objects() == before


async def test_an_archive_from_before_the_topics_were_noted_stays() -> None:
    async with life() as world:
        await world.look()
        [noted] = [key for key in world.store.objects() if "/clusters/" in key]
        await world.store.delete(noted)
        world.broker.topics = GONE
        await world.look()
        assert len(world.of_the_topic()) == 3 * 4 + 1


@pytest.mark.parametrize(
    ("alive", "denied", "stops"),
    [
        ({1, 2, 3}, set(), False),
        ({2, 3, 9}, {1}, False),
        ({9}, {1, 2, 3}, True),  # an unarchived one is still there
        ({3, 9}, {1, 2}, True),
        (set(), {1, 2, 3}, True),
        ({20}, {1}, True),  # 2 and 3 may be hidden
        ({20}, set(), False),
        ({1, 2, 20}, {3}, False),
    ],
)
def test_how_many_at_once(alive: set[int], denied: set[int], stops: bool) -> None:
    before = ClusterTopics(frozenset(map(uuid, (1, 2, 3, 9))))
    sets = [frozenset(map(uuid, some)) for some in (alive, denied, {1, 2, 3})]
    assert (doubt_of_cluster(before, *sets) is not None) == stops


def test_one_by_one_all_may_go() -> None:
    topics = ClusterTopics(frozenset(map(uuid, range(10))))
    archived = frozenset(map(uuid, range(9)))
    for number in range(9):
        alive = frozenset(map(uuid, range(number + 1, 10)))
        denied = frozenset(map(uuid, range(number + 1)))
        assert doubt_of_cluster(topics, alive, denied, archived) is None
        topics = moved_on(topics, alive, denied, archived)
        assert topics == ClusterTopics(alive, denied)
        assert decode_cluster_topics(encode_cluster_topics("c", topics)) == topics


def uuid(number: int) -> UUID:
    return UUID(int=number)


@pytest.mark.live("archive.topic_deletion", "archive.topic_deletion_grace_ms")
async def test_the_settings_of_deletion_may_change() -> None:
    async with life() as world:
        await world.look()
        async with world.process(grace_ms=3_600_000, topic_deletion="delete") as deletion:
            await deletion.look()
            world.broker.topics = GONE
            await deletion.look()
            assert world.of_the_topic()
            take_into(deletion.config, topic_deletion="keep", topic_deletion_grace_ms=0)
            await deletion.look()
            assert world.of_the_topic(), "archives are kept"
        async with world.process(grace_ms=3_600_000, topic_deletion="delete") as deletion:
            world.broker.topics = (ALIVE, OTHER)
            await deletion.look()
            world.broker.topics = GONE
            await deletion.look()
            take_into(deletion.config, topic_deletion_grace_ms=0)
            await deletion.look()
            assert not world.of_the_topic()
