"""A reader that looks only at the ends of a partition sees what one that lists everything sees."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from memory_object_store import MemoryObjectStore
from scripted_store import ScriptedStore
from segment_values import DELETED, DELETING, FINISHED, STARTED, TP, segment
from topic_backing import TopicBacking

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.metadata.partition_ends import EndsLimits, must_be_announced
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    OFFSET_MAX,
    EpochStart,
    LogHistory,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
)
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import SegmentFile, partition_folder, past_changed_key
from fetchproxy.segments.records import LogStartOffset
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.object_store import StoredObject
from fetchproxy.storage.stores.s3 import PAGE_OBJECTS

Manager = StoreBackedRemoteLogMetadataManager
LIMITS = EndsLimits(listed_segments=8, unannounced_segments_max=4, whole_below_segments=20)
PAST = past_changed_key("archive/", TP)


class CountingStore(MemoryObjectStore):
    """`listed`: for each listing of the partition, what it begins after, and how much it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[tuple[str, int]] = []
        self.failing = ""  # puts of this key fail
        self.silent_after_keys = False  # a store that answers a listing after a key with nothing

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        number = 0
        try:
            async for stored_object in super().list(prefix, start_after):
                if self.silent_after_keys and start_after:
                    break
                number += 1
                yield stored_object
        finally:
            if prefix == partition_folder("archive/", TP):
                self.listed.append((start_after, number))

    async def put(self, key: str, content: bytes) -> None:
        if key == self.failing:
            raise StorageUnavailable("the process ends here")
        await super().put(key, content)


@dataclass
class World:
    """An archive with two writers, and a reader that looks at the ends."""

    store: CountingStore = field(default_factory=CountingStore)
    number: int = 0
    at_ms: int = 0

    def __post_init__(self) -> None:
        self.storage = RemoteStorage(self.store, "archive")

    def manager(self, *, ends: bool = False, limits: EndsLimits = LIMITS) -> Manager:
        config = MetadataConfig()
        return Manager(self.storage, config, looks_at_ends=ends, ends_limits=limits)

    def segment(self, first: int, last: int, epoch: int = 0) -> RemoteLogSegmentMetadata:
        self.number += 1
        self.at_ms += 1
        made = segment(self.number, first, last, STARTED, event_timestamp_ms=self.at_ms)
        return replace(made, segment_leader_epochs=(EpochStart(epoch, first),))

    async def copy(
        self, writer: Manager, first: int, last: int, epoch: int = 0
    ) -> RemoteLogSegmentMetadata:
        made = self.segment(first, last, epoch)
        await writer.put(made)
        finished = made.with_state(FINISHED, made.event_timestamp_ms)
        await writer.put(finished)
        return finished

    async def remove(self, writer: Manager, one: RemoteLogSegmentMetadata) -> None:
        if one.state is not DELETING:
            await writer.put(one.with_state(DELETING, self.at_ms))
        await self.storage.rsm.delete_log_segment_data(one)
        await writer.put(one.with_state(DELETED, self.at_ms))

    async def truth(self) -> PartitionView:
        async with self.manager() as manager:
            view = await manager.refresh(TP, now())
            self.segments = manager.list_remote_log_segments(TP)
            return view

    async def check(self, reader: Manager) -> None:
        view, expected = await reader.refresh(TP, now()), await self.truth()
        assert_same(view, expected)
        assert reader.list_remote_log_segments(TP) == self.segments


def now() -> float:
    return asyncio.get_running_loop().time()


def assert_same(actual: PartitionView, expected: PartitionView) -> None:
    assert list(actual.segments) == list(expected.segments)
    assert sorted(actual.unfinished, key=str) == sorted(expected.unfinished, key=str)
    for name in ("raised_log_start", "history", "unreadable", "copies_started"):
        assert getattr(actual, name) == getattr(expected, name), name
    for name in ("log_start_offset", "log_end_offset"):
        assert getattr(actual, name) == getattr(expected, name), name


# --- what happens to a partition --------------------------------------------------------------

Step = Callable[[World, Manager, random.Random], Awaitable[None]]


def _known(writer: Manager) -> list[RemoteLogSegmentMetadata]:
    return list(writer.list_remote_log_segments(TP))


def _end(writer: Manager) -> int:
    return max((one.end_offset + 1 for one in _known(writer)), default=0)


def _above_start(writer: Manager) -> list[RemoteLogSegmentMetadata]:
    view = writer.view(TP)
    start = 0 if view is None else view.raised_log_start
    return [s for s in _known(writer) if s.state is FINISHED and s.end_offset >= start]


async def append(world: World, writer: Manager, dice: random.Random) -> None:
    for _ in range(dice.choice([1, 1, 2, 30])):
        end = _end(writer)
        await world.copy(writer, end, end + 9, epoch=dice.choice([0, 0, 1]))


async def begin_a_copy(world: World, writer: Manager, _: random.Random) -> None:
    end = _end(writer)
    await writer.put(world.segment(end, end + 9))


async def fail_a_copy(world: World, writer: Manager, _: random.Random) -> None:
    end = _end(writer)
    made = world.segment(end, end + 9)
    await writer.put(made)
    await world.remove(writer, made)


async def retain(world: World, writer: Manager, dice: random.Random) -> None:
    """Raise the log start, hide what is below, and delete some of it."""
    known = _above_start(writer)
    if known:
        at = known[min(len(known) - 1, dice.choice([1, 2, 3, 25]))].start_offset
        await writer.raise_log_start_offset(TP, at)
        for one in [s for s in _known(writer) if s.end_offset < at][: dice.randint(0, 30)]:
            await world.remove(writer, one)


async def delete_records(world: World, writer: Manager, dice: random.Random) -> None:
    await writer.raise_log_start_offset(TP, dice.randint(0, _end(writer) + 5))


async def hide(world: World, writer: Manager, dice: random.Random) -> None:
    known = [s for s in _known(writer) if s.state is not DELETING]
    if known:
        await writer.put(dice.choice(known).with_state(DELETING, world.at_ms))


async def delete_hidden(world: World, writer: Manager, dice: random.Random) -> None:
    for one in [s for s in _known(writer) if s.state is DELETING]:
        if dice.random() < 0.7:
            await world.remove(writer, one)


async def merge(world: World, writer: Manager, dice: random.Random) -> None:
    known = _above_start(writer)
    first = dice.randrange(len(known)) if known else 0
    olds = known[first : first + dice.randint(2, 6)]
    if len(olds) > 1:
        await world.copy(writer, olds[0].start_offset, max(s.end_offset for s in olds))
        for one in olds:
            await writer.put(one.with_state(DELETING, world.at_ms))


async def truncate(world: World, writer: Manager, dice: random.Random) -> None:
    """An unclean election: the last segments are of a dead log, and one is cut."""
    known = _above_start(writer)
    dead = known[max(0, len(known) - dice.choice([1, 2, 12])) :]
    for one in dead[1:]:
        await writer.put(one.with_state(DELETING, world.at_ms))
    if dead and dead[0].end_offset > dead[0].start_offset:
        await writer.put(dead[0].clipped(dead[0].start_offset))


async def backfill(world: World, writer: Manager, dice: random.Random) -> None:
    """Copies of offsets that are archived, or were: another archiver's, or a backfill's."""
    for _ in range(dice.choice([1, 6])):
        first = dice.randint(0, max(0, _end(writer) - 10))
        await world.copy(writer, first, first + dice.randint(0, 20), epoch=dice.choice([0, 1]))


async def prepend(world: World, writer: Manager, dice: random.Random) -> None:
    """A backfill of older offsets moves the others away from the beginning; then some go."""
    for _ in range(dice.choice([1, 7])):
        begin = min((one.start_offset for one in _known(writer)), default=0)
        if begin >= 10:
            await world.copy(writer, begin - 10, begin - 1)
    for one in _known(writer)[: dice.randint(0, 9)]:
        if one.state is not DELETING:
            await writer.put(one.with_state(DELETING, world.at_ms))


async def take_back(world: World, writer: Manager, dice: random.Random) -> None:
    """The last segments go, which moves the end towards the others; then copies follow."""
    known = _known(writer)
    for one in reversed(known[max(0, len(known) - dice.choice([1, 7])) :]):
        await world.remove(writer, one)
    end = max(0, _end(writer) - dice.choice([0, 40]))
    for number in range(dice.randint(0, 3)):
        await world.copy(writer, end + 10 * number, end + 10 * number + 9, epoch=1)


async def begin_again(world: World, writer: Manager, dice: random.Random) -> None:
    history = LogHistory(dice.randint(0, 3), dice.randint(0, _end(writer)))
    await writer.put_log_history(TP, history)


async def repair(world: World, writer: Manager, dice: random.Random) -> None:
    if known := [s for s in _known(writer) if s.state is FINISHED]:
        mended = replace(dice.choice(known), max_timestamp_ms=dice.randint(0, 1000))
        await world.storage.objects.put_segment_metadata(mended, encode_segment(mended))
        await world.storage.objects.put_past_changed(TP)


async def delete_all(world: World, writer: Manager, dice: random.Random) -> None:
    if dice.random() < 0.2:
        for one in _known(writer):
            await world.remove(writer, one)


STEPS: tuple[Step, ...] = (
    append,
    append,
    begin_a_copy,
    fail_a_copy,
    retain,
    retain,
    delete_records,
    hide,
    delete_hidden,
    merge,
    truncate,
    backfill,
    prepend,
    take_back,
    begin_again,
    repair,
    delete_all,
)


async def _live(seed: int, steps: int) -> World:
    dice, world = random.Random(seed), World()
    async with world.manager() as one, world.manager(ends=True) as two, world.manager() as first:
        for number in range(dice.choice([0, 25, 60])):
            await world.copy(first, 300 + number * 10, 300 + number * 10 + 9)
        async with world.manager(ends=True) as reader, world.manager(ends=True) as seldom:
            for at in range(steps):
                writer = dice.choice([one, two])
                await writer.refresh(TP, now())
                step = dice.choice(STEPS)
                if dice.random() < 0.3:  # looks of a reader that is in the middle of it
                    async with asyncio.TaskGroup() as both:
                        both.create_task(_take(step, world, writer, dice))
                        for _ in range(3):
                            await reader.refresh(TP, now())
                else:
                    await step(world, writer, dice)
                if dice.random() < 0.2:
                    await reader.refresh_topic(TP.topic_id, now())
                await world.check(reader)
                await world.check(writer)
                if at % 7 == 6:
                    await world.check(seldom)
            await world.check(seldom)
    return world


async def _take(step: Step, world: World, writer: Manager, dice: random.Random) -> None:
    await step(world, writer, dice)


@settings(max_examples=25)
@given(st.integers(0, 2**32))
def test_a_look_at_the_ends_shows_what_a_listing_of_everything_shows(seed: int) -> None:
    asyncio.run(_live(seed, 15))


def test_these_histories_are_seen_at_the_ends() -> None:
    """Most looks of the test above are not listings of everything, or it would prove nothing."""
    listed = [one for seed in range(4) for one in asyncio.run(_live(seed, 15)).store.listed]
    assert sum(after != "" for after, _ in listed) > 50


# --- what a look costs, and what it does not take for granted ----------------------------------


@pytest.fixture
async def world() -> World:
    """60 segments of 10 offsets."""
    world = World()
    async with world.manager() as writer:
        for number in range(60):
            await world.copy(writer, number * 10, number * 10 + 9)
    return world


async def looked_twice(reader: Manager) -> None:
    """From then on the reader looks at the ends."""
    await reader.refresh(TP, now())
    await reader.refresh(TP, now())


async def whole_listings(world: World, reader: Manager) -> int:
    before = len(world.store.listed)
    await reader.refresh(TP, now())
    at_ends = LIMITS.listed_segments + 1
    return sum(number > at_ends for _, number in world.store.listed[before:])


async def test_a_look_lists_both_ends_alone(world: World) -> None:
    async with world.manager(ends=True) as reader, world.manager() as writer:
        await looked_twice(reader)
        del world.store.listed[:]
        for _ in range(3):
            await reader.refresh(TP, now())
        assert [number for _, number in world.store.listed] == [8, 8] * 3
        await writer.refresh(TP, now())
        for number in range(60, 75):
            await world.copy(writer, number * 10, number * 10 + 9)
        del world.store.listed[:]
        view = await reader.refresh(TP, now())
        assert [number for _, number in world.store.listed] == [8 + 15, 8]
        assert view.log_end_offset == 750


async def test_the_first_looks_and_short_partitions_are_listed_as_a_whole() -> None:
    world = World()
    async with world.manager(ends=True) as reader, world.manager() as writer:
        for number in range(LIMITS.whole_below_segments - 1):
            await world.copy(writer, number * 10, number * 10 + 9)
        await looked_twice(reader)
        assert await whole_listings(world, reader) == 1
        await world.copy(writer, 190, 199)
        assert [await whole_listings(world, reader) for _ in range(3)] == [1, 1, 0]


async def test_a_change_that_later_copies_move_away_from_the_beginning(world: World) -> None:
    async with world.manager(ends=True) as reader, world.manager() as writer:
        await writer.raise_log_start_offset(TP, 100)
        for one in _known(writer)[:10]:
            await world.remove(writer, one)
        await looked_twice(reader)
        assert await whole_listings(world, reader) == 0
        await writer.put(_known(writer)[1].with_state(DELETING, 1))
        for number in reversed(range(10)):
            await world.copy(writer, number * 10, number * 10 + 9)
        await world.check(reader)


async def test_a_change_that_was_not_at_the_end_when_the_reader_looked(world: World) -> None:
    async with world.manager(ends=True) as reader, world.manager(ends=True) as writer:
        await looked_twice(reader)
        await looked_twice(writer)
        for one in reversed(_known(writer)[-7:]):
            await world.remove(writer, one)
        await world.remove(writer, _known(writer)[-3])
        await world.check(reader)


async def test_jobs_and_checks_list_everything(world: World) -> None:
    async with world.manager() as job:
        await looked_twice(job)
        assert await whole_listings(world, job) == 1


async def test_an_unannounced_change_is_seen_after_a_doubt(world: World) -> None:
    """A person has deleted a segment from the middle, and a client has asked for its records."""
    async with world.manager(ends=True) as reader:
        await looked_twice(reader)
        gone = (await reader.refresh(TP, now())).segments[30]
        await world.storage.rsm.delete_log_segment_data(gone)
        assert gone in (await reader.refresh(TP, now())).segments
        reader.doubt(TP)
        await world.check(reader)
        assert gone not in (await reader.refresh(TP, now())).segments


async def test_a_doubt_counts_for_a_look_that_has_begun(world: World) -> None:
    async with world.manager(ends=True) as reader:
        await looked_twice(reader)
        gone = (await reader.refresh(TP, now())).segments[30]
        await world.storage.rsm.delete_log_segment_data(gone)
        look = asyncio.ensure_future(reader.refresh(TP, now()))
        await asyncio.sleep(0)
        reader.doubt(TP)
        assert gone not in (await look).segments


async def test_an_unannounced_change_is_seen_after_the_interval(world: World) -> None:
    often = replace(LIMITS, whole_listing_interval_ms=1)
    async with world.manager(ends=True, limits=often) as reader:
        await looked_twice(reader)
        gone = (await reader.refresh(TP, now())).segments[30]
        await world.storage.rsm.delete_log_segment_data(gone)
        await asyncio.sleep(0.002)
        await world.check(reader)


async def test_a_change_that_failed_is_announced_because_it_may_have_happened(world: World) -> None:
    async with world.manager(ends=True) as reader, world.manager(ends=True) as writer:
        await looked_twice(reader)
        await looked_twice(writer)
        hidden = _known(writer)[30].with_state(DELETING, 1)
        put = world.store.put

        async def lost(key: str, content: bytes) -> None:
            await put(key, content)
            if key.endswith(".metadata"):
                raise StorageUnavailable("the response is lost")

        world.store.put = lost  # type: ignore[method-assign]
        with pytest.raises(StorageUnavailable):
            await writer.put(hidden)
        world.store.put = put  # type: ignore[method-assign]
        await world.check(reader)
        await world.check(writer)
        assert hidden in reader.list_remote_log_segments(TP)


async def test_a_writer_that_could_not_tell_lists_everything_itself(world: World) -> None:
    async with world.manager(ends=True) as writer:
        await looked_twice(writer)
        world.store.failing = PAST
        with pytest.raises(StorageUnavailable):
            await writer.put(_known(writer)[30].with_state(DELETING, 1))
        world.store.failing = ""
        await world.check(writer)


async def test_a_store_that_answers_a_listing_after_a_key_with_nothing(world: World) -> None:
    async with world.manager(ends=True) as reader:
        await looked_twice(reader)
        world.store.silent_after_keys = True
        assert await whole_listings(world, reader) == 1
        await world.check(reader)


async def test_metadata_that_cannot_be_read_are_tried_in_each_look(world: World) -> None:
    async with world.manager(ends=True) as reader:
        await looked_twice(reader)
        last = (await reader.refresh(TP, now())).segments[-1]
        key = world.storage.rsm.object_key(last, SegmentFile.METADATA)
        await world.store.put(key, b"damaged")
        await world.check(reader)
        assert reader.problems(TP)
        await world.store.put(key, encode_segment(last))
        await world.check(reader)
        assert not reader.problems(TP)


async def test_a_topic_of_long_partitions_is_read_by_their_ends() -> None:
    world, tps = World(), [TP._replace(partition=number) for number in range(3)]
    async with world.manager() as writer:
        for number, tp in enumerate(tps):
            for at in range(60):
                one = segment(1000 * number + at, at * 10, at * 10 + 9, STARTED, tp=tp)
                await writer.put(one)
                await writer.put(one.with_state(FINISHED, 0))
    async with world.manager(ends=True) as reader:
        for _ in range(3):
            await reader.refresh_topic(TP.topic_id, now())
        last = segment(5000, 600, 609, tp=tps[1])
        await world.storage.objects.put_segment_metadata(last, encode_segment(last))
        new = segment(6000, 0, 9, tp=TP._replace(partition=7))
        await world.storage.objects.put_segment_metadata(new, encode_segment(new))
        views = await reader.refresh_topic(TP.topic_id, now())
        assert {number: view.log_end_offset for number, view in views.items()} == {
            0: 600,
            1: 610,
            2: 600,
            7: 10,
        }


async def test_a_manager_by_topic_tells_archive_only_nodes() -> None:
    """They read the store."""
    async with ScriptedStore(MemoryObjectStore()) as store:
        backing = TopicBacking(store)
        async with backing.manager() as writer:
            made = [segment(number, 10 * number, 10 * number + 9) for number in range(120)]
            for one in made:
                await writer.put(one.with_state(STARTED, 0))
                await writer.put(one)
            await writer.raise_log_start_offset(TP, 20)
            await writer.put(made[0].with_state(DELETING, 1))
            assert store.count("put", PAST) == 0
            for number, step in enumerate(
                (
                    writer.put(made[60].with_state(DELETING, 1)),
                    writer.raise_log_start_offset(TP, 600),
                    writer.put(segment(999, 600, 609, STARTED)),
                    writer.put(segment(999, 600, 609)),
                ),
                start=1,
            ):
                await step
                assert store.count("put", PAST) == number


# --- which changes have to be announced ----------------------------------------------------------


@pytest.mark.parametrize(
    ("at", "state", "announced"),
    [
        (200, STARTED, False),  # behind the last segment
        (199, FINISHED, False),
        (149, FINISHED, True),
        (0, FINISHED, True),  # it moves the others
        (0, DELETING, False),
        (50, DELETED, False),
        (51, DELETING, True),
        (199, DELETING, True),
    ],
)
def test_copies_at_the_end_and_deletions_at_the_beginning_are_not_announced(
    at: int, state: RemoteLogSegmentState, *, announced: bool
) -> None:
    table = PartitionTable(TP)
    for number in range(200):
        table.take(segment(number, 10 * number, 10 * number + 9))
    assert must_be_announced(table, segment(999, 10 * at, 10 * at + 9, state)) is announced


@pytest.mark.parametrize(
    ("offset", "announced"), [(0, False), (500, False), (520, True), (1990, False)]
)
def test_a_log_start_is_announced_between_the_ends(offset: int, *, announced: bool) -> None:
    table = PartitionTable(TP)
    for number in range(200):
        table.take(segment(number, 10 * number, 10 * number + 9))
    assert must_be_announced(table, LogStartOffset(TP, offset, 0)) is announced


def test_what_tells_of_the_past_is_listed_behind_all_segments() -> None:
    storage = RemoteStorage(MemoryObjectStore(), "archive")
    last = segment(2**128 - 1, OFFSET_MAX, OFFSET_MAX)
    assert storage.rsm.object_key(last, SegmentFile.TXN) < PAST


def test_what_is_announced_is_less_than_what_is_listed() -> None:
    """The rest is what a writer may not know yet. And an end is one page of a listing."""
    limits = EndsLimits()
    assert limits.unannounced_segments_max * 2 <= limits.listed_segments
    assert limits.listed_segments * len(SegmentFile) <= PAGE_OBJECTS
    assert limits.listed_segments * 2 <= limits.whole_below_segments
