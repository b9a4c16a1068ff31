"""An archive that belongs to another cluster by now: what a process of the old one may not do, and
what it costs to ask."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_object_store import MemoryObjectStore
from segment_values import segment_of
from virtual_loop import run_virtual

from fetchproxy.errors import ArchiveMismatch, CorruptSegment, StorageUnavailable
from fetchproxy.model import TopicIdPartition
from fetchproxy.segments.continued_topic import (
    ContinuedTopic,
    decode_continued_topic,
    encode_continued_topic,
)
from fetchproxy.segments.object_keys import (
    LAYOUT_OBJECT,
    SegmentFile,
    archive_wide_folders,
    continued_topic_key,
    continued_topics_folder,
    parse_continued_topic_key,
)
from fetchproxy.sizing.coefficients import COEFFICIENTS
from fetchproxy.storage.archive_identity import (
    LOOK_AGE_MAX_S,
    ArchiveIdentity,
    HandedOver,
    encode_identity,
    parse_identity,
)
from fetchproxy.storage.listings import LogStartObject
from fetchproxy.storage.packed_logs import LogSegmentData
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, StoredObject

TP = TopicIdPartition(UUID(int=7), "orders", 0)
GENERATION, ARCHIVER = UUID(int=5), UUID(int=6)
HANDED = ArchiveIdentity(
    GENERATION, "new", "store", handed_over=HandedOver("old", 1_700_000_000_000)
)
CONTINUED = ContinuedTopic("orders", UUID(int=8), TP.topic_id, "new", (10, 0), 1_700_000_000_000)


class CountedStore(MemoryObjectStore):
    def __init__(self) -> None:
        super().__init__()
        self.requests: list[str] = []

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        self.requests.append(f"get {key}")
        return await super().get(key, bytes_max)

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        self.requests.append(f"list {prefix}")
        return super().list(prefix, start_after)

    async def contents(self) -> dict[str, bytes]:
        return {
            one.key: await super(CountedStore, self).get(one.key) async for one in super().list("")
        }


async def owned_by_old(store: CountedStore) -> RemoteStorage:
    """As a process of the cluster `old` has it."""
    storage = RemoteStorage(store, manager="store", must_exist=True)
    await store.put(LAYOUT_OBJECT, encode_identity(ArchiveIdentity(GENERATION, "old", "store")))
    await storage.identity.look()
    storage.identity.belongs_to("old")
    return storage


SEGMENT = segment_of(TP, 1, 0, 9)
Write = Callable[[RemoteStorage, Path], Awaitable[object]]
WRITES: dict[str, Write] = {
    "segment metadata": lambda s, _: s.objects.put_segment_metadata(SEGMENT, b""),
    "segment data": lambda s, p: s.rsm.copy_log_segment_data(
        SEGMENT, LogSegmentData(p, b"", None, b"")
    ),
    "deletion of a segment": lambda s, _: s.rsm.delete_log_segment_data(SEGMENT),
    "index": lambda s, _: s.rsm.put_index(SEGMENT, SegmentFile.INDEX, b""),
    "transaction index": lambda s, _: s.rsm.delete_txn_index(SEGMENT),
    "trimming": lambda s, _: s.objects.check_owner(),
    "log start": lambda s, _: s.objects.put_log_start_offset(TP, 1, b""),
    "lower log start": lambda s, _: s.objects.delete_log_start_offset(TP, LogStartObject(1)),
    "log history": lambda s, _: s.objects.put_partition_note(TP, b""),
    "past": lambda s, _: s.objects.put_past_changed(TP),
    "deletion of a partition": lambda s, _: s.objects.put_partition_deletion(TP, b""),
    "its end": lambda s, _: s.objects.forget_partition(TP),
    "positions": lambda s, _: s.objects.put_archiver_positions(ARCHIVER, b""),
    "positions' end": lambda s, _: s.objects.delete_archiver_positions("archivers/a.positions"),
    "collected metadata": lambda s, _: s.objects.put_collected_metadata(TP.topic_id, b""),
    "description": lambda s, _: s.objects.put_topic_description(TP.topic_id, b""),
    "its deletion": lambda s, _: s.objects.delete_topic_description(TP.topic_id),
    "condition": lambda s, _: s.objects.put_conditions(TP, "log_damaged", b""),
    "condition's end": lambda s, _: s.objects.delete_conditions(TP, "log_damaged"),
    "journal": lambda s, p: s.objects.put_journal(ARCHIVER, 1, p),
    "journal's end": lambda s, _: s.objects.delete_journal(ARCHIVER, 1),
    "cluster state": lambda s, _: s.objects.put_cluster_state("old", 1, b""),
    "gap": lambda s, _: s.objects.put_archive_gap(TP, 1, 2, b""),
    "finished offsets": lambda s, _: s.objects.put_finished_offsets(TP, b""),
    "retention step": lambda s, _: s.objects.put_retention_step(TP, b""),
    "retention step's end": lambda s, _: s.objects.delete_retention_step(TP),
    "topics of the cluster": lambda s, _: s.objects.put_cluster_topics("old", b""),
    "cluster of the topic": lambda s, _: s.objects.put_topic_cluster(*TP[1::-1], "old"),
    "topic's end": lambda s, _: s.objects.forget_topic(*TP[1::-1]),
    "uploads of others": lambda s, _: s.objects.abort_stale_uploads(0),
}


@pytest.mark.parametrize("what", WRITES)
def test_the_old_cluster_changes_nothing(what: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"records")

    async def scene() -> None:
        async with CountedStore() as store:
            storage = await owned_by_old(store)
            await WRITES[what](storage, tmp_path / "log")  # while it is the owner
            await store.put(LAYOUT_OBJECT, encode_identity(HANDED))
            await asyncio.sleep(LOOK_AGE_MAX_S * 1.01)
            before = await store.contents()

            with pytest.raises(
                ArchiveMismatch, match="belonged to the cluster new since 2023-11-14"
            ):
                await WRITES[what](storage, tmp_path / "log")

            assert await store.contents() == before

    run_virtual(scene)


@pytest.mark.parametrize("what", ["segment metadata", "deletion of a segment", "trimming"])
async def test_segments_are_refused_at_once(what: str, tmp_path: Path) -> None:
    async with CountedStore() as store:
        storage = await owned_by_old(store)
        await store.put(LAYOUT_OBJECT, encode_identity(HANDED))
        with pytest.raises(ArchiveMismatch):
            await WRITES[what](storage, tmp_path)


async def test_many_writers_ask_together() -> None:
    async with CountedStore() as store:
        storage = await owned_by_old(store)
        store.requests.clear()
        await asyncio.gather(*(storage.identity.check_owner(0.0) for _ in range(100)))
        # The first read may have begun before the others asked.
        assert store.requests == [f"get {LAYOUT_OBJECT}"] * 2


def test_a_segments_life_takes_as_many_looks_as_the_estimate_says(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"records")

    async def scene() -> None:
        async with CountedStore() as store:
            storage = await owned_by_old(store)
            store.requests.clear()
            life = ("segment metadata", "segment data", "segment metadata", "finished offsets")
            end = ("segment metadata", "deletion of a segment")
            for what in (*life, *end):
                await asyncio.sleep(0.1)
                await WRITES[what](storage, tmp_path / "log")
            looks = store.requests.count(f"get {LAYOUT_OBJECT}")
            assert looks == COEFFICIENTS.segment_owner_reads

    run_virtual(scene)


async def test_who_works_for_no_cluster_asks_nothing() -> None:
    async with CountedStore() as store:
        await owned_by_old(store)
        storage = RemoteStorage(store, must_exist=True)
        await storage.identity.check()
        store.requests.clear()
        await storage.objects.put_segment_metadata(SEGMENT, b"")
        assert store.requests == []


@given(st.integers(0, 2**53))
def test_a_handover_is_read_back(at_ms: int) -> None:
    handed = HandedOver("old", at_ms)
    identity = ArchiveIdentity(GENERATION, "new", "store", handed_over=handed)
    assert parse_identity(encode_identity(identity)) == identity
    assert identity.completed(ArchiveIdentity(UUID(int=9), "x", "y")) == identity


# --- continued topics ---


async def test_topics_are_listed_at_no_more_cost_if_none_continues_a_log() -> None:
    async with CountedStore() as store:
        storage = await owned_by_old(store)
        await storage.objects.put_segment_metadata(SEGMENT, b"")
        store.requests.clear()
        assert await storage.objects.list_topics() == [("orders", TP.topic_id)]
        await storage.objects.renew_continued_topics()
        await storage.objects.check_own_log(TP)
        assert store.requests == []  # the folders were listed, by the other kind of listing


async def test_a_listing_of_topics_finds_what_continues() -> None:
    async with CountedStore() as store:
        storage = await owned_by_old(store)
        await storage.objects.put_segment_metadata(SEGMENT, b"")
        assert await storage.objects.put_continued_topic(CONTINUED)
        assert not await storage.objects.put_continued_topic(CONTINUED)
        store.requests.clear()
        changes: list[UUID] = []
        storage.objects.continued.watch(changes.extend)

        assert await storage.objects.list_topics() == [("orders", TP.topic_id)]

        assert store.requests == ["list continued-topics/"]
        assert storage.objects.continued.log_id(CONTINUED.topic_id) == TP.topic_id
        assert await storage.objects.get_continued_topic("orders", CONTINUED.topic_id) == CONTINUED
        await storage.objects.list_topics()
        assert changes == [CONTINUED.topic_id]
        with pytest.raises(StorageUnavailable, match="continues an archived log"):
            await storage.objects.check_own_log(TP._replace(topic_id=CONTINUED.topic_id))


def test_the_record_is_read_back() -> None:
    raw = encode_continued_topic(CONTINUED)
    assert decode_continued_topic(raw, "key") == CONTINUED
    for damage in (b"", raw[:-20], raw.replace(b"orders", b"or/ders"), raw.replace(b"10", b"-1")):
        with pytest.raises(CorruptSegment, match="key"):
            decode_continued_topic(damage, "key")


def test_its_key_names_both_ids() -> None:
    for topic in ("orders", "a-" + "b" * 22, "-" * 30):
        ids = uuid4(), uuid4()
        key = continued_topic_key("p/", topic, *ids)
        assert parse_continued_topic_key("p/", key) == ids
        assert parse_continued_topic_key("", key) is None
        assert parse_continued_topic_key("p/", key + "/x") is None
        assert parse_continued_topic_key("p/", key[:-1]) is None
    assert continued_topics_folder("p/") in archive_wide_folders("p/")  # mirrors copy them
