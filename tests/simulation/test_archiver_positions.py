"""The positions that archivers publish: written, read by others, believed while renewed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from random import Random
from uuid import UUID

import pytest
from faulty_store import HANG, NO_FAULTS, OUTAGE, Faults, FaultyObjectStore
from memory_object_store import MemoryObjectStore
from virtual_loop import run_virtual

from fetchproxy.errors import CorruptSegment, StorageUnavailable
from fetchproxy.metadata.archiver_positions import (
    HEARTBEAT_INTERVAL_S,
    MISSED_AFTER_S,
    NOT_KNOWN,
    POSITIONS_READ_INTERVAL_S,
    READ_WAIT_MAX_S,
    SENTENCE_CHARS_MAX,
    SILENT_MAX_S,
    TROUBLES_MAX,
    ArchiverPositions,
    OperatorNotes,
    RecoveryPoint,
    decode_positions,
    encode_positions,
    of_all_archivers,
)
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Health, headlines
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.published_positions import PublishedPositions

T0, T1 = (TopicIdPartition(UUID(int=7), "t", n) for n in range(2))
READ_MAX_MS = 1_000


class World:
    def __init__(self) -> None:
        self.store = FaultyObjectStore(MemoryObjectStore(), Random(1))
        self.storage = RemoteStorage(self.store, "archive")
        self.health = Health()
        self.own_key: str | None = None
        self.points: dict[int, RecoveryPoint] = {}  # of archivers with a journal

    @asynccontextmanager
    async def reader(
        self, here: Callable[[TopicIdPartition], int | None] = lambda tp: None
    ) -> AsyncIterator[ArchiverPositions]:
        clock = asyncio.get_running_loop().time
        async with ArchiverPositions(
            self.storage.objects, READ_MAX_MS, clock, here, self.health, lambda: self.own_key
        ) as positions:
            yield positions

    def headlines(self) -> list[str]:
        return list(headlines(self.health.conditions(asyncio.get_running_loop().time())))

    @asynccontextmanager
    async def archiver(
        self, positions: Mapping[TopicIdPartition, int], number: int = 1
    ) -> AsyncIterator[asyncio.Task[None]]:
        published = PublishedPositions(
            self.storage.objects,
            UUID(int=number),
            lambda: positions,
            positions.get,
            recovery_point=lambda: self.points.get(number),
        )
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(published.run())
            await asyncio.sleep(0.5)
            yield task
            task.cancel()

    async def kill(self, task: asyncio.Task[None]) -> None:
        """Stop it as SIGKILL does: the positions that it published stay."""
        contents = {
            stored.key: await self.store.inner.get(stored.key)
            async for stored in self.storage.objects.list_archiver_positions()
        }
        task.cancel()
        await asyncio.wait([task])
        for key, content in contents.items():
            await self.store.inner.put(key, content)


async def now() -> float:
    return asyncio.get_running_loop().time()


def test_positions_come_back_as_they_were_written() -> None:
    positions = {(UUID(int=i), p): i * p - 1 for i in range(30) for p in range(30)}
    raw = asyncio.run(encode_positions(positions, 17))
    assert decode_positions(raw, "key") == (positions, OperatorNotes())
    assert asyncio.run(encode_positions(positions, 18)) != raw, "a beat is a change"


def test_sentences_for_people_are_cut_to_what_a_page_shows() -> None:
    notes = OperatorNotes(('no "room"', "x" * 5_000) * TROUBLES_MAX, "y" * 5_000)
    notes_read = decode_positions(asyncio.run(encode_positions({}, 1, notes)), "key")[1]
    assert len(notes_read.troubles) == TROUBLES_MAX
    assert notes_read.troubles[:2] == ('no "room"', "x" * SENTENCE_CHARS_MAX)
    assert len(notes_read.retention) == SENTENCE_CHARS_MAX
    older = b'{"version": 1, "beat": 1, "positions": {}}'
    assert decode_positions(older, "key") == ({}, OperatorNotes())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b'{"version": 1}',
        b'{"version": 2, "beat": 1, "positions": {}}',
        b'{"version": 1, "positions": []}',
        b'{"version": 1, "positions": {"../../etc": {"0": 1}}}',
        b'{"version": 1, "positions": {"AAAAAAAAAAAAAAAAAAAABw": {"-1": 1}}}',
        b'{"version": 1, "positions": {"AAAAAAAAAAAAAAAAAAAABw": {"0": -2}}}',
        b'{"version": 1, "positions": {"AAAAAAAAAAAAAAAAAAAABw": {"0": 1e3}}}',
        b'{"version": 1, "positions": {"AAAAAAAAAAAAAAAAAAAABw": [1]}}',
        b'{"version": 1, "positions": {}, "troubles": "none"}',
        b'{"version": 1, "positions": {}, "troubles": [1]}',
        b'{"version": 1, "positions": {}, "retention": 1}',
    ],
)
def test_what_is_no_such_object_names_its_key(raw: bytes) -> None:
    with pytest.raises(CorruptSegment, match="the-key"):
        decode_positions(raw, "the-key")


def test_what_is_said_is_read_kept_up_to_date_and_taken_back() -> None:
    async def main() -> None:
        world, positions = World(), {T0: 100, T1: NOT_KNOWN}
        async with world.reader() as reader:
            async with world.archiver(positions):
                await reader.refresh(await now())
                assert [reader.archiver_position(tp) for tp in (T0, T1)] == [100, NOT_KNOWN]
                positions[T0] = 250
                await asyncio.sleep(1.5)
                assert reader.archiver_position(T0) == 100, "nobody has looked"
                await reader.refresh(await now())
                assert reader.archiver_position(T0) == 250
            await asyncio.sleep(0.1)
            await reader.refresh(await now())
            assert reader.archiver_position(T0) is None, "an archiver that ends takes it back"

    run_virtual(main)


def test_one_that_was_killed_is_believed_for_a_while_and_its_word_is_removed() -> None:
    async def main() -> None:
        world = World()
        async with world.reader() as reader:
            async with world.archiver({T0: 100}) as task:
                await world.kill(task)
            for _ in range(5):
                await reader.refresh(await now())
                assert reader.archiver_position(T0) == 100
                await asyncio.sleep(SILENT_MAX_S / 6)
            await asyncio.sleep(SILENT_MAX_S / 6 + 1)
            await reader.refresh(await now())
            assert reader.archiver_position(T0) is None
            async with world.archiver({T1: 5}, number=2):
                await asyncio.sleep(30 * SILENT_MAX_S)
                keys = [
                    stored.key async for stored in world.storage.objects.list_archiver_positions()
                ]
                assert keys == [world.storage.objects.archiver_positions_key(UUID(int=2))]

    run_virtual(main)


def test_one_that_has_nothing_new_to_say_is_believed_as_long_as_it_runs() -> None:
    async def main() -> None:
        world = World()
        async with world.reader() as reader, world.archiver({T0: 100}):
            for _ in range(20):
                await reader.refresh(await now())
                assert reader.archiver_position(T0) == 100
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)
            await asyncio.sleep(100 * SILENT_MAX_S)
            await reader.refresh(await now())
            assert reader.archiver_position(T0) == 100, "also by one that has not looked for long"

    run_virtual(main)


@pytest.mark.parametrize("failed_looks", [0, 6])
def test_one_that_an_outage_has_silenced_is_believed_when_it_is_over(failed_looks: int) -> None:
    """An archiver cannot publish in an outage. One that died meanwhile is believed for a while."""

    async def main() -> None:
        world = World()
        async with world.reader() as reader, world.archiver({T0: 100}) as task:
            await reader.refresh(await now())
            world.store.faults = Faults(latency_s_min=3_600, latency_s_max=3_600)
            for _ in range(failed_looks):
                await asyncio.sleep(SILENT_MAX_S / 2)
                with pytest.raises(StorageUnavailable):
                    await reader.refresh(await now())
            await asyncio.sleep(SILENT_MAX_S)
            task.cancel()
            await asyncio.wait([task])
            world.store.faults = NO_FAULTS
            silent_since = await now()
            while await now() - silent_since < SILENT_MAX_S - 2:
                await reader.refresh(await now())
                assert reader.archiver_position(T0) == 100
                await asyncio.sleep(1)
            await asyncio.sleep(4)
            await reader.refresh(await now())
            assert reader.archiver_position(T0) is None

    run_virtual(main)


def test_of_several_the_lowest_counts_and_of_this_process_its_own_word() -> None:
    async def main() -> None:
        world, own_positions = World(), {T1: 7}
        async with (
            world.reader(own_positions.get) as reader,
            world.archiver({T0: 100}),
            world.archiver({T0: 60, T1: 3}, number=2),
        ):
            await reader.refresh(await now())
            assert [reader.archiver_position(tp) for tp in (T0, T1)] == [60, 7]

    run_virtual(main)


def test_what_cannot_be_read_says_nothing_and_hides_nobody_else() -> None:
    async def main() -> None:
        world = World()
        async with world.reader() as reader, world.archiver({T0: 100}):
            await world.store.inner.put(
                world.storage.objects.archiver_positions_key(UUID(int=9)), b"torn"
            )
            await world.store.inner.put("archive/archivers/notes.txt", b"somebody's")
            await reader.refresh(await now())
            assert reader.archiver_position(T0) == 100

    run_virtual(main)


def test_a_store_that_hangs_is_an_error_in_time_and_holds_up_no_look() -> None:
    async def main() -> None:
        world = World()
        async with world.reader() as reader, world.archiver({T0: 100}):
            await reader.refresh_unless_failing(1.0)
            assert reader.archiver_position(T0) == 100
            await asyncio.sleep(2)
            world.store.faults = Faults(latency_s_min=3_600, latency_s_max=3_600)
            too_late = f"not done within {READ_MAX_MS // 1000} s"
            with pytest.raises(StorageUnavailable, match=too_late):
                await reader.refresh(await now())
            began = await now()
            await reader.refresh_unless_failing(1.0)
            assert await now() - began <= READ_WAIT_MAX_S
            began = await now()
            for _ in range(100):
                await reader.refresh_unless_failing(1.0)
            assert await now() == began, "one that has failed is not waited for again"
            assert reader.archiver_position(T0) == 100, "what was last said counts"
            world.store.faults = Faults()

    run_virtual(main)


def test_while_it_runs_nobody_has_to_wait() -> None:
    async def main() -> None:
        world = World()
        world.store.faults = Faults(latency_s_min=0.1, latency_s_max=0.1)
        async with world.reader() as reader, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(reader.run())
            await asyncio.sleep(1)
            for _ in range(30):
                begun = await now()
                await reader.refresh_unless_failing(POSITIONS_READ_INTERVAL_S + 1)
                assert await now() == begun
                await asyncio.sleep(0.7 * POSITIONS_READ_INTERVAL_S)
            running.cancel()

    run_virtual(main)


# --- the headlines that operators see of archivers ---------------------------------------------
@asynccontextmanager
async def watched(world: World) -> AsyncIterator[ArchiverPositions]:
    async with world.reader() as reader, asyncio.TaskGroup() as tasks:
        running = tasks.create_task(reader.run())
        yield reader
        running.cancel()


def heard() -> float | None:
    return REGISTRY.get_sample_value("fetchproxy_archivers_heard")


async def silent_after(world: World) -> float:
    begun = await now()
    for _ in range(1_000):
        if world.headlines():
            break
        await asyncio.sleep(0.1)
    return await now() - begun


@pytest.mark.parametrize("killed_after_s", [0.6, 3.3, 4.1, 20.0, 31.9])
@pytest.mark.remedy("archiver_silent")
def test_one_that_is_killed_is_named_within_15_s_until_it_is_back(killed_after_s: float) -> None:
    async def main() -> None:
        world = World()
        async with watched(world):
            async with world.archiver({T0: 100, T1: 5}) as task:
                await asyncio.sleep(killed_after_s)
                assert world.headlines() == []
                await world.kill(task)
            assert await silent_after(world) < 14
            (sentence,) = world.headlines()
            assert "its 2 partitions are not archived" in sentence
            assert heard() == 0
            async with world.archiver({T0: 100, T1: 5}, number=2):
                await asyncio.sleep(2 * POSITIONS_READ_INTERVAL_S)
                assert (heard(), world.headlines()) == (1, [])

    run_virtual(main)


def test_none_is_named_that_writes_slowly_or_whose_partitions_another_has() -> None:
    async def main() -> None:
        world = World()
        async with watched(world), world.archiver({T0: 100}, number=2):
            async with world.archiver({T0: 90}) as task:
                await world.kill(task)
            world.store.faults = Faults(latency_s_min=0.9, latency_s_max=0.9)
            for _ in range(200):
                await asyncio.sleep(1)
                assert world.headlines() == []

    run_virtual(main)


@pytest.mark.parametrize("faults", [OUTAGE, HANG], ids=["refuses", "hangs"])
@pytest.mark.parametrize("outage_s", [2, 5, 7, 9, 11, 13, 16, 40])
def test_none_is_named_in_an_outage_nor_after_it(outage_s: int, faults: Faults) -> None:
    """In a store outage neither side reaches the store."""

    async def main() -> None:
        world = World()
        async with watched(world), world.archiver({T0: 100}):
            for _ in range(10):
                await asyncio.sleep(7.3)
                world.store.faults = faults
                await asyncio.sleep(outage_s)
                world.store.faults = NO_FAULTS
                for _ in range(150):
                    await asyncio.sleep(0.1)
                    assert world.headlines() == []

    run_virtual(main)


def test_what_an_archiver_says_is_shown_elsewhere() -> None:
    async def main() -> None:
        world, notes = World(), [OperatorNotes(("The disk fails",), "the brokers delete nothing")]
        published = PublishedPositions(
            world.storage.objects,
            UUID(int=1),
            lambda: [T0],
            lambda tp: 100,
            lambda topics: notes[0],
        )
        async with watched(world):
            task = asyncio.create_task(published.run())
            await asyncio.sleep(1 + POSITIONS_READ_INTERVAL_S)
            assert world.headlines() == ["The disk fails"]
            world.own_key = published.key
            await asyncio.sleep(POSITIONS_READ_INTERVAL_S)
            assert world.headlines() == [], "by itself it says it itself"
            notes[0] = OperatorNotes((), "the brokers delete nothing")
            await asyncio.sleep(2 + POSITIONS_READ_INTERVAL_S)
            assert world.headlines() == []
            await world.kill(task)
            await asyncio.sleep(MISSED_AFTER_S + 2 * POSITIONS_READ_INTERVAL_S)
            (sentence,) = world.headlines()
            assert sentence.endswith("its partition is not archived; the brokers delete nothing")

    run_virtual(main)


def test_a_recovery_point_is_that_of_all_other_archivers_and_grows_older() -> None:
    async def scene() -> None:
        world = World()
        world.points = {1: RecoveryPoint(1_500, 10), 2: RecoveryPoint(700, 5)}
        async with (
            world.archiver({T0: 1}),
            world.archiver({T1: 1}, number=2),
            world.reader() as positions,
        ):
            await positions.refresh(asyncio.get_running_loop().time())
            assert of_all_archivers(positions.recovery_points()) == RecoveryPoint(1_500, 15)
            await asyncio.sleep(0.25)
            assert of_all_archivers(positions.recovery_points()) == RecoveryPoint(1_750, 15)
            world.own_key = world.storage.objects.archiver_positions_key(UUID(int=1))
            assert of_all_archivers(positions.recovery_points()) == RecoveryPoint(950, 5)
            await asyncio.sleep(SILENT_MAX_S)
            assert list(positions.recovery_points()) == [], "nobody has looked since"

    run_virtual(scene)


def test_what_a_dead_archiver_had_is_at_risk_until_another_has_it() -> None:
    async def scene() -> None:
        world = World()
        world.points = {1: RecoveryPoint(500, 10), 2: RecoveryPoint(700, 5)}
        async with watched(world) as positions, world.archiver({T1: 1}, number=2):
            async with world.archiver({T0: 1}) as task:
                await world.kill(task)
            await asyncio.sleep(3 * SILENT_MAX_S)
            both = of_all_archivers(positions.recovery_points())
            assert both is not None
            assert (both.age_ms or 0) >= 3_000 * SILENT_MAX_S - 1_000 * POSITIONS_READ_INTERVAL_S
            assert both.records == 15
            async with world.archiver({T0: 1}, number=3):
                await asyncio.sleep(2 * POSITIONS_READ_INTERVAL_S)
                point = of_all_archivers(positions.recovery_points())
                assert point is not None
                assert point.records == 5

    run_virtual(scene)


@pytest.mark.parametrize(
    ("points", "expected"),
    [
        ([], None),
        ([RecoveryPoint(2_100, 8_204)], "2.1 s and 8,204 records lost"),
        ([RecoveryPoint(2_100, 1), RecoveryPoint(None, 0)], "not known yet and 1 record lost"),
    ],
)
def test_what_would_be_lost_in_words(points: list[RecoveryPoint], expected: str | None) -> None:
    point = of_all_archivers(points)
    assert (point is None) == (expected is None)
    assert point is None or point.in_words().endswith(expected or "")
