"""A metadata topic is rebuilt from the store: the same views, and no event too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from derivable_archive import GeneratedLog, archived, logs
from hypothesis import given
from hypothesis import strategies as st
from memory_metadata_log import MemoryMetadataLog
from planted_archive import TP, PlantedArchive, batch

from fetchproxy.auditing.restore import (
    RestoredPartition,
    bracketed,
    missing_deletion,
    missing_states,
    restore_archive,
)
from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import RemoteStorageError
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicBasedRemoteLogMetadataManager, TopicFollower
from fetchproxy.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.records import encode_message

State = RemoteLogSegmentState
Deletion = RemotePartitionDeleteState
METADATA = SegmentFile.METADATA
CONFIG = MetadataConfig()
SEGMENT = RemoteLogSegmentMetadata(
    segment_id=RemoteLogSegmentId(TP, UUID(int=9)),
    start_offset=0,
    end_offset=9,
    max_timestamp_ms=0,
    event_timestamp_ms=0,
    segment_leader_epochs=(),
    segment_size_bytes=1,
    state=State.COPY_SEGMENT_FINISHED,
    has_aborted_txns=False,
)


async def restore(
    archive: PlantedArchive, log: MemoryMetadataLog, *, dry_run: bool = False, exists: bool = True
) -> list[RestoredPartition]:
    async with (
        StoreBackedRemoteLogMetadataManager(archive.storage, CONFIG) as stored,
        TopicFollower(log, CONFIG.cache_dir) as follower,
    ):
        return await restore_archive(
            stored,
            follower if exists else None,
            wall_clock_ms=lambda: 1,
            partitions=await stored.list_partitions(),
            dry_run=dry_run,
        )


@asynccontextmanager
async def topic_based(
    archive: PlantedArchive, log: MemoryMetadataLog
) -> AsyncIterator[TopicBasedRemoteLogMetadataManager]:
    async with TopicBasedRemoteLogMetadataManager(
        log, archive.storage, CONFIG, wall_clock_ms=lambda: 1
    ) as rlmm:
        yield rlmm


def events_in(log: MemoryMetadataLog) -> int:
    return sum(map(len, log.logs))


async def same_view_of_both(archive: PlantedArchive, log: MemoryMetadataLog) -> None:
    now = asyncio.get_running_loop().time()
    async with (
        StoreBackedRemoteLogMetadataManager(archive.storage, CONFIG) as stored,
        topic_based(archive, log) as rlmm,
    ):
        every = list(await stored.list_partitions())
        assert list(await rlmm.list_partitions()) == every
        for tp in every:
            view_of_store, view_of_topic = (
                await stored.refresh(tp, now),
                await rlmm.refresh(tp, now),
            )
            assert tuple(view_of_topic.segments) == tuple(view_of_store.segments)
            assert view_of_topic.raised_log_start == view_of_store.raised_log_start
            assert rlmm.list_remote_log_segments(tp) == stored.list_remote_log_segments(tp)
            assert await rlmm.partition_deletion(tp, now) == await stored.partition_deletion(
                tp, now
            )


@given(logs(), st.integers(0, 40), st.integers(0, 100), st.data())
def test_an_empty_topic_shows_what_the_store_shows(
    made: GeneratedLog, log_start: int, stop_after: int, data: st.DataObject
) -> None:
    """Also after a restore that was killed somewhere, and with copies and deletions half done."""

    async def check() -> None:
        archive = await archived(made)
        for segment in archive.segments:
            state = data.draw(st.sampled_from((State.COPY_SEGMENT_FINISHED, *State)))
            if state is not State.DELETE_SEGMENT_FINISHED:
                await archive.restate(replace(segment, state=state))
        if log_start:
            await archive.storage.objects.put_log_start_offset(TP, log_start, b"")
        log = MemoryMetadataLog()
        await restore(archive, log)
        await same_view_of_both(archive, log)
        # Whatever of the events had been written before, the rest is written.
        for events in log.logs:
            del events[stop_after:]
        await restore(archive, log)
        await same_view_of_both(archive, log)
        written = events_in(log)
        [again] = await restore(archive, log)
        assert (again.restored, again.raised_log_start) == (0, None)
        assert events_in(log) == written

    asyncio.run(check())


async def two_segments() -> PlantedArchive:
    archive = PlantedArchive()
    for start in (0, 20):
        await archive.add(batch(base) for base in (start, start + 10))
    return archive


@pytest.mark.parametrize("exists", [True, False])
async def test_a_dry_run_writes_nothing(exists: bool) -> None:
    archive, log = await two_segments(), MemoryMetadataLog()
    [planned] = await restore(archive, log, dry_run=True, exists=exists)
    assert (planned.tp, planned.segments, planned.restored) == (TP, 2, 2)
    assert events_in(log) == 0
    assert await restore(archive, log) == [planned]


async def test_what_the_topic_knows_is_left_as_it_is() -> None:
    """There a segment is being deleted, and another was finished that the store has lost."""
    archive, log = await two_segments(), MemoryMetadataLog()
    await restore(archive, log)
    first, second = archive.segments
    async with topic_based(archive, log) as rlmm:
        await rlmm.put(first.with_state(State.DELETE_SEGMENT_STARTED, 5))
    await archive.restate(first)
    await archive.store.delete(archive.key(second, METADATA))
    written = events_in(log)
    [partition_report] = await restore(archive, log)
    assert events_in(log) == written
    assert (
        partition_report.segments,
        partition_report.restored,
        partition_report.not_in_store,
    ) == (1, 0, 1)


async def test_a_topic_deletion_goes_on_where_it_was() -> None:
    archive, log = await two_segments(), MemoryMetadataLog()
    started = RemotePartitionDeleteMetadata(TP, Deletion.DELETE_PARTITION_STARTED, 9, 3)
    async with StoreBackedRemoteLogMetadataManager(archive.storage, CONFIG) as stored:
        await stored.put_partition_deletion(
            replace(started, state=Deletion.DELETE_PARTITION_MARKED)
        )
        await stored.put_partition_deletion(started)
    await restore(archive, log)
    await same_view_of_both(archive, log)


async def test_unreadable_metadata_are_counted() -> None:
    archive, log = await two_segments(), MemoryMetadataLog()
    key = archive.storage.rsm.object_key(archive.segments[0], METADATA)
    await archive.store.put(key, b"damaged")
    [partition_report] = await restore(archive, log)
    assert (partition_report.segments, partition_report.restored, partition_report.unreadable) == (
        1,
        1,
        1,
    )


@given(st.sampled_from(State), st.sampled_from((None, *State)))
def test_states_lead_to_what_the_store_says(stored: State, known: State | None) -> None:
    segment = _segment(stored)
    steps = missing_states(None if known is None else _segment(known), segment)
    if known is not None and known >= stored:
        assert steps == []
    else:
        assert steps[-1] == segment
        assert known is not None or steps[0].state is State.COPY_SEGMENT_STARTED


def test_the_steps_of_a_deletion() -> None:
    started = RemotePartitionDeleteMetadata(TP, Deletion.DELETE_PARTITION_STARTED, 9)
    marked = replace(started, state=Deletion.DELETE_PARTITION_MARKED)
    assert missing_deletion(None, None) == []
    assert missing_deletion(None, started) == [marked, started]
    assert missing_deletion(marked, started) == [started]
    assert missing_deletion(started, marked) == []


def _segment(state: State) -> RemoteLogSegmentMetadata:
    return replace(SEGMENT, state=state)


async def known_to(rlmm: TopicBasedRemoteLogMetadataManager) -> int:
    """The number of segments that a reader is shown. Raises RemoteStorageError."""
    view = await rlmm.refresh(TP, asyncio.get_running_loop().time())
    return len(view.segments)


@pytest.mark.parametrize("killed_at", range(1, 8))
async def test_a_restore_that_was_killed_is_not_half_an_archive(killed_at: int) -> None:
    """Three segments are six events, and two that stand around them; it ends with any of them."""
    archive, log = await two_segments(), MemoryMetadataLog(partitions=1)
    await archive.add([batch(40)])
    await restore(archive, log)
    assert len(log.logs[0]) == 8
    del log.logs[0][killed_at:]
    async with topic_based(archive, log) as rlmm:
        with pytest.raises(RemoteStorageError, match="fetchproxy restore` again"):
            await known_to(rlmm)
        now = asyncio.get_running_loop().time()
        with pytest.raises(RemoteStorageError):
            await rlmm.put(replace(SEGMENT, state=State.COPY_SEGMENT_STARTED))
        with pytest.raises(RemoteStorageError):
            await rlmm.partition_deletion(TP, now)
        assert list(await rlmm.list_partitions()) == [TP]
        with pytest.raises(RemoteStorageError):
            await rlmm.refresh_topic(TP.topic_id, now)
        report = await archive.verify(metadata_topic=rlmm)
        assert [fault.object_key for fault in report.faults] == [archive.storage.objects.folder(TP)]
        await restore(archive, log)
        assert await known_to(rlmm) == 3
        assert (await archive.verify(metadata_topic=rlmm)).clean
    await same_view_of_both(archive, log)


async def test_whoever_is_running_is_not_shown_half_of_it(tmp_path: Path) -> None:
    """What it was shown before stays what it sees; and a file keeps that it is not complete."""
    archive, log = await two_segments(), MemoryMetadataLog(partitions=1)
    await restore(archive, log)
    config = MetadataConfig(cache_dir=tmp_path)
    wall_clock_ms = lambda: 1  # noqa: E731
    manager = TopicBasedRemoteLogMetadataManager(log, archive.storage, config, wall_clock_ms)
    async with manager as rlmm:
        assert await known_to(rlmm) == 2
        third, fourth = await archive.add([batch(40)]), await archive.add([batch(50)])
        events = bracketed(
            TP, [*missing_states(None, third), *missing_states(None, fourth)], False, 1
        )
        for event in events[:3]:
            log.logs[0].append(encode_message(event))
        with pytest.raises(RemoteStorageError):
            await known_to(rlmm)
        view = rlmm.view(TP)
        assert view is not None
        assert len(view.segments) == 2
    manager = TopicBasedRemoteLogMetadataManager(log, archive.storage, config, wall_clock_ms)
    async with manager as rlmm:
        with pytest.raises(RemoteStorageError):
            await known_to(rlmm)
        for event in events[3:]:
            log.logs[0].append(encode_message(event))
        assert await known_to(rlmm) == 4


async def test_verify_asks_the_metadata_topic_what_there_should_be() -> None:
    archive, log = await two_segments(), MemoryMetadataLog()
    await restore(archive, log)
    first, last = archive.segments
    for file in SegmentFile:
        await archive.store.delete(archive.key(last, file))
    await archive.store.delete(archive.storage.objects.finished_offsets_key(TP))
    async with topic_based(archive, log) as rlmm:
        [fault] = (await archive.verify(metadata_topic=rlmm)).faults
        assert (fault.object_key, fault.first_offset) == (
            archive.key(last, METADATA),
            last.start_offset,
        )
        assert "the store has no metadata of it" in fault.what
        # Retention deletes it by and by: first in the topic.
        gone = last.with_state(State.DELETE_SEGMENT_STARTED, 1)
        await rlmm.put(gone)
        await archive.store.delete(archive.key(last, METADATA))
        assert (await archive.verify(metadata_topic=rlmm)).clean
        # What the topic has never heard of is served to nobody.
        stranger = await archive.add([batch(90)])
        await archive.state(TP, recorded_from=90, end_offset=99)
        [fault] = (await archive.verify(metadata_topic=rlmm)).faults
        assert fault.object_key == archive.key(stranger, METADATA)
        await archive.store.delete(archive.key(stranger, METADATA))
        await archive.state(TP, recorded_from=90, end_offset=-1)
        await archive.restate(replace(first, end_offset=first.end_offset - 1))
        faults = (await archive.verify(metadata_topic=rlmm)).faults
        assert any("the metadata topic COPY_SEGMENT_FINISHED up to" in f.what for f in faults)
