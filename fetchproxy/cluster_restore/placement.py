"""Brings partitions to the real brokers, each one from its offset on.

Everything that happens to a partition is decided by `next_step` from what the cluster shows, again
and again, until all are done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple
from uuid import UUID

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.cluster_restore import controller_requests as requests
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.led_partitions import LedLog, LedPartitions
from fetchproxy.cluster_restore.new_cluster import read_placements, with_epoch_ends, with_offsets
from fetchproxy.cluster_restore.next_step import (
    PartitionEpochSearch,
    PartitionGoal,
    PartitionStep,
    next_step,
    other_first,
)
from fetchproxy.cluster_restore.phantoms import Phantoms
from fetchproxy.cluster_restore.plan import FoundPartition, FoundTopic, Place, may_be_placed
from fetchproxy.cluster_restore.replica_fetch import follow
from fetchproxy.cluster_restore.state_file import RestoreStep
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ClusterUnavailable

# Nothing has moved for this long: a broker is gone, or cannot reach the phantoms.
STANDSTILL_MAX_S = 60.0
_LOOK_INTERVAL_S = 0.1
_NAMED_MAX = 5  # partitions in an error text
_STEP_ERRORS = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,)  # a broker that is a moment behind
_LABELS = {
    RestoreStep.RAISE: (PartitionStep.SWAP,),
    RestoreStep.PLACE: (PartitionStep.SPREAD, PartitionStep.ATTACH, PartitionStep.ALONE),
    RestoreStep.HAND_OVER: (PartitionStep.JOIN, PartitionStep.REMOVE),
}


class _Unfinished(NamedTuple):
    """The partitions that are not done, and the step of each."""

    brokers: Mapping[int, HostPort]
    topic_ids: Mapping[str, UUID]
    partitions: Mapping[Place, FoundPartition]
    steps: Mapping[Place, PartitionStep]

    def at(self, *steps: PartitionStep) -> list[Place]:
        return [place for place, step in self.steps.items() if step in steps]


@dataclass(eq=False)
class Placement:
    """The cluster, and the phantoms that lead in it."""

    cluster: Cluster
    controller: ActiveController
    phantoms: Phantoms
    led: LedPartitions
    note: Callable[[RestoreStep], Awaitable[None]]  # before the first partition takes this step
    look: Callable[[], None]  # raises FetchProxyError if the phantoms cannot serve any more
    _noted: set[RestoreStep] = field(default_factory=set)
    _searches: dict[Place, PartitionEpochSearch] = field(default_factory=dict)

    async def converge(self, goals: Mapping[Place, PartitionGoal]) -> None:
        """Returns when real brokers lead all partitions from their offsets on, and no phantom is
        among the replicas. Raises ClusterError, naming partitions that do not get there.
        """
        loop = asyncio.get_running_loop()
        left, before, since = dict(goals), "", loop.time()
        while left:
            self.look()
            unfinished = await self._look(left)
            for place in unfinished.at(PartitionStep.DONE):
                del left[place]
            placed = {p: sorted(self.led.placed(p)) for p in left}
            now = repr((unfinished.partitions, placed, self.led.progress))
            if now != before:
                before, since = now, loop.time()
            elif loop.time() > since + STANDSTILL_MAX_S:
                raise self._stuck(left, unfinished)
            await self._act(left, unfinished)

    async def _look(self, left: Mapping[Place, PartitionGoal]) -> _Unfinished:
        names = sorted({topic for topic, _ in left})
        placements = await read_placements(self.cluster, names)
        known = {
            (t.name, n) for t in placements.topics.values() for n in t.partitions
        } - left.keys()
        topics = await with_offsets(self.cluster, placements.topics, self.phantoms.ids, known)
        topics = await with_epoch_ends(self.cluster, topics, _epochs_to_ask(left, topics))
        ids = {topic.name: topic.topic_id for topic in topics.values()}
        partitions, steps = {}, {}
        for (name, number), goal in left.items():
            if name not in topics or number not in topics[name].partitions:
                continue  # the broker that was asked is a moment behind
            place, present = (name, number), topics[name].partitions[number]
            self.led.lead(name, ids[name], {number: led_log(goal)})
            placed = self.led.placed(place)
            partitions[place] = present
            steps[place] = next_step(goal, present, self.phantoms.ids, placed)
        return _Unfinished(placements.brokers, ids, partitions, steps)

    # --- acting ---
    async def _act(self, left: Mapping[Place, PartitionGoal], unfinished: _Unfinished) -> None:
        for restore_step, partition_steps in _LABELS.items():
            if restore_step not in self._noted and unfinished.at(*partition_steps):
                self._noted.add(restore_step)
                await self.note(restore_step)
        replicas = {
            place: (*self.phantoms.of_partition(*place), *left[place].replicas)
            for place in unfinished.at(PartitionStep.ATTACH)
        }
        out = unfinished.at(PartitionStep.SPREAD, PartitionStep.REMOVE)
        replicas |= {place: left[place].replicas for place in out}
        await self._reassign(replicas)
        await self._raise_epochs(left, unfinished)
        await self._elect(unfinished.at(PartitionStep.LEAD))
        await self._follow(unfinished)
        await self._alter_in_sync(left, unfinished)
        await asyncio.sleep(_LOOK_INTERVAL_S)  # followers and the brokers' metadata need a moment

    async def _reassign(self, replicas: Mapping[Place, Sequence[int]]) -> None:
        for some in _in_parts(replicas):
            refused = await requests.reassign(self.controller, {p: replicas[p] for p in some})
            _raise_first(refused)

    async def _elect(self, places: Iterable[Place]) -> None:
        for some in _in_parts(places):
            # A refusal is no reason to end: the next look shows who leads.
            await requests.elect_preferred(self.controller, some)

    async def _raise_epochs(
        self, left: Mapping[Place, PartitionGoal], unfinished: _Unfinished
    ) -> None:
        """Lets the phantoms hand over to each other as often as is needed."""
        replicas = {
            place: unfinished.partitions[place].replicas
            for place in unfinished.at(PartitionStep.SWAP)
        }
        needed = {
            place: left[place].leader_epoch - 1 - unfinished.partitions[place].leader_epoch
            for place in replicas
        }
        for number in range(max(needed.values(), default=0)):
            some = [place for place, count in needed.items() if count > number]
            for place in some:
                replicas[place] = other_first(replicas[place], self.phantoms.ids)
            await self._reassign({place: replicas[place] for place in some})
            await self._elect(some)

    async def _follow(self, unfinished: _Unfinished) -> None:
        """Empty logs end at 0: that is where a replica fetches that has all of them."""
        topics: dict[tuple[int, int], dict[tuple[str, UUID], dict[int, int]]] = {}
        for name, number in unfinished.at(PartitionStep.FOLLOW):
            present = unfinished.partitions[name, number]
            for node in set(self.phantoms.ids) & set(present.replicas) - present.in_sync:
                of_leader = topics.setdefault((present.leader, node), {})
                of_leader.setdefault((name, unfinished.topic_ids[name]), {})[number] = 0
        for (leader, node), some in topics.items():
            if leader in unfinished.brokers:
                epoch = self.phantoms.epochs[node]
                await follow(self.cluster, unfinished.brokers[leader], node, epoch, some)

    async def _alter_in_sync(
        self, left: Mapping[Place, PartitionGoal], unfinished: _Unfinished
    ) -> None:
        """The leader's word on which replicas are in sync. That real ones are ends its leadership.

        A partition whose real replicas have to leave first is not led by them if the phantoms die.
        """
        by_leader: dict[int, dict[Place, Sequence[int]]] = {}
        for place in unfinished.at(PartitionStep.ALONE):
            present = unfinished.partitions[place]
            in_sync = sorted(set(present.replicas) & set(self.phantoms.ids))
            by_leader.setdefault(present.leader, {})[place] = in_sync
        for place in unfinished.at(PartitionStep.JOIN):
            present = unfinished.partitions[place]
            missing = set(left[place].replicas) - present.in_sync
            in_sync = [*sorted(present.in_sync), *missing]
            by_leader.setdefault(present.leader, {})[place] = in_sync
        for leader, replicas in by_leader.items():
            for some in _in_parts(replicas):
                await self._alter_some(
                    leader, {place: replicas[place] for place in some}, unfinished
                )

    async def _alter_some(
        self, leader: int, replicas: Mapping[Place, Sequence[int]], unfinished: _Unfinished
    ) -> None:
        open_places = list(replicas)
        while open_places:
            changes = {
                place: self._isr_change(place, replicas[place], unfinished) for place in open_places
            }
            epoch = self.phantoms.epochs[leader]
            codes = await requests.alter_isr(self.controller, leader, epoch, changes)
            open_places = [
                p for p in open_places if self._is_other_guess_due(p, codes[p], unfinished)
            ]

    def _isr_change(
        self, place: Place, in_sync: Sequence[int], unfinished: _Unfinished
    ) -> requests.IsrChange:
        present = unfinished.partitions[place]
        search = self._searches.setdefault(place, PartitionEpochSearch(present.leader_epoch))
        return requests.IsrChange(
            unfinished.topic_ids[place[0]], present.leader_epoch, search.guess, in_sync
        )

    def _is_other_guess_due(self, place: Place, code: int, unfinished: _Unfinished) -> bool:
        search = self._searches[place]
        if code == ErrorCode.INVALID_UPDATE_VERSION:
            search.too_low()
        elif code == ErrorCode.NOT_CONTROLLER:
            search.too_high()
        if search.has_failed or code not in (
            ErrorCode.INVALID_UPDATE_VERSION,
            ErrorCode.NOT_CONTROLLER,
        ):
            # Done, or the cluster has moved since the look: the next look shows it.
            del self._searches[place]
            return False
        return True

    def _stuck(self, left: Mapping[Place, PartitionGoal], unfinished: _Unfinished) -> ClusterError:
        names = []
        for topic, number in islice(sorted(left), _NAMED_MAX):
            place = (topic, number)
            missing = sorted(set(left[place].replicas) - self.led.placed(place))
            step = unfinished.steps.get(place, PartitionStep.WAIT)
            absent = [str(node) for node in missing if node not in unfinished.brokers]
            gone = f", broker {', '.join(absent)} is missing" if absent else ""
            names.append(f"{topic}-{number} (next: {step}, no proof of {missing}{gone})")
        return ClusterUnavailable(
            f"{len(left)} partitions made no progress for {STANDSTILL_MAX_S:.0f} s: "
            f"{'; '.join(names)}. Nobody can write to the new topics until they are restored. "
            "Check that all brokers are alive, reach the address of --advertise and trust its "
            "certificate (their logs say why not), then run the same command again"
        )


def led_log(goal: PartitionGoal) -> LedLog:
    local = goal.local
    if local is None:
        return LedLog(goal.end_offset, goal.end_offset)
    return LedLog(local.start_offset, goal.end_offset, local.epochs, goal.append_bytes_max)


def _epochs_to_ask(
    left: Mapping[Place, PartitionGoal], topics: Mapping[str, FoundTopic]
) -> dict[Place, int]:
    """Of partitions that may have their local history already."""
    epochs = {}
    for (name, number), goal in left.items():
        topic = topics.get(name)
        present = None if topic is None else topic.partitions.get(number)
        if (
            present is not None
            and goal.record_epoch >= 0
            and may_be_placed(present, goal.end_offset)
        ):
            epochs[name, number] = goal.record_epoch
    return epochs


def _in_parts(places: Iterable[Place]) -> Iterable[list[Place]]:
    every = iter(places)
    while some := list(islice(every, requests.PARTITIONS_A_REQUEST)):
        yield some


def _raise_first(refused: Mapping[Place, ClusterError]) -> None:
    for error in refused.values():
        if error.error_code not in _STEP_ERRORS:
            raise error
