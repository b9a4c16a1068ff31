"""Collected metadata of a topic saves reads, and the store's own objects always override it."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from memory_object_store import MemoryObjectStore
from metadata_contract import State, copied, now, segment, until
from scripted_store import ScriptedStore

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import CorruptSegment, StorageDenied
from fetchproxy.metadata import collected_metadata as collected_metadata
from fetchproxy.metadata import collected_metadata as collecting
from fetchproxy.metadata.collected_metadata import (
    COLLECTED_MAGIC,
    SharedCollectedReads,
    decode_collected,
    encode_collected,
)
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import SegmentFile, collected_metadata_key
from fetchproxy.segments.records import decode_entry
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore

TOPIC_ID = UUID(int=1)
PARTITIONS = collected_metadata.READ_ALONE_MIN
KEY = collected_metadata_key("archive/", TOPIC_ID)


def tp_of(partition: int) -> TopicIdPartition:
    return TopicIdPartition(TOPIC_ID, "orders", partition)


class Archive:
    def __init__(self, store: ScriptedStore) -> None:
        self.store = store
        self.storage = RemoteStorage(store, "archive")

    @asynccontextmanager
    async def process(
        self, collects: bool = True
    ) -> AsyncIterator[StoreBackedRemoteLogMetadataManager]:
        """A process that has just started; earlier calls are not counted."""
        manager = StoreBackedRemoteLogMetadataManager(
            self.storage, MetadataConfig(), collects=collects
        )
        async with manager:
            self.store.calls.clear()
            yield manager

    @asynccontextmanager
    async def planner(self) -> AsyncIterator[StoreBackedRemoteLogMetadataManager]:
        async with StoreBackedRemoteLogMetadataManager(
            self.storage, MetadataConfig(), plans=True
        ) as manager:
            self.store.calls.clear()
            yield manager

    @property
    def reads(self) -> int:
        return self.store.count("get", ".metadata")

    async def collected(self) -> None:
        """A process reads the whole topic and stores the collected metadata."""
        async with self.process() as manager:
            await manager.refresh_topic(TOPIC_ID, now())
            await until(lambda: self.store.count("put", KEY) > 0)
            await until(lambda: not manager._collecting._puts)  # type: ignore[union-attr]

    async def segments_by_partition(
        self, collects: bool = True
    ) -> dict[int, list[RemoteLogSegmentMetadata]]:
        async with self.process(collects) as manager:
            views = await manager.refresh_topic(TOPIC_ID, now())
            return {partition: list(view.segments) for partition, view in views.items()}


@pytest.fixture
async def archive() -> AsyncIterator[Archive]:
    async with ScriptedStore(MemoryObjectStore()) as store:
        made = Archive(store)
        async with made.process(collects=False) as writer:
            for number in range(PARTITIONS):
                await copied(writer, segment(number + 1, 5, 9 + number, tp=tp_of(number)))
        yield made


async def test_a_process_that_begins_reads_one_object_in_place_of_each(archive: Archive) -> None:
    await archive.collected()
    assert archive.reads == PARTITIONS
    expected = await archive.segments_by_partition(collects=False)
    assert archive.reads == PARTITIONS
    assert await archive.segments_by_partition() == expected
    assert archive.reads == 0
    assert archive.store.count("get", KEY) == 1
    assert archive.store.count("put") == 0  # it is up to date


async def test_it_is_read_once_by_each_process(archive: Archive) -> None:
    await archive.collected()
    async with archive.process() as manager:
        for _ in range(3):
            await manager.refresh_topic(TOPIC_ID, now())
        assert archive.store.count("get", KEY) == 1


async def test_what_has_changed_since_is_read_from_where_it_stands(archive: Archive) -> None:
    await archive.collected()
    async with archive.process(collects=False) as writer:
        await writer.refresh_topic(TOPIC_ID, now())
        old = writer.list_remote_log_segments(tp_of(3))[0]
        await writer.put(old.with_state(State.DELETE_SEGMENT_STARTED, 1))
        gone = writer.list_remote_log_segments(tp_of(4))[0]
        await archive.storage.rsm.delete_log_segment_data(gone)
        await copied(writer, segment(500, 100, 109, tp=tp_of(5)))
        await writer.raise_log_start_offset(tp_of(6), 7)
    async with archive.process() as manager:
        views = await manager.refresh_topic(TOPIC_ID, now())
        assert archive.reads == 2
        assert not views[3].segments
        assert 4 not in views
        assert [s.start_offset for s in views[5].segments] == [5, 100]
        assert views[6].log_start_offset == 7
        assert archive.store.count("put") == 0  # too few changes


async def test_who_plans_reads_it_once_for_all_partitions_of_a_topic_and_leaves_nothing(
    archive: Archive,
) -> None:
    expected = await archive.segments_by_partition(collects=False)
    await archive.collected()
    async with archive.process(collects=False) as writer:
        await writer.refresh_topic(TOPIC_ID, now())
        old = writer.list_remote_log_segments(tp_of(3))[0]
        await writer.put(old.with_state(State.DELETE_SEGMENT_STARTED, 1))
        await archive.storage.rsm.delete_log_segment_data(expected[4][0])
        await copied(writer, segment(500, 100, 109, tp=tp_of(5)))
        await writer.raise_log_start_offset(tp_of(6), 7)
    async with archive.planner() as planner:
        reading = [planner.refresh(tp_of(n), now()) for n in range(PARTITIONS)]
        views = dict(enumerate(await asyncio.gather(*reading)))
        assert archive.store.count("get", KEY) == 1
        assert archive.reads == 2
        assert not views[3].segments
        assert not views[4].segments
        assert [s.start_offset for s in views[5].segments] == [5, 100]
        assert views[6].log_start_offset == 7
        assert all(list(views[n].segments) == expected[n] for n in range(7, PARTITIONS))
        await asyncio.gather(*[planner.refresh(tp_of(n), now()) for n in range(PARTITIONS)])
        assert archive.store.count("get", KEY) == 1  # a second look finds it in memory
        assert archive.store.count("put") == 0


async def test_who_plans_reads_each_by_itself_where_nothing_was_collected(
    archive: Archive,
) -> None:
    expected = await archive.segments_by_partition(collects=False)
    async with archive.planner() as planner:
        views = [await planner.refresh(tp_of(n), now()) for n in range(PARTITIONS)]
        assert [list(view.segments) for view in views] == [expected[n] for n in range(PARTITIONS)]
        assert archive.reads == PARTITIONS
        assert archive.store.count("get", KEY) == 1
        assert archive.store.count("put") == 0


async def test_of_many_topics_the_last_ones_are_kept(archive: Archive) -> None:
    once = SharedCollectedReads(archive.storage.objects)
    archive.store.calls.clear()
    others = [UUID(int=number) for number in range(2, 2 + collecting.TOPICS_CACHED_MAX)]
    for topic_id in (TOPIC_ID, *others, others[0], TOPIC_ID):
        await once.read(topic_id)
    assert archive.store.count("get", "collected-metadata/") == len(others) + 2


async def test_only_where_enough_is_read_alone_is_anything_left(archive: Archive) -> None:
    async with archive.process(collects=False) as writer:
        await writer.refresh_topic(TOPIC_ID, now())
        await archive.storage.rsm.delete_log_segment_data(
            writer.list_remote_log_segments(tp_of(0))[0]
        )
    async with archive.process() as manager:
        await manager.refresh_topic(TOPIC_ID, now())
        await asyncio.sleep(0.01)
        assert archive.store.count("put") == 0


async def test_verify_and_its_like_neither_read_nor_leave_it(archive: Archive) -> None:
    await archive.segments_by_partition(collects=False)
    assert archive.store.count("put") == archive.store.count("get", KEY) == 0
    await archive.collected()
    await archive.segments_by_partition(collects=False)
    assert archive.store.count("put") == archive.store.count("get", KEY) == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[:-1],
        lambda raw: raw[: len(COLLECTED_MAGIC) + 3],
        lambda raw: raw + b"x",
        lambda raw: b"",
        lambda raw: b"collected metadata 2\n" + raw[len(COLLECTED_MAGIC) :],
        lambda raw: raw[:60] + bytes([raw[60] ^ 1]) + raw[61:],
        lambda raw: (
            COLLECTED_MAGIC + zlib.compress(zlib.decompress(raw[len(COLLECTED_MAGIC) :])[:-1])
        ),
        lambda raw: COLLECTED_MAGIC + zlib.compress(b"\xff\xff"),
    ],
)
async def test_a_damaged_one_is_not_believed(
    archive: Archive, damage: Callable[[bytes], bytes]
) -> None:
    await archive.collected()
    expected = await archive.segments_by_partition(collects=False)
    raw = await archive.store.inner.get(KEY)
    damaged = damage(raw)
    await archive.store.inner.put(KEY, damaged)
    with pytest.raises(CorruptSegment):
        await decode_collected(damaged)
    assert await archive.segments_by_partition() == expected
    assert archive.reads == PARTITIONS
    async with archive.process() as manager:
        await manager.refresh_topic(TOPIC_ID, now())
        await until(lambda: archive.store.count("put", KEY) > 0)


async def test_an_entry_counts_for_its_own_version_and_segment_alone(archive: Archive) -> None:
    expected = await archive.segments_by_partition(collects=False)
    stored = {
        one.key: one.version
        async for one in archive.store.inner.list("archive/orders")
        if one.key.endswith(".metadata")
    }
    first_segments = {n: segments[0] for n, segments in expected.items()}
    key = {
        n: archive.storage.rsm.object_key(one, SegmentFile.METADATA)
        for n, one in first_segments.items()
    }
    content = await encode_collected(
        [
            (key[0], stored[key[0]], first_segments[0]),
            (key[1], stored[key[1]], first_segments[2]),  # another segment's
            (key[3], "another version", first_segments[3]),
            ("archive/nowhere.metadata", "1", first_segments[4]),
        ]
    )
    await archive.store.inner.put(KEY, content)
    assert await archive.segments_by_partition() == expected
    assert archive.reads == PARTITIONS - 1


async def test_nothing_is_lost_on_the_way() -> None:
    """Leader epochs, clipped ends, states and transactions are kept."""
    plain = segment(1, 0, 9, State.COPY_SEGMENT_FINISHED)
    many = tuple(EpochStart(n, n) for n in range(300))
    every = [
        plain,
        plain.clipped(4),
        segment(2, 0, 9, State.DELETE_SEGMENT_STARTED),
        segment(3, 2**62, 2**62 + 1),
    ]
    every += [
        replace(plain, segment_leader_epochs=many, has_aborted_txns=True),
        replace(plain, segment_leader_epochs=(), max_timestamp_ms=-1),
    ]
    content = await encode_collected([(f"é{n}", f'"{n}"', one) for n, one in enumerate(every)])
    collected = await decode_collected(content)
    assert list(collected) == [f"é{n}" for n in range(len(every))]
    tp = plain.topic_id_partition
    assert [decode_entry(entry, tp, "") for _, entry in collected.values()] == every
    assert [version for version, _ in collected.values()] == [f'"{n}"' for n in range(len(every))]
    assert await decode_collected(await encode_collected([])) == {}


async def test_metadata_that_cannot_be_read_stay_a_problem(archive: Archive) -> None:
    async with archive.process(collects=False) as writer:
        await writer.refresh_topic(TOPIC_ID, now())
        first = writer.list_remote_log_segments(tp_of(0))[0]
        await copied(writer, segment(900, 10, 19, tp=tp_of(1)))
        await archive.store.inner.put(
            archive.storage.rsm.object_key(first, SegmentFile.METADATA), b"{"
        )
    await archive.collected()
    async with archive.process() as manager:
        views = await manager.refresh_topic(TOPIC_ID, now())
        assert archive.reads == 1
        assert views[0].unreadable == (5,)
        assert len(manager.problems(tp_of(0))) == 1


async def test_a_store_that_takes_no_object_harms_nothing(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = archive.store.inner

    async def refused(key: str, content: bytes) -> None:
        archive.store.calls.append(("put", key))
        raise StorageDenied("read-only")

    archive.store.put = refused  # type: ignore[method-assign]
    async with archive.process() as manager:
        views = await manager.refresh_topic(TOPIC_ID, now())
        assert len(views) == PARTITIONS
        await until(lambda: archive.store.count("put", KEY) == 1)
        monkeypatch.setattr(collecting, "PUT_INTERVAL_S", 0.0)
        manager._topics.clear()  # so that all is read again
        manager._views.entries.clear()
        await manager.refresh_topic(TOPIC_ID, now())
        await asyncio.sleep(0.01)
        assert archive.store.count("put", KEY) == 1  # no second try
    assert [one async for one in inner.list(KEY)] == []


async def test_it_goes_with_its_topic(archive: Archive) -> None:
    await archive.collected()
    await archive.storage.objects.forget_topic("orders", TOPIC_ID)
    assert [one async for one in archive.store.inner.list(KEY)] == []


async def test_no_more_than_so_many_are_collected(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "COLLECTED_MAX", 10)
    await archive.collected()
    expected = await archive.segments_by_partition(collects=False)
    assert await archive.segments_by_partition() == expected
    assert archive.reads == PARTITIONS - 10


async def test_a_collected_object_in_a_folder_is_believed(tmp_path: Path) -> None:
    store = ScriptedStore(FilesystemObjectStore(tmp_path))
    archive = Archive(store)
    async with archive.process(collects=False) as writer:
        for number in range(PARTITIONS):
            await copied(writer, segment(number + 1, 5, 9, tp=tp_of(number)))
    await archive.collected()
    expected = await archive.segments_by_partition(collects=False)
    assert await archive.segments_by_partition() == expected
    assert archive.reads == 0
    changed = expected[0][0].with_state(State.DELETE_SEGMENT_STARTED, 5)
    await archive.storage.objects.put_segment_metadata(changed, encode_segment(changed))
    assert (await archive.segments_by_partition())[0] == []
    assert archive.reads == 1
