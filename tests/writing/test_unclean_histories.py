"""Random histories of leaders, elections that lose records, and archivers in progress.

An archive at rest is always a prefix of the live log, and before that no reader gets a record of a
dead log.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
import structlog
from fetchproxy_protocol.record_batch import walk
from memory_object_store import MemoryObjectStore
from planted_archive import TP
from unclean_cluster import UncleanCluster, Written
from whole_archive import verify_archive

from fetchproxy.auditing.resolve import LogChoice, resolve
from fetchproxy.config.schema import ArchiveConfig, MetadataConfig, RemoteFetchConfig
from fetchproxy.errors import ClusterError, LogBeginsAgain, LogTruncated, ResolutionRefused
from fetchproxy.metadata.leader_views import LeaderViews
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import IsolationLevel
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import RemoteReadRequest
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.completeness_records import CompletenessRecords
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.log_truncation import LogTruncation
from fetchproxy.writing.partition_archiver import PartitionArchiver
from fetchproxy.writing.sources.fetched_batches import BatchAccumulator
from fetchproxy.writing.spool import Spool

SEEDS = 60
STEPS = 40
TURNS_MAX = 400


@dataclass
class World:
    rng: Random
    cluster: UncleanCluster
    storage: RemoteStorage
    rlmm: StoreBackedRemoteLogMetadataManager
    views: LeaderViews
    purgatory: RemoteFetchPurgatory
    spool: Spool
    copier: SegmentCopier
    truncation: LogTruncation
    config: ArchiveConfig

    def archiver(self) -> PartitionArchiver:
        return PartitionArchiver(
            TP,
            accumulator=BatchAccumulator(
                TP, self.spool, cluster=self.cluster, pace=CopyPace(lambda: 0), config=self.config
            ),
            rlmm=self.rlmm,
            copier=self.copier,
            truncation=self.truncation,
            records=CompletenessRecords(self.storage.objects, TP),
            check_own_log=self.storage.objects.check_own_log,
        )

    async def served(self) -> list[tuple[int, int]]:
        """(offset, epoch) of every batch that a reader of the whole archive gets now."""
        loop = asyncio.get_running_loop()
        self.cluster.hear()  # as the gateway does, at most a second after an election
        await self.rlmm.refresh(TP, loop.time())
        while await self.views.check([TP], loop.time() + 5) or self.views.wants_check(TP):
            pass  # the leader did not answer: nothing is served meanwhile
        view = self.views.view(TP)
        assert view is not None
        offset, batches_served = view.log_start_offset, []
        while offset is not None and view.covers(offset):
            # Small answers, so that they end inside chunks and cross their borders.
            request = RemoteReadRequest(
                TP, offset, self.rng.choice([1, 400, 5000]), IsolationLevel.READ_COMMITTED
            )
            fetch = self.purgatory.fetch({0: request}, bytes_max=5000, deadline=loop.time() + 5)
            await fetch.completed.wait()
            result = fetch.results()[0]
            assert result.error is None, result.error
            for header in walk(b"".join(result.records)):
                if header.last_offset >= offset:
                    batches_served.append((header.base_offset, header.partition_leader_epoch))
                    offset = header.last_offset + 1
        assert offset in (None, view.log_end_offset) or view.gap_at(offset or 0)
        return batches_served


@asynccontextmanager
async def world(seed: int, folder: Path) -> AsyncIterator[World]:
    rng = Random(seed)
    cluster = UncleanCluster(rng)
    storage = RemoteStorage(MemoryObjectStore())
    loop = asyncio.get_running_loop()
    reading = ReadingLimits(chunk_bytes=4096, read_ahead_chunks_max=0)
    clock = iter(range(10**9))
    async with StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm:
        views = LeaderViews(rlmm, cluster, SparingWarnings(loop.time))
        async with (
            RemoteFetchPurgatory(
                RemoteFetchConfig(), views, storage, rng, limits=reading
            ) as purgatory,
            Spool(folder) as spool,
        ):
            yield World(
                rng,
                cluster,
                storage,
                rlmm,
                views,
                purgatory,
                spool,
                SegmentCopier(
                    storage.rsm,
                    rlmm,
                    copy_max_ms=60_000,
                    wall_clock_ms=lambda: next(clock),
                    uuid_factory=lambda: uuid.UUID(int=rng.getrandbits(128)),
                ),
                LogTruncation(cluster, storage.rsm, rlmm, wall_clock_ms=lambda: next(clock)),
                ArchiveConfig(topics="orders", segment_bytes_max=1024, segment_age_max_ms=10**9),
            )


async def turn(archiver: PartitionArchiver, close_short: bool) -> bool:
    """True: more waits, or the leader did not answer. Raise LogTruncated."""
    try:
        return await archiver.process(close_short=close_short)
    except ClusterError:
        return True


def parted_at(cluster: UncleanCluster, batches: list[tuple[int, int]]) -> int | None:
    """The first archived offset that the leader lacks or has in another epoch."""
    return next((o for o, epoch in batches if cluster.leader.epoch_at(o) != epoch), None)


async def come_to_rest(here: World, archivers: list[PartitionArchiver]) -> bool:
    """False: it is unknown where the archive and the log have parted."""
    for archiver in archivers:
        try:
            for _ in range(TURNS_MAX):
                if not await turn(archiver, close_short=True):
                    break
            else:
                raise AssertionError("it never comes to rest")
        except LogBeginsAgain:
            await say_truncate(here)
            return await come_to_rest(here, archivers)
        except LogTruncated:
            return False
    return True


def check_served(here: World, served: list[tuple[int, int]]) -> None:
    parted = parted_at(here.cluster, served)
    if here.views.begins_again(TP):
        # It is the last copy, until an operator decides which log counts.
        assert parted in (None, served[0][0])
    else:
        # Below the leader's own log start a comparison is impossible.
        assert parted is None or parted < here.cluster.leader.log_start


async def turn_or_say(here: World, archiver: PartitionArchiver, close_short: bool) -> None:
    """Raise LogTruncated if there is no remedy."""
    try:
        await turn(archiver, close_short)
    except LogBeginsAgain:
        await say_truncate(here)


async def say_truncate(here: World) -> None:
    """Decide as an operator who knows that the leader's log counts."""
    while True:
        try:
            await resolve(
                TP,
                LogChoice.TRUNCATE,
                here.cluster,
                here.storage,
                here.rlmm,
                wall_clock_ms=lambda: 10**6,
            )
            return
        except ResolutionRefused:
            return  # after another election it is a part of the archive again
        except ClusterError:
            continue


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_a_dead_record_is_never_served_and_does_not_stay(seed: int, tmp_path: Path) -> None:
    async with world(seed, tmp_path) as here:
        cluster, rng = here.cluster, here.rng
        archivers = [here.archiver(), here.archiver()]  # an endless hand-over
        trims = rng.random() < 0.5
        elected = False

        def election() -> None:
            nonlocal elected
            cluster.replicate()
            cluster.elect()
            elected = True

        # Also in the middle of a copy: just before the leader is asked about it.
        cluster.before_question = lambda: election() if rng.random() < 0.1 else None
        with structlog.testing.capture_logs():
            for _ in range(STEPS):
                step = rng.choice(
                    ["produce", "produce", "turn", "turn", "elect", "trim", "restart"]
                )
                if step == "produce":
                    cluster.produce(rng.randint(1, 5))
                elif step == "elect":
                    election()
                elif step == "trim" and trims:
                    cluster.trim(cluster.leader.log_start + rng.randint(0, 10))
                elif step == "restart":
                    await archivers[0].release()
                    archivers[0] = here.archiver()
                else:
                    try:
                        await turn_or_say(here, rng.choice(archivers), rng.random() < 0.5)
                    except LogTruncated:
                        break  # stopped: see below
                if elected:
                    elected = False
                    cluster.before_question, ask = (lambda: None), cluster.before_question
                    check_served(here, await here.served())
                    cluster.before_question = ask
            cluster.before_question = lambda: None
            decided = await come_to_rest(here, archivers)
            served = await here.served()
        parted = parted_at(cluster, served)
        if parted is not None:
            assert parted < cluster.leader.log_start
            return
        if decided:
            view = here.rlmm.view(TP)
            assert view is not None
            nothing_to_copy = cluster.leader.log_start == cluster.leader.end
            assert (view.log_end_offset or 0) == cluster.leader.end or nothing_to_copy
            report = await verify_archive(here.storage, here.rlmm)
            assert not report.faults, report.faults[:3]


async def test_nothing_is_asked_twice_while_nobody_is_elected(tmp_path: Path) -> None:
    """One request per copy, none per read."""
    async with world(1, tmp_path) as here:
        archiver = here.archiver()
        here.cluster.rng = Random(5)
        for _ in range(5):
            here.cluster.produce(5)
            assert await come_to_rest(here, [archiver])
        segments = len(here.rlmm.list_remote_log_segments(TP))
        assert here.cluster.questions <= segments + 1 + here.cluster.epoch
        await here.served()
        questions_before = here.cluster.questions
        for _ in range(5):
            await here.served()
        assert here.cluster.questions == questions_before


def lag(cluster: UncleanCluster, batches: int) -> None:
    """Replica 1 shares `batches` with the leader, and leads next."""
    cluster.replicas[1].follow(cluster.leader, 0)
    cluster.replicas[1].log = cluster.leader.log[:batches]
    cluster.leads, cluster.epoch = 1, cluster.epoch + 1


async def test_an_election_while_a_copy_is_under_way_ends_it(tmp_path: Path) -> None:
    async with world(2, tmp_path) as here:
        cluster, archiver = here.cluster, here.archiver()
        cluster.rng = Random(7)
        cluster.produce(6)
        elections = iter([lambda: lag(cluster, 2)])
        cluster.before_question = lambda: next(elections, lambda: None)()
        with structlog.testing.capture_logs() as logs:
            assert await turn(archiver, close_short=True)
        assert [e["event"] for e in logs if e["log_level"] != "info"][
            -1
        ] == "gathered_segment_dropped"
        assert here.rlmm.list_remote_log_segments(TP) == (), "it never counted, and is gone"
        assert await come_to_rest(here, [archiver])
        assert await here.served() == [(b.base, b.epoch) for b in cluster.leader.log]


async def test_what_two_leaders_sent_is_no_segment(tmp_path: Path) -> None:
    """The segment is accumulated from one leader, and then from the next with other records
    below.
    """
    async with world(2, tmp_path) as here:
        cluster, archiver = here.cluster, here.archiver()
        cluster.rng = Random(7)
        cluster.produce(5)
        while await turn(archiver, close_short=False):
            pass
        assert archiver.status().accumulated_bytes > 0
        position = cluster.leader.end
        lag(cluster, 2)
        shared = cluster.leader.end
        while cluster.leader.end < position:  # one of its batches begins at the other log's end
            last = min(cluster.leader.end + 2, position - 1)
            cluster.leader.log.append(Written(cluster.epoch, cluster.leader.end, last))
        cluster.produce(2)
        assert shared < position
        with structlog.testing.capture_logs() as logs:
            assert await come_to_rest(here, [archiver])
        assert [e["event"] for e in logs].count("gathered_segment_dropped") == 1
        assert await here.served() == [(b.base, b.epoch) for b in cluster.leader.log]


async def test_what_was_deleted_above_the_archives_end_is_no_end_of_the_work(
    tmp_path: Path,
) -> None:
    """A pass that copies everything (`--once`) continues after it at once."""
    async with world(2, tmp_path) as here:
        cluster, archiver = here.cluster, here.archiver()
        cluster.produce(2)
        while await archiver.process(close_short=True):
            pass
        archived = cluster.leader.end
        cluster.produce(4)
        deleted = cluster.leader.log[3].base
        await here.rlmm.raise_log_start_offset(TP, deleted)
        cluster.trim(deleted)
        while await archiver.process(close_short=True):
            pass
        assert archived < deleted
        assert archiver.archive_end == cluster.leader.end
        assert await here.served() == [(b.base, b.epoch) for b in cluster.leader.log[3:]]
