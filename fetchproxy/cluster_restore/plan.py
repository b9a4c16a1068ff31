"""What a restore does with each topic: a comparison of the archived topics with those of the new
cluster. Pure.

A partition of the new cluster may be absent, empty, or already where it belongs; everything else
has records of its own, and its topic is refused by name. A restore that was interrupted is planned
in the same way, from what it has left in the cluster.

Records with *local history* are in the new cluster itself, below the archived end: a partition with
such records is told from one with records of its own by the end of the last archived leader epoch,
which in no other log is that very offset.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

from fetchproxy.cluster_state.state import NamedValues
from fetchproxy.model import EpochStart

Place = tuple[str, int]  # topic, partition
# One step takes the phantoms some 70 ms, and with 1,000 partitions a second, and it is two records
# of each partition in the controllers' log. A topic with more terms of leaders begins lower, and
# gets no local history, because followers drop batches with a later epoch than their leader's.
EPOCHS_RAISED_MAX = 1_000
PRODUCER_ID_BLOCK = 1_000  # ids that the controller gives to a broker at once


class RestoreBy(StrEnum):
    """How partitions come to begin at their offsets."""

    PHANTOMS = "phantoms"  # a leader that exists only for that long; needs the controllers
    PADDING = "padding"  # empty records, which are deleted then; needs a client's rights


class TopicAction(StrEnum):
    CREATE = "create"
    TAKE = "take"  # it exists and is empty
    KEEP = "keep"  # all of it is where it belongs
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class LocalHistory:
    """Records that the new brokers get from the archive, up to the partition's end.

    `start_offset`: the base offset of a batch. `epochs`: of their batches, as the cache of a leader
    whose log begins there.
    """

    start_offset: int
    epochs: tuple[EpochStart, ...] = ()


@dataclass(frozen=True, slots=True)
class LostPartition:
    """`end_offset`: which the next new record gets: the first offset that is not archived, or the
    end of a kept state that was chosen; `archived_end`: of the archive, if that is above it.
    `record_epoch`: of the last archived record; `leader_epoch` may be later. `local`: None: the new
    log begins at the end. `why_not_local`: why that is, or why it is less than was ordered.
    """

    end_offset: int
    leader_epoch: int = -1
    record_epoch: int = -1
    local: LocalHistory | None = None
    why_not_local: str = ""
    archived_end: int | None = None

    @property
    def start_offset(self) -> int:
        """Where the new log begins."""
        return self.end_offset if self.local is None else self.local.start_offset


@dataclass(frozen=True, slots=True)
class LostTopic:
    """`partitions`: all of them, from 0 on. `why_not`: it cannot be restored, and why. `topic_id`:
    by which the archive has it; None: the archive does not know it. `later_partitions`: the archive
    has them, and the chosen state had not. `is_continued`: the archive says that its log went on in
    the new cluster's topic.
    """

    name: str
    replication_factor: int
    partitions: tuple[LostPartition, ...]
    configs: NamedValues = ()
    why_not: str = ""
    topic_id: UUID | None = None
    later_partitions: tuple[int, ...] = ()
    is_continued: bool = False

    @property
    def goes_on(self) -> bool:
        """Whether the new log can continue the archived one."""
        return self.topic_id is not None and not self.why_log_ends

    @property
    def why_log_ends(self) -> str:
        """ "": the new log can continue the archived one, as it begins at its end, and its leader
        epochs are above.
        """
        if self.later_partitions or any(one.archived_end is not None for one in self.partitions):
            return "the archive has records beyond the chosen state"
        epoch = max((one.leader_epoch for one in self.partitions), default=-1)
        if epoch > EPOCHS_RAISED_MAX:
            return (
                f"leader epochs are raised one by one, up to {EPOCHS_RAISED_MAX:,}, and one "
                f"partition was at {epoch:,}"
            )
        return ""


@dataclass(frozen=True, slots=True)
class FoundPartition:
    """A partition of the new cluster. The offsets are None if no real broker leads it.

    `epoch_end`: where the leader says that the last archived epoch ends in its log; None: it was
    not asked.
    """

    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: frozenset[int]
    log_start_offset: int | None = None
    log_end_offset: int | None = None
    epoch_end: int | None = None


@dataclass(frozen=True, slots=True)
class FoundTopic:
    name: str
    topic_id: UUID
    partitions: Mapping[int, FoundPartition]


@dataclass(frozen=True, slots=True)
class PlannedTopic:
    """`replicas`: of each partition, the first one is to lead; none if the brokers choose.
    `log_ends`: of a restore by padding, where each partition's log ends now. `why`: of a refusal.
    """

    archived: LostTopic
    action: TopicAction
    replicas: tuple[tuple[int, ...], ...] = ()
    why: str = ""
    log_ends: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        return self.archived.name


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """`notes`: what a person has to know before. `archive`: what becomes of the archive, as a
    sentence; "": nothing.
    """

    topics: tuple[PlannedTopic, ...]
    notes: tuple[str, ...] = ()
    archive: str = ""

    def of(self, *actions: TopicAction) -> Iterator[PlannedTopic]:
        return (topic for topic in self.topics if topic.action in actions)

    @property
    def has_local_history(self) -> bool:
        """Whether followers have to get records."""
        topics = self.of(TopicAction.CREATE, TopicAction.TAKE)
        return any(one.local for topic in topics for one in topic.archived.partitions)

    @property
    def is_done(self) -> bool:
        return not any(self.of(TopicAction.CREATE, TopicAction.TAKE))


def plan_restore(
    archived: Sequence[LostTopic],
    present: Mapping[str, FoundTopic],
    brokers: Sequence[int],
    phantoms: Collection[int],
) -> RestorePlan:
    """`brokers`: the real ones that are alive. `phantoms`: ids that belong to the restore."""
    planned, first = [], 0
    for topic in archived:
        planned.append(
            _plan_topic(topic, present.get(topic.name), sorted(brokers), phantoms, first)
        )
        first += len(topic.partitions)  # or the first brokers would lead most of small topics
    return RestorePlan(tuple(planned))


def _plan_topic(
    archived: LostTopic,
    present: FoundTopic | None,
    brokers: Sequence[int],
    phantoms: Collection[int],
    first: int,
) -> PlannedTopic:
    if archived.why_not:
        return PlannedTopic(archived, TopicAction.REFUSE, why=archived.why_not)
    needed = max(archived.replication_factor, 1)
    if needed > len(brokers):
        why = f"it had {needed} replicas, but the new cluster has {len(brokers)} live brokers"
        return PlannedTopic(archived, TopicAction.REFUSE, why=why)
    if present is None:
        replicas = [_rotated(brokers, first + n)[:needed] for n in range(len(archived.partitions))]
        return PlannedTopic(archived, TopicAction.CREATE, tuple(replicas))
    if (fault := _why_not(archived, present, phantoms)) is not None:
        return PlannedTopic(archived, TopicAction.REFUSE, why=fault)
    replicas = [
        _own_replicas(present.partitions[n], phantoms) or _rotated(brokers, first + n)[:needed]
        for n in range(len(archived.partitions))
    ]
    placed = all(
        is_where_it_belongs(archived, n, present.partitions[n])
        and not set(present.partitions[n].replicas) & set(phantoms)
        for n in range(len(archived.partitions))
    )
    action = TopicAction.KEEP if placed else TopicAction.TAKE
    return PlannedTopic(archived, action, tuple(replicas))


def _rotated(brokers: Sequence[int], by: int) -> tuple[int, ...]:
    at = by % len(brokers)
    return (*brokers[at:], *brokers[:at])


def _own_replicas(present: FoundPartition, phantoms: Collection[int]) -> tuple[int, ...]:
    return tuple(replica for replica in present.replicas if replica not in phantoms)


def may_be_placed(present: FoundPartition, end_offset: int) -> bool:
    """Whether its log reaches from below `end_offset` up to it: `epoch_end` then says whose records
    these are.
    """
    start, end = present.log_start_offset, present.log_end_offset
    return start is not None and end is not None and start < end_offset <= end


def epochs_to_ask(
    archived: Iterable[LostTopic], present: Mapping[str, FoundTopic]
) -> dict[Place, int]:
    """The last archived epoch of each partition that `may_be_placed`, for `epoch_end`."""
    epochs = {}
    for topic in archived:
        there = present.get(topic.name)
        for number, one in enumerate(topic.partitions):
            partition = None if there is None else there.partitions.get(number)
            if partition is None or one.record_epoch < 0:
                continue
            if may_be_placed(partition, one.end_offset):
                epochs[topic.name, number] = one.record_epoch
    return epochs


def is_placed(present: FoundPartition, end_offset: int) -> bool:
    """Whether a real broker's log has only archived records below `end_offset`, and gives this
    offset to the first new one. Retention may have raised its start since.
    """
    if present.log_start_offset == end_offset:
        return True
    return may_be_placed(present, end_offset) and present.epoch_end == end_offset


def is_where_it_belongs(archived: LostTopic, number: int, present: FoundPartition) -> bool:
    """As `is_placed`. A log that went on was placed, and its archive has other ends by now."""
    end_offset = archived.partitions[number].end_offset
    if is_placed(present, end_offset):
        return True
    reached = present.log_end_offset
    return archived.is_continued and reached is not None and reached >= end_offset


def _why_not(archived: LostTopic, present: FoundTopic, phantoms: Collection[int]) -> str | None:
    """Why an existing topic cannot be taken; None: it can."""
    count = len(archived.partitions)
    if set(present.partitions) != set(range(count)):
        return f"it exists with {len(present.partitions)} partitions, but {count} were archived"
    for number, one in enumerate(archived.partitions):
        partition = present.partitions[number]
        start, end = partition.log_start_offset, partition.log_end_offset
        if start is None or end is None:
            if set(partition.replicas) & set(phantoms):
                continue  # an earlier run has begun it
            return f"it exists, but partition {number} has no leader, so its content is not known"
        if is_where_it_belongs(archived, number, partition):
            continue
        if (start, end) != (0, 0):
            return (
                f"it exists and has records: partition {number} from {start} to {end}, but it must "
                f"begin at {one.start_offset}"
            )
    return None


def producer_id_blocks(plan: RestorePlan, highest: int) -> int:
    """How many blocks of producer ids the new cluster passes over, if it has given none yet.
    `highest`: the highest id in the state, -1: not known.
    """
    return highest // PRODUCER_ID_BLOCK + 1 if plan.has_local_history else 0


def diff_lines(
    plan: RestorePlan,
    producer_id_max: int = -1,
    partition_text: Callable[[PlannedTopic, int], str] | None = None,
) -> Iterator[str]:
    """The plan as a diff of the new cluster: what is added, changed, kept, and refused; and the
    notes. `producer_id_max`: of the state. `partition_text`: what happens to a partition; None: by
    phantoms.
    """
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
        for number in range(count):
            text = (partition_text or _led_text)(topic, number)
            yield f"{sign}     partition {number}: {text}"
    if blocks := producer_id_blocks(plan, producer_id_max):
        yield (
            f"~ producer ids up to {producer_id_max} are skipped: up to {blocks} blocks of "
            f"{PRODUCER_ID_BLOCK}"
        )
    for beyond in beyond_state(plan):
        yield f"! not in the new log: {beyond}"
    for name, why in logs_that_end(plan).items():
        yield f"! topic {name}: its new log does not continue the archived one: {why}"
    if plan.archive:
        yield f"~ archive: {plan.archive}"
    for note in plan.notes:
        yield f"# {note}"


def _led_text(topic: PlannedTopic, number: int) -> str:
    one, replicas = topic.archived.partitions[number], ",".join(map(str, topic.replicas[number]))
    epoch = max(one.leader_epoch, 0) if one.leader_epoch <= EPOCHS_RAISED_MAX else 0
    local = "" if one.local is None else f" with local history up to {one.end_offset}"
    less = f" ({one.why_not_local})" if one.why_not_local else ""
    return (
        f"begins at {one.start_offset}{local}{less}, leader epoch from {epoch}, replicas {replicas}"
    )


def logs_that_end(plan: RestorePlan) -> dict[str, str]:
    """The topics of the plan that cannot continue their archived logs, and why."""
    return {
        topic.name: topic.archived.why_log_ends
        for topic in plan.of(TopicAction.CREATE, TopicAction.TAKE, TopicAction.KEEP)
        if topic.archived.topic_id is not None and topic.archived.why_log_ends
    }


def beyond_state(plan: RestorePlan) -> Iterator[str]:
    """What the archive has beyond the chosen state. The new log does not go on from it, and gives
    its offsets to new records.
    """
    for topic in plan.of(TopicAction.CREATE, TopicAction.TAKE, TopicAction.KEEP):
        for number, one in enumerate(topic.archived.partitions):
            if one.archived_end is not None:
                yield (
                    f"{topic.name}-{number}: the archive has offsets {one.end_offset} to "
                    f"{one.archived_end - 1}, which are later than the chosen state"
                )
        for number in topic.archived.later_partitions:
            yield f"{topic.name}-{number}: the archive has it, but the chosen state does not"
