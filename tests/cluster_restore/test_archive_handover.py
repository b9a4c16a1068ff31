"""The archive changes hands: whose it is, what it records, and when that is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from memory_object_store import MemoryObjectStore
from segment_values import segment_of
from virtual_loop import run_virtual

from fetchproxy.archive import StoredArchive
from fetchproxy.cluster_restore.archive_handover import ArchiveHandover
from fetchproxy.cluster_restore.plan import (
    FoundPartition,
    FoundTopic,
    LostPartition,
    LostTopic,
    is_where_it_belongs,
)
from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import ArchiveMismatch, ConfigError
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import ByteRange, RemoteLogSegmentState, TopicIdPartition
from fetchproxy.segments.journal import (
    JournalEntry,
    JournalParts,
    JournalPlace,
    JournalTable,
    encode_table,
)
from fetchproxy.segments.object_keys import LAYOUT_OBJECT
from fetchproxy.storage.archive_identity import MIRROR, ArchiveIdentity, encode_identity
from fetchproxy.storage.remote_storage import RemoteStorage

TP = TopicIdPartition(UUID(int=7), "orders", 0)
NEW_ID, ARCHIVER = UUID(int=8), UUID(int=6)
OWNED = ArchiveIdentity(UUID(int=5), "old", "store")
LOST = LostTopic("orders", 1, (LostPartition(10, 3),), topic_id=TP.topic_id)


class Scene:
    """An archive with offsets 0 to 9 of one partition."""

    def __init__(self, store: MemoryObjectStore, archive: StoredArchive) -> None:
        self.store, self.archive = store, archive

    async def begun(self, *, take_over: bool = False) -> ArchiveHandover:
        """A new run of the command."""
        identity = await self.archive.storage.identity.look()
        assert identity is not None
        objects = self.archive.storage.objects
        await objects.renew_continued_topics()
        beats = {one.key: one.version async for one in objects.list_archiver_positions()}
        return ArchiveHandover(self.archive, identity, "new", beats, take_over=take_over)

    async def handed_over(self, topic: LostTopic = LOST, *, take_over: bool = False) -> str:
        handover = await self.begun(take_over=take_over)
        await handover.run([topic], {topic.name: NEW_ID})
        return handover.done_in_words()

    async def copied(self, number: int, start: int, end: int) -> None:
        segment = segment_of(TP, number, start, end)
        for state in (
            RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        ):
            await self.archive.rlmm.put(segment.with_state(state, 0))

    async def owner(self) -> ArchiveIdentity | None:
        return await self.archive.storage.identity.look()


@asynccontextmanager
async def opened(identity: ArchiveIdentity = OWNED) -> AsyncIterator[Scene]:
    store = MemoryObjectStore()
    await store.put(LAYOUT_OBJECT, encode_identity(identity))
    storage = RemoteStorage(store, must_exist=True)
    rlmm = StoreBackedRemoteLogMetadataManager(storage, MetadataConfig())
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(storage)
        await stack.enter_async_context(rlmm)
        scene = Scene(store, StoredArchive(storage, rlmm))
        await scene.copied(1, 0, 9)
        yield scene


def run(scene: Coroutine[Any, Any, None]) -> None:
    async def main() -> None:
        await scene

    run_virtual(main)


def test_it_names_its_owner_and_what_continues() -> None:
    async def scene() -> None:
        async with opened() as one:
            assert "passes from cluster old to new" in (await one.begun()).in_words()
            assert "topics that continue an archived log: 1" in await one.handed_over()
            owner = await one.owner()
            assert owner is not None
            assert owner.handed_over is not None
            assert (owner.cluster_id, owner.handed_over.from_cluster) == ("new", "old")
            assert (owner.generation, owner.manager) == (OWNED.generation, OWNED.manager)
            again = await one.begun()
            assert "already belongs to cluster new" in again.in_words()
            # A later run takes the beginnings on record, although more is archived by now.
            await one.copied(2, 10, 19)
            there = {"orders": FoundTopic("orders", NEW_ID, {})}
            grown = replace(LOST, partitions=(LostPartition(20, 3),))
            [known] = await again.as_continued([grown], there)
            assert (known.partitions, known.is_continued) == (LOST.partitions, True)
            trimmed = FoundPartition(1, 4, (1,), frozenset({1}), 15, 20)
            assert is_where_it_belongs(known, 0, trimmed)
            assert not is_where_it_belongs(grown, 0, trimmed)
            assert not is_where_it_belongs(known, 0, replace(trimmed, log_end_offset=9))
            await again.run([known], {"orders": NEW_ID})
            assert await one.owner() == owner

    run(scene())


def test_a_run_that_was_killed_after_the_archive_was_taken_records_the_rest() -> None:
    async def scene() -> None:
        async with opened() as one:
            objects = one.archive.storage.objects
            handover = await one.begun()
            running = asyncio.create_task(handover.run([LOST], {"orders": NEW_ID}))
            await asyncio.sleep(0.1)  # it waits for other restores to be seen
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            owner = await one.owner()
            assert owner is not None
            assert owner.cluster_id == "new"
            await objects.read_continued_topics()
            assert not objects.continued

            await one.handed_over()

            await objects.read_continued_topics()
            assert objects.continued.log_id(NEW_ID) == TP.topic_id
            assert await one.owner() == owner

    run(scene())


def test_an_archiver_at_work_refuses_it_unless_it_is_taken_over() -> None:
    async def scene() -> None:
        async with opened() as one:
            objects = one.archive.storage.objects
            await objects.put_archiver_positions(ARCHIVER, b"1")
            handover = await one.begun()
            await objects.put_archiver_positions(ARCHIVER, b"2")
            with pytest.raises(ConfigError, match="an archiver of cluster old is still"):
                await handover.run([LOST], {"orders": NEW_ID})
            assert await one.owner() == OWNED
            await one.handed_over()  # it is silent now
            assert (await one.owner()) != OWNED
        async with opened() as one:
            objects = one.archive.storage.objects
            handover = await one.begun(take_over=True)
            await objects.put_archiver_positions(ARCHIVER, b"1")
            await handover.run([LOST], {"orders": NEW_ID})
            assert (await one.owner()) != OWNED

    run(scene())


def test_what_the_old_archiver_wrote_until_then_is_noticed() -> None:
    async def scene() -> None:
        async with opened() as one:
            await one.copied(2, 10, 14)  # after the plan
            with pytest.raises(ConfigError, match="orders-0: 10 to 15"):
                await one.handed_over()
            topic = replace(LOST, partitions=(LostPartition(15, 3),))
            await one.handed_over(topic)
            record = await one.archive.storage.objects.get_continued_topic("orders", NEW_ID)
            assert record is None  # not listed since
            await one.archive.storage.objects.read_continued_topics()
            record = await one.archive.storage.objects.get_continued_topic("orders", NEW_ID)
            assert record is not None
            assert record.start_offsets == (15,)

    run(scene())


def test_a_topic_that_comes_back_in_its_own_cluster_continues_its_log() -> None:
    """Archivers of that cluster may be at work: they look for it as soon as the archive says so."""

    async def scene() -> None:
        async with opened(replace(OWNED, cluster_id="new")) as one:
            await one.archive.storage.objects.put_archiver_positions(ARCHIVER, b"1")
            await one.handed_over()
            await one.archive.storage.objects.renew_continued_topics()
            assert one.archive.storage.objects.continued.log_id(NEW_ID) == TP.topic_id

    run(scene())


@pytest.mark.parametrize(
    "topic",
    [
        replace(LOST, topic_id=None),
        replace(LOST, later_partitions=(1,)),
        replace(LOST, partitions=(LostPartition(10, 3, archived_end=12),)),
        replace(LOST, partitions=(LostPartition(10, 1_001),)),
    ],
    ids=["not archived", "later partitions", "an earlier state", "epochs"],
)
def test_a_log_goes_on_only_from_the_archives_end_with_higher_epochs(topic: LostTopic) -> None:
    assert LOST.goes_on
    assert not topic.goes_on


def test_a_mirror_stays_one() -> None:
    async def scene() -> None:
        mirror = replace(OWNED, manager=MIRROR)
        async with opened(mirror) as one:
            assert "has a mirror" in await one.handed_over()
            assert await one.owner() == mirror

    run(scene())


def test_another_restore_that_was_faster_has_it() -> None:
    async def scene() -> None:
        async with opened() as one:
            handover = await one.begun()

            async def other() -> None:
                await asyncio.sleep(0.1)  # between the write and the look of the first one
                faster = ArchiveHandover(one.archive, OWNED, "third", {}, take_over=False)
                await faster.run([LOST], {"orders": UUID(int=9)})

            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(other())
                with pytest.raises(ArchiveMismatch, match="belonged to the cluster third"):
                    await handover.run([LOST], {"orders": NEW_ID})

    run(scene())


def journal(tmp_path: Path, start: int, end: int) -> Path:
    """One object with an entry of those offsets, the last one exclusive."""
    place = JournalPlace(ARCHIVER, 1)
    body = b"".join(JournalParts(place, None, 1).stored(TP, start, [b"batches"]))
    entry = JournalEntry(TP, start, end, 3, (), ByteRange(0, len(body)))
    path = tmp_path / "journal"
    path.write_bytes(body + encode_table(JournalTable(place, "old", 1, None, (entry,))))
    return path


@pytest.mark.parametrize(("start", "end", "refused"), [(8, 12, True), (5, 10, False)])
def test_records_that_only_the_journal_has_are_not_given_up(
    tmp_path: Path, start: int, end: int, refused: bool
) -> None:
    async def scene() -> None:
        async with opened() as one:
            path = journal(tmp_path, start, end)
            await one.archive.storage.objects.put_journal(ARCHIVER, 1, path)
            handover = await one.begun()
            if not refused:
                await handover.check_journal([LOST])
                return
            with pytest.raises(ConfigError, match=r"orders-0 up to 12, archived up to 10"):
                await handover.check_journal([LOST])

    run(scene())
