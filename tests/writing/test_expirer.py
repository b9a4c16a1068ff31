"""The expirer's deletions and their order: readers and crashes are safe at every moment."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from random import Random

import pytest
from failing_store import FailingStore
from faulty_store import NO_FAULTS, Faults, FaultyObjectStore
from planted_archive import TP, batch
from retention_world import HOUR_MS, State, World, turns, virtually
from taken_settings import take_into
from virtual_loop import run_virtual

from fetchproxy.errors import RemoteStorageError, StorageDenied, StorageUnavailable
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.watched_store import FAILING_IN_A_ROW_MAX

with_both = pytest.mark.parametrize("manager", ["store", "topic"])


@with_both
def test_log_start_then_grace_then_objects(manager: str) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(5)
        expirer, rlmm = await world.start(
            opened, remote_log_retention_ms=2 * HOUR_MS, retention_check_interval_ms=HOUR_MS
        )
        await expirer.expire(TP)
        view = rlmm.view(TP)
        assert view is not None
        assert view.log_start_offset == 30  # 0, 10 and 20 are two hours old or more
        assert world.log_starts() == [30]
        assert world.bases() == [0, 10, 20, 30, 40]  # readers in flight continue
        assert {s.state for s in view.unfinished} == {State.DELETE_SEGMENT_STARTED}
        place = {"topic": "orders", "partition": "0"}
        lag = "kafka_server_brokertopicmetrics_remotedeletelagsegments"
        assert REGISTRY.get_sample_value(lag, place) == 3
        await turns(expirer, 59)
        assert world.bases() == [0, 10, 20, 30, 40]
        await turns(expirer, 3)
        assert world.bases() == [30, 40]
        assert REGISTRY.get_sample_value(lag, place) == 0
        report = await world.planted.verify()
        assert report.faults == []
        expirer.forget(TP)
        assert REGISTRY.get_sample_value(lag, place) is None

    virtually(life, manager)


@with_both
def test_the_grace_goes_on_over_restarts(manager: str) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(3)
        settings = {"remote_log_retention_ms": 1, "retention_check_interval_ms": HOUR_MS}
        for _ in range(55):
            expirer, _ = await world.start(opened, **settings)
            await expirer.expire(TP)
            assert world.bases() == [0, 10, 20]
            await asyncio.sleep(1)
        await turns(expirer, 4)
        assert world.bases() == [0, 10, 20]
        await turns(expirer, 3)
        assert world.bases() == [20]

    virtually(life, manager)


def test_bytes_and_time_by_pattern() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(5)
        size = len(batch(0))
        overrides = f'{{"orders": {{"remote_log_retention_bytes": {2 * size}}}}}'
        expirer, rlmm = await world.start(
            opened, remote_log_retention_bytes=0, retention_overrides=overrides
        )
        await expirer.expire(TP)
        view = rlmm.view(TP)
        assert view is not None
        assert view.log_start_offset == 30

    virtually(life)


def test_a_pass_deletes_no_more_segments_than_its_limit() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(9)
        expirer, rlmm = await world.start(
            opened,
            remote_log_retention_ms=1,
            retention_deletes_per_turn_max=3,
            retention_grace_ms=0,
        )
        await expirer.expire(TP)
        view = rlmm.view(TP)
        assert view is not None
        assert view.log_start_offset == 80  # at once, and in full
        counts_left = []
        for _ in range(5):
            await expirer.expire(TP)
            counts_left.append(len(world.bases()))
        assert counts_left == [9, 8, 5, 2, 1]

    virtually(life)


@with_both
def test_delete_records_is_carried_out_without_any_retention(manager: str) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(4)
        expirer, rlmm = await world.start(opened)
        await turns(expirer, 100)
        assert world.bases() == [0, 10, 20, 30]
        await rlmm.raise_log_start_offset(TP, 25)  # inside the third segment
        await turns(expirer, 100)
        assert world.bases() == [20, 30]
        await rlmm.raise_log_start_offset(TP, 1_000)  # all: by a user's request, not retention
        await turns(expirer, 100)
        assert world.bases() == []

    virtually(life, manager)


def test_a_clock_that_jumps_deletes_nothing_until_it_runs_evenly() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(5)
        expirer, _ = await world.start(
            opened, remote_log_retention_ms=24 * HOUR_MS, retention_clock_settle_ms=30_000
        )
        await turns(expirer, 20)
        world.skew_ms = 1_000 * 24 * HOUR_MS
        await turns(expirer, 29)
        world.skew_ms = 0
        await turns(expirer, 100)
        assert world.log_starts() == []
        world.skew_ms = 24 * HOUR_MS
        await turns(expirer, 29)
        assert world.log_starts() == []
        await turns(expirer, 3)
        assert world.log_starts() == [40]

    virtually(life)


@with_both
def test_attempts_and_second_copies_that_nobody_works_on(manager: str) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(2)
        now_ms = world.wall_clock_ms()
        await world.add(0, event_timestamp_ms=now_ms)
        await world.add(20, event_timestamp_ms=now_ms, state=State.COPY_SEGMENT_STARTED)
        expirer, _ = await world.start(opened)
        await turns(expirer, 58)  # twice the longest copy
        assert len(world.store.objects()) == 4 * 4 + 1
        await turns(expirer, 20 + 60)
        assert world.bases() == [0, 10]
        assert len(world.store.objects()) == 2 * 4 + 1
        assert (await world.planted.verify()).faults == []

    virtually(life, manager)


@with_both
def test_every_write_may_be_the_last(manager: str) -> None:
    """A crash before or after each write: another process completes the work."""

    async def one(at: int, response_lost: bool) -> bool:
        world = World(manager)
        async with AsyncExitStack() as opened:
            await world.plant(3)
            dead, _ = await world.start(opened, remote_log_retention_ms=HOUR_MS)
            world.store.fail(at, response_lost=response_lost)
            try:
                await turns(dead, 80, step_s=10)
            except StorageUnavailable:
                assert world.store.failed
            failed = world.store.failed
            starts = world.log_starts()
            # An object below the log start never goes before the log start is published.
            assert world.bases() == [0, 10, 20] or starts[-1:] == [20]
            expirer, rlmm = await world.start(opened, remote_log_retention_ms=HOUR_MS)
            await turns(expirer, 160, step_s=10)
            assert world.bases() == [20]
            view = await rlmm.refresh(TP, asyncio.get_running_loop().time())
            assert (view.log_start_offset, view.log_end_offset, view.unfinished) == (20, 30, ())
            assert (await world.planted.verify()).faults == []
        return failed

    writes = 0
    for response_lost in (False, True):
        at = 0
        while run_virtual(lambda at=at, lost=response_lost: one(at, lost)):  # type: ignore[misc]
            at += 1
        writes += at
    # The log start, and per segment the state and its objects, each before and after.
    assert writes >= 2 * (1 + 2 * (1 + 5))


@with_both
@pytest.mark.parametrize("seed", range(3))
def test_a_store_that_fails_now_and_then(seed: int, manager: str) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(12)
        faulty = FaultyObjectStore(world.store, Random(seed), Faults(failing_share=0.7))
        expirer, _ = await world.start(opened, faulty, remote_log_retention_ms=5 * HOUR_MS)
        failures = 0
        for _ in range(400):
            try:
                await expirer.expire(TP)
            except RemoteStorageError:
                failures += 1
            await asyncio.sleep(1)
        faulty.faults = NO_FAULTS
        await turns(expirer, 80)
        assert failures > 5
        assert world.bases() == [70, 80, 90, 100, 110]
        assert (await world.planted.verify()).faults == []

    virtually(life, manager)


@with_both
def test_two_expirers_at_once(manager: str) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(8)
        both = [
            await world.start(
                opened,
                FaultyObjectStore(world.store, Random(i), Faults(latency_s_max=2.0)),
                remote_log_retention_ms=HOUR_MS,
                retention_grace_ms=1_000,
            )
            for i in range(2)
        ]
        async with asyncio.TaskGroup() as tasks:
            for expirer, _ in both:
                tasks.create_task(turns(expirer, 200))
        assert world.bases() == [70]
        assert (await world.planted.verify()).faults == []

    virtually(life, manager)


def test_unreadable_metadata_holds_retention_up() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(5)
        third = world.planted.segments[2]
        await world.planted.change(third, SegmentFile.METADATA, lambda _: b"{")
        expirer, rlmm = await world.start(opened, remote_log_retention_ms=1)
        await turns(expirer, 100)
        assert world.bases() == [20, 30, 40]
        assert (view := rlmm.view(TP)) is not None
        assert view.raised_log_start == 20
        await world.planted.change(third, SegmentFile.METADATA, lambda _: encode_segment(third))
        await turns(expirer, 100)
        assert world.bases() == [40]

    virtually(life)


class RefusesSome(FailingStore):
    """Deletions of objects whose name contains one of `kept` are denied."""

    parts_kept: tuple[str, ...] = ()

    def __init__(self) -> None:
        super().__init__()
        self.denied: list[str] = []

    async def delete(self, key: str) -> None:
        if any(part in key for part in self.parts_kept):
            self.denied.append(key)
            raise StorageDenied(f"delete {key}: it is locked")
        await super().delete(key)


def refusing(world: World) -> RefusesSome:
    store = world.store = world.planted.store = RefusesSome()
    world.planted.storage = RemoteStorage(store, "archive")
    return store


@with_both
def test_a_segment_that_cannot_be_deleted_keeps_no_other(manager: str) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        store = refusing(world)
        await world.plant(9)
        changes = {"retention_deletes_per_turn_max": 3, "retention_grace_ms": 0}
        expirer, _ = await world.start(opened, remote_log_retention_ms=1, **changes)
        store.parts_kept = f"/{0:020}", f"/{20:020}"
        errors: list[str] = []
        for _ in range(20):
            try:
                await expirer.expire(TP)
            except StorageDenied as error:
                errors.append(str(error))
            await asyncio.sleep(1)
        assert len(errors) > 10  # in each turn, as the archive keeps more than it may
        assert all("it is locked" in text for text in errors)
        assert world.bases() == [0, 20, 80]
        store.parts_kept = ()
        await turns(expirer, 20)
        assert world.bases() == [80]

    virtually(life, manager)


def test_a_store_that_deletes_nothing_is_not_asked_for_each_segment() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        store = refusing(world)
        await world.plant(3 * FAILING_IN_A_ROW_MAX)
        store.parts_kept = ("",)
        expirer, _ = await world.start(opened, remote_log_retention_ms=1)
        with pytest.raises(StorageDenied):
            await turns(expirer, 200)
        assert len(set(store.denied)) == FAILING_IN_A_ROW_MAX

    virtually(life)


@pytest.mark.live(
    "archive.remote_log_retention_ms",
    "archive.remote_log_retention_bytes",
    "archive.retention_overrides",
    "archive.follow_topic_retention",
    "archive.retention_grace_ms",
)
@pytest.mark.parametrize(
    "settings",
    [
        {"remote_log_retention_ms": 2 * HOUR_MS},
        {"remote_log_retention_bytes": 1},
        {"retention_overrides": '{"orders": {"remote_log_retention_ms": 7200000}}'},
        {"follow_topic_retention": True},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_a_retention_that_changes_counts_at_the_next_look(settings: dict[str, object]) -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        world.topic_config = {"remote.storage.enable": "true", "retention.ms": f"{2 * HOUR_MS}"}
        await world.plant(5)
        expirer, _ = await world.start(opened)
        await turns(expirer, 30)
        assert world.log_starts() == []
        take_into(expirer.config, **settings)
        await turns(expirer, 30)
        [start] = world.log_starts()
        assert start >= 30
        assert world.bases() == [0, 10, 20, 30, 40], "a minute of grace is not over"
        take_into(expirer.config, retention_grace_ms=0)
        await turns(expirer, 10)
        assert 0 not in world.bases()

    virtually(life)


@pytest.mark.live("archive.retention_step_grace_ms")
def test_an_announced_step_may_be_released_at_once() -> None:
    async def life(world: World, opened: AsyncExitStack) -> None:
        await world.plant(5, age_ms=HOUR_MS)
        expirer, _ = await world.start(
            opened, remote_log_retention_ms=2 * HOUR_MS, retention_step_grace_ms=HOUR_MS
        )
        await turns(expirer, 30)
        assert world.log_starts() == []
        take_into(expirer.config, retention_step_grace_ms=0)
        await turns(expirer, 30)
        assert world.log_starts() == [40]

    virtually(life)
