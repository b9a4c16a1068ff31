"""The archive as clients see it after an election, and when the proxy asks the leader about it."""

from __future__ import annotations

import asyncio
from uuid import UUID

from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.leader_views import LeaderLog, LeaderViews
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.model import (
    EpochEnd,
    EpochStart,
    LogHistory,
    LogOffsets,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.observability.logs import SparingWarnings

TP = TopicIdPartition(UUID(int=1), "t", 0)


def view(*segments: tuple[int, int, int]) -> PartitionView:
    """Each segment: (first offset, last offset, leader epoch)."""
    finished = [
        RemoteLogSegmentMetadata(
            RemoteLogSegmentId(TP, UUID(int=number + 1)),
            *(first, last, 0, number),
            *((EpochStart(epoch, first),), 1),
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
            False,
        )
        for number, (first, last, epoch) in enumerate(segments)
    ]
    return build_view(TP, finished, 0.0)


class Archive(PartitionViews):
    def __init__(self, current_view: PartitionView) -> None:
        self.current_view = current_view

    def view(self, tp: TopicIdPartition) -> PartitionView | None:
        return self.current_view

    async def refresh(self, tp: TopicIdPartition, not_older_than: float) -> PartitionView:
        return self.current_view


class Leader(LeaderLog):
    """`ends`: the answers by requested epoch, None never answers; `failure`: raised instead."""

    def __init__(self, epoch: int, ends: dict[int, EpochEnd | None]) -> None:
        self.epoch = self.known = epoch
        self.ends = ends
        self.failure: ClusterError | None = None
        self.log_start_epoch = 0
        self.questions: list[int] = []

    def known_epoch(self, tp: TopicIdPartition) -> int:
        return self.known

    async def epoch_end(self, tp: TopicIdPartition, epoch: int) -> tuple[int, EpochEnd] | None:
        self.questions.append(epoch)
        if self.failure is not None:
            raise self.failure
        end = self.ends[epoch]
        if end is None:
            await asyncio.Event().wait()
            raise AssertionError
        return (self.epoch, end)

    async def leader_log_offsets(self, tp: TopicIdPartition) -> LogOffsets:
        return LogOffsets(0, 0, 0, self.log_start_epoch)

    async def aborted_from(self, tp: TopicIdPartition, offset: int) -> frozenset[tuple[int, int]]:
        return frozenset()


def over(archive: Archive, leader: LeaderLog) -> LeaderViews:
    return LeaderViews(archive, leader, SparingWarnings(asyncio.get_running_loop().time))


async def check(views: LeaderViews, wait_s: float = 5.0) -> bool:
    """Whether the partition may be served."""
    return not await views.check([TP], asyncio.get_running_loop().time() + wait_s)


def end(views: LeaderViews) -> int | None:
    shown_view = views.view(TP)
    assert shown_view is not None
    return shown_view.log_end_offset


async def test_while_the_leader_stays_it_is_asked_once_however_the_archive_grows() -> None:
    archive = Archive(view((0, 99, 1)))
    leader = Leader(2, {1: EpochEnd(1, 150)})
    views = over(archive, leader)
    assert end(views) == 100, "as the archive says, until somebody asks"
    assert await check(views)
    for grown in (view((0, 99, 1), (100, 149, 1)), view((0, 149, 1), (150, 199, 2))):
        archive.current_view = grown
        assert not views.wants_check(TP)
        assert await check(views)
        assert views.view(TP) is grown
        assert await views.refresh(TP, 0.0) is grown
    assert leader.questions == [1]


async def test_a_dead_lineage_is_hidden_until_the_archive_has_been_truncated() -> None:
    archive = Archive(view((0, 99, 1), (100, 199, 1)))
    leader = Leader(1, {1: EpochEnd(1, 200)})
    views = over(archive, leader)
    assert await check(views)
    leader.epoch = leader.known = 2
    leader.ends = {1: EpochEnd(1, 150)}
    assert views.wants_check(TP)
    assert await check(views)
    assert end(views) == 150
    shown_view = views.view(TP)
    assert shown_view is views.view(TP), "cut once, not with each read"
    assert shown_view is not None
    assert shown_view.segments[-1].copied_end_offset == 199
    # First a copy of the dead log that finishes only now, then the archive after its truncation.
    archive.current_view = view((0, 99, 1), (100, 199, 1), (200, 299, 1))
    assert end(views) == 150
    archive.current_view = view((0, 99, 1), (100, 149, 1), (150, 180, 2))
    assert end(views) == 181
    assert leader.questions == [1, 1, 1], "it is asked again when its log start is known"


async def test_a_new_leader_that_does_not_answer_is_waited_for() -> None:
    archive = Archive(view((0, 99, 1)))
    leader = Leader(1, {1: EpochEnd(1, 100)})
    views = over(archive, leader)
    assert await check(views)
    leader.known = -1  # no leader: the log is unchanged
    assert not views.wants_check(TP)
    assert await check(views)
    leader.epoch = leader.known = 3
    leader.failure = ClusterUnavailable("no answer in time")
    assert not await check(views)
    leader.failure = None
    leader.ends = {1: None}
    assert not await check(views, wait_s=0.05)
    leader.ends = {1: EpochEnd(1, 40)}
    assert await check(views)
    assert end(views) == 40


async def test_what_was_never_checked_is_served_though_nobody_answers() -> None:
    leader = Leader(1, {})
    leader.failure = ClusterError("not allowed to", 29)
    views = over(Archive(view((0, 99, 1))), leader)
    assert await check(views)
    assert end(views) == 100


async def test_an_epoch_that_the_archive_has_before_the_proxy_knows_it_is_asked_for() -> None:
    archive = Archive(view((0, 99, 1)))
    leader = Leader(2, {1: EpochEnd(1, 100)})
    views = over(archive, leader)
    assert await check(views)
    archive.current_view = view(
        (0, 99, 1), (100, 120, 5)
    )  # by an archiver that knew the epoch first
    assert end(views) == 100
    assert views.wants_check(TP)
    leader.epoch = leader.known = 5
    leader.ends = {5: EpochEnd(5, 130)}
    assert await check(views)
    assert end(views) == 121


async def test_where_nobody_can_tell_the_segment_with_the_place_is_hidden() -> None:
    archive = Archive(view((0, 99, 1), (100, 199, 1)))
    leader = Leader(3, {1: EpochEnd(1, 150)})  # its own log start, in epoch 3
    leader.log_start_epoch = 3
    views = over(archive, leader)
    assert await check(views)
    assert end(views) == 100


async def test_brokers_that_tell_no_epochs_are_believed() -> None:
    class Silent(Leader):
        async def epoch_end(self, tp: TopicIdPartition, epoch: int) -> tuple[int, EpochEnd] | None:
            self.questions.append(epoch)
            return None

    leader = Silent(1, {})
    views = over(Archive(view((0, 99, 1))), leader)
    assert await check(views)
    assert await check(views)
    assert (end(views), leader.questions) == (100, [1])


async def test_of_a_log_that_begins_again_the_whole_archive_is_shown() -> None:
    archive = Archive(view((0, 99, 1), (100, 199, 2)))
    leader = Leader(4, {2: EpochEnd(2, 0), 1: EpochEnd(1, 0)})
    leader.log_start_epoch = 4
    views = over(archive, leader)
    assert await check(views)
    assert views.begins_again(TP)
    assert views.view(TP) is archive.current_view
    leader.log_start_epoch = 1
    leader.known = leader.epoch = 5  # the old broker is back
    leader.ends = {2: EpochEnd(2, 150)}
    assert await check(views)
    assert not views.begins_again(TP)
    assert end(views) == 150


async def test_what_was_kept_is_not_compared() -> None:
    history = LogHistory(kept_below=100, kept_epoch=1)
    both = view((0, 99, 1), (100, 199, 4))
    archive = Archive(build_view(TP, both.segments, 0.0, history=history))
    leader = Leader(6, {4: EpochEnd(4, 150)})
    views = over(archive, leader)
    assert await check(views)
    assert (end(views), views.begins_again(TP)) == (150, False)
    leader.known = leader.epoch = 7
    leader.ends = {4: EpochEnd(4, 60)}  # it shares only offsets below the joint
    assert await check(views)
    assert (end(views), views.begins_again(TP)) == (200, True)


async def test_a_partition_that_is_named_often_is_compared_once() -> None:
    leader = Leader(2, {1: EpochEnd(1, 150)})
    views = over(Archive(view((0, 99, 1))), leader)
    assert not await views.check([TP] * 1_000, asyncio.get_running_loop().time() + 5.0)
    assert leader.questions == [1]
