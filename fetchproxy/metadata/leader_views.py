"""Views of the archive, cut at the offset where it differs from the current leader's log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.leaders import LeaderEpochEnd
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.metadata.lineage import (
    UNDEFINED_EPOCH,
    EpochTransition,
    LeaderKnowledge,
    NeedsEpochEnd,
    NeedsLogStart,
    SharedUpTo,
    Undecided,
    begins_again,
    compare,
    compared_lineage,
    cut_without_election,
)
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.model import (
    EpochEnd,
    EpochStart,
    IsolationLevel,
    LogOffsets,
    TopicIdPartition,
)
from fetchproxy.observability.health import Condition, Kind, of_partition
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.runtime.batcher import Batcher, OnResult
from fetchproxy.runtime.cooperative import chosen, forget, side_by_side
from fetchproxy.runtime.single_flight import SingleFlight

NO_EPOCH = -1
_ABORTED_BYTES_MAX = 1  # bytes of records, which are ignored: the first batch comes whole
# Each comparison takes some 50 µs before it asks. Comparisons that follow in the next turns of the
# loop share its requests.
COMPARED_AT_ONCE = 20
# To compare a new view with the leader's earlier responses takes some 20 µs.
CHECKED_AT_ONCE = 50


class LeaderLog:
    """The current leader's log of each partition. Methods that ask a broker raise ClusterError."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        # After an election, or at first use, many partitions are compared at once.
        self._ends = Batcher(self._ask_ends)
        self._log_offsets = Batcher(self._ask_log_offsets)

    def known_epoch(self, tp: TopicIdPartition) -> int:
        """The last known leader's epoch. -1: no leader is known, or there is none. Never blocks."""
        if not tp.topic_id.int:  # brokers before 2.8
            topic = self._cluster.cached_topic_by_name(tp.topic)
        else:
            topic = self._cluster.cached_topic_by_id(tp.topic_id)
        node_id, epoch = (-1, -1) if topic is None else topic.leaders.get(tp.partition, (-1, -1))
        return NO_EPOCH if node_id < 0 else epoch

    async def epoch_end(self, tp: TopicIdPartition, epoch: int) -> LeaderEpochEnd:
        """OffsetForLeaderEpoch: the epoch of the leader that answers, and the end of `epoch`. That
        leader's responses about older epochs never change. None: the brokers do not support the
        request, or do not report epochs.
        """
        return await self._ends.ask((tp, epoch))

    async def leader_log_offsets(self, tp: TopicIdPartition) -> LogOffsets:
        return await self._log_offsets.ask(tp)

    async def _ask_ends(
        self,
        pairs: Collection[tuple[TopicIdPartition, int]],
        on_result: OnResult[tuple[TopicIdPartition, int], LeaderEpochEnd],
    ) -> None:
        waiting = list(pairs)
        while waiting:  # more than once only if a partition is asked about two epochs
            epochs: dict[TopicIdPartition, int] = {}
            for tp, epoch in waiting:
                epochs.setdefault(tp, epoch)

            def result_of(
                tp: TopicIdPartition,
                end: LeaderEpochEnd | ClusterError,
                of: Mapping[TopicIdPartition, int] = epochs,
            ) -> None:
                on_result((tp, of[tp]), end)

            await self._cluster.ask_epoch_ends(epochs, result_of)
            waiting = [(tp, epoch) for tp, epoch in waiting if epochs[tp] != epoch]

    async def _ask_log_offsets(
        self, tps: Collection[TopicIdPartition], on_result: OnResult[TopicIdPartition, LogOffsets]
    ) -> None:
        now = asyncio.get_running_loop().time()
        for tp, log_offsets in (
            await self._cluster.fetch_log_offsets(tps, not_older_than=now)
        ).items():
            on_result(tp, log_offsets)

    async def aborted_from(self, tp: TopicIdPartition, offset: int) -> frozenset[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions with an offset at `offset` or above.

        It has at least all of these that begin below `offset`. Empty if `offset` is not in the
        leader's own log.
        """
        fetched = await self._cluster.fetch(
            tp,
            offset,
            bytes_max=_ABORTED_BYTES_MAX,
            wait_max_ms=0,
            isolation=IsolationLevel.READ_COMMITTED,
        )
        return frozenset(fetched.aborted)


@dataclass(frozen=True, slots=True)
class Compared:
    """`leader_epoch`: the epoch of the leader that was asked. -1: none was asked, or it reports no
    epochs. `begins_again`, `cut_without_election`: see `lineage`.
    """

    result: SharedUpTo | Undecided
    leader_epoch: int = NO_EPOCH
    responses: LeaderKnowledge = field(default_factory=LeaderKnowledge)
    begins_again: bool = False
    cut_without_election: bool = False


async def compare_with_leader(
    leader: LeaderLog,
    tp: TopicIdPartition,
    lineage: Sequence[EpochStart],
    end_offset: int,
    transitions: Sequence[EpochTransition] = (),
) -> Compared:
    """Compare the copy with the leader's log. Usually one question shows that they agree. See
    `lineage.compare`.

    Raises ClusterError; also ClusterUnavailable if the leader or its log start changed meanwhile,
    or the leader is older than the copy. Then the next attempt will find another leader.
    """
    ends: dict[int, EpochEnd] = {}
    leader_epoch = NO_EPOCH
    log_start_epoch: int | None = None
    while True:
        comparison = compare(
            lineage, end_offset, LeaderKnowledge(ends, log_start_epoch), transitions
        )
        if isinstance(comparison, NeedsEpochEnd):
            response = await leader.epoch_end(tp, comparison.epoch)
            if response is None:
                return Compared(SharedUpTo(end_offset))
            responding, end = response
            if leader_epoch not in (NO_EPOCH, responding):
                raise ClusterUnavailable(f"{tp}: the leader changed during requests to it")
            leader_epoch = responding
            if end.end_offset < 0 and comparison.epoch > leader_epoch:
                raise ClusterUnavailable(
                    f"{tp}: leader epoch {comparison.epoch} is archived, but the leader's epoch is "
                    f"{leader_epoch}"
                )
            ends[comparison.epoch] = end
        elif isinstance(comparison, NeedsLogStart):
            log_start_epoch = (await leader.leader_log_offsets(tp)).log_start_epoch
            ends.clear()  # these are older responses: the log may have begun lower then
        else:
            break
    if log_start_epoch is not None and comparison != SharedUpTo(end_offset):
        again = (await leader.leader_log_offsets(tp)).log_start_epoch
        if again != log_start_epoch:
            raise ClusterUnavailable(f"{tp}: the log start moved during requests to the leader")
    anew = begins_again(lineage, end_offset, comparison)
    cut_offset = cut_without_election(lineage, comparison, end_offset, leader_epoch)
    return Compared(
        comparison, leader_epoch, LeaderKnowledge(ends, log_start_epoch), anew, cut_offset
    )


class _Checked:
    """The responses of one leader, and the last view that was compared with them."""

    def __init__(self, compared: Compared, known_epoch: int) -> None:
        self._tells = compared.leader_epoch != NO_EPOCH
        # If the leader reports no epochs, it is not asked again until there is another leader.
        self.leader_epoch = compared.leader_epoch if self._tells else known_epoch
        self._responses = compared.responses
        self._whole_view: PartitionView | None = None
        self._view: PartitionView | None = None
        self._view_end = 0
        self.lacks_response = False  # the last view needs another response of the leader
        self.begins_again = False  # the leader's log has no record of the last view

    def show(self, view: PartitionView) -> PartitionView:
        if view is not self._whole_view or self._view is None:
            end = self._shared_end(view)
            self._whole_view, self._view, self._view_end = view, view.up_to(end), end
        return self._view

    def _shared_end(self, view: PartitionView) -> int:
        self.lacks_response = self.begins_again = False
        end = view.log_end_offset
        if end is None or not self._tells:
            return end or 0
        last = view.segments[-1].last_epoch
        if last in (UNDEFINED_EPOCH, self.leader_epoch):
            return end  # without epochs, or copied from this leader: nothing to compare
        response = self._responses.ends.get(last)
        if response is not None and response.epoch == last and response.end_offset >= end:
            return end
        lineage = compared_lineage(view)
        comparison = compare(lineage, end, self._responses)
        if isinstance(comparison, NeedsEpochEnd | NeedsLogStart):
            # The view has a new epoch. It is shown after the leader was asked about it.
            self.lacks_response = True
            return min(end, self._view_end)
        if isinstance(comparison, Undecided):
            # `at_most` may lie inside a batch. The part below its segment ends with a whole batch.
            segment = view.segment_at_or_after(comparison.at_most)
            return end if segment is None else min(comparison.at_most, segment.start_offset)
        # The last copy is shown until an operator says which log counts (`fetchproxy resolve`).
        self.begins_again = begins_again(lineage, end, comparison)
        return end if self.begins_again else max(comparison.end_offset, view.history.kept_below)


class LeaderViews(PartitionViews):
    """`view` and `refresh` never ask a leader; `check` does, before clients are served.

    Between an unclean leader election and the archiver's truncation, the archive holds records that
    are no longer in the log. So reads for clients get their views from here, cut at the offset
    where the archive differs from the leader's log. Clients then never see a dead lineage, and the
    broker answers for all offsets above. The leader is asked once per leader epoch and partition.
    Its responses about older epochs never change, so they also decide about new views.
    """

    def __init__(self, rlmm: PartitionViews, leader: LeaderLog, warnings: SparingWarnings) -> None:
        self._rlmm = rlmm
        self._leader = leader
        self._warnings = warnings
        self._checked: dict[TopicIdPartition, _Checked] = {}
        self._single_flights = SingleFlight[None]()

    def view(self, tp: TopicIdPartition) -> PartitionView | None:
        view = self._rlmm.view(tp)
        checked = self._checked.get(tp)
        return view if view is None or checked is None else checked.show(view)

    async def refresh(self, tp: TopicIdPartition, not_older_than: float) -> PartitionView:
        view = await self._rlmm.refresh(tp, not_older_than)
        checked = self._checked.get(tp)
        return view if checked is None else checked.show(view)

    def doubt(self, tp: TopicIdPartition) -> None:
        self._rlmm.doubt(tp)

    async def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        await forget(self._checked, lambda tp: is_gone(tp.topic_id))

    def begins_again(self, tp: TopicIdPartition) -> bool:
        """The log of the leader that was asked last has no record of the archive. Never blocks."""
        checked = self._checked.get(tp)
        return checked is not None and checked.begins_again

    def conditions(self, now: float) -> Iterator[Condition]:
        for tp, checked in self._checked.items():
            if checked.begins_again:
                message = f"the log of {tp} has started over; run fetchproxy resolve {tp}"
                yield of_partition(Kind.LOG_BEGINS_AGAIN, tp, message)

    def wants_check(self, tp: TopicIdPartition) -> bool:
        """`check` has to ask the leader: no leader was asked, a new leader is known, or the view
        needs another response. Never blocks.
        """
        view = self._rlmm.view(tp)
        return view is not None and self.checked_view(view) is None

    def checked_view(self, current_view: PartitionView) -> PartitionView | None:
        """The view to show for `current_view`, the uncut view. None: it needs a `check` first."""
        checked = self._checked.get(current_view.tp)
        if checked is None:
            return None if current_view.segments else current_view
        if current_view.segments and self._has_new_leader(current_view.tp, checked):
            return None
        view = checked.show(current_view)
        return None if checked.lacks_response else view

    async def check(
        self, tps: Iterable[TopicIdPartition], deadline: float
    ) -> frozenset[TopicIdPartition]:
        """Ask the leaders that have to be asked. Returns those of `tps` that must not be served
        now.

        A partition with a new leader is not served if that leader does not answer by `deadline`
        (loop time), because its log is unknown. A partition that was never checked is served,
        because no change of its leader is known. Never raises.
        """
        due = await chosen(dict.fromkeys(tps), self.wants_check, CHECKED_AT_ONCE)
        if not due:
            return frozenset()
        # Partitions without a response are found below.
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await side_by_side(due, self._ask, COMPARED_AT_ONCE)

        def has_new_leader(tp: TopicIdPartition) -> bool:
            checked = self._checked.get(tp)
            return checked is not None and self._has_new_leader(tp, checked)

        return frozenset(await chosen(due, has_new_leader, CHECKED_AT_ONCE))

    def _has_new_leader(self, tp: TopicIdPartition, checked: _Checked) -> bool:
        """Whether another leader is known. Without a leader, the log does not change."""
        return self._leader.known_epoch(tp) not in (NO_EPOCH, checked.leader_epoch)

    async def _ask(self, tp: TopicIdPartition) -> None:
        try:
            await self._single_flights.run(tp, lambda: self._compare(tp))
        except ClusterError as error:
            self._warnings.warn(
                "archive_not_compared_with_leader",
                tp,
                **tp.logged,
                error=str(error),
            )

    async def _compare(self, tp: TopicIdPartition) -> None:
        view = self._rlmm.view(tp)
        end = None if view is None else view.log_end_offset
        if view is None or end is None:
            return
        compared = await compare_with_leader(self._leader, tp, compared_lineage(view), end)
        checked = self._checked[tp] = _Checked(compared, self._leader.known_epoch(tp))
        known_end = checked.show(view).log_end_offset or 0
        if checked.begins_again:
            self._warnings.warn(
                "log_begins_again",
                tp,
                **tp.logged,
                archive_end=end,
                leader_epoch=compared.leader_epoch,
                remedy=f"fetchproxy resolve {tp}",
            )
        elif known_end < end:
            self._warnings.warn(
                "archive_parted_from_leader",
                tp,
                **tp.logged,
                archive_end=end,
                shared_end=known_end,
                leader_epoch=compared.leader_epoch,
            )
