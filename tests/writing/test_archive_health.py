"""Each condition of an archive has one name, one sentence and the same offsets everywhere.

That is: in the log, the store, `verify`, `segments`, `/metrics` and `/api/status`. The archiver's
own classes cause each condition. A test puts the result in a folder, and the commands and a proxy
without an archiver look at it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from memory_object_store import MemoryObjectStore
from planted_archive import TP, PlantedArchive, batch
from prometheus_client import generate_latest
from retention_world import HOUR_MS, World, turns, virtually
from structlog.testing import capture_logs
from test_future_timestamps import YEAR_2100_MS
from test_local_trimming import TP as TRIMMED
from test_local_trimming import trimming
from test_log_begins_again import begun_again
from test_partition_deletion import WIPED, life
from test_partition_watch import LAGGING
from test_unclean_histories import world as unclean_world

from fetchproxy.cli.segments import read_archive
from fetchproxy.cli.verify import print_summary, report_json
from fetchproxy.config.schema import ArchiveConfig, Config, StoreConfig
from fetchproxy.console.collect import StatusCollector, StatusSources
from fetchproxy.console.status import PartitionsHealth, Status
from fetchproxy.jobs.runner import Here
from fetchproxy.jobs.verify import verify
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import LogHistory
from fetchproxy.observability.health import (
    MEANINGS,
    Condition,
    Health,
    Kind,
    Level,
    publish_gauges,
)
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.remote_storage import open_store
from fetchproxy.writing.completeness_records import CompletenessRecords
from fetchproxy.writing.partition_watch import OPEN_TRANSACTION_MAX_MS, PartitionWatch
from fetchproxy.writing.published_conditions import PublishedConditions, read_published_conditions
from fetchproxy.writing.status import BROKER_UNLIMITED

Making = Callable[[Path], Awaitable[MemoryObjectStore]]


async def three_segments(recorded: bool = True) -> PlantedArchive:
    """Three segments with offsets 0 to 9, 10 to 19 and 30 to 39."""
    planted = PlantedArchive(recorded=recorded)
    for base in (0, 10, 30):
        await planted.add([batch(base)])
    return planted


async def lost(_: Path) -> MemoryObjectStore:
    planted = PlantedArchive(recorded=False)
    async with StoreBackedRemoteLogMetadataManager(planted.storage, Config().metadata) as rlmm:
        records = CompletenessRecords(planted.storage.objects, TP)
        for base in (0, 10, 30):
            await records.read()
            await records.begin(await rlmm.refresh(TP, asyncio.get_running_loop().time()), base)
            await records.finished(await planted.add([batch(base)]))
    return planted.store


async def gone(_: Path) -> MemoryObjectStore:
    planted = await three_segments()
    await planted.record_gap(20, 29)
    for file in (SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS, SegmentFile.METADATA):
        await planted.store.delete(planted.key(planted.segments[1], file))
    return planted.store


async def not_known(_: Path) -> MemoryObjectStore:
    return (await three_segments(recorded=False)).store


async def unreadable(_: Path) -> MemoryObjectStore:
    planted = PlantedArchive()
    for base in (0, 10, 20):
        await planted.add([batch(base)])
    await planted.store.put(planted.key(planted.segments[1], SegmentFile.METADATA), b"{")
    return planted.store


async def aside(_: Path) -> MemoryObjectStore:
    planted = PlantedArchive()
    for base in (0, 10):
        await planted.add([batch(base)])
    async with StoreBackedRemoteLogMetadataManager(planted.storage, Config().metadata) as rlmm:
        await rlmm.put_log_history(TP, LogHistory(after_epoch=0))
    return planted.store


async def watched(status: Any, *times_ms: int) -> MemoryObjectStore:
    """What a watch publishes of a partition whose first ten offsets are archived."""
    planted = PlantedArchive()
    await planted.add([batch(0)])
    published_conditions = PublishedConditions(planted.storage.objects)
    watch = PartitionWatch(ArchiveConfig(), published_conditions)
    for now_ms in times_ms:
        await watch.look([replace(status, tp=TP, archive_end=10)], 0.0, now_ms)
    await published_conditions.publish()
    return planted.store


async def at_risk(_: Path) -> MemoryObjectStore:
    return await watched(replace(LAGGING, first_unarchived_ms=0), 8 * HOUR_MS)


async def deleted_unarchived(_: Path) -> MemoryObjectStore:
    status = replace(LAGGING, log_start_offset=40, broker_retention=BROKER_UNLIMITED)
    return await watched(status, 8 * HOUR_MS)


async def pinned(_: Path) -> MemoryObjectStore:
    status = replace(LAGGING, log_start_offset=0, last_stable_offset=10, high_watermark=50)
    status = replace(status, broker_retention=BROKER_UNLIMITED)
    return await watched(status, 0, OPEN_TRANSACTION_MAX_MS)


async def with_condition(kind: Kind, message: str) -> MemoryObjectStore:
    planted = PlantedArchive()
    await planted.add([batch(0)])
    published_conditions = PublishedConditions(planted.storage.objects)
    published_conditions.hold(kind, TP, message)
    await published_conditions.publish()
    return planted.store


async def damaged(_: Path) -> MemoryObjectStore:
    message = f"{TP}: the batch at offset 10 has a wrong checksum"
    return await with_condition(Kind.LOG_DAMAGED, message)


async def late_copy(_: Path) -> MemoryObjectStore:
    message = f"{TP} was not copied in time: it was at offset 10"
    return await with_condition(Kind.COMPACTED_COPY_LATE, message)


async def trimming_held_up(_: Path) -> MemoryObjectStore:
    async with trimming(local_retention_ms=1_000) as world:
        await world.planted.add([batch(30, timestamp=YEAR_2100_MS)], tp=TRIMMED)
        await world.planted.add([batch(40, timestamp=1_000)], tp=TRIMMED)
        await world.local.trim(TRIMMED)
        await world.published_conditions.publish()
        return world.store


async def stopped(spool: Path) -> MemoryObjectStore:
    async with unclean_world(2, spool) as here:
        await begun_again(here)
        store = here.storage.store.inner
        assert isinstance(store, MemoryObjectStore)
        return store


async def trimming_stopped(_: Path) -> MemoryObjectStore:
    async with trimming() as world:
        await world.store.delete(world.planted.key(world.planted.segments[1], SegmentFile.LOG))
        await world.local.trim(TRIMMED)
        await world.published_conditions.publish()
        return world.store


async def another_cluster(_: Path) -> MemoryObjectStore:
    async with life() as world:
        await world.look()
        world.broker.topics = WIPED
        published_conditions = PublishedConditions(world.planted.storage.objects)
        async with world.process(published_conditions=published_conditions) as deletion:
            await deletion.look()
        await published_conditions.publish()
        return world.store


def of_world(make: Callable[[World, AsyncExitStack], Awaitable[None]]) -> MemoryObjectStore:
    stores: list[MemoryObjectStore] = []

    async def and_publish(world: World, opened: AsyncExitStack) -> None:
        await make(world, opened)
        await world.published_conditions.publish()
        stores.append(world.store)

    virtually(and_publish)
    return stores[0]


async def much_at_once(world: World, opened: AsyncExitStack) -> None:
    await world.plant(10)
    step = {"retention_step_grace_ms": HOUR_MS, "remote_log_retention_ms": 3 * HOUR_MS}
    expirer, _ = await world.start(opened, **step)
    await expirer.expire(TP)


async def future_record(world: World, opened: AsyncExitStack) -> None:
    await world.add(0, timestamp=YEAR_2100_MS)
    await world.plant_after(1, 9)
    expirer, _ = await world.start(opened, remote_log_retention_ms=HOUR_MS)
    await turns(expirer, 20)


async def wrong_clock(world: World, opened: AsyncExitStack) -> None:
    class TellingStore(type(world.store)):  # type: ignore[misc]
        async def clock_ms(self, prefix: str) -> int:
            return world.wall_clock_ms() - world.skew_ms

    world.store.__class__ = TellingStore
    await world.plant(10)
    world.skew_ms = 48 * HOUR_MS
    step = {"retention_step_grace_ms": HOUR_MS, "remote_log_retention_ms": 30 * HOUR_MS}
    expirer, _ = await world.start(opened, **step)
    await expirer.expire(TP)


async def last_whole_copy(world: World, opened: AsyncExitStack) -> None:
    await world.plant(2)
    first = world.planted.segments[0]
    await world.add(0, event_timestamp_ms=world.wall_clock_ms())
    await world.store.delete(world.planted.key(first, SegmentFile.LOG))
    expirer, _ = await world.start(opened)
    await turns(expirer, 400)


MADE: dict[str, tuple[Making | Callable[[World, AsyncExitStack], Awaitable[None]], Any]] = {
    "archive_gap": (lost, (20, 29)),
    "archived_offsets_missing": (gone, (10, 19)),
    "archived_offsets_not_known": (not_known, (20, 29)),
    "segment_metadata_unreadable": (unreadable, (None, None)),
    "segments_put_aside": (aside, (0, 19)),
    "archive_margin_small": (at_risk, (None, None)),
    "unarchived_records_deleted": (deleted_unarchived, (10, 39)),
    "open_transaction": (pinned, (None, None)),
    "log_damaged": (damaged, (None, None)),
    "compacted_copy_late": (late_copy, (None, None)),
    "partition_stopped": (stopped, (None, None)),
    "local_trimming_stopped": (trimming_stopped, (0, 29)),
    "local_retention_held_up": (trimming_held_up, (30, 39)),
    "topic_deletion_stopped": (another_cluster, (None, None)),
    "retention_step_announced": (much_at_once, (0, 69)),
    "retention_clock_doubted": (wrong_clock, (None, None)),
    "retention_held_up": (future_record, (0, 9)),
    "replaced_segment_kept": (last_whole_copy, (0, 9)),
}
OF_A_WORLD = {
    "retention_step_announced",
    "retention_clock_doubted",
    "retention_held_up",
    "replaced_segment_kept",
}
# Only an archiver knows these; others find the rest by themselves, each in its own way.
SAID_IN_THE_LOG = (
    "archive_margin_small",
    "unarchived_records_deleted",
    "open_transaction",
    "log_damaged",
    "compacted_copy_late",
    "partition_stopped",
    "local_trimming_stopped",
    "local_retention_held_up",
    "topic_deletion_stopped",
    *OF_A_WORLD,
)
FAULTS = {
    "archived_offsets_missing",
    "segment_metadata_unreadable",
    # The damaged object is a fault.
    "local_trimming_stopped",
    "replaced_segment_kept",
}


def folder_of(store: MemoryObjectStore, folder: Path) -> Config:
    for key, (content, _) in store._objects.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    prefix = "archive" if any(key.startswith("archive/") for key in store._objects) else ""
    return Config(store=StoreConfig(url=(folder / prefix).as_uri()))


async def status_of(config: Config) -> Status:
    """The status page of a proxy that archives nothing."""
    nothing = StatusSources("serve", Health())
    assert config.store.url is not None
    async with (
        open_store(config.store.url, config.store) as storage,
        StoreBackedRemoteLogMetadataManager(storage, config.metadata) as rlmm,
    ):
        collector = StatusCollector(config, storage, rlmm, None, nothing)
        await collector.update()
        publish_gauges(nothing.health.all(asyncio.get_running_loop().time()))
        return await collector()


def gauge(kind: str) -> float | None:
    name, level = "fetchproxy_conditions", MEANINGS[kind].level
    return REGISTRY.get_sample_value(name, {"kind": kind, "level": level})


def test_each_concern_is_brought_about_here() -> None:
    told_by_the_store: set[str] = set(MADE)
    of_partitions = {kind for kind, one in MEANINGS.items() if one.subject == "partition"} - {
        Kind.LOG_BEGINS_AGAIN,
        Kind.PARTITION_FAILING,
        Kind.SEGMENT_COPY_STALLED,
        # Reported by a reader, and by verify for the object.
        Kind.OBJECT_NOT_READABLE,
        Kind.SEGMENT_DAMAGED,
        Kind.SEGMENT_METADATA_CHANGED,
        # Reported by a reader alone: see the tests with the mark of their remedies.
        Kind.PLAIN_SEGMENTS_REFUSED,
        Kind.SEGMENTS_NOT_ENCRYPTED,
    }
    assert told_by_the_store == of_partitions | {Kind.TOPIC_DELETION_STOPPED}


@pytest.mark.parametrize("name", MADE)
def test_all_places_say_the_same(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make, offsets = MADE[name]
    with capture_logs() as logs:
        store = of_world(make) if name in OF_A_WORLD else asyncio.run(make(tmp_path))  # type: ignore[arg-type, call-arg]
    config = folder_of(store, tmp_path / "archive")
    report = verify(Here(), config).report
    _, listed = asyncio.run(read_archive(config, None))
    assert tuple(report.published_conditions) == listed
    [condition] = [condition for condition in listed if condition.kind == name]
    assert (condition.first_offset, condition.last_offset) == offsets
    assert report.clean == (name not in FAULTS)
    if name in SAID_IN_THE_LOG:
        [event] = [e for e in logs if e["event"] == name]
        assert (event["error"], event["log_level"]) == (condition.what, condition.level)
    print_summary(report)
    assert f"{name}: {condition.what}" in capsys.readouterr().out.splitlines()
    assert json.loads(json.dumps(report_json(report)))["concerns"] == [
        condition.as_json() for condition in listed
    ]
    _page_and_metrics_say(condition, listed, asyncio.run(status_of(config)))


def _page_and_metrics_say(
    condition: Condition, listed: tuple[Condition, ...], status: Status
) -> None:
    rows_shown = [{name: one[name] for name in condition.as_json()} for one in status.conditions]
    assert condition.as_json() in rows_shown
    assert all(one in [condition.as_json() for condition in listed] for one in rows_shown)
    waits = [condition.what for condition in listed if condition.meaning.waits]
    assert set(status.headlines) <= set(waits)
    assert (condition.what in status.headlines) == (condition.level != Level.ON_RECORD)
    assert status.condition_counts[condition.kind] == gauge(condition.kind) == 1
    offsets = REGISTRY.get_sample_value("fetchproxy_condition_offsets", {"kind": condition.kind})
    assert offsets == condition.offsets
    assert b"fetchproxy_conditions{" in generate_latest(REGISTRY)


@pytest.mark.parametrize("count_left", [0, 1])
def test_newest_segments_that_are_gone_are_told_by_the_page_too(
    tmp_path: Path, count_left: int
) -> None:
    """The page sees no hole here: the archive's end is on record."""

    async def newest_gone() -> MemoryObjectStore:
        planted = PlantedArchive()
        for base in (0, 10, 20):
            await planted.add([batch(base)])
        for segment in planted.segments[count_left:]:
            for file in SegmentFile:
                await planted.store.delete(planted.key(segment, file))
        return planted.store

    config = folder_of(asyncio.run(newest_gone()), tmp_path)
    _, listed = asyncio.run(read_archive(config, None))
    [condition] = listed
    assert (condition.kind, condition.last_offset) == ("archived_offsets_missing", 29)
    report = verify(Here(), config).report
    assert tuple(report.published_conditions) == listed
    assert not report.clean
    _page_and_metrics_say(condition, listed, asyncio.run(status_of(config)))


async def test_the_page_notices_newest_segments_that_go_while_it_runs() -> None:
    planted = PlantedArchive()
    for base in (0, 10, 20):
        await planted.add([batch(base)])
    async with StoreBackedRemoteLogMetadataManager(planted.storage, Config().metadata) as rlmm:
        health = PartitionsHealth(planted.storage.objects, rlmm)

        async def look() -> list[Condition]:
            await rlmm.refresh(TP, asyncio.get_running_loop().time())
            await health.update([TP], lambda tp: False)
            return list(health.conditions())

        assert await look() == []
        reads = stated_ends_read()
        await planted.add([batch(30)])
        assert await look() == []
        assert stated_ends_read() == reads, "an end that grows is sound"
        for file in SegmentFile:
            await planted.store.delete(planted.key(planted.segments[3], file))
        with capture_logs() as logs:
            for _ in range(2):
                [condition] = await look()
                assert (condition.kind, condition.first_offset) == ("archived_offsets_missing", 30)
            await rlmm.raise_log_start_offset(TP, 40)
            assert await look() == [], "deleted on purpose"
        place = {"topic": TP.topic, "partition": TP.partition}
        began, ended = [e for e in logs if e["event"].startswith("archived_offsets_missing")]
        assert began == {
            "event": condition.kind,
            "log_level": "error",
            "error": condition.what,
            **place,
        }
        assert (
            ended.items()
            >= {"event": f"{condition.kind}_no_more", "log_level": "info", **place}.items()
        )


def stated_ends_read() -> float:
    name = "fetchproxy_store_request_seconds_count"
    return REGISTRY.get_sample_value(name, {"operation": "get_finished_offsets"}) or 0.0


def test_where_all_is_well_nothing_is_said(tmp_path: Path) -> None:
    async def sound() -> MemoryObjectStore:
        planted = PlantedArchive()
        await planted.add([batch(0)])
        return planted.store

    config = folder_of(asyncio.run(sound()), tmp_path)
    assert verify(Here(), config).report.published_conditions == []
    assert asyncio.run(read_archive(config, None))[1] == ()
    status = asyncio.run(status_of(config))
    assert (status.conditions, status.headlines, status.missing) == ((), (), ())
    assert [gauge(kind) for kind in Kind] == [0] * len(Kind)


async def test_what_is_over_leaves_the_store() -> None:
    """Also with an archiver that takes over and knows the concern from the store alone."""
    planted = PlantedArchive()
    objects = planted.storage.objects
    for began, went_on in ((True, False), (True, True)):
        first = PublishedConditions(objects)
        with capture_logs():
            first.hold(Kind.PARTITION_STOPPED, TP, "it stands")
        await first.publish()
        assert [condition.name for condition in await objects.list_published_conditions()] == [
            "partition_stopped"
        ]
        second = first if went_on else PublishedConditions(objects)
        await second.publish()
        assert len(await objects.list_published_conditions()) == began, "nothing was looked at yet"
        with capture_logs():
            second.release(Kind.PARTITION_STOPPED, TP)
        await second.publish()
        assert await objects.list_published_conditions() == []


async def test_a_deleted_partition_has_no_published_conditions() -> None:
    planted = PlantedArchive()
    await planted.add([batch(0)])
    published_conditions = PublishedConditions(planted.storage.objects)
    with capture_logs():
        published_conditions.hold(Kind.PARTITION_STOPPED, TP, "it stands")
        published_conditions.hold(Kind.TOPIC_DELETION_STOPPED, None, "of the archive")
    await published_conditions.publish()
    await planted.storage.objects.forget_partition(TP)
    assert [
        condition.tp for condition in await planted.storage.objects.list_published_conditions()
    ] == [None]


async def test_what_is_known_is_not_read_again() -> None:
    planted = PlantedArchive()
    objects = planted.storage.objects
    tps = [TP._replace(partition=number) for number in range(40)]
    published_conditions = PublishedConditions(objects)
    with capture_logs():
        for tp in tps:
            published_conditions.hold(Kind.PARTITION_STOPPED, tp, "it stands")
    await published_conditions.publish()
    reads = "fetchproxy_store_request_seconds_count"
    known = await read_published_conditions(objects)
    assert [one.tp for one in known] == sorted(tps, key=lambda tp: str(tp.partition))
    before = REGISTRY.get_sample_value(reads, {"operation": "get_concern"})
    assert await read_published_conditions(objects, known) == known
    with capture_logs():
        published_conditions.hold(Kind.PARTITION_STOPPED, tps[3], "it stands, and otherwise")
        published_conditions.release(Kind.PARTITION_STOPPED, tps[4])
    await published_conditions.publish()
    again = await read_published_conditions(objects, known)
    assert len(again) == 39
    assert [condition.what for one, condition in again.items() if one.tp == tps[3]] == [
        "it stands, and otherwise"
    ]
    after = REGISTRY.get_sample_value(reads, {"operation": "get_concern"})
    assert before is not None
    assert after is not None
    assert after - before <= 42, "the archiver's first look, and one that has changed, twice"
