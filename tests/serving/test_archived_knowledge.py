"""Which topics may be archived: while the store answers, is slow, or does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from memory_object_store import MemoryObjectStore
from metadata_contract import TP, copied, segment
from scripted_store import ScriptedStore

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import RemoteStorageError, StorageUnavailable
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.serving.gateway import served_archive as archived_knowledge
from fetchproxy.serving.gateway.served_archive import ArchivedKnowledge
from fetchproxy.storage.continued_topics import ContinuedTopics
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.retries import REQUEST_TRIES_MAX

NEVER = UUID(int=404)
AT_ONCE_S = 60.0  # for 100 questions, each of which must not wait for 1 s


@pytest.fixture(autouse=True)
def _a_busy_machine_has_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("WAIT_MAX_S", "FIRST_WAIT_MAX_S"):
        monkeypatch.setattr(archived_knowledge, name, 60.0)


class Archive:
    """A store behind a door, another process that archives into it, and the gateway's knowledge."""

    def __init__(self) -> None:
        inner = MemoryObjectStore()
        self.store = ScriptedStore(inner)
        self.rlmm = StoreBackedRemoteLogMetadataManager(RemoteStorage(self.store), MetadataConfig())
        self.other = StoreBackedRemoteLogMetadataManager(RemoteStorage(inner), MetadataConfig())
        self.later_s = 0.0
        self.continued = ContinuedTopics()
        self.knowledge = ArchivedKnowledge(
            self.rlmm, self.continued, self.clock, SparingWarnings(self.clock)
        )

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self.later_s

    @property
    def listings(self) -> int:
        return self.store.count("list_folders")

    async def until(self, happened: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not happened():  # noqa: ASYNC110 - a task of the knowledge's own
                await asyncio.sleep(0.001)


@asynccontextmanager
async def opened(*, runs: bool = True, archived: bool = False) -> AsyncIterator[Archive]:
    archive = Archive()
    async with archive.rlmm, archive.other, asyncio.TaskGroup() as tasks:
        if archived:
            await copied(archive.other, segment(1, 0, 9))
        running = tasks.create_task(archive.knowledge.run()) if runs else None
        yield archive
        if running is not None:
            running.cancel()


async def test_the_list_is_read_at_the_start_and_serves_who_asks() -> None:
    async with opened(archived=True) as archive:
        await archive.until(lambda: archive.rlmm.known_archived_topics() is not None)
        for archive.later_s in (0, 3_600):
            for _ in range(100):
                topic_ids = {TP.topic_id, NEVER}
                assert await archive.knowledge.archived_among(topic_ids) == {TP.topic_id}
        assert archive.listings == 1


async def test_whoever_asks_the_list_is_read_at_its_interval(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archived_knowledge, "LIST_INTERVAL_S", 0.001)
    async with opened() as archive:
        await archive.until(lambda: archive.listings >= 10)
        assert await archive.knowledge.archived_among({TP.topic_id}) == set()
        await copied(archive.other, segment(1, 0, 9))
        copied_at = archive.clock()
        await archive.until(lambda: archive.knowledge.listed_at > copied_at)
        assert await archive.knowledge.archived_among({TP.topic_id})


async def test_who_needs_it_is_given_a_list_since_then() -> None:
    """A log may be trimmed right after the first copy: an older list would deny the archive."""
    async with opened(runs=False) as archive:
        assert not await archive.knowledge.archived_among({TP.topic_id})
        await copied(archive.other, segment(1, 0, 9))
        responded_at = asyncio.get_running_loop().time()
        assert await archive.knowledge.may_be_archived(TP.topic_id, responded_at)
        assert not await archive.knowledge.may_be_archived(NEVER, responded_at)
        assert archive.listings == 2


async def test_however_many_need_a_fresh_list_one_is_read_and_one_waits() -> None:
    """A thousand clients with offsets out of range must not cause a listing each."""
    async with opened(runs=False, archived=True) as archive:
        clock = asyncio.get_running_loop().time
        assert not await archive.knowledge.may_be_archived(NEVER, archive.clock())
        for wave in range(3):
            archive.store.door.clear()
            async with asyncio.TaskGroup() as asking:
                for _ in range(500):
                    asking.create_task(archive.knowledge.may_be_archived(NEVER, clock()))
                await asyncio.sleep(0.001)
                assert archive.listings == 2 * wave + 2
                for _ in range(500):  # these come after the listing in flight has begun
                    asking.create_task(archive.knowledge.may_be_archived(NEVER, clock()))
                await asyncio.sleep(0.001)
                archive.store.door.set()
            assert archive.listings == 2 * wave + 3


async def test_an_outage_does_not_touch_what_was_never_archived() -> None:
    async with opened(archived=True) as archive:
        await archive.until(lambda: archive.rlmm.known_archived_topics() is not None)
        archive.store.error = StorageUnavailable("the store is away")
        archive.later_s = 3_600
        for _ in range(100):
            assert not await archive.knowledge.may_be_archived(NEVER, archive.clock())
            assert await archive.knowledge.may_be_archived(TP.topic_id, archive.clock())
        assert archive.listings <= 3  # not once for each question


async def test_a_store_that_hangs_is_not_waited_for_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(archived_knowledge, "WAIT_MAX_S", 1.0)
    async with opened() as archive:
        await archive.until(lambda: archive.rlmm.known_archived_topics() is not None)
        archive.store.door.clear()
        archive.later_s = 3_600
        async with asyncio.timeout(AT_ONCE_S):
            for _ in range(100):
                assert not await archive.knowledge.may_be_archived(NEVER, archive.clock())


async def test_without_any_list_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived_knowledge, "RETRY_PAUSE_S", 0.01)
    archive = Archive()
    archive.store.error = StorageUnavailable("the store is away")
    async with archive.rlmm, asyncio.TaskGroup() as tasks:
        for _ in range(3):
            with pytest.raises(RemoteStorageError, match="the store is away"):
                await archive.knowledge.may_be_archived(NEVER, archive.clock())
        # One look, whose request was sent again.
        assert archive.store.calls.count(("get", "remote-log-layout")) == REQUEST_TRIES_MAX
        running = tasks.create_task(archive.knowledge.run())
        archive.store.error = None
        await archive.until(lambda: archive.rlmm.known_archived_topics() is not None)
        assert not await archive.knowledge.may_be_archived(NEVER, archive.clock())
        running.cancel()


async def test_after_an_outage_lists_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archived_knowledge, "RETRY_PAUSE_S", 0.01)
    async with opened() as archive:
        await archive.until(lambda: archive.rlmm.known_archived_topics() is not None)
        archive.store.error = StorageUnavailable("the store is away")
        archive.later_s = 3_600
        assert not await archive.knowledge.may_be_archived(TP.topic_id, archive.clock())
        await copied(archive.other, segment(1, 0, 9))
        archive.store.error = None
        async with asyncio.timeout(60):
            while not await archive.knowledge.may_be_archived(TP.topic_id, archive.clock()):  # noqa: ASYNC110
                await asyncio.sleep(0.005)


async def test_an_id_that_continues_another_log_is_not_called_unarchived() -> None:
    """The topic was looked up before the archive said so: its client would skip the archive."""
    async with opened(runs=False, archived=True) as archive:
        at_brokers, now = UUID(int=9), archive.clock()
        assert not await archive.knowledge.may_be_archived(at_brokers, now)
        archive.continued.add({at_brokers: TP.topic_id})
        with pytest.raises(RemoteStorageError, match="continues another log"):
            await archive.knowledge.may_be_archived(at_brokers, now)
        with pytest.raises(RemoteStorageError, match="continues another log"):
            await archive.knowledge.archived_among({TP.topic_id, at_brokers})
        assert await archive.knowledge.may_be_archived(TP.topic_id, now)
