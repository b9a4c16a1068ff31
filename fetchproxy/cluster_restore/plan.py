"""What a restore does with each topic: a comparison of the archived topics with those of the new
cluster. Pure.

A partition of the new cluster may be absent, empty, or already where it belongs; everything else
has records of its own, and its topic is refused by name. A restore that was interrupted is planned
in the same way, from what it has left in the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from fetchproxy.cluster_state.state import NamedValues

Place = tuple[str, int]  # topic, partition


class TopicAction(StrEnum):
    CREATE = "create"
    TAKE = "take"  # it exists and is empty
    KEEP = "keep"  # all of it is where it belongs
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class LostPartition:
    """`end_offset`: the first offset that is not archived, where the new log begins."""

    end_offset: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class LostTopic:
    """`partitions`: all of them, from 0 on. `why_not`: it cannot be restored, and why."""

    name: str
    replication_factor: int
    partitions: tuple[LostPartition, ...]
    configs: NamedValues = ()
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class FoundPartition:
    """A partition of the new cluster. The offsets are None if no real broker leads it."""

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]
    log_start_offset: int | None = None
    log_end_offset: int | None = None


@dataclass(frozen=True, slots=True)
class FoundTopic:
    name: str
    topic_id: UUID
    partitions: Mapping[int, FoundPartition]


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """`replicas`: of each partition, the first one is to lead. `why`: of a refusal."""

    archived: LostTopic
    action: TopicAction
    replicas: tuple[tuple[int, ...], ...] = ()
    why: str = ""

    @property
    def name(self) -> str:
        return self.archived.name


@dataclass(frozen=True, slots=True)
class RestorePlan:
    topics: tuple[PlannedTopic, ...]

    def of(self, *actions: TopicAction) -> Iterator[PlannedTopic]:
        return (topic for topic in self.topics if topic.action in actions)

    @property
    def is_done(self) -> bool:
        return not any(self.of(TopicAction.CREATE, TopicAction.TAKE))


def plan_restore(
    archived: Sequence[LostTopic],
    found: Mapping[str, FoundTopic],
    brokers: Sequence[int],
    phantoms: Collection[int],
) -> RestorePlan:
    """`brokers`: the real ones that are alive. `phantoms`: ids that belong to the restore."""
    planned, first = [], 0
    for topic in archived:
        planned.append(_plan_topic(topic, found.get(topic.name), sorted(brokers), phantoms, first))
        first += len(topic.partitions)  # or the first brokers would lead most of small topics
    return RestorePlan(tuple(planned))


def _plan_topic(
    archived: LostTopic,
    found: FoundTopic | None,
    brokers: Sequence[int],
    phantoms: Collection[int],
    first: int,
) -> PlannedTopic:
    if archived.why_not:
        return PlannedTopic(archived, TopicAction.REFUSE, why=archived.why_not)
    needed = max(archived.replication_factor, 1)
    if needed > len(brokers):
        why = f"it had {needed} replicas, and the new cluster has {len(brokers)} live brokers"
        return PlannedTopic(archived, TopicAction.REFUSE, why=why)
    if found is None:
        replicas = [_rotated(brokers, first + n)[:needed] for n in range(len(archived.partitions))]
        return PlannedTopic(archived, TopicAction.CREATE, tuple(replicas))
    if (fault := _why_not(archived, found, phantoms)) is not None:
        return PlannedTopic(archived, TopicAction.REFUSE, why=fault)
    replicas = [
        _own_replicas(found.partitions[n], phantoms) or _rotated(brokers, first + n)[:needed]
        for n in range(len(archived.partitions))
    ]
    placed = all(
        is_placed(found.partitions[n], one.end_offset, phantoms)
        for n, one in enumerate(archived.partitions)
    )
    action = TopicAction.KEEP if placed else TopicAction.TAKE
    return PlannedTopic(archived, action, tuple(replicas))


def _rotated(brokers: Sequence[int], by: int) -> tuple[int, ...]:
    at = by % len(brokers)
    return (*brokers[at:], *brokers[:at])


def _own_replicas(found: FoundPartition, phantoms: Collection[int]) -> tuple[int, ...]:
    return tuple(replica for replica in found.replicas if replica not in phantoms)


def is_placed(found: FoundPartition, start_offset: int, phantoms: Collection[int]) -> bool:
    """Whether a real broker leads it from this offset, and no phantom is among its replicas."""
    return found.log_start_offset == start_offset and not set(found.replicas) & set(phantoms)


def _why_not(archived: LostTopic, found: FoundTopic, phantoms: Collection[int]) -> str | None:
    """Why an existing topic cannot be taken; None: it can."""
    count = len(archived.partitions)
    if set(found.partitions) != set(range(count)):
        return f"it exists with {len(found.partitions)} partitions, and {count} were archived"
    for number, one in enumerate(archived.partitions):
        partition = found.partitions[number]
        start, end = partition.log_start_offset, partition.log_end_offset
        if start is None or end is None:
            if set(partition.replicas) & set(phantoms):
                continue  # an earlier run has begun it
            return f"it exists, and partition {number} has no leader that could say what it has"
        if start == one.end_offset:
            continue
        if (start, end) != (0, 0):
            return (
                f"it exists and has records: partition {number} from {start} to {end}, which the "
                f"archive would have begin at {one.end_offset}"
            )
    return None


def diff_lines(plan: RestorePlan) -> Iterator[str]:
    """The plan as a diff of the new cluster: what is added, changed, kept, and refused."""
    signs = {"create": "+", "take": "~", "keep": " ", "refuse": "!"}
    for topic in plan.topics:
        sign = signs[topic.action]
        if topic.action is TopicAction.REFUSE:
            yield f"{sign} topic {topic.name}: refused: {topic.why}"
            continue
        count = len(topic.archived.partitions)
        partitions = "1 partition" if count == 1 else f"{count} partitions"
        words = {"create": "new", "take": "exists and is empty", "keep": "is there already"}
        yield f"{sign} topic {topic.name}: {partitions}, {words[topic.action]}"
        if topic.action is TopicAction.KEEP:
            continue
        for name, value in topic.archived.configs:
            yield f"{sign}     {name}={value}"
        for number, one in enumerate(topic.archived.partitions):
            replicas = ",".join(map(str, topic.replicas[number]))
            yield (
                f"{sign}     partition {number}: begins at {one.end_offset}, leader epoch from "
                f"{max(one.leader_epoch, 0)}, replicas {replicas}"
            )
