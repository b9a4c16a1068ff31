"""Which of a connection's partitions are read from the archive, and by whose leave. Pure.

A mark says what is known of one partition that the broker called out of range. A *permit* is the
broker's own OffsetOutOfRange on this very connection: it checked authorization and leader epoch
before the range, so for a while (`permit_ttl_ms`) this client may be given the topic's archive
without asking again. A fetch with another leader epoch than the one that was checked
is the broker's again: only it knows whether that is FENCED_LEADER_EPOCH or UNKNOWN_LEADER_EPOCH.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Set
from dataclasses import dataclass, field

from fetchproxy.gateway.judgement import Judgement, Verdict
from fetchproxy.many_items import at_once
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import LogEdges, TopicIdPartition
from protocol.fetch_request import (
    NO_LEADER_EPOCH,
    FetchEntry,
    PartitionKey,
    TopicRef,
    fetch_offset,
    leader_epoch,
)
from protocol.fetch_response import PartitionPatch

# Partitions that are looked at in one step of the loop, some 10 µs each.
SPLIT_AT_ONCE = 250


@dataclass(slots=True)
class Mark:
    """`judgement` is None while it is being judged; it is about `offset`.

    `caught` is the highest offset that the broker itself called out of range (-1: none): up to
    there its log start is known to be higher, whatever log edges say that were asked before.
    `shown` is what the client last saw of the partition's ends.
    """

    offset: int
    judgement: Judgement | None = None
    caught: int = -1
    shown: PartitionPatch | None = None


@dataclass(frozen=True, slots=True)
class Split:
    """`remote` and `judging` are `withheld` from the broker; the rest of `asked` is its.

    Of that it is asked from behind lost offsets on for those in `ahead`.
    """

    remote: Mapping[PartitionKey, TopicIdPartition]
    judging: Set[PartitionKey]
    ahead: Mapping[PartitionKey, int] = field(default_factory=dict)
    withheld: frozenset[PartitionKey] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "withheld", frozenset(self.judging).union(self.remote))


NOTHING_WITHHELD = Split({}, frozenset())


@dataclass(frozen=True, slots=True)
class Knowledge:
    """What may be looked up without waiting; each gives None where nothing is known."""

    view: Callable[[TopicIdPartition], PartitionView | None]
    edges: Callable[[TopicIdPartition], LogEdges | None]
    identify: Callable[[TopicRef, int], TopicIdPartition | None]


@dataclass(slots=True)
class FetchMarks:
    permit_ttl_s: float
    marks: dict[PartitionKey, Mark] = field(default_factory=dict)
    permits: dict[TopicRef, float] = field(default_factory=dict)  # loop time of expiry
    # The leader epoch that the broker checked at the last catch; of permitted topics.
    epochs: dict[PartitionKey, int] = field(default_factory=dict)
    # Permitted topics of which something was learned: all their partitions are looked at once.
    learned: set[TopicRef] = field(default_factory=set)
    # Readers that have gone on behind lost offsets: (partition, first, last); taken by the owner.
    led_on: list[tuple[TopicIdPartition, int, int]] = field(default_factory=list)

    @property
    def empty(self) -> bool:
        return not self.marks and not self.permits

    def permitted(self, topic: TopicRef, now: float) -> bool:
        return self.permits.get(topic, now) > now

    def denied_again(self, key: PartitionKey, offset: int) -> bool:
        """The broker was asked once more for what its partition's leader has, and has it not."""
        mark = self.marks.get(key)
        if mark is None or mark.offset != offset or mark.judgement is None:
            return False
        if mark.judgement.verdict is not Verdict.LOCAL:
            return False
        del self.marks[key]
        return True

    def catch(
        self, key: PartitionKey, offset: int, now: float, leader_epoch: int = NO_LEADER_EPOCH
    ) -> Mark | None:
        """The broker called `offset` out of range. None: it was judged so already, pass it on.

        Otherwise the new or renewed mark; it needs judging where its judgement is None.
        """
        if key[0] not in self.permits:
            self.learned.add(key[0])
        self.permits[key[0]] = now + self.permit_ttl_s
        self.epochs[key] = leader_epoch
        mark = self.marks.get(key)
        if mark is not None and mark.offset == offset and mark.judgement is not None:
            if mark.judgement.verdict is Verdict.PASS_ON:
                del self.marks[key]
                return None
            if mark.judgement.verdict is Verdict.REMOTE:
                mark.caught = offset
                return mark  # a renewal of the permit
        mark = Mark(offset, caught=offset)
        self.marks[key] = mark
        return mark

    def told(self, key: PartitionKey) -> None:
        """The client was given an error: what it asks next is judged anew."""
        mark = self.marks.get(key)
        decided = (Verdict.PASS_ON, Verdict.REFUSED)
        if mark is not None and mark.judgement is not None and mark.judgement.verdict in decided:
            del self.marks[key]

    def had_its_turn(self, key: PartitionKey) -> None:
        """The other partitions come first next time, as brokers rotate them."""
        mark = self.marks.pop(key, None)
        if mark is not None:
            self.marks[key] = mark

    def rejudge(self, key: PartitionKey) -> Mark | None:
        """What was known of a partition turned out wrong (its segment is gone)."""
        mark = self.marks.get(key)
        if mark is not None:
            mark = self.marks[key] = Mark(mark.offset, caught=mark.caught)
        return mark

    def forget_topics(self, topics: Collection[TopicRef]) -> None:
        """They are no longer what was archived: the broker decides anew, also who may read."""
        self.marks = {key: mark for key, mark in self.marks.items() if key[0] not in topics}
        self.permits = {topic: at for topic, at in self.permits.items() if topic not in topics}
        self.epochs = {key: epoch for key, epoch in self.epochs.items() if key[0] not in topics}

    def is_wide(self, asked: Collection[PartitionKey], changed: Collection[PartitionKey]) -> bool:
        """Splitting so many takes more than one step."""
        if self.empty:
            return False
        return len(self.marks) + len(asked if self.learned else changed) > SPLIT_AT_ONCE

    def split(
        self,
        asked: Mapping[PartitionKey, FetchEntry],
        now: float,
        known: Knowledge,
        changed: Collection[PartitionKey] | None = None,
    ) -> Split:
        """The same as `split_in_steps`, without a pause. Not for wide fetches."""
        return at_once(self.split_in_steps(asked, now, known, changed))

    def split_in_steps(
        self,
        asked: Mapping[PartitionKey, FetchEntry],
        now: float,
        known: Knowledge,
        changed: Collection[PartitionKey] | None = None,
    ) -> Generator[None, None, Split]:
        """Sort the asked partitions by who answers them, forgetting marks that are over.

        `changed`: of `asked`, what was not there or at another offset before (None: all). Others
        are not looked at again, so that a large session costs nothing.
        """
        if self.empty:
            return NOTHING_WITHHELD
        self._forget_permits(now)
        remote: dict[PartitionKey, TopicIdPartition] = {}
        judging: dict[PartitionKey, None] = {}  # in order: equal runs do equal things
        ahead: dict[PartitionKey, int] = {}
        for number, key in enumerate(list(self.marks), 1):
            entry = asked.get(key)
            if entry is None or self._other_epoch(key, entry):
                del self.marks[key]
            else:
                self._place(key, fetch_offset(entry), remote, judging, ahead, known)
            if not number % SPLIT_AT_ONCE:
                yield
        if self.permits:
            yield from self._extend(asked, asked if changed is None else changed, remote, known)
        return Split(remote, judging.keys(), ahead)

    def _forget_permits(self, now: float) -> None:
        over = [topic for topic, at in self.permits.items() if at <= now]
        for topic in over:
            del self.permits[topic]
        if over:
            self.epochs = {key: epoch for key, epoch in self.epochs.items() if key[0] not in over}

    def _other_epoch(self, key: PartitionKey, asked: FetchEntry) -> bool:
        """Than the one that the permit is for; brokers do not check NO_LEADER_EPOCH either."""
        epoch = leader_epoch(asked)
        if epoch == NO_LEADER_EPOCH or key[0] not in self.permits:
            return False
        return epoch != self.epochs.get(key)

    def _place(
        self,
        key: PartitionKey,
        offset: int,
        remote: dict[PartitionKey, TopicIdPartition],
        judging: dict[PartitionKey, None],
        ahead: dict[PartitionKey, int],
        known: Knowledge,
    ) -> None:
        mark = self.marks[key]
        if mark.judgement is None:
            if mark.offset == offset:
                judging[key] = None
            else:
                del self.marks[key]  # the client seeked away: the broker decides anew
            return
        judgement = mark.judgement
        if judgement.verdict is Verdict.REMOTE and judgement.tip is not None:
            if not _archive_serves(judgement.tip, offset, known, mark.caught):
                del self.marks[key]
            elif key[0] in self.permits:
                mark.offset = offset
                remote[key] = judgement.tip
            else:
                mark.offset = offset  # goes upstream once, for a new permit
        elif mark.offset != offset:
            if judgement.tip is not None and mark.offset < judgement.forward_to <= offset:
                self.led_on.append((judgement.tip, mark.offset, judgement.forward_to - 1))
            del self.marks[key]  # the client has gone on, or away: the broker decides anew
        elif judgement.verdict is Verdict.LOST:
            ahead[key] = judgement.forward_to
        elif judgement.verdict in (Verdict.HOLD, Verdict.END, Verdict.REFUSED):
            judging[key] = None  # the broker has nothing to say of it
        # PASS_ON and LOCAL: the broker is asked once more, and what it says then the client hears.

    def _extend(
        self,
        asked: Mapping[PartitionKey, FetchEntry],
        changed: Collection[PartitionKey],
        remote: dict[PartitionKey, TopicIdPartition],
        known: Knowledge,
    ) -> Generator[None, None, None]:
        """Partitions of a permitted topic that are known to lie below the log start.

        The broker says of the others itself that they are out of range.
        """
        looked_at = 0
        if self.learned:
            changed = [*changed, *(key for key in asked if key[0] in self.learned)]
            self.learned.clear()
        for key in changed:
            if key[0] not in self.permits or key in self.marks:
                continue
            entry = asked.get(key)
            if entry is None or self._other_epoch(key, entry):
                continue
            looked_at += 1
            if not looked_at % SPLIT_AT_ONCE:
                yield
            tip = known.identify(*key)
            edges = None if tip is None else known.edges(tip)
            offset = fetch_offset(entry)
            if tip is None or edges is None or offset >= edges.log_start_offset:
                continue
            if _archive_serves(tip, offset, known):
                self.marks[key] = Mark(offset, Judgement(Verdict.REMOTE, tip))
                remote[key] = tip


def _archive_serves(tip: TopicIdPartition, offset: int, known: Knowledge, caught: int = -1) -> bool:
    """The archive has the offset, and the broker, as far as known, has not."""
    view = known.view(tip)
    if view is None or not view.answers_for(offset):
        return False
    if offset <= caught:
        return True
    edges = known.edges(tip)
    return edges is None or offset < edges.log_start_offset
