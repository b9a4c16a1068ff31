"""The archive as far as it is the log of whoever leads the partition now.

Between an unclean leader election and the archiver's truncation the archive holds records that are
no longer in the log. Whoever reads for clients sees its views through this: cut where they part
from the leader's log, so that a dead lineage is shown to nobody, and what is above is the broker's
to answer. The leader is asked once per leader epoch and partition; what it says of older epochs
never changes, so new views are judged by the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from fetchproxy.cluster.leader_log import NO_EPOCH, Compared, LeaderLog, compare_with_leader
from fetchproxy.cluster.single_flight import SingleFlight
from fetchproxy.errors import ClusterError
from fetchproxy.gateway.sparing_warnings import SparingWarnings
from fetchproxy.metadata.api import PartitionViews
from fetchproxy.metadata.divergence import AskEpoch, AskLogStart, Undecided, compare
from fetchproxy.metadata.lineage import lineage_of
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition


class _Checked:
    """What one leader has answered, and the last view that was held against it."""

    def __init__(self, compared: Compared, known_epoch: int) -> None:
        self._tells = compared.leader_epoch != NO_EPOCH
        # Where nothing is told nothing is asked again before there is another leader.
        self.leader_epoch = compared.leader_epoch if self._tells else known_epoch
        self._answers = compared.answers
        self._seen: PartitionView | None = None
        self._shown: PartitionView | None = None
        self._shown_end = 0
        self.lacks_answer = False  # for the last view

    def show(self, view: PartitionView) -> PartitionView:
        if view is not self._seen or self._shown is None:
            end = self._shared_end(view)
            self._seen, self._shown, self._shown_end = view, view.up_to(end), end
        return self._shown

    def _shared_end(self, view: PartitionView) -> int:
        self.lacks_answer = False
        end = view.log_end_offset
        if end is None or not self._tells:
            return end or 0
        last = view.segments[-1].segment_leader_epochs
        if not last or last[-1].epoch == self.leader_epoch:
            return end  # copied from this very leader
        answer = self._answers.ends.get(last[-1].epoch)
        if answer is not None and answer.epoch == last[-1].epoch and answer.end_offset >= end:
            return end
        found = compare(lineage_of(view), end, self._answers)
        if isinstance(found, AskEpoch | AskLogStart):
            # It has grown by an epoch that nobody has asked about: shown when that is done.
            self.lacks_answer = True
            return min(end, self._shown_end)
        if isinstance(found, Undecided):
            # Perhaps inside a batch: what lies below the segment is whole.
            segment = view.segment_at_or_after(found.at_most)
            return end if segment is None else min(found.at_most, segment.start_offset)
        return found.end_offset


class LeaderViews(PartitionViews):
    """`view` and `refresh` never ask a leader; `check` does, and whoever serves calls it before."""

    def __init__(self, rlmm: PartitionViews, leader: LeaderLog, warnings: SparingWarnings) -> None:
        self._rlmm = rlmm
        self._leader = leader
        self._warnings = warnings
        self._checked: dict[TopicIdPartition, _Checked] = {}
        self._flights = SingleFlight[None]()

    def view(self, tip: TopicIdPartition) -> PartitionView | None:
        view = self._rlmm.view(tip)
        checked = self._checked.get(tip)
        return view if view is None or checked is None else checked.show(view)

    async def refresh(self, tip: TopicIdPartition, not_older_than: float) -> PartitionView:
        view = await self._rlmm.refresh(tip, not_older_than)
        checked = self._checked.get(tip)
        return view if checked is None else checked.show(view)

    def wants_check(self, tip: TopicIdPartition) -> bool:
        """Another leader is known than the one that was asked, or none was asked. Never blocks."""
        checked = self._checked.get(tip)
        view = self._rlmm.view(tip)
        if view is None or not view.segments:
            return False
        if checked is None or self._has_new_leader(tip, checked):
            return True
        checked.show(view)
        return checked.lacks_answer

    async def check(
        self, tips: Iterable[TopicIdPartition], deadline: float
    ) -> frozenset[TopicIdPartition]:
        """Ask the leaders that have to be asked; those of `tips` that must not be served now.

        Not served is what a new leader is known of who does not answer until `deadline` (loop
        time): it may have any log. Of a partition that was never checked nothing of the kind is
        known: it is served. Never raises.
        """
        due = [tip for tip in tips if self.wants_check(tip)]
        if not due:
            return frozenset()
        try:
            async with asyncio.timeout_at(deadline), asyncio.TaskGroup() as asking:
                for tip in due:
                    asking.create_task(self._ask(tip), name=f"compare {tip}")
        except TimeoutError:
            pass  # said by what is still due
        return frozenset(
            tip
            for tip in due
            if (checked := self._checked.get(tip)) and self._has_new_leader(tip, checked)
        )

    def _has_new_leader(self, tip: TopicIdPartition, checked: _Checked) -> bool:
        """While nobody leads the log is what it was."""
        return self._leader.known_epoch(tip) not in (NO_EPOCH, checked.leader_epoch)

    async def _ask(self, tip: TopicIdPartition) -> None:
        try:
            await self._flights.run(tip, lambda: self._compare(tip))
        except ClusterError as error:
            self._warnings.warn(
                "archive_not_compared_with_leader",
                tip,
                topic=tip.topic,
                partition=tip.partition,
                error=str(error),
            )

    async def _compare(self, tip: TopicIdPartition) -> None:
        view = self._rlmm.view(tip)
        end = None if view is None else view.log_end_offset
        if view is None or end is None:
            return
        compared = await compare_with_leader(self._leader, tip, lineage_of(view), end)
        checked = self._checked[tip] = _Checked(compared, self._leader.known_epoch(tip))
        shown = checked.show(view).log_end_offset or 0
        if shown < end:
            self._warnings.warn(
                "archive_parted_from_leader",
                tip,
                topic=tip.topic,
                partition=tip.partition,
                archive_end=end,
                shared_end=shown,
                leader_epoch=compared.leader_epoch,
            )
