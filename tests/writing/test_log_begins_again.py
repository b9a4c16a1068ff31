"""A log that begins again (its disk was replaced) must not cost the last copy.

Only archived data that the new leader's lineage contradicts is removed. A leader without any
archived data contradicts nothing: then nothing is deleted, hidden or trimmed. An operator decides.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
import structlog
from planted_archive import TP
from test_unclean_histories import World, come_to_rest, world
from unclean_cluster import Replica, UncleanCluster
from whole_archive import verify_archive

from fetchproxy.auditing.resolve import LogChoice, ResolutionPlan, resolve
from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import LogBeginsAgain, ResolutionRefused
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentState
from fetchproxy.observability.health import Kind
from fetchproxy.writing.deletion.local_retention import trim_target
from fetchproxy.writing.deletion.retention import Retention, plan_removals
from fetchproxy.writing.partition_archiver import PartitionArchiver
from fetchproxy.writing.published_conditions import PublishedConditions, read_published_conditions

FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED


class Answering(Random):
    """A random source with which the leader always answers."""

    getrandbits = Random.getrandbits

    def random(self) -> float:
        return 1.0


def replace_disk(cluster: UncleanCluster, epochs: int = 1) -> None:
    """Empty the leader's log; it leads again, in a newer epoch."""
    cluster.replicas[cluster.leads] = Replica()
    cluster.epoch += epochs


async def archived(here: World) -> PartitionArchiver:
    """Archive everything that the leader has."""
    here.cluster.rng = Answering(7)
    here.cluster.produce(20)
    archiver = here.archiver()
    assert await come_to_rest(here, [archiver])
    return archiver


async def process(archiver: PartitionArchiver) -> None:
    while await archiver.process(close_short=True):
        pass


def finished(here: World) -> list[tuple[int, int]]:
    segments = here.rlmm.list_remote_log_segments(TP)
    assert all(segment.state is FINISHED for segment in segments)
    return [(segment.start_offset, segment.end_offset) for segment in segments]


@pytest.mark.parametrize(("produced", "epochs"), [(0, 1), (3, 1), (200, 1), (0, 0), (3, 0)])
async def test_a_log_that_begins_again_takes_nothing_out_of_the_archive(
    tmp_path: Path, produced: int, epochs: int
) -> None:
    """The log is empty, shorter than the archive, or longer, also without a new election."""
    async with world(2, tmp_path) as here:
        archiver = await archived(here)
        before, served = finished(here), await here.served()
        replace_disk(here.cluster, epochs)
        here.cluster.produce(produced)
        here.cluster.hear()
        for attempt in (archiver, here.archiver(), archiver):
            with structlog.testing.capture_logs() as logs, pytest.raises(LogBeginsAgain):
                await process(attempt)
            assert not [e for e in logs if e["event"] == "archive_truncated"]
        assert finished(here) == before
        assert await here.served() == served, "every archived record can still be read"
        assert here.views.begins_again(TP) or not epochs, "the gateway asks once an epoch"


async def test_a_log_that_has_lost_its_end_without_an_election_stops_it(tmp_path: Path) -> None:
    """A leader loses nothing within its own epoch, so no election has cut that log."""
    async with world(2, tmp_path) as here:
        archiver = await archived(here)
        before, served = finished(here), await here.served()
        del here.cluster.leader.log[8:]
        for attempt in (archiver, here.archiver()):
            with pytest.raises(LogBeginsAgain, match="without a newer leader epoch"):
                await process(attempt)
        assert finished(here) == before
        assert await here.served() == served
        plan = await responded(here, LogChoice.TRUNCATE)
        assert plan.history is None
        assert await come_to_rest(here, [here.archiver()])


async def test_what_follows_a_raised_log_start_is_not_hidden(tmp_path: Path) -> None:
    """Retention had raised the log start; the log that begins again is below it."""
    async with world(2, tmp_path) as here:
        archiver = await archived(here)
        start = here.cluster.leader.log[10].base
        await here.rlmm.raise_log_start_offset(TP, start)
        await archiver.release()
        assert await come_to_rest(here, [archiver])
        before, served = finished(here), await here.served()
        replace_disk(here.cluster)
        for produced in (2, 100):  # below the log start, and beyond the archive's end
            here.cluster.produce(produced)
            here.cluster.hear()
            with structlog.testing.capture_logs(), pytest.raises(LogBeginsAgain):
                await process(archiver)
            assert finished(here) == before
            assert await here.served() == served


async def test_a_log_that_shares_only_what_was_deleted_from_the_archive_stops_it(
    tmp_path: Path,
) -> None:
    async with world(2, tmp_path) as here:
        archiver = await archived(here)
        log = here.cluster.leader.log
        await here.rlmm.raise_log_start_offset(TP, log[10].base)
        here.cluster.replicas[1].log = log[:6]
        here.cluster.leads, here.cluster.epoch = 1, here.cluster.epoch + 1
        here.cluster.produce(2)
        here.cluster.hear()
        before = finished(here)
        with structlog.testing.capture_logs(), pytest.raises(LogBeginsAgain):
            await process(archiver)
        assert finished(here) == before


@pytest.mark.parametrize("produced", [2, 100])
async def test_an_archive_without_a_segment_below_its_log_start_stops(
    tmp_path: Path, produced: int
) -> None:
    """DeleteRecords deleted everything in both tiers. Then the log begins again, and grows."""
    async with world(2, tmp_path) as here:
        archiver = await archived(here)
        end = here.cluster.leader.end
        await here.rlmm.raise_log_start_offset(TP, end)
        here.cluster.trim(end)
        await archiver.release()
        await process(archiver)  # nothing is wrong yet
        replace_disk(here.cluster)
        here.cluster.produce(produced)
        here.cluster.hear()
        with pytest.raises(LogBeginsAgain, match=r"begins at offset 0.* resolve orders-0"):
            await process(archiver)


async def test_a_log_that_shares_a_beginning_is_truncated_as_before(tmp_path: Path) -> None:
    async with world(2, tmp_path) as here:
        archiver = await archived(here)
        log = here.cluster.leader.log
        here.cluster.replicas[1].log = log[:6]
        here.cluster.leads, here.cluster.epoch = 1, here.cluster.epoch + 1
        here.cluster.produce(2)
        here.cluster.hear()
        with structlog.testing.capture_logs() as logs:
            await process(archiver)
        assert [e["truncation_offset"] for e in logs if e["event"] == "archive_truncated"] == [
            log[6].base
        ]
        assert await here.served() == [(b.base, b.epoch) for b in here.cluster.leader.log]


# --- the operator's decision ---
async def begun_again(
    here: World, produced: int = 3, deleted: int = 0
) -> tuple[PartitionArchiver, list[tuple[int, int]]]:
    """A stopped archiver, also reported in the store, and the batches that the archive serves.

    `deleted`: the number of batches that retention has deleted.
    """
    archiver = await archived(here)
    if deleted:
        await here.rlmm.raise_log_start_offset(TP, here.cluster.leader.log[deleted].base)
    served = await here.served()
    replace_disk(here.cluster)
    here.cluster.produce(produced)
    here.cluster.hear()
    published_conditions = PublishedConditions(here.storage.objects)
    with structlog.testing.capture_logs(), pytest.raises(LogBeginsAgain) as stopped:
        await process(archiver)
    published_conditions.hold(Kind.PARTITION_STOPPED, TP, str(stopped.value))
    await published_conditions.publish()
    return archiver, served


async def responded(here: World, choice: LogChoice, dry_run: bool = False) -> ResolutionPlan:
    with structlog.testing.capture_logs():
        return await resolve(
            TP,
            choice,
            here.cluster,
            here.storage,
            here.rlmm,
            wall_clock_ms=lambda: 10**6,
            dry_run=dry_run,
        )


def alive(here: World) -> list[tuple[int, int]]:
    return [(b.base, b.epoch) for b in here.cluster.leader.log]


async def audit(here: World, served: list[tuple[int, int]]) -> None:
    """Another process sees the same from the store alone, and `verify` finds no fault."""
    assert await here.served() == served
    async with StoreBackedRemoteLogMetadataManager(here.storage, MetadataConfig()) as other:
        other_view = await other.refresh(TP, 0.0)
        own_view = here.rlmm.view(TP)
        assert own_view is not None
        assert list(other_view.segments) == list(own_view.segments)
        assert await read_published_conditions(here.storage.objects) == {}
        report = await verify_archive(here.storage, other)
    assert not report.faults, report.faults[:3]


@pytest.mark.parametrize("choice", LogChoice)
async def test_a_dry_run_changes_nothing(tmp_path: Path, choice: LogChoice) -> None:
    async with world(2, tmp_path) as here:
        archiver, served = await begun_again(here)
        before = finished(here)
        assert (await responded(here, choice, dry_run=True)).sentences
        assert finished(here) == before
        with pytest.raises(LogBeginsAgain):
            await process(archiver)
        assert await here.served() == served


@pytest.mark.parametrize("choice", LogChoice)
async def test_a_sound_partition_is_not_resolved(tmp_path: Path, choice: LogChoice) -> None:
    async with world(2, tmp_path) as here:
        await archived(here)
        before = finished(here)
        with pytest.raises(ResolutionRefused, match="there is nothing to resolve"):
            await responded(here, choice)
        assert finished(here) == before


@pytest.mark.parametrize("deleted", [0, 10])
@pytest.mark.remedy("partition_stopped")
async def test_truncate_the_leaders_log_is_archived_from_its_start(
    tmp_path: Path, deleted: int
) -> None:
    """This holds even below the log start that retention had raised."""
    async with world(2, tmp_path) as here:
        archiver, _ = await begun_again(here, deleted=deleted)
        await responded(here, LogChoice.TRUNCATE)
        await process(archiver)
        assert await here.served() == alive(here)
        here.cluster.produce(30)
        await process(archiver)
        await audit(here, alive(here))
        gone = [s for s in here.rlmm.list_remote_log_segments(TP) if s.state is not FINISHED]
        assert gone, "their objects stay for the grace"
        raised = here.cluster.leader.log[1].base
        await here.rlmm.raise_log_start_offset(TP, raised)
        await audit(here, alive(here)[1:])


@pytest.mark.parametrize("deleted", [0, 10])
@pytest.mark.remedy("partition_stopped")
async def test_keep_goes_on_where_the_archive_ends(tmp_path: Path, deleted: int) -> None:
    async with world(2, tmp_path) as here:
        archiver, served = await begun_again(here, deleted=deleted)
        end = served_end(here)
        await responded(here, LogChoice.KEEP)
        await process(archiver)
        await audit(here, served)
        while here.cluster.leader.end < end + 20:
            here.cluster.produce(1)
        await process(archiver)
        kept_on = [b for b in here.cluster.leader.log if b.last >= end]
        await audit(here, served + [(b.base, b.epoch) for b in kept_on])
        view = here.rlmm.view(TP)
        assert view is not None
        assert not view.gaps()
        # The broker's records below the joint were never archived, so they are not trimmed.
        log_offsets = await here.cluster.leader_log_offsets(TP)
        assert trim_target(view, log_offsets, Retention(local_ms=0), 10**12) is None


def served_end(here: World) -> int:
    view = here.rlmm.view(TP)
    assert view is not None
    assert view.log_end_offset is not None
    return view.log_end_offset


async def test_later_elections_respect_what_was_kept(tmp_path: Path) -> None:
    """A clean one needs no decision; an unclean one cuts no lower; another disk stops it again."""
    async with world(2, tmp_path) as here:
        archiver, served = await begun_again(here)
        end = served_end(here)
        await responded(here, LogChoice.KEEP)
        while here.cluster.leader.end < end + 20:
            here.cluster.produce(1)
        await process(archiver)
        cluster = here.cluster
        cluster.epoch += 1
        cluster.hear()
        cluster.produce(3)
        await process(archiver)
        log = list(cluster.leader.log)
        log_kept = [b for b in log if b.last < end]
        cluster.replicas[1].log = log_kept
        cluster.leads, cluster.epoch = 1, cluster.epoch + 1
        cluster.produce(1)
        cluster.hear()
        with structlog.testing.capture_logs(), pytest.raises(LogBeginsAgain):
            await process(archiver)
        cluster.replicas[1].log = log[: len(log_kept) + 3]
        cluster.epoch += 1
        cluster.produce(2)
        cluster.hear()
        with structlog.testing.capture_logs():
            await process(archiver)
        above = [(b.base, b.epoch) for b in cluster.leader.log if b.last >= end]
        await audit(here, served + above)


@pytest.mark.remedy("partition_stopped", "segments_put_aside")
async def test_new_history_puts_the_old_one_aside_and_keep_shows_it_again(tmp_path: Path) -> None:
    async with world(2, tmp_path) as here:
        archiver, served = await begun_again(here)
        end, old = served_end(here), finished(here)
        await responded(here, LogChoice.NEW_HISTORY)
        await process(archiver)
        await audit(here, alive(here))
        while here.cluster.leader.end < end + 20:
            here.cluster.produce(1)
        await process(archiver)
        await audit(here, alive(here))
        view = here.rlmm.view(TP)
        assert view is not None
        every = here.rlmm.list_remote_log_segments(TP)
        removals = plan_removals(every, view, now_ms=10**12, grace_ms=0, attempt_age_max_ms=0)
        assert not removals.hide
        assert set(old) <= set(finished(here)), "they stay in the store"
        await responded(here, LogChoice.KEEP)
        await archiver.release()
        await process(archiver)
        above = [(b.base, b.epoch) for b in here.cluster.leader.log if b.last >= end]
        await audit(here, served + above)


async def test_of_two_logs_put_aside_keep_shows_the_last_one_alone(tmp_path: Path) -> None:
    """The two logs have nothing in common, and neither is laid over the other."""
    async with world(2, tmp_path) as here:
        archiver, _ = await begun_again(here)
        first_end = served_end(here)
        await responded(here, LogChoice.NEW_HISTORY)
        while here.cluster.leader.end < first_end + 7:
            here.cluster.produce(1)
        await process(archiver)
        second = await here.served()
        assert second == alive(here)
        end = here.cluster.leader.end
        replace_disk(here.cluster)
        here.cluster.produce(3)
        here.cluster.hear()
        with structlog.testing.capture_logs(), pytest.raises(LogBeginsAgain):
            await process(archiver)
        await responded(here, LogChoice.NEW_HISTORY)
        await process(archiver)
        await audit(here, alive(here))
        while here.cluster.leader.end < end + 20:
            here.cluster.produce(1)
        await process(archiver)
        await responded(here, LogChoice.KEEP)
        await archiver.release()
        await process(archiver)
        above = [(b.base, b.epoch) for b in here.cluster.leader.log if b.last >= end]
        await audit(here, second + above)
        with pytest.raises(ResolutionRefused, match="another log is shown already"):
            await responded(here, LogChoice.KEEP)


async def test_new_history_below_a_raised_log_start(tmp_path: Path) -> None:
    async with world(2, tmp_path) as here:
        archiver, _ = await begun_again(here, deleted=10)
        await responded(here, LogChoice.NEW_HISTORY)
        await process(archiver)
        await audit(here, alive(here))


@pytest.mark.parametrize("choice", LogChoice)
async def test_an_archive_without_a_segment_is_resolved_too(
    tmp_path: Path, choice: LogChoice
) -> None:
    async with world(2, tmp_path) as here:
        archiver = await archived(here)
        end = here.cluster.leader.end
        await here.rlmm.raise_log_start_offset(TP, end)
        replace_disk(here.cluster)
        here.cluster.produce(100)
        here.cluster.hear()
        with pytest.raises(LogBeginsAgain):
            await process(here.archiver())
        await responded(here, choice)
        await archiver.release()
        await process(archiver)
        expected = alive(here)
        if choice is LogChoice.KEEP:
            expected = [(b.base, b.epoch) for b in here.cluster.leader.log if b.last >= end]
        await audit(here, expected)
