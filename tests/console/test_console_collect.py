"""The collector over a real (in-memory) archive; brokers are out of reach throughout."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from uuid import UUID

import pytest
from loop_turns import loop_turns
from memory_object_store import MemoryObjectStore
from prometheus_client import generate_latest
from test_console_partitions import TP, segment
from test_partition_watch import LAGGING

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig, Config, StoreConfig
from fetchproxy.console.collect import ConsoleLimits, StatusCollector, StatusSources
from fetchproxy.console.status import (
    DISPLAYED_CLIENTS_MAX,
    NO_PARTITIONS,
    ArchiverStatus,
    OffsetRange,
    PartitionQuery,
    largest_clients,
)
from fetchproxy.errors import StorageDenied, StorageUnavailable
from fetchproxy.metadata.archiver_positions import RecoveryPoint
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.observability import metrics
from fetchproxy.observability.health import Condition, Health, Kind, of_partition
from fetchproxy.observability.logs import RecentEvents, RecentLines
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import partition_folder
from fetchproxy.serving.consumer_pacing import ConsumerPaces
from fetchproxy.storage.archive_identity import LOOK_AGE_MAX_S, ArchiveIdentity
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.store_health import StoreOperation
from fetchproxy.storage.stores.object_store import StoredObject
from fetchproxy.writing.leadership import LeadershipState
from fetchproxy.writing.published_conditions import PublishedConditions
from fetchproxy.writing.status import PartitionArchiveStatus

CONFIG = Config(
    cluster=ClusterConfig(bootstrap="127.0.0.1:1", request_max_ms=200),
    store=StoreConfig(url="s3://me:hunter2@bucket"),
)
SELDOM = ConsoleLimits(archive_refresh_interval_ms=60_000)


class FailingStore(MemoryObjectStore):
    """Works until told otherwise."""

    failing = False
    unlisted = ""  # a folder on a disk that does not give it out
    listings = 0

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        self._check()
        self.listings += 1
        async for folder in super().list_folders(prefix):
            yield folder

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        self._check()
        if self.unlisted and prefix.startswith(self.unlisted):
            error = StorageUnavailable(f"the folder {prefix}: Input/output error")
            error.may_be_of_object = True
            raise error
        self.listings += 1
        async for stored_object in super().list(prefix, start_after):
            yield stored_object

    def _check(self) -> None:
        if self.failing:
            raise StorageUnavailable("refused for token=hunter2")


LEADERSHIP = LeadershipState("group", "stable", members=2, error="password=hunter2 is refused")


class Process:
    """What the collector sees of the process; tests change it."""

    def __init__(self) -> None:
        self.store = FailingStore()
        self.health = Health()
        self.work: dict[TopicIdPartition, PartitionArchiveStatus] = {}
        self.published_conditions = PublishedConditions()
        self.events = RecentEvents(clock=lambda: "now")
        self.lines = RecentLines()
        self.consumer_paces: ConsumerPaces | None = None
        self.recovery_point: RecoveryPoint | None = None
        self.exits = AsyncExitStack()

    async def __aenter__(self) -> Process:
        self.storage = storage = await self.exits.enter_async_context(RemoteStorage(self.store))
        self.rlmm = await self.exits.enter_async_context(
            StoreBackedRemoteLogMetadataManager(storage, CONFIG.metadata)
        )
        cluster = await self.exits.enter_async_context(Cluster(CONFIG.cluster))
        around = StatusSources(
            mode="serve",
            health=self.health,
            listeners=lambda: ["127.0.0.1:9192"],
            work=self.work.get,
            archiver=lambda: (LEADERSHIP, (3, 1), {"keys": "compacted, says password=hunter2"}),
            published_conditions=lambda: self.published_conditions,
            recovery_point=lambda: self.recovery_point,
            consumer_paces=lambda: self.consumer_paces,
        )
        self.collector = StatusCollector(
            CONFIG, storage, self.rlmm, cluster, around, self.events, limits=SELDOM
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.exits.aclose()

    async def archive(self, finished: RemoteLogSegmentMetadata) -> None:
        await self.rlmm.put(finished.with_state(RemoteLogSegmentState.COPY_SEGMENT_STARTED, 0))
        await self.rlmm.put(finished)


@pytest.fixture
async def process() -> AsyncIterator[Process]:
    async with Process() as process:
        yield process


@pytest.fixture(autouse=True)
def _gauges_given_back() -> Iterator[None]:
    yield
    metrics.ARCHIVE_END_OFFSET.clear()
    metrics.ARCHIVE_START_OFFSET.clear()


async def test_before_the_first_look_nothing_is_claimed(process: Process) -> None:
    waiting = Condition(Kind.GATEWAY_NOT_LISTENING, "it does not listen", missing="listener")
    process.health.report(waiting)
    status = await process.collector()
    assert status.partitions == ()
    assert status.store.up is None
    assert (status.missing, status.listeners) == (("listener",), ("127.0.0.1:9192",))


async def test_each_of_many_callers_makes_its_steps_in_turns_of_their_own(
    process: Process,
) -> None:
    """Sixty-four requests for the status on one connection held the loop for 20 ms a step."""
    callers = 64
    async with loop_turns() as turns:
        statuses = await asyncio.gather(*(process.collector() for _ in range(callers)))
        assert len(statuses) == callers
        assert turns.count > 2 * callers


async def test_clients_that_read_most_are_shown_and_the_rest_counted(process: Process) -> None:
    status = await process.collector()
    assert (status.clients, status.clients_total) == ((), 0)  # no listener yet
    consumer_paces = process.consumer_paces = ConsumerPaces(lambda: 7.0)
    entry = bytes(40)
    for number in range(DISPLAYED_CLIENTS_MAX + 250):  # in several turns of the loop
        reader = consumer_paces.reader(
            ("host", f"client-{number}"), 1, {(b"topic", 0): entry}, "", paced=False
        )
        reader.responded(1000 * (number % 277))
        reader.fetch_wait_s({(b"topic", 0): entry})
    status = await process.collector()
    assert status.clients_total == DISPLAYED_CLIENTS_MAX + 250
    assert [one.bytes_per_s for one in status.clients] == [
        1000 * number for number in range(276, 276 - DISPLAYED_CLIENTS_MAX, -1)
    ]
    assert (await process.collector(NO_PARTITIONS)).clients == ()


async def test_the_history_has_the_totals_of_all_partitions(process: Process) -> None:
    """The charts of the page showed 0 lost and 0 not archived, whatever the tiles said."""
    await process.archive(segment(0, 9))
    await process.archive(segment(15, 19))
    await process.collector.update()
    await process.collector.sample()
    (sample,) = process.collector.history.samples()
    totals = (await process.collector()).totals
    assert totals.size_bytes > 0
    assert sample.archive_bytes == totals.size_bytes
    assert sample.lost_offsets == totals.lost_offsets
    assert sample.lag_offsets == totals.lag_offsets


async def test_totals_do_not_depend_on_the_rows_that_are_shown(process: Process) -> None:
    await process.archive(segment(0, 9))
    await process.collector.update()
    every = await process.collector()
    none = await process.collector(PartitionQuery(rows_max=0))
    assert (none.partitions, none.totals) == ((), every.totals)
    assert none.totals.partitions == 1


async def test_a_client_that_leaves_while_others_are_looked_at_is_not_shown() -> None:
    consumer_paces = ConsumerPaces(lambda: 7.0)
    topic_ids = {(b"topic", 0): bytes(40)}
    readers = [
        consumer_paces.reader(("host", str(number)), 1, topic_ids, "", paced=False)
        for number in range(150)
    ]
    looking = asyncio.create_task(largest_clients(consumer_paces.consumers(), 7.0, {}))
    await asyncio.sleep(0)  # a hundred of them are looked at
    for reader in readers[100:]:
        reader.close()
    assert {row.client_id for row in await looking} <= {str(number) for number in range(100)}


async def test_archived_ranges_are_shown_without_brokers(process: Process) -> None:
    await process.archive(segment(0, 9))
    await process.collector.update()
    (row,) = (await process.collector()).partitions
    assert (row.topic, row.partition) == ("orders", 3)
    assert row.archived == (OffsetRange(0, 9),)
    assert row.log_end_offset is None
    assert (await process.collector()).store.up is True
    scraped = generate_latest(metrics.REGISTRY).decode()
    assert 'fetchproxy_archive_end_offset{partition="3",topic="orders"} 10.0' in scraped


async def test_gauges_of_what_the_archiver_manages_are_the_archivers(process: Process) -> None:
    process.work[TP] = LAGGING
    await process.archive(segment(0, 9))
    await process.collector.update()
    assert (await process.collector()).partitions[0].archived == (OffsetRange(0, 9),)
    assert "fetchproxy_archive_end_offset{" not in generate_latest(metrics.REGISTRY).decode()


async def test_what_the_process_learns_itself_is_shown_without_a_look(process: Process) -> None:
    await process.archive(segment(0, 9))
    await process.collector.update()
    await process.archive(segment(10, 19))
    assert (await process.collector()).partitions[0].archived == (OffsetRange(0, 19),)
    failing = of_partition(Kind.PARTITION_FAILING, TP, "copy failed: password=hunter2")
    process.published_conditions.health.hold(failing, TP)
    [condition] = (await process.collector()).conditions
    assert (condition["kind"], condition["what"]) == (failing.kind, "copy failed: password=•••")
    assert (await process.collector()).headlines == (), "it is tried again"


async def test_in_an_outage_the_last_known_ranges_stand(process: Process) -> None:
    await process.archive(segment(0, 9))
    await process.collector.update()
    process.store.failing = True
    await process.collector.update()  # although the next full look is a minute away
    status = await process.collector()
    assert status.store.up is False
    assert metrics.REGISTRY.get_sample_value("fetchproxy_store_up", {"operation": "list"}) == 0
    assert status.store.last_error == "StorageUnavailable: refused for token=•••"
    assert status.partitions[0].archived == (OffsetRange(0, 9),)
    process.store.failing = False
    await process.collector.update()  # a store that failed is looked at again at once
    assert (await process.collector()).store.up is True
    assert metrics.REGISTRY.get_sample_value("fetchproxy_store_up", {"operation": "list"}) == 1


async def test_a_folder_that_cannot_be_listed_is_named_and_the_others_are_looked_at(
    process: Process,
) -> None:
    await process.storage.identity.state(ArchiveIdentity(UUID(int=5), None, "store"))
    other = TopicIdPartition(TP.topic_id, TP.topic, TP.partition + 1)
    one = segment(0, 9)
    for tp in (TP, other):
        # Another process archives it: only a look at the store shows it.
        put = replace(one, segment_id=RemoteLogSegmentId(tp, one.segment_id.id))
        await process.storage.objects.put_segment_metadata(put, encode_segment(put))
    process.store.unlisted = partition_folder("", TP)
    await process.collector.update()
    status = await process.collector()
    ranges = {row.partition: row.archived for row in status.partitions}
    assert ranges[other.partition] == (OffsetRange(0, 9),)
    [condition] = status.conditions
    assert condition["kind"] == Kind.ARCHIVE_LISTING_FAILING
    assert "Input/output error" in str(condition["what"])
    process.store.unlisted = ""
    await process.collector.update()
    status = await process.collector()
    assert status.conditions == ()
    assert [row.archived for row in status.partitions] == [(OffsetRange(0, 9),)] * 2


@pytest.mark.remedy("archive_listing_failing")
async def test_an_archive_that_is_gone_from_a_sound_store_is_named_until_it_is_back(
    process: Process,
) -> None:
    """The remedy is to read the error, which says what is wrong and where."""
    await process.storage.identity.state(ArchiveIdentity(UUID(int=5), None, "store"))
    await process.storage.identity.look()
    await process.archive(segment(0, 9))
    await process.collector.update()
    assert (await process.collector()).conditions == ()
    gone = {
        stored_object.key: await process.store.get(stored_object.key)
        async for stored_object in process.store.list("")
    }
    for key in gone:
        await process.store.delete(key)
    await asyncio.sleep(LOOK_AGE_MAX_S)
    await process.collector.update()
    status = await process.collector()
    [condition] = status.conditions
    assert condition["kind"] == Kind.ARCHIVE_LISTING_FAILING
    assert "there is no archive" in str(condition["what"])
    assert status.store.up is False
    assert status.partitions[0].archived == (OffsetRange(0, 9),), "what was known before"
    for key, content in gone.items():
        await process.store.put(key, content)
    await process.collector.update()
    status = await process.collector()
    assert (status.conditions, status.store.up) == ((), True)


async def test_between_full_looks_one_listing_is_enough(process: Process) -> None:
    for partition in range(5):
        tp = TopicIdPartition(TP.topic_id, "orders", partition)
        one = segment(0, 9)
        await process.archive(replace(one, segment_id=RemoteLogSegmentId(tp, one.segment_id.id)))
    await process.collector.update()
    before = process.store.listings
    await process.collector.update()
    assert process.store.listings == before + 1


@pytest.mark.parametrize("operation", StoreOperation)
async def test_an_outage_of_one_operation_counts_at_once_and_is_named(
    process: Process, operation: StoreOperation
) -> None:
    await process.collector.update()
    now = asyncio.get_running_loop().time()
    process.storage.health[operation].succeeded(now - 20)
    process.storage.health[operation].failed(now, now - 12.04, StorageDenied("token=hunter2"))
    store = (await process.collector()).store
    error = "StorageDenied: token=•••"
    assert (store.url, store.up, store.last_error) == ("s3://•••@bucket", False, error)
    assert 12 <= store.failing_seconds < 60
    assert [name for name, one in store.operations.items() if one.up is False] == [operation]
    assert metrics.STORE_UP.labels(operation)._value.get() == 0
    process.storage.health[operation].succeeded(now)
    assert (await process.collector()).store.up


async def test_what_an_operator_has_to_see_to_is_a_headline(process: Process) -> None:
    assert (await process.collector()).headlines == ()
    process.published_conditions.hold(
        Kind.LOCAL_TRIMMING_STOPPED,
        TP,
        "nothing is trimmed: https://user:hunter2@store/x is missing",
    )
    status = await process.collector()
    [headline] = status.headlines
    assert "nothing is trimmed" in headline
    assert "hunter2" not in headline
    assert [one["what"] for one in status.conditions] == [headline]


async def test_a_deleted_partition_goes(process: Process) -> None:
    other = TopicIdPartition(UUID(int=9), "other", 0)
    await process.archive(segment(0, 9))
    process.collector._archived = (other,)
    await process.collector.update()
    assert [p.topic for p in (await process.collector()).partitions] == ["orders"]


async def test_how_the_archiver_stands_to_others(process: Process) -> None:
    assert (await process.collector()).archiver == ArchiverStatus(
        leadership="group",
        state="stable",
        leads=3,
        follows=1,
        members=2,
        error="password=••• is refused",
        refused={"keys": "compacted, says password=•••"},
    )


async def test_events_and_counts_are_the_processs_own(process: Process) -> None:
    before = (await process.collector()).remote_reads["catches"]
    metrics.CATCHES.labels("orders").inc(2)
    process.events.note("catch", topic="orders")
    status = await process.collector()
    assert status.remote_reads["catches"] == before + 2
    assert [(event.event, event.details) for event in status.events] == [
        ("catch", {"topic": "orders"})
    ]


async def test_gauges_go_with_their_partition_and_those_of_its_name_stay(process: Process) -> None:
    def partitions_with_gauges() -> list[tuple[str, ...]]:
        return [key for key in metrics.ARCHIVE_END_OFFSET._metrics if key[0] == TP.topic]

    process.collector.limits = ConsoleLimits(archive_refresh_interval_ms=0)
    old = segment(0, 9)
    again = TP._replace(topic_id=UUID(int=99))
    new = replace(old, segment_id=RemoteLogSegmentId(again, UUID(int=2)), end_offset=19)
    for finished in (old, new):
        await process.archive(finished)
    await process.collector.update()
    for finished in (old, new):
        assert partitions_with_gauges() == [(TP.topic, str(TP.partition))]
        await process.storage.rsm.delete_log_segment_data(finished)
        await process.collector.update()
    assert partitions_with_gauges() == []


async def test_what_would_be_lost_with_the_cluster_is_in_the_status(process: Process) -> None:
    assert (await process.collector()).recovery_point is None
    process.recovery_point = RecoveryPoint(2_100, 8_204)
    assert (await process.collector()).recovery_point == RecoveryPoint(2_100, 8_204)
