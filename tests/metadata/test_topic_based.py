"""The topic-based manager: the contract on a log in memory, and its own behavior."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from memory_metadata_log import MemoryMetadataLog
from memory_object_store import MemoryObjectStore
from metadata_contract import (
    OTHER,
    TP,
    DeleteState,
    State,
    copied,
    deletion,
    now,
    segment,
    until,
)
from scripted_store import ScriptedStore
from topic_backing import Manager, TopicBacking, TopicContract

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import ConfigError, RemoteStorageError, StorageUnavailable
from fetchproxy.metadata.remote_log_metadata_manager import READ_MAX_MS
from fetchproxy.observability.metrics import METADATA_EVENTS_REFUSED, METADATA_UNREADABLE
from fetchproxy.segments.object_keys import log_start_key
from fetchproxy.segments.records import LogStartOffset, encode_message
from fetchproxy.storage.remote_storage import RemoteStorage


@pytest.fixture
async def backing() -> AsyncIterator[TopicBacking]:
    async with ScriptedStore(MemoryObjectStore()) as store:
        yield TopicBacking(store)


class TestInMemory(TopicContract):
    @pytest.fixture
    async def backing(self, backing: TopicBacking) -> TopicBacking:
        return backing


class CachedBacking(TopicBacking):
    """Every manager keeps its read events in its own folder."""

    def __init__(self, store: ScriptedStore, folder: Path) -> None:
        super().__init__(store)
        self._folder = folder
        self._managers = 0

    def manager(
        self, config: MetadataConfig | None = None, storage: RemoteStorage | None = None
    ) -> AbstractAsyncContextManager[Manager]:
        self._managers += 1
        return super().manager(
            MetadataConfig(cache_dir=self._folder / str(self._managers)), storage
        )


class TestWithCache(TopicContract):
    @pytest.fixture
    async def backing(self, backing: TopicBacking, tmp_path: Path) -> TopicBacking:
        return CachedBacking(backing.store, tmp_path)


# --- the order of the log ---
async def test_of_two_that_race_the_second_in_the_log_is_refused_by_all(
    backing: TopicBacking,
) -> None:
    async with backing.manager() as one, backing.manager() as two, backing.manager() as reader:
        metadata = segment(1, 0, 9)
        await one.put(metadata)
        finished = metadata.with_state(State.COPY_SEGMENT_FINISHED, 1)
        deleting = metadata.with_state(State.DELETE_SEGMENT_STARTED, 1)
        await asyncio.gather(one.refresh(TP, now()), two.refresh(TP, now()))
        refused = METADATA_EVENTS_REFUSED._value.get()
        outcomes = await asyncio.gather(
            one.put(finished), two.put(deleting), return_exceptions=True
        )
        # `two` is first in the log: `one` has to write the store's object before.
        assert isinstance(outcomes[0], ValueError)
        assert "another writer was first" in str(outcomes[0])
        assert outcomes[1] is None
        for manager in (one, two, reader):
            view = await manager.refresh(TP, now())
            assert tuple(view.segments) == ()
            assert manager.list_remote_log_segments(TP) == (deleting,)
        assert METADATA_EVENTS_REFUSED._value.get() == refused + 3  # by each of the three readers
        async with backing.in_store() as store:
            await store.refresh(TP, now())
            assert store.list_remote_log_segments(TP) == (deleting,)


async def test_a_copy_that_was_removed_meanwhile_leaves_nothing_in_the_store(
    backing: TopicBacking,
) -> None:
    async with backing.manager() as one, backing.manager() as two:
        metadata = segment(1, 0, 9)
        await one.put(metadata)
        deleting = metadata.with_state(State.DELETE_SEGMENT_STARTED, 1)
        gone = metadata.with_state(State.DELETE_SEGMENT_FINISHED, 2)

        async def removed() -> None:
            await two.put(deleting)
            await backing.storage.rsm.delete_log_segment_data(metadata)
            await two.put(gone)

        backing.script.before_append = removed
        with pytest.raises(ValueError, match="another writer was first"):
            await one.put(metadata.with_state(State.COPY_SEGMENT_FINISHED, 1))
        assert [key async for key in backing.store.inner.list("archive/orders")] == []


async def test_a_late_event_of_a_dead_writer_changes_nothing(backing: TopicBacking) -> None:
    async with backing.manager() as manager:
        finished = await copied(manager, segment(1, 0, 9))
        clipped = segment(1, 0, 4, State.COPY_SEGMENT_FINISHED)
        await manager.put(clipped)
        gone = await copied(manager, segment(2, 10, 19))
        deleting = gone.with_state(State.DELETE_SEGMENT_STARTED, 3)
        await manager.put(deleting)
        await backing.storage.rsm.delete_log_segment_data(gone)
        await manager.put(gone.with_state(State.DELETE_SEGMENT_FINISHED, 4))
        await manager.raise_log_start_offset(TP, 2)
        before = await manager.refresh(TP, now())
        await backing.events(
            segment(1, 0, 9), finished, gone, deleting, LogStartOffset(TP, 1, 0)
        )  # a repeat of each
        async with backing.manager() as fresh:
            for reader in (manager, fresh):
                view = await reader.refresh(TP, now())
                assert tuple(view.segments) == (clipped,)
                assert view.unfinished == before.unfinished == ()
                assert view.raised_log_start == 2


async def test_a_segment_that_was_cut_never_grows_again(backing: TopicBacking) -> None:
    async with backing.manager() as manager:
        finished = await copied(manager, segment(1, 0, 9))
        await manager.put(segment(1, 0, 4, State.COPY_SEGMENT_FINISHED))
        with pytest.raises(ValueError, match="ends at 4 and cannot be made to end at 9"):
            await manager.put(finished)


async def test_an_append_whose_answer_was_lost_may_be_repeated(backing: TopicBacking) -> None:
    async with backing.manager() as manager:
        for state in (
            State.COPY_SEGMENT_STARTED,
            State.COPY_SEGMENT_FINISHED,
            State.DELETE_SEGMENT_STARTED,
        ):
            backing.script.responses_lost = 1
            with pytest.raises(RemoteStorageError, match="answer was lost"):
                await manager.put(segment(1, 0, 9, state))
            await manager.put(segment(1, 0, 9, state))
            (known,) = manager.list_remote_log_segments(TP)
            assert known.state is state
        assert len(backing.log.logs[backing.number(TP)]) == 6


# --- topic and store ---
async def test_the_store_has_all_that_the_topic_says(backing: TopicBacking) -> None:
    async with backing.manager() as manager, backing.in_store() as store:
        finished = await copied(manager, segment(1, 0, 9))
        started = segment(2, 10, 19)
        await manager.put(started)
        dropped = await copied(manager, segment(3, 20, 29))
        await manager.put(dropped.with_state(State.DELETE_SEGMENT_STARTED, 5))
        await manager.raise_log_start_offset(TP, 3)
        await manager.raise_log_start_offset(TP, 4)
        marked = deletion(DeleteState.DELETE_PARTITION_MARKED)
        await manager.put_partition_deletion(marked)
        view_of_topic, listed = await manager.refresh(TP, now()), await store.refresh(TP, now())
        assert tuple(listed.segments) == tuple(view_of_topic.segments) == (finished,)
        assert listed.raised_log_start == view_of_topic.raised_log_start == 4
        known = manager.list_remote_log_segments(TP)
        assert known == store.list_remote_log_segments(TP)
        assert await store.partition_deletion(TP, now()) == marked
        lower = log_start_key("archive/", TP, 3)
        assert lower not in [
            stored_object.key async for stored_object in backing.store.inner.list("archive/")
        ]


@pytest.mark.parametrize(
    ("state", "store_first"),
    [
        (State.COPY_SEGMENT_STARTED, False),
        (State.COPY_SEGMENT_FINISHED, True),
        (State.DELETE_SEGMENT_STARTED, False),
    ],
)
async def test_a_crash_between_topic_and_store_leaves_what_is_repeated(
    backing: TopicBacking, state: State, store_first: bool
) -> None:
    async with backing.manager() as manager:
        before = segment(1, 0, 9)
        for earlier in range(state):
            await manager.put(segment(1, 0, 9, State(earlier)))
        await manager.refresh(TP, now())
        expected = segment(1, 0, 9, state)
        appended = len(backing.log.logs[backing.number(TP)])
        if store_first:
            backing.script.append_error = StorageUnavailable("the brokers are away")
            with pytest.raises(StorageUnavailable):
                await manager.put(expected)
            backing.script.append_error = None
            assert len(backing.log.logs[backing.number(TP)]) == appended
            # Readers see a copy in progress, until it is repeated or removed.
            view = await manager.refresh(TP, now())
            assert (tuple(view.segments), view.unfinished) == ((), (before,))
        else:
            backing.store.error = StorageUnavailable("the store is away")
            with pytest.raises(StorageUnavailable):
                await manager.put(expected)
            backing.store.error = None
            view = await manager.refresh(TP, now())
            assert (tuple(view.segments), view.unfinished) == ((), (expected,))
        await manager.put(expected)
        async with backing.in_store() as store:
            await store.refresh(TP, now())
            assert store.list_remote_log_segments(TP) == (expected,)
        assert manager.list_remote_log_segments(TP) == (expected,)


async def test_segments_that_the_topic_does_not_know_are_no_empty_archive(
    backing: TopicBacking,
) -> None:
    async with backing.in_store() as before, backing.manager() as manager:
        await copied(before, segment(1, 0, 9))
        for _ in range(2):
            with pytest.raises(RemoteStorageError, match=r"orders-0 .*fetchproxy restore"):
                await manager.refresh(TP, now())
        with pytest.raises(RemoteStorageError, match="fetchproxy restore"):
            await manager.put(segment(2, 0, 9))
        assert manager.view(TP) is None
        assert tuple((await manager.refresh(OTHER, now())).segments) == ()
        await backing.events(segment(1, 0, 9), segment(1, 0, 9, State.COPY_SEGMENT_FINISHED))
        assert len((await manager.refresh(TP, now())).segments) == 1


async def test_a_topic_that_only_the_store_knows_does_not_pass_for_never_archived(
    backing: TopicBacking,
) -> None:
    async with backing.in_store() as before, backing.manager() as manager:
        await copied(before, segment(1, 0, 9))
        assert await manager.archived_topics(now()) == {TP.topic_id}
        with pytest.raises(RemoteStorageError, match=r"orders-0 .*fetchproxy restore"):
            await manager.refresh_topic(TP.topic_id, now())


async def test_topics_are_told_while_the_store_is_away(backing: TopicBacking) -> None:
    async with backing.manager() as writer, backing.manager() as reader:
        await copied(writer, segment(1, 0, 9))
        backing.store.error = StorageUnavailable("the store is away")
        assert await reader.archived_topics(now()) == {TP.topic_id}
        assert len((await reader.refresh_topic(TP.topic_id, now()))[0].segments) == 1
        backing.store.error = None


async def test_a_copy_begun_while_the_store_is_looked_at_is_no_false_alarm(
    backing: TopicBacking,
) -> None:
    unhindered = RemoteStorage(backing.store.inner, "archive")
    async with backing.manager() as reader, backing.manager(storage=unhindered) as writer:
        backing.store.door.clear()
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(reader.refresh(TP, now()))
            await until(lambda: backing.store.count("get") == 1)  # the layout: then it lists
            await writer.put(segment(1, 0, 9))
            backing.store.door.set()
        assert reading.result().copies_started


async def test_the_store_is_listed_once_for_a_partition_that_has_nothing(
    backing: TopicBacking,
) -> None:
    async with backing.manager() as manager:
        for _ in range(3):
            await manager.refresh(TP, now())
        assert backing.store.count("list", "orders") == 1
        await copied(manager, segment(1, 0, 9, tp=OTHER))
        await manager.refresh(OTHER, now())
        assert backing.store.count("list", "orders") == 2


# --- events that cannot be read ---
@pytest.mark.parametrize("value", [b"", b"\x07\x00of another program", b"\xff" * 40])
async def test_an_event_that_cannot_be_read_makes_nothing_certain(
    backing: TopicBacking, value: bytes, tmp_path: Path
) -> None:
    number = backing.number(TP)
    async with backing.cached(tmp_path) as manager:
        first = await copied(manager, segment(1, 0, 9))
        unreadable = METADATA_UNREADABLE._value.get()
        offset = await backing.log.append(number, value)
        third = await copied(manager, segment(3, 20, 29))
        view = await manager.refresh(TP, now())
        assert tuple(view.segments) == (first, third)
        assert not view.gap_at(15)
        assert view.uncertain_at(15)
        (problem,) = manager.problems(TP)
        assert problem.object_key == f"__remote_log_metadata-{number} offset {offset}"
        assert METADATA_UNREADABLE._value.get() == unreadable + 1
    # A program that can read it finds it: no later event was kept in the cache.
    backing.log.logs[number][offset] = encode_message(segment(2, 10, 19))
    async with backing.cached(tmp_path) as newer:
        view = await newer.refresh(TP, now())
        assert tuple(view.segments) == (first, third)
        assert [s.start_offset for s in view.unfinished] == [10]
        assert newer.problems(TP) == ()


async def test_a_topic_that_has_lost_events_is_not_read_on(
    backing: TopicBacking, tmp_path: Path
) -> None:
    number = backing.number(TP)
    async with backing.cached(tmp_path) as manager:
        finished = await copied(manager, segment(1, 0, 9))
        events_kept = backing.log.logs[number]
        backing.log.logs[number] = events_kept[:1]
        with pytest.raises(RemoteStorageError, match=r"lost events.*fetchproxy restore"):
            await manager.refresh(TP, now())
        backing.log.logs[number] = events_kept
        assert tuple((await manager.refresh(TP, now())).segments) == (finished,)
    backing.log.starts[number] = 1
    async with backing.manager() as fresh:
        with pytest.raises(RemoteStorageError, match="lost events"):
            await fresh.refresh(TP, now())


# --- start ---
async def test_a_topic_with_wrong_settings_is_refused_at_the_start(backing: TopicBacking) -> None:
    backing.script.fault = ConfigError("mend it with kafka-configs.sh")
    with pytest.raises(ConfigError, match="kafka-configs"):
        async with backing.manager():
            pytest.fail("it was entered")


async def test_brokers_that_are_away_at_the_start_are_asked_again(backing: TopicBacking) -> None:
    backing.fail()
    async with backing.manager() as manager:
        assert manager.view(TP) is None
        assert manager.problems(TP) == ()
        assert manager.list_remote_log_segments(TP) == ()
        with pytest.raises(StorageUnavailable):
            await manager.refresh(TP, now())
        backing.heal()
        await copied(manager, segment(1, 0, 9))
        backing.script.fault = ConfigError("found later")  # an open log is not opened again
        assert len((await manager.refresh(TP, now())).segments) == 1


async def test_a_log_that_never_answers_is_one_that_is_away(backing: TopicBacking) -> None:
    async def hang() -> None:
        await asyncio.Event().wait()

    backing.script.before_open = hang
    async with backing.manager(read_max_ms=50) as manager:  # a finite wait
        follower = manager._follower
        manager._read_max_ms = follower._read_max_ms = READ_MAX_MS
        await manager.refresh(TP, now())
        backing.script.before_append = hang
        follower._read_max_ms = 50
        with pytest.raises(StorageUnavailable, match=r"append for orders-0: not done within 0\.05"):
            await manager.put(segment(1, 0, 9))
        follower._read_max_ms = READ_MAX_MS
        await manager.put(segment(1, 0, 9))
        backing.hold()
        follower._read_max_ms = 50
        with pytest.raises(StorageUnavailable, match=r"to the end: not done within 0\.05 s"):
            await manager.refresh(TP, now())
        backing.release()
        follower._read_max_ms = READ_MAX_MS
        assert (await manager.refresh(TP, now())).copies_started
        backing.store.door.clear()
        manager._read_max_ms = 50
        with pytest.raises(StorageUnavailable, match="orders-1 in the store: not done within"):
            await manager.refresh(OTHER, now())


async def test_wrong_settings_found_late_are_an_error_of_every_read(backing: TopicBacking) -> None:
    backing.fail()
    async with backing.manager() as manager:
        backing.heal()
        backing.script.fault = ConfigError("mend it")
        for _ in range(2):
            with pytest.raises(RemoteStorageError, match="mend it"):
                await manager.refresh(TP, now())


# --- the cache ---
async def fill(manager: Manager) -> None:
    for n in range(6):
        await copied(manager, segment(n, 10 * n, 10 * n + 9))
        await copied(manager, segment(10 + n, 10 * n, 10 * n + 9, tp=OTHER))
    await manager.raise_log_start_offset(TP, 15)
    doomed = segment(5, 50, 59, State.DELETE_SEGMENT_STARTED)
    await manager.put(doomed)


async def same(manager: Manager, fresh: Manager) -> None:
    for tp in (TP, OTHER):
        old, new = await manager.refresh(tp, now()), await fresh.refresh(tp, now())
        assert tuple(old.segments) == tuple(new.segments)
        assert old.raised_log_start == new.raised_log_start
        assert manager.list_remote_log_segments(tp) == fresh.list_remote_log_segments(tp)
        assert len(new.segments) > 3


async def test_a_restart_reads_only_what_is_new(backing: TopicBacking, tmp_path: Path) -> None:
    async with backing.manager() as other:
        async with backing.cached(tmp_path) as manager:
            await fill(manager)
        await copied(other, segment(6, 60, 69))
        read_before = backing.script.values_read
        async with backing.cached(tmp_path) as again:
            assert list(await again.list_partitions()) == [TP, OTHER]
            assert backing.script.values_read == read_before + 2
            assert again.list_remote_log_segments(OTHER) == ()  # its file was not opened yet
            await same(other, again)


async def test_a_cache_that_is_lost_costs_a_read_of_the_topic(
    backing: TopicBacking, tmp_path: Path
) -> None:
    async with backing.manager() as other:
        async with backing.cached(tmp_path) as manager:
            await fill(manager)
        for file in [path for path in tmp_path.rglob("*") if path.is_file()]:
            file.unlink()
        async with backing.cached(tmp_path) as again:
            await same(other, again)


async def test_a_torn_file_is_read_again_from_the_topic(
    backing: TopicBacking, tmp_path: Path
) -> None:
    async with backing.manager() as other:
        async with backing.cached(tmp_path) as manager:
            await fill(manager)
        files = [path for path in tmp_path.rglob("*.remote-log-metadata")]
        assert len(files) == 2
        for number, file in enumerate(files):
            content = file.read_bytes()
            file.write_bytes(content[: -7 - 30 * number])
        async with backing.cached(tmp_path) as again:
            await same(other, again)
        async with backing.cached(tmp_path) as third:
            await same(other, third)


async def test_a_topic_made_anew_makes_the_cache_worthless(
    backing: TopicBacking, tmp_path: Path
) -> None:
    async with backing.cached(tmp_path) as manager:
        await fill(manager)
    backing.log = MemoryMetadataLog(log_id=78)
    async with ScriptedStore(MemoryObjectStore()) as empty:
        backing.storage = RemoteStorage(empty, "archive")
        async with backing.cached(tmp_path) as again:
            assert list(await again.list_partitions()) == []
            assert tuple((await again.refresh(TP, now())).segments) == ()


async def test_a_deleted_partition_leaves_no_file(backing: TopicBacking, tmp_path: Path) -> None:
    async with backing.cached(tmp_path) as manager:
        await copied(manager, segment(1, 0, 9, tp=OTHER))
        await manager.raise_log_start_offset(TP, 5)
        for state in DeleteState:
            await manager.put_partition_deletion(deletion(state))
    assert len(list(tmp_path.rglob("*.remote-log-metadata"))) == 1
    async with backing.cached(tmp_path) as again:
        assert list(await again.list_partitions()) == [OTHER]


async def test_a_disk_that_fails_costs_the_cache_and_nothing_else(
    backing: TopicBacking, tmp_path: Path
) -> None:
    async with backing.cached(tmp_path) as manager:
        await copied(manager, segment(1, 0, 9))
        (tmp_path / "orders").mkdir(exist_ok=True)
        for file in (tmp_path / "orders").iterdir():
            file.unlink()
        (tmp_path / "orders").rmdir()
        (tmp_path / "orders").write_text("in the way")
        await copied(manager, segment(2, 10, 19))
    async with backing.manager() as fresh:
        assert len((await fresh.refresh(TP, now())).segments) == 2
