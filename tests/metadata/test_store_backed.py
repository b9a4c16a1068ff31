"""The store-backed manager: the contract on two stores, and its own behavior."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from uuid import UUID

import pytest
from memory_object_store import MemoryObjectStore
from metadata_contract import (
    OTHER,
    TP,
    Backing,
    MetadataContract,
    State,
    copied,
    now,
    segment,
    until,
)
from scripted_store import ScriptedStore

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.metadata.remote_log_metadata_manager import READ_MAX_MS, READS_AT_ONCE_MAX
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.metrics import METADATA_UNREADABLE
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import SegmentFile, partition_folder
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore


class StoreBacking(Backing):
    def __init__(self, store: ScriptedStore) -> None:
        self.store = store
        self.storage = RemoteStorage(store, "archive")

    def manager(
        self,
        config: MetadataConfig | None = None,
        reads_max: int = READS_AT_ONCE_MAX,
        read_max_ms: int = READ_MAX_MS,
    ) -> AbstractAsyncContextManager[StoreBackedRemoteLogMetadataManager]:
        return StoreBackedRemoteLogMetadataManager(
            self.storage, config or MetadataConfig(), reads_max=reads_max, read_max_ms=read_max_ms
        )

    def reads(self, tp: TopicIdPartition) -> int:
        return self.store.count("list", partition_folder("archive/", tp))

    def hold(self) -> None:
        self.store.door.clear()

    def release(self) -> None:
        self.store.door.set()

    def fail(self) -> None:
        self.store.error = StorageUnavailable("the store is away")

    def heal(self) -> None:
        self.store.error = None

    def key(self, metadata: RemoteLogSegmentMetadata) -> str:
        return self.storage.rsm.object_key(metadata, SegmentFile.METADATA)


async def ready(backing: StoreBacking) -> StoreBacking:
    """Write an object and delete it, so that the layout is known and not read again."""
    once = segment(99, 0, 0, tp=OTHER)
    await backing.storage.objects.put_segment_metadata(once, encode_segment(once))
    await backing.storage.rsm.delete_log_segment_data(once)
    return backing


@pytest.fixture
async def memory() -> AsyncIterator[StoreBacking]:
    async with ScriptedStore(MemoryObjectStore()) as store:
        yield await ready(StoreBacking(store))


class TestOnMemory(MetadataContract):
    @pytest.fixture
    async def backing(self, memory: StoreBacking) -> StoreBacking:
        return memory

    async def delete_data(self, backing: Backing, metadata: RemoteLogSegmentMetadata) -> None:
        assert isinstance(backing, StoreBacking)
        await backing.storage.rsm.delete_log_segment_data(metadata)


class TestOnFilesystem(MetadataContract):
    @pytest.fixture
    async def backing(self, tmp_path: Path) -> AsyncIterator[StoreBacking]:
        async with ScriptedStore(FilesystemObjectStore(tmp_path, create=True)) as store:
            yield await ready(StoreBacking(store))

    async def delete_data(self, backing: Backing, metadata: RemoteLogSegmentMetadata) -> None:
        assert isinstance(backing, StoreBacking)
        await backing.storage.rsm.delete_log_segment_data(metadata)


async def test_only_new_and_changed_objects_are_read(memory: StoreBacking) -> None:
    async with memory.manager() as writer, memory.manager() as reader:
        for i in range(5):
            await copied(writer, segment(i, 10 * i, 10 * i + 9))
        await reader.refresh(TP, now())
        assert memory.store.count("get", ".metadata") == 5
        await reader.refresh(TP, now())
        assert memory.store.count("get", ".metadata") == 5
        await copied(writer, segment(9, 50, 59))
        last = segment(4, 40, 49, State.DELETE_SEGMENT_STARTED)
        await writer.put(last)
        view = await reader.refresh(TP, now())
        assert memory.store.count("get", ".metadata") == 7
        assert view.gaps() == [(40, 49)]


async def test_a_listing_without_news_makes_no_segment_anew(memory: StoreBacking) -> None:
    """To rebuild a view of thousands of segments each time would hold up the event loop."""
    async with memory.manager() as writer, memory.manager() as reader:
        for i in range(5):
            await copied(writer, segment(i, 10 * i, 10 * i + 9))
        first = await reader.refresh(TP, now())
        again = await reader.refresh(TP, now())
        assert again.segments is first.segments
        assert again.read_at > first.read_at
        await writer.raise_log_start_offset(TP, 15)
        raised = await reader.refresh(TP, now())
        assert (raised.raised_log_start, first.raised_log_start) == (15, 0)
        # The reader's own put is not part of its last read.
        gone = segment(4, 40, 49, State.DELETE_SEGMENT_STARTED)
        await reader.put(gone)
        await memory.storage.objects.put_segment_metadata(
            old := segment(4, 40, 49, State.COPY_SEGMENT_FINISHED), encode_segment(old)
        )
        assert len((await reader.refresh(TP, now())).segments) == len(raised.segments)


async def test_reads_at_once_are_bounded(memory: StoreBacking) -> None:
    async with memory.manager() as writer:
        for i in range(20):
            await copied(writer, segment(i, 10 * i, 10 * i + 9))
    memory.store.gets_let_through = 0
    async with memory.manager(reads_max=3) as reader:
        async with asyncio.TaskGroup() as group:
            group.create_task(reader.refresh(TP, now()))
            for _ in range(50):
                await asyncio.sleep(0)
            assert memory.store.count("get", ".metadata") == 3
            memory.store.gets_let_through = None
            memory.release()
        view = reader.view(TP)
        assert view is not None
        assert len(view.segments) == 20


async def test_a_read_that_takes_too_long_is_an_outage_and_keeps_what_it_got(
    memory: StoreBacking,
) -> None:
    async with memory.manager() as writer:
        for i in range(10):
            await copied(writer, segment(i, 10 * i, 10 * i + 9))
    memory.store.gets_let_through = 7
    async with memory.manager(reads_max=1, read_max_ms=5_000) as reader:
        with pytest.raises(StorageUnavailable, match=r"not done within 5 s"):
            await reader.refresh(TP, now())
        assert reader.view(TP) is None
        memory.store.gets_let_through = None
        memory.release()
        before = memory.store.count("get", ".metadata")
        assert len((await reader.refresh(TP, now())).segments) == 10
        assert memory.store.count("get", ".metadata") == before + 3


@pytest.mark.parametrize("whole_topic", [False, True])
async def test_what_a_failed_read_has_got_is_in_the_view_of_the_next(
    memory: StoreBacking, whole_topic: bool
) -> None:
    """The failed read had read all new objects, so the next one has none left to read."""
    neighbour = TopicIdPartition(TP.topic_id, TP.topic, TP.partition + 1)
    async with memory.manager() as writer, memory.manager(reads_max=1) as reader:
        await copied(writer, segment(0, 0, 9))
        await copied(writer, segment(1, 0, 9, tp=neighbour))
        await reader.refresh_topic(TP.topic_id, now())
        await copied(writer, segment(2, 10, 19))
        await copied(writer, segment(3, 10, 19, tp=neighbour))
        memory.store.gets_let_through = 1
        reader._read_max_ms = 500  # only for the read that fails
        with pytest.raises(StorageUnavailable):
            await reader.refresh_topic(TP.topic_id, now())
        reader._read_max_ms = READ_MAX_MS
        memory.store.gets_let_through = None
        memory.release()
        if whole_topic:
            await reader.refresh_topic(TP.topic_id, now())
        for tp in (TP, neighbour):
            assert (await reader.refresh(tp, now())).log_end_offset == 20


class SlowStore(ScriptedStore):
    """Each page and each object takes 250 ms."""

    async def _pass(self, verb: str, what: str) -> None:
        await asyncio.sleep(0.25)
        await super()._pass(verb, what)


@pytest.mark.parametrize("whole_topic", [False, True])
async def test_a_read_that_takes_long_but_goes_on_is_not_given_up(whole_topic: bool) -> None:
    inner = MemoryObjectStore()
    async with StoreBacking(ScriptedStore(inner)).manager() as writer:
        for i in range(20):
            await copied(writer, segment(i, 10 * i, 10 * i + 9))
    async with StoreBacking(SlowStore(inner)).manager(reads_max=1, read_max_ms=4_000) as reader:
        begun = now()
        if whole_topic:
            await reader.refresh_topic(TP.topic_id, begun)
        assert len((await reader.refresh(TP, begun)).segments) == 20
        assert now() - begun > 4


@pytest.mark.parametrize("fault", ["garbage", "foreign", "newer"])
async def test_one_unreadable_object_hides_nothing_else(memory: StoreBacking, fault: str) -> None:
    async with memory.manager() as writer, memory.manager() as reader:
        segments = [await copied(writer, segment(i, 10 * i, 10 * i + 9)) for i in range(3)]
        content = {
            "garbage": b"\x00\xff",
            "foreign": encode_segment(segments[0]),
            "newer": b'{"version": 7}',
        }[fault]
        await memory.store.put(memory.key(segments[1]), content)
        view = await reader.refresh(TP, now())
        assert view.segments == (segments[0], segments[2])
        assert not view.gap_at(15)  # an OffsetOutOfRange here would make a client skip data
        assert view.uncertain_at(15)
        (problem,) = reader.problems(TP)
        assert (problem.object_key, problem.first_offset) == (memory.key(segments[1]), 10)
        assert memory.key(segments[1]) in problem.what
        gets = memory.store.count("get", ".metadata")
        reported = METADATA_UNREADABLE._value.get()
        await reader.refresh(TP, now())
        # read again, as it may have been damaged in transit, but not reported again
        assert memory.store.count("get", ".metadata") == gets + 1
        assert METADATA_UNREADABLE._value.get() == reported
        await memory.store.put(memory.key(segments[1]), encode_segment(segments[1]))
        healed = await reader.refresh(TP, now())
        assert healed.segments == tuple(segments)
        assert reader.problems(TP) == ()


async def test_an_object_deleted_between_list_and_get_is_gone(memory: StoreBacking) -> None:
    async with memory.manager() as writer:
        segments = [await copied(writer, segment(i, 10 * i, 10 * i + 9)) for i in range(2)]
    memory.hold()
    async with memory.manager() as reader, asyncio.TaskGroup() as group:
        reading = group.create_task(reader.refresh(TP, now()))
        await until(lambda: memory.reads(TP) == 2)
        await memory.store.inner.delete(memory.key(segments[0]))
        memory.release()
        assert (await reading).segments == (segments[1],)


async def test_a_deleted_partition_is_no_longer_known(memory: StoreBacking) -> None:
    async with memory.manager() as manager:
        finished = await copied(manager, segment(1, 0, 9))
        await memory.storage.rsm.delete_log_segment_data(finished)
        assert list(await manager.list_partitions()) == []


async def test_what_is_put_during_a_listing_is_in_its_answer(memory: StoreBacking) -> None:
    async with memory.manager() as manager, asyncio.TaskGroup() as group:
        await manager.refresh(OTHER, now())
        memory.hold()
        calls = memory.store.count("list_folders")
        archive = group.create_task(manager.list_partitions())
        await until(lambda: memory.store.count("list_folders") == calls + 1)
        await manager.put(segment(1, 0, 9, tp=OTHER))
        await memory.store.inner.delete(memory.key(segment(1, 0, 9, tp=OTHER)))  # listed too early
        memory.release()
        assert list(await archive) == [OTHER]


async def test_put_shows_in_its_own_view_without_a_read(memory: StoreBacking) -> None:
    async with memory.manager() as manager:
        before = await manager.refresh(TP, now())
        reads = memory.reads(TP)
        finished = await copied(manager, segment(1, 0, 9))
        view = manager.view(TP)
        assert view is not None
        assert view.segments == (finished,)
        assert view.read_at == before.read_at  # it claims no newer read
        assert memory.reads(TP) == reads


async def test_what_is_put_during_a_read_is_not_lost_by_it(memory: StoreBacking) -> None:
    async with memory.manager() as manager:
        first_segment = await copied(manager, segment(1, 0, 9))
        gone = await copied(manager, segment(2, 10, 19))
        deleting = gone.with_state(State.DELETE_SEGMENT_STARTED, 1)
        memory.hold()
        reads = memory.reads(TP)
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(manager.refresh(TP, now()))
            await until(lambda: memory.reads(TP) == reads + 1)
            # The read has not seen the following puts.
            finished = await copied(manager, segment(3, 20, 29))
            await manager.put(deleting)
            memory.release()
        assert reading.result().segments == (first_segment, finished)
        assert manager.view(TP) is reading.result()
        view = await manager.refresh(TP, now())
        assert view.segments == (first_segment, finished)


# --- whole topics ---
async def test_a_topic_takes_one_listing_whatever_its_partitions(memory: StoreBacking) -> None:
    tps = [TopicIdPartition(TP.topic_id, TP.topic, n) for n in range(300)]
    async with memory.manager() as writer, memory.manager() as reader:
        for tp in tps:
            await copied(writer, segment(tp.partition, 0, 9, tp=tp))
        await reader.archived_topics(now())
        memory.store.calls.clear()
        views = await reader.refresh_topic(TP.topic_id, now())
        assert sorted(views) == list(range(300))
        assert memory.store.count("list") == 1
        assert memory.store.count("list_folders") == 0
        assert memory.store.count("get", ".metadata") == 300
        memory.store.calls.clear()
        again = await reader.refresh_topic(TP.topic_id, now())
        assert [verb for verb, _ in memory.store.calls] == ["list"]
        assert all(again[n].segments is views[n].segments for n in range(300))
        absent = TopicIdPartition(TP.topic_id, TP.topic, 300)
        view = await reader.refresh(absent, again[0].read_at)
        assert (view.segments, view.read_at) == ((), again[0].read_at)
        assert memory.store.count("list") == 1  # its partition is not listed


async def test_a_read_of_a_topic_looks_at_no_other_topic(
    memory: StoreBacking, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 20,000 partitions in memory, each topic's read held the loop for 5 ms."""
    compared = 0
    equal = UUID.__eq__

    def counted(one: UUID, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(one, other)

    async with memory.manager() as manager:
        for number in range(1_000):
            await manager.refresh(TopicIdPartition(UUID(int=number), "other", 0), float("-inf"))
        monkeypatch.setattr(UUID, "__eq__", counted)
        await manager.refresh_topic(TP.topic_id, now())
    assert compared < 500


async def test_a_topic_that_is_not_archived_is_not_listed(memory: StoreBacking) -> None:
    async with memory.manager() as manager:
        assert await manager.refresh_topic(UUID(int=44), now()) == {}
        assert [verb for verb, _ in memory.store.calls if verb.startswith("list")] == [
            "list_folders"
        ]


async def test_the_top_level_alone_is_listed_for_topics(memory: StoreBacking) -> None:
    async with memory.manager() as writer, memory.manager() as reader:
        for n in range(20):
            tp = TopicIdPartition(UUID(int=n % 4 + 1), f"topic-{n % 4}", n)
            await copied(writer, segment(n, 0, 9, tp=tp))
        memory.store.calls.clear()
        assert len(await reader.archived_topics(now())) == 4
        assert [call for call in memory.store.calls if call[0] != "get"] == [
            ("list_folders", "archive/")
        ]


async def test_a_partition_read_and_its_topic_read_at_once_lose_nothing(
    memory: StoreBacking,
) -> None:
    """The topic's listing begins before a segment exists, and ends after a read has seen it."""
    async with memory.manager() as writer, memory.manager() as reader:
        first = await copied(writer, segment(1, 0, 9))
        await reader.archived_topics(now())
        memory.store.door.clear()
        async with asyncio.TaskGroup() as group:
            topic = group.create_task(reader.refresh_topic(TP.topic_id, now()))
            await until(lambda: memory.store.count("list") == 2)
            memory.store.door.set()  # for puts, as their manager reads first
            await asyncio.sleep(0)
            memory.store.door.clear()
            second = segment(2, 10, 19)
            await memory.storage.objects.put_segment_metadata(second, encode_segment(second))
            finished = second.with_state(State.COPY_SEGMENT_FINISHED, 0)
            await memory.storage.objects.put_segment_metadata(finished, encode_segment(finished))
            alone = group.create_task(reader.refresh(TP, now()))
            await asyncio.sleep(0.01)
            memory.store.door.set()
        assert tuple(alone.result().segments) == (first, finished)
        assert topic.done()
        view = reader.view(TP)
        assert view is not None
        assert tuple(view.segments) == (first, finished)


async def test_a_folder_that_is_not_there_is_never_an_empty_archive(tmp_path: Path) -> None:
    async with ScriptedStore(FilesystemObjectStore(tmp_path / "later")) as store:
        backing = StoreBacking(store)
        async with backing.manager() as manager:
            with pytest.raises(StorageUnavailable):
                await manager.archived_topics(now())
            assert manager.known_archived_topics() is None
            with pytest.raises(StorageUnavailable):
                await manager.refresh(TP, now())


async def test_a_folder_that_was_there_and_is_gone_is_an_outage(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    async with (
        ScriptedStore(FilesystemObjectStore(root, create=True)) as own_store,
        ScriptedStore(FilesystemObjectStore(root)) as store,
        StoreBacking(own_store).manager() as writer,
        StoreBacking(store).manager() as reader,
    ):
        await copied(writer, segment(1, 0, 9))
        assert await reader.archived_topics(now()) == {TP.topic_id}
        root.rename(tmp_path / "away")
        with pytest.raises(StorageUnavailable):
            await reader.archived_topics(now())
        known = reader.known_archived_topics()
        assert known is not None
        assert known[0] == {TP.topic_id}
