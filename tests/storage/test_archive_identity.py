"""An archive's stated identity, and processes whose settings do not match it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from memory_object_store import MemoryObjectStore

from fetchproxy.errors import (
    ArchiveMismatch,
    ArchiveMissing,
    ObjectNotFound,
    RemoteStorageError,
)
from fetchproxy.model import TopicIdPartition
from fetchproxy.segments.object_keys import LAYOUT_OBJECT, layout_text
from fetchproxy.storage.archive_identity import (
    ArchiveIdentity,
    Moved,
    OwnIdentity,
    encode_identity,
    parse_identity,
    read_identity,
)
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX

TP = TopicIdPartition(UUID(int=7), "orders", 0)
WORDS = st.text(st.characters(categories=["L", "N", "P"], max_codepoint=0x7E), min_size=1)
OWN_IDENTITY = ArchiveIdentity(UUID(int=5), "cluster-1", "topic __remote_log_metadata")


@given(st.builds(ArchiveIdentity, st.none() | st.uuids(), st.none() | WORDS, st.none() | WORDS))
def test_what_is_stated_is_read_back(identity: ArchiveIdentity) -> None:
    assert parse_identity(encode_identity(identity)) == identity


@given(st.builds(Moved, WORDS, st.integers(0, 2**53), st.none() | WORDS))
def test_where_an_archive_has_moved_is_read_back(moved: Moved) -> None:
    identity = ArchiveIdentity(UUID(int=5), "cluster-1", None, moved)
    content = encode_identity(identity)
    assert parse_identity(content) == identity
    with pytest.raises(ArchiveMismatch, match="has moved to"):
        identity.check_is_the_archive()
    without = b"".join(line for line in content.splitlines(True) if b"moved-to" not in line)
    with pytest.raises(RemoteStorageError, match="where the archive has moved"):
        parse_identity(without)


def test_lines_of_a_later_version_are_left_alone() -> None:
    content = encode_identity(OWN_IDENTITY) + b"colour green\nword\n"
    assert parse_identity(content) == OWN_IDENTITY
    assert parse_identity(layout_text()) == ArchiveIdentity()


@pytest.mark.parametrize(
    "content",
    [b"", b"remote-log-layout 2\n", b"generation x\n", layout_text() + b"generation short\n"],
)
def test_what_cannot_be_read_is_no_archive_of_ours(content: bytes) -> None:
    with pytest.raises(RemoteStorageError):
        parse_identity(content)


@pytest.mark.parametrize("odd", ["9" * 5_000, "\N{ARABIC-INDIC DIGIT THREE}", "-1", "1e3", ""])
def test_a_time_that_is_none_is_that_objects_fault(odd: str) -> None:
    """Whoever can write to the store ends no process by it."""
    moved = f"metadata-manager moved\nmoved-to gs://a\nmoved-at-ms {odd}\n"
    with pytest.raises(RemoteStorageError, match="does not say where"):
        parse_identity(layout_text() + moved.encode())
    handed = f"cluster-id new\nhanded-over-from old\nhanded-over-at-ms {odd}\n"
    assert parse_identity(layout_text() + handed.encode()) == ArchiveIdentity(cluster_id="new")


def test_only_what_is_missing_is_completed() -> None:
    partial_identity = ArchiveIdentity(None, "cluster-2", None)
    assert partial_identity.completed(OWN_IDENTITY) == ArchiveIdentity(
        OWN_IDENTITY.generation, "cluster-2", OWN_IDENTITY.manager
    )


async def test_a_place_without_an_archive_is_no_empty_archive() -> None:
    async with MemoryObjectStore() as store:
        storage = RemoteStorage(store, "team", must_exist=True)
        for look in (storage.objects.list_partitions, storage.objects.list_topics):
            with pytest.raises(ArchiveMissing):
                await look()
        with pytest.raises(ArchiveMissing):
            assert [stored_object async for stored_object in storage.objects.list_partition(TP)]
        with pytest.raises(ArchiveMissing):
            await storage.objects.put_log_start_offset(TP, 5, b"")
        assert [stored_object async for stored_object in store.list("")] == []
        await storage.identity.state(OWN_IDENTITY)
        assert await storage.objects.list_partitions() == []


async def test_an_archive_that_goes_away_is_missed_before_it_is_believed_to_be_empty() -> None:
    async with MemoryObjectStore() as store:
        storage = RemoteStorage(store, must_exist=True)
        await storage.identity.state(OWN_IDENTITY)
        await storage.objects.put_log_start_offset(TP, 5, b"")
        assert await storage.objects.list_partitions() == [TP]
        for stored_object in [stored_object async for stored_object in store.list("")]:
            await store.delete(stored_object.key)
        await asyncio.sleep(1.1)
        with pytest.raises(ArchiveMissing):
            await storage.objects.list_partitions()
        with pytest.raises(ArchiveMissing):
            await storage.objects.put_log_start_offset(TP, 6, b"")


async def test_who_is_set_to_another_manager_neither_reads_nor_writes() -> None:
    async with MemoryObjectStore() as store:
        await RemoteStorage(store).identity.state(OWN_IDENTITY)
        storage = RemoteStorage(store, manager="store", must_exist=True)
        with pytest.raises(ArchiveMismatch, match=r"metadata\.manager.*__remote_log_metadata"):
            await storage.objects.list_partitions()
        with pytest.raises(ArchiveMismatch, match=r"metadata\.manager"):
            await storage.objects.put_log_start_offset(TP, 5, b"")
        assert [stored_object.key async for stored_object in store.list("")] == [LAYOUT_OBJECT]


async def test_an_archive_that_was_replaced_meanwhile_is_not_taken_for_the_same() -> None:
    async with MemoryObjectStore() as store:
        storage = RemoteStorage(store, must_exist=True)
        await storage.identity.state(OWN_IDENTITY)
        other = ArchiveIdentity(uuid4(), OWN_IDENTITY.cluster_id, OWN_IDENTITY.manager)
        await store.put(LAYOUT_OBJECT, encode_identity(other))
        await asyncio.sleep(1.1)
        with pytest.raises(ArchiveMismatch, match="replaced by another"):
            await storage.objects.list_partitions()


async def test_of_two_that_make_an_archive_at_once_the_first_ones_words_stand() -> None:
    """This holds however late the second one looked for the archive."""
    async with MemoryObjectStore() as store:
        first, second = (OwnIdentity(store, "", None, must_exist=True) for _ in range(2))
        assert await first.look() is None
        assert await second.look() is None
        assert await first.create(OWN_IDENTITY) == OWN_IDENTITY
        assert await second.create(replace(OWN_IDENTITY, generation=UUID(int=6))) == OWN_IDENTITY
        assert await first.look() == await second.look() == OWN_IDENTITY


async def test_one_with_another_manager_does_not_take_an_archive_that_was_made_just_now() -> None:
    async with MemoryObjectStore() as store:
        late = OwnIdentity(store, "", "store", must_exist=True)
        assert await late.look() is None
        await OwnIdentity(store, "", OWN_IDENTITY.manager, must_exist=True).create(OWN_IDENTITY)
        with pytest.raises(ArchiveMismatch, match=r"metadata\.manager"):
            await late.create(ArchiveIdentity(UUID(int=6), OWN_IDENTITY.cluster_id, "store"))
        assert await read_identity(store, "") == OWN_IDENTITY


class MadeMeanwhile(MemoryObjectStore):
    """Another process makes the archive just after a look has found none."""

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        try:
            return await super().get(key, bytes_max)
        except ObjectNotFound:
            await self.put(LAYOUT_OBJECT, encode_identity(OWN_IDENTITY))
            raise


async def test_who_puts_the_first_object_takes_no_words_away() -> None:
    async with MadeMeanwhile() as store:
        await RemoteStorage(store).objects.put_log_start_offset(TP, 5, b"")
        assert await read_identity(store, "") == OWN_IDENTITY


async def test_two_that_make_an_archive_at_once_agree() -> None:
    async with MemoryObjectStore() as store:
        both = [OwnIdentity(store, "", None, must_exist=True) for _ in range(2)]
        async with asyncio.TaskGroup() as tasks:
            for number, one in enumerate(both):
                assert await one.look() is None
                tasks.create_task(one.state(ArchiveIdentity(UUID(int=number + 1))))
        generations = {
            identity.generation for one in both if (identity := await one.look()) is not None
        }
        assert len(generations) == 1
