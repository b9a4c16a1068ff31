"""The RemoteStorage's contract over every object store, beyond the one for third parties."""

from __future__ import annotations

from uuid import UUID

import pytest

from fetchproxy.errors import RemoteStorageError
from fetchproxy.model import ByteRange, TopicIdPartition
from fetchproxy.segments.object_keys import LAYOUT_OBJECT, SegmentFile
from fetchproxy.segments.remote_log_index import IndexSpan, RemoteLogIndex, encode_index_entry
from fetchproxy.storage.contract import (
    TOPIC_ID,
    RemoteStorageManagerContract,
    segment,
)
from fetchproxy.storage.listings import LogStartObject, SegmentMetadataObject, Standing
from fetchproxy.storage.packed_logs import LogSegmentData
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import ObjectStore


async def topic_objects(
    storage: RemoteStorage, topic: str
) -> list[tuple[TopicIdPartition, Standing]]:
    standings: list[tuple[TopicIdPartition, Standing]] = []
    await storage.objects.take_topic_objects(
        topic, TOPIC_ID, lambda tp, standing: standings.append((tp, standing))
    )
    return standings


async def metadata_objects(
    storage: RemoteStorage, tp: TopicIdPartition
) -> list[SegmentMetadataObject]:
    objects = [one async for one in storage.objects.list_partition(tp)]
    return [one for one in objects if isinstance(one, SegmentMetadataObject)]


class ArchiveContract(RemoteStorageManagerContract):
    async def test_an_rdi_resolves(
        self, storage: RemoteStorage, store: ObjectStore, data: LogSegmentData
    ) -> None:
        """The object key and position of an index entry lead to its bytes, with the store alone."""
        metadata = segment()
        key = storage.rsm.object_key(metadata, SegmentFile.LOG)
        entry = encode_index_entry(key, IndexSpan(0, 4, 0, 5, 0, 0))
        entry += encode_index_entry(key, IndexSpan(4, 6, 6, 9, 0, 0))
        await storage.rsm.copy_log_segment_data(
            metadata, LogSegmentData(data.log, entry, None, data.epochs)
        )
        index = RemoteLogIndex.parse(await storage.rsm.fetch_index(metadata, SegmentFile.INDEX))
        contents = [
            await store.get_range(index.object_key, ByteRange(span.position, span.end))
            for span in index.spans()
        ]
        assert contents == [b"0123", b"456789"]

    async def test_aborted_transactions_travel_along(
        self, storage: RemoteStorage, data: LogSegmentData
    ) -> None:
        metadata = segment(has_aborted_txns=True)
        with pytest.raises(ValueError, match="disagree"):
            await storage.rsm.copy_log_segment_data(metadata, data)
        with_txn = LogSegmentData(data.log, data.index, b"txn", data.epochs)
        await storage.rsm.copy_log_segment_data(metadata, with_txn)
        assert await storage.rsm.fetch_index(metadata, SegmentFile.TXN) == b"txn"
        with pytest.raises(ValueError, match="disagree"):
            await storage.rsm.copy_log_segment_data(segment(), with_txn)

    async def test_a_segment_without_its_metadata_is_not_listed(
        self, storage: RemoteStorage, data: LogSegmentData
    ) -> None:
        metadata = segment()
        await storage.rsm.copy_log_segment_data(metadata, data)
        tp = metadata.topic_id_partition
        assert [stored_object async for stored_object in storage.objects.list_partition(tp)] == []

    async def test_new_state_replaces_the_metadata(self, storage: RemoteStorage) -> None:
        metadata = segment()
        tp = metadata.topic_id_partition
        await storage.objects.put_segment_metadata(metadata, b"started")
        [started] = await metadata_objects(storage, tp)
        await storage.objects.put_segment_metadata(metadata, b"finished")
        [finished] = await metadata_objects(storage, tp)
        assert started.stored.key == finished.stored.key
        assert started.stored.version != finished.stored.version
        assert await storage.objects.get_segment_metadata(finished.stored.key) == b"finished"

    async def test_every_object_of_a_partition_is_listed_and_can_be_deleted(
        self, storage: RemoteStorage, data: LogSegmentData
    ) -> None:
        """This includes the objects of a copy without metadata."""
        whole, half_copied = segment(0), segment(10, segment_id=2)
        await storage.rsm.copy_log_segment_data(whole, data)
        await storage.objects.put_segment_metadata(whole, b"{}")
        await storage.rsm.copy_log_segment_data(half_copied, data)
        await storage.objects.put_log_start_offset(whole.topic_id_partition, 3, b"3")
        segment_objects = [
            f async for f in storage.objects.list_segment_objects(whole.topic_id_partition)
        ]
        assert [(key.base_offset, stored.key) for key, stored in segment_objects] == sorted(
            (metadata.start_offset, storage.rsm.object_key(metadata, file))
            for metadata in (whole, half_copied)
            for file in (SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS)
            + ((SegmentFile.METADATA,) if metadata is whole else ())
        )
        for key, stored in segment_objects:
            if key.segment_id == half_copied.segment_id:
                await storage.objects.delete_segment_object(stored)
                await storage.objects.delete_segment_object(stored)
        again = [
            key async for key, _ in storage.objects.list_segment_objects(whole.topic_id_partition)
        ]
        assert {key.segment_id for key in again} == {whole.segment_id}

    async def test_a_topics_cluster(self, storage: RemoteStorage) -> None:
        """The cluster object is next to the topic's partitions and does not count as one."""
        tp = segment().topic_id_partition
        assert await storage.objects.get_topic_cluster(tp.topic, tp.topic_id) is None
        await storage.objects.put_topic_cluster(tp.topic, tp.topic_id, "one")
        await storage.objects.put_topic_cluster(tp.topic, tp.topic_id, "two")
        assert await storage.objects.get_topic_cluster(tp.topic, tp.topic_id) == "two"
        assert await storage.objects.list_partitions() == []
        await storage.objects.put_segment_metadata(segment(), b"{}")
        assert await storage.objects.list_topic(tp.topic_id) == [tp]
        await storage.objects.forget_topic(tp.topic, tp.topic_id)
        await storage.objects.forget_topic(tp.topic, tp.topic_id)
        assert await storage.objects.get_topic_cluster(tp.topic, tp.topic_id) is None

    async def test_topics_and_all_that_says_how_one_stands(
        self, storage: RemoteStorage, store: ObjectStore
    ) -> None:
        assert await storage.objects.list_topics() == []
        own_segments = [segment(20, partition=p, segment_id=p + 1) for p in (10, 2, 0)]
        others = [segment(topic_id=UUID(int=7)), segment(topic="weather")]
        for metadata in (*own_segments, *others):
            await storage.objects.put_segment_metadata(metadata, b"")
            await store.put(storage.rsm.object_key(metadata, SegmentFile.LOG), b"1234567890")
        raised = own_segments[1].segment_id.topic_id_partition
        await storage.objects.put_log_start_offset(raised, 5, b"")
        await store.put("team/archive/stranger/0/x", b"")
        assert sorted(await storage.objects.list_topics()) == sorted(
            {
                (m.topic_id_partition.topic, m.topic_id_partition.topic_id)
                for m in (*own_segments, *others)
            }
        )
        topic_contents = await topic_objects(storage, "weather-eu.v1_raw")
        segments = {
            (tp, one.segment_id)
            for tp, one in topic_contents
            if isinstance(one, SegmentMetadataObject)
        }
        assert segments == {(m.topic_id_partition, m.segment_id) for m in own_segments}
        starts = [(tp, one.offset) for tp, one in topic_contents if isinstance(one, LogStartObject)]
        assert starts == [(raised, 5)]
        assert await topic_objects(storage, "weather-eu") == []

    async def test_a_later_layout_does_not_look_empty(
        self, storage: RemoteStorage, store: ObjectStore, data: LogSegmentData
    ) -> None:
        for content in (b"remote-log-layout 2\n", b"something else", b""):
            await store.put(f"team/archive/{LAYOUT_OBJECT}", content)
            for call in (
                storage.objects.list_partitions(),
                storage.objects.list_topics(),
                topic_objects(storage, "weather"),
                metadata_objects(storage, segment().topic_id_partition),
                storage.rsm.copy_log_segment_data(segment(), data),
                storage.objects.put_segment_metadata(segment(), b""),
            ):
                with pytest.raises(RemoteStorageError, match="layout") as error:
                    await call
                assert not error.value.retriable
        await store.put(f"team/archive/{LAYOUT_OBJECT}", b"remote-log-layout 1\n")
        assert await storage.objects.list_partitions() == []

    async def test_metadata_is_listed_by_base_offset(self, storage: RemoteStorage) -> None:
        offsets = [0, 5, 5, 100, 99_999_999_999, 2**63 - 20]
        for number, offset in enumerate(offsets):
            await storage.objects.put_segment_metadata(
                segment(offset, segment_id=number), b"%d" % number
            )
        await storage.objects.put_segment_metadata(segment(7, partition=1), b"other partition")
        tp = segment().topic_id_partition
        listed = await metadata_objects(storage, tp)
        assert [listed_object.base_offset for listed_object in listed] == offsets
        assert {listed_object.segment_id.topic_id_partition for listed_object in listed} == {tp}
        for metadata_object in listed:
            content = await storage.objects.get_segment_metadata(metadata_object.stored.key)
            assert content == b"%d" % metadata_object.segment_id.id.int
            assert metadata_object.stored.size_bytes == 1

    async def test_partitions_of_every_incarnation(
        self, storage: RemoteStorage, store: ObjectStore
    ) -> None:
        assert await storage.objects.list_partitions() == []
        others = [
            segment(partition=10),
            segment(partition=2),
            segment(topic_id=UUID(int=7)),
            segment(topic="a"),
            segment(topic="x" * 232, topic_id=UUID(int=2**128 - 1)),
            segment(topic="weather", partition=2**31 - 1),
        ]
        for metadata in others:
            await storage.objects.put_segment_metadata(metadata, b"")
        await store.put("team/archive/stranger/0/x", b"")
        await store.put("team/archive/x-y/0/x", b"")
        await store.put("elsewhere/x", b"")
        every = sorted(metadata.topic_id_partition for metadata in others)
        assert await storage.objects.list_partitions() == every
        assert await storage.objects.list_topic(UUID(int=7)) == [
            segment(topic_id=UUID(int=7)).segment_id.topic_id_partition
        ]
        assert await storage.objects.list_topic(TOPIC_ID) == [
            t for t in every if t.topic_id == TOPIC_ID
        ]
        assert await storage.objects.list_topic(UUID(int=8)) == []
