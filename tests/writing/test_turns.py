"""Turns of the manager: leader and follower, hand-over, and limits for hanging work."""

from __future__ import annotations

import asyncio
import random
import re
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from archive_harness import (
    QUICK,
    Archive,
    archived_up_to,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
    until_true,
    wall_clock_ms,
)
from confluent_kafka import Producer

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ArchiveConfig, ClusterConfig
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Kind
from fetchproxy.observability.metrics import ARCHIVE_END_OFFSET, ARCHIVE_TURNS_ENDED
from fetchproxy.segments.contents import AccumulatedSegment
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.writing import remote_log_manager as module
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.leadership import Leadership, LeadershipState
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.published_conditions import PublishedConditions
from fetchproxy.writing.remote_log_manager import RemoteLogManager
from fetchproxy.writing.sources.log_dirs import LogDir
from fetchproxy.writing.sources.segment_accumulator import LogGap, SegmentAccumulator
from fetchproxy.writing.spool import Spool
from lab.limited import section_and_limits
from lab.mock_cluster import MockCluster

TOPIC = "orders"
PARTITIONS = 4
Gatherers = Callable[[TopicIdPartition, Spool], SegmentAccumulator]


class GivenLeadership(Leadership):
    """Leads the partitions that a test names."""

    def __init__(self, *partitions: int) -> None:
        super().__init__()
        self.partitions = set(partitions)

    def give(self, *partitions: int) -> None:
        self.partitions = set(partitions)
        self.on_change()

    def leads(self, tp: TopicIdPartition) -> bool:
        return tp.partition in self.partitions

    async def run(self) -> None:
        await asyncio.Event().wait()

    def state(self) -> LeadershipState:
        return LeadershipState("given", "stable")


class StubbornStore(FilesystemObjectStore):
    """The first upload of a segment log hangs until it is cancelled."""

    hangs = True

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        if self.hangs:
            self.hangs = False
            await asyncio.Event().wait()
        await super().put_file(key, path, settled=settled)


class SilentAccumulator(SegmentAccumulator):
    async def find_log_start(self) -> int:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

    async def accumulate(
        self, position: int, *, close_short: bool
    ) -> AccumulatedSegment | LogGap | None:
        await asyncio.Event().wait()
        return None

    async def discard(self) -> None:
        return


def produce(cluster: MockCluster, count: int) -> None:
    producer = Producer(
        {"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, "batch.size": 1_000}
    )
    for i in range(count):
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, value=b"v" * 100, key=str(i).encode(), partition=partition)
    assert producer.flush(30) == 0


@asynccontextmanager
async def managed(
    cluster: Cluster, archive: Archive, leadership: Leadership, **changes: Any
) -> AsyncIterator[RemoteLogManager]:
    settings = {**QUICK, "segment_bytes_max": 4_096, "remote_refresh_interval_ms": 0, **changes}
    config, limits = section_and_limits(ArchiveConfig, WritingLimits, topics=TOPIC, **settings)
    manager = RemoteLogManager(
        config,
        cluster,
        archive.storage,
        archive.rlmm,
        wall_clock_ms=wall_clock_ms,
        uuid_factory=uuid.uuid4,
        rng=random.Random(1),
        leadership=leadership,
        limits=limits,
    )
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(manager.run())
        yield manager
        running.cancel()


def cluster_of(mock_cluster: MockCluster) -> Cluster:
    return Cluster(ClusterConfig(bootstrap=mock_cluster.bootstrap, request_max_ms=30_000))


async def test_a_follower_knows_what_the_leader_copies_and_copies_nothing(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    produce(mock_cluster, 300)
    one, two = GivenLeadership(0, 1), GivenLeadership(2, 3)
    async with (
        cluster_of(mock_cluster) as cluster,
        open_archive(tmp_path / "store") as archive,
        open_archive(tmp_path / "store") as archive_two,
        managed(cluster, archive, one) as first,
        managed(cluster, archive_two, two) as second,
    ):
        everything = archived_up_to(TOPIC, dict.fromkeys(range(PARTITIONS), 300))
        await until(first, everything)
        await until(second, everything)
        assert [s.leads for s in first.status()] == [True, True, False, False]
        assert [s.leads for s in second.status()] == [False, False, True, True]
        assert all(s.last_stable_offset is None for s in first.status() if not s.leads)
        # The other takes over the followed partitions, and the first gives up its own.
        one.give()
        two.give(0, 1, 2, 3)
        produce(mock_cluster, 100)
        await until(second, archived_up_to(TOPIC, dict.fromkeys(range(PARTITIONS), 400)))
        await until_true(lambda: not any(s.accumulated_bytes for s in first.status()))
        for tp in await tps(cluster, TOPIC):
            segments = archive_two.rlmm.list_remote_log_segments(tp)
            assert len(segments) == len((await archive_two.view(tp)).segments)  # none twice
            assert await archive_two.batches(tp) == await broker_batches(cluster, tp, 0, 400)


async def test_a_follower_takes_back_nothing_that_the_leader_says(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    produce(mock_cluster, 50)
    async with cluster_of(mock_cluster) as cluster, open_archive(tmp_path / "store") as archive:
        led, followed, *_ = await tps(cluster, TOPIC)
        before = PublishedConditions(archive.storage.objects)
        for tp in (led, followed):
            before.hold(Kind.PARTITION_STOPPED, tp, "as the one before has said")
        await before.publish()
        async with managed(cluster, archive, GivenLeadership(0)) as manager:
            await until(manager, archived_up_to(TOPIC, {0: 50}))
            await until(manager, lambda statuses: all(s.last_success_ms for s in statuses))
            await manager.published_conditions.publish()
        assert [
            condition.tp for condition in await archive.storage.objects.list_published_conditions()
        ] == [followed]


async def test_gauges_are_the_leaders(mock_cluster: MockCluster, tmp_path: Path) -> None:
    produce(mock_cluster, 50)
    leadership = GivenLeadership(0, 1, 2, 3)
    async with (
        cluster_of(mock_cluster) as cluster,
        open_archive(tmp_path / "store") as archive,
        managed(cluster, archive, leadership) as manager,
    ):
        await until(manager, archived_up_to(TOPIC, dict.fromkeys(range(PARTITIONS), 50)))
        await until_true(lambda: (TOPIC, "2") in ARCHIVE_END_OFFSET._metrics)
        leadership.give(0)
        await until_true(lambda: (TOPIC, "2") not in ARCHIVE_END_OFFSET._metrics)
        assert (TOPIC, "0") in ARCHIVE_END_OFFSET._metrics


async def test_who_lost_the_leadership_while_it_gathered_begins_no_copy(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    produce(mock_cluster, 20)
    leadership = GivenLeadership(0, 1, 2, 3)
    async with (
        cluster_of(mock_cluster) as cluster,
        open_archive(tmp_path / "store") as archive,
        managed(cluster, archive, leadership, segment_age_max_ms=600_000) as manager,
    ):
        # Far from full, and young: each waits for more.
        await until_true(
            lambda: sum(s.accumulated_bytes > 0 for s in manager.status()) == PARTITIONS
        )
        leadership.give()
        await until_true(lambda: not any(s.accumulated_bytes for s in manager.status()))
        for tp in await tps(cluster, TOPIC):
            assert archive.rlmm.list_remote_log_segments(tp) == ()


async def test_a_copy_that_hangs_is_shown_and_ended(
    mock_cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(mock_cluster, 100)
    monkeypatch.setattr(module, "WATCH_INTERVAL_S", 0.05)
    store = StubbornStore(tmp_path / "store", create=True)
    async with (
        open_archive(store) as archive,
        running_archiver(mock_cluster.bootstrap, archive, TOPIC, copy_max_ms=7_000) as (
            manager,
            _,
        ),
    ):
        await until_true(lambda: not store.hangs)
        condition_texts: set[str] = set()

        def ended() -> bool:
            condition_texts.update(
                one.what for one in manager.published_conditions.health.conditions(0.0)
            )
            return any("took over 7000 ms" in what for what in condition_texts)

        await until_true(ended)
        pattern = r"a copy has taken \d s so far; the archiver gives it up after 7 s"
        assert any(re.fullmatch(pattern, what) for what in condition_texts)
        await until(manager, archived_up_to(TOPIC, dict.fromkeys(range(PARTITIONS), 100)))
        await until_true(lambda: all(s.copy is None for s in manager.status()))
        await until_true(lambda: all(s.last_error is None for s in manager.status()))


@pytest.mark.parametrize("silent", [0, 3])
async def test_a_log_that_never_answers_holds_no_worker_for_ever(
    mock_cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    produce(mock_cluster, 100)
    before = ARCHIVE_TURNS_ENDED._value.get()
    real = module.open_source

    def with_a_silent_one(
        config: ArchiveConfig, cluster: Cluster, bytes_max: int, log_dirs: Sequence[LogDir]
    ) -> Gatherers:
        others = real(config, cluster, bytes_max, log_dirs)
        one = partial(SilentAccumulator, cluster=cluster, pace=CopyPace(lambda: 0))
        return lambda tp, spool: (one if tp.partition == silent else others)(tp, spool)

    monkeypatch.setattr(module, "open_source", with_a_silent_one)
    others = {number: 100 for number in range(PARTITIONS) if number != silent}
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(
            mock_cluster.bootstrap, archive, TOPIC, workers_max=1, turn_max_ms=200, copy_max_ms=400
        ) as (manager, _),
    ):
        await until(manager, archived_up_to(TOPIC, others))
        await until_true(lambda: ARCHIVE_TURNS_ENDED._value.get() >= before + 2)
        (stuck,) = [s for s in manager.status() if s.tp.partition == silent]
        assert stuck.last_error is not None
        assert "longer than 1000 ms" in stuck.last_error
