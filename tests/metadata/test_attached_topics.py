"""Topics of another archive under other names: the same bytes, and no writes to that archive."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from planted_archive import TP, PlantedArchive, batch
from structlog.testing import capture_logs

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import ObjectNotFound, RemoteStorageError, StorageDenied
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.model import AbortedTxn, ByteRange, RemoteLogSegmentState, TopicIdPartition
from fetchproxy.segments.object_keys import LAYOUT_OBJECT, SegmentFile
from fetchproxy.segments.topic_description import TopicDescription, encode_topic_description
from fetchproxy.storage.attached_topics import AttachedObjectStore, AttachedTopic
from fetchproxy.storage.remote_storage import RemoteStorage

SECOND = TP._replace(partition=1)
LOG, INDEX = SegmentFile.LOG, SegmentFile.INDEX


async def other_archive() -> PlantedArchive:
    archive = PlantedArchive()
    await archive.add(batch(base) for base in (0, 10))
    await archive.add(
        [batch(20, txn=7), batch(30)], aborted=(AbortedTxn(20, 39, 7, 40),), tp=SECOND
    )
    await archive.storage.objects.put_topic_cluster(TP.topic, TP.topic_id, "elsewhere")
    await archive.storage.objects.put_log_start_offset(TP, 10, b"")
    return archive


def attached_to(planted: PlantedArchive, *attached: AttachedTopic) -> RemoteStorage:
    return RemoteStorage(AttachedObjectStore(planted.store, "archive/", attached), "archive")


async def one_attached(name: str = "orders-old") -> tuple[PlantedArchive, RemoteStorage]:
    other, own_archive = await other_archive(), PlantedArchive()
    await own_archive.add((batch(base) for base in (500, 510)), start=500)
    return other, attached_to(own_archive, AttachedTopic(name, other.store, "archive/", "orders"))


async def attached_tps(storage: RemoteStorage) -> list[TopicIdPartition]:
    return [tp for tp in await storage.objects.list_partitions() if tp.topic == "orders-old"]


async def test_an_attached_topic_has_its_description_under_its_own_name() -> None:
    other, storage = await one_attached()
    description = TopicDescription(TP.topic_id, TP.topic, 12, "elsewhere", {11: 500})
    await other.storage.objects.put_topic_description(
        TP.topic_id, encode_topic_description(description)
    )
    async with storage:
        (first, _) = await attached_tps(storage)
        descriptions = TopicDescriptions(storage.objects)
        shown_description = (await descriptions.refresh())[first.topic_id]
        assert shown_description == replace(
            description, topic_id=first.topic_id, topic="orders-old"
        )
        assert descriptions.log_start(first._replace(partition=11)) == 500
        with pytest.raises(StorageDenied):
            await storage.objects.put_topic_description(first.topic_id, b"")


async def test_an_attached_topic_is_one_of_the_archive() -> None:
    other, storage = await one_attached()
    async with storage, StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm:
        first, second = tps = await attached_tps(storage)
        assert [tp.partition for tp in tps] == [0, 1]
        assert first.topic_id == second.topic_id != TP.topic_id
        assert [tp.topic for tp in await rlmm.list_partitions()] == ["orders"] + ["orders-old"] * 2
        now = asyncio.get_running_loop().time()
        view = await rlmm.refresh(first, now)
        assert (view.log_start_offset, view.log_end_offset) == (10, 20)
        assert rlmm.problems(first) == ()
        [segment] = (await rlmm.refresh(second, now)).segments
        there = other.segments[1]
        assert segment == replace(
            there, segment_id=replace(there.segment_id, topic_id_partition=second)
        )
        for file in (INDEX, SegmentFile.TXN, SegmentFile.EPOCHS):
            assert await storage.rsm.fetch_index(
                segment, file
            ) == await other.storage.rsm.fetch_index(there, file)
        assert await storage.rsm.fetch_log_segment(segment, ByteRange(5, 50)) == (
            await other.storage.rsm.fetch_log_segment(there, ByteRange(5, 50))
        )
        # The archive's own topic of the same original name is unchanged.
        assert (await rlmm.refresh(TP, now)).log_start_offset == 500


async def test_nothing_is_written_there() -> None:
    other, storage = await one_attached()
    before = {o.key: o.version async for o in other.store.list("")}
    async with storage, StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm:
        tp = (await attached_tps(storage))[1]
        await rlmm.refresh(tp, asyncio.get_running_loop().time())
        [segment] = rlmm.list_remote_log_segments(tp)
        deleting = segment.with_state(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1)
        for refused in (
            rlmm.put(deleting),
            rlmm.raise_log_start_offset(tp, 30),
            storage.rsm.delete_log_segment_data(segment),
            storage.rsm.put_index(segment, INDEX, b""),
        ):
            with pytest.raises(StorageDenied, match="orders-old is read-only"):
                await refused
        assert {o.key: o.version async for o in other.store.list("")} == before


async def test_what_the_other_cluster_said_of_its_topic_does_not_count_here() -> None:
    other, storage = await one_attached()
    async with storage:
        [tp, _] = await attached_tps(storage)
        assert await storage.objects.get_topic_cluster(tp.topic, tp.topic_id) is None
        assert await other.storage.objects.get_topic_cluster(TP.topic, TP.topic_id) == "elsewhere"


async def test_an_own_topic_of_that_name_is_not_shown() -> None:
    _, storage = await one_attached("orders")
    async with storage:
        partitions = await storage.objects.list_partitions()
    assert [(tp.topic, tp.partition) for tp in partitions] == [("orders", 0), ("orders", 1)]
    assert TP not in partitions


async def test_an_archive_beside_itself() -> None:
    own_archive = await other_archive()
    storage = attached_to(
        own_archive, AttachedTopic("again", own_archive.store, "archive/", "orders")
    )
    async with storage:
        partitions = await storage.objects.list_partitions()
    assert sorted({tp.topic for tp in partitions}) == ["again", "orders"]
    assert len({tp.topic_id for tp in partitions}) == 2


async def test_a_topic_that_is_not_there_is_said_once() -> None:
    other, own_archive = await other_archive(), PlantedArchive()
    storage = attached_to(own_archive, AttachedTopic("x", other.store, "archive/", "typo"))
    async with storage:
        with capture_logs() as logs:
            assert await storage.objects.list_partitions() == []
            assert await storage.objects.list_partitions() == []
    assert [entry["event"] for entry in logs] == ["attached_topic_not_found"]


async def test_metadata_of_something_else_are_not_renamed() -> None:
    other, storage = await one_attached()
    key = other.key(other.segments[1], SegmentFile.METADATA)
    wrong = other.key(other.segments[0], SegmentFile.METADATA)
    await other.store.put(key, await other.store.get(wrong))
    async with storage, StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm:
        tp = (await attached_tps(storage))[1]
        view = await rlmm.refresh(tp, asyncio.get_running_loop().time())
        assert not view.segments
        assert "holds the metadata of segment" in rlmm.problems(tp)[0].what


async def test_an_archive_of_a_later_layout_does_not_look_empty() -> None:
    other, storage = await one_attached()
    await other.store.put(f"archive/{LAYOUT_OBJECT}", b"remote-log-layout 2\n")
    async with storage:
        with pytest.raises(RemoteStorageError, match="layout"):
            await storage.objects.list_partitions()


async def test_close_closes_every_store() -> None:
    other, storage = await one_attached()
    async with storage:
        await attached_tps(storage)
    for store in (other.store, storage.store):
        with pytest.raises(RemoteStorageError) as error:
            await store.get("archive/x")
        assert not isinstance(error.value, ObjectNotFound)
