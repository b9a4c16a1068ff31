"""The relay's knowledge of the archive: its topics, where it begins, and who adds to it."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, repeat
from typing import NamedTuple
from uuid import UUID

import structlog
from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.fetch import LogStarts, PartitionKey, TopicRef

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.metadata.archiver_positions import ArchiverPositions
from fetchproxy.metadata.leader_views import LeaderViews
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.metadata.remote_reads import ReadableArchive
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.runtime.cooperative import forget
from fetchproxy.storage.continued_topics import ContinuedTopics

log = structlog.get_logger(__name__)

# Another process may have begun to archive a topic this long ago, and nobody here knows it yet. An
# archiver trims no log of a partition that it took up a moment ago (`LocalRetention`).
LIST_INTERVAL_S = 4.0
# Between two attempts while the store does not answer.
RETRY_PAUSE_S = 1.0
# Longest wait of a caller for a list: if there is an older list, and if there is none.
WAIT_MAX_S = 0.5
FIRST_WAIT_MAX_S = 2.0
# Topics that are looked up together, in some 10 ms, and how many of them one client brings at once.
LOOK_UPS_AT_ONCE = 500
LOOK_UPS_A_CLIENT = 100
# Topics of one client that are dealt with in one turn of the loop, at some 1.5 µs each.
LISTED_TOPICS_AT_ONCE = 2_000
# A topic as clients name it: (is it an id, id or name), as 16 bytes may be either.
TopicName = tuple[bool, TopicRef]
LogStartOf = Callable[[int], int | None]  # by partition; None: the broker's log start is right
# A partition's first archived offset and its leader epoch; None: it must be looked up.
StartOf = Callable[[int], tuple[int, int] | None]


@dataclass(eq=False, repr=False)
class ArchivedKnowledge:
    """The list of topics that have an archive. All other topics behave as if there were no archive.

    The gateway has one list and runs `run` as a task. The list is read at the start and then at an
    interval, however much or little callers ask, so a topic without an archive costs the store
    nothing. Nearly all callers use the last list at once: even a long outage does not touch topics
    that were never archived. Only a reader whose offset is out of range needs a list that was read
    after that, because its client would skip records. `clock` gives loop time in seconds.

    The same list tells which topics continue the log of another topic id (`_continued`). A caller
    that looked up a topic before, and asks about it now, has the wrong id: nothing is known of it.
    """

    _rlmm: ReadableArchive
    _continued: ContinuedTopics
    _clock: Callable[[], float]
    _warnings: SparingWarnings
    _failure: Exception | None = None  # of the last attempt

    async def archived_among(self, topic_ids: Collection[UUID]) -> frozenset[UUID]:
        """The members of `topic_ids` in the last list, however old. Asks no store.

        Raises RemoteStorageError if no list was ever read.
        """
        archived_ids = await self.topics()
        self._check_ids(topic_ids)
        return archived_ids.intersection(topic_ids)

    async def may_be_archived(self, topic_id: UUID, not_older_than: float) -> bool:
        """False: the topic is not in a list that was read since `not_older_than` (loop time, s);
        while the store does not answer, it is not in the last list. Raises as `archived_among`.
        """
        known = self._rlmm.known_archived_topics()
        if known is not None and topic_id in known[0]:
            return True
        archived_ids = await self.topics(not_older_than)
        self._check_ids([topic_id])
        return topic_id in archived_ids

    def _check_ids(self, topic_ids: Iterable[UUID]) -> None:
        """Raises RemoteStorageError."""
        if self._continued and any(map(self._continued.continues, topic_ids)):
            raise RemoteStorageError("a topic continues another log since its id was looked up")

    async def topics(self, not_older_than: float = float("-inf")) -> frozenset[UUID]:
        """All topics that may be archived, see `may_be_archived`."""
        known, oldest = self._rlmm.known_archived_topics(), min(not_older_than, self._clock())
        if known is None or known[1] < oldest:
            await self._wait(oldest, FIRST_WAIT_MAX_S if known is None else WAIT_MAX_S)
            known = self._rlmm.known_archived_topics()
        if known is None:
            raise RemoteStorageError(f"archived topics are not known: {self._failure}")
        return known[0]

    @property
    def listed_at(self) -> float:
        """Loop time (s) at which the last list's read began. Never blocks."""
        known = self._rlmm.known_archived_topics()
        return float("-inf") if known is None else known[1]

    async def _wait(self, oldest: float, wait_max_s: float) -> None:
        """Wait for a new list. If the last attempt failed, return at once: `run` tries again."""
        if self._failure is not None:
            return
        try:
            async with asyncio.timeout(wait_max_s):
                await self._rlmm.archived_topics(oldest)
        except TimeoutError:
            self._failed(TimeoutError(f"not listed within {wait_max_s} s"))
        except RemoteStorageError as error:
            self._failed(error)

    async def run(self) -> None:
        """For ever: read the list at an interval."""
        while True:
            try:
                await self._rlmm.archived_topics(self._clock())
            except RemoteStorageError as error:
                self._failed(error)
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            self._failure = None
            await asyncio.sleep(LIST_INTERVAL_S)

    def _failed(self, error: Exception) -> None:
        self._failure = error
        self._warnings.warn("archived_topics_not_listed", None, error=str(error))


class _Names(NamedTuple):
    by_id: bool
    refs: Collection[TopicRef]

    def each(self) -> Iterator[TopicName]:
        return zip(repeat(self.by_id), self.refs)


class _Change(NamedTuple):
    """`names` that the client asks for from now on if it `joins`, else no longer."""

    client: TopicsOfConnection
    joins: bool
    names: Iterator[TopicName]


def topic_key(by_id: bool, ref: TopicRef) -> str | UUID:
    return UUID(bytes=ref) if by_id else ref.decode(errors="replace")


def _not_known(partition: int) -> int:
    """Kafka's -1 for an unknown log start: a client then asks ListOffsets where the log begins."""
    return -1


@dataclass(eq=False, repr=False)
class ArchivedTopics:
    """The log start offsets of both tiers, which relayed Fetch responses show for topics of the
    tail.

    One per gateway; `run` looks topics up. `max_age_s`: time between two look-ups of a topic.

    A Kafka with tiered storage shows the log start offset of both tiers. So does the proxy, if it
    knows it: it looks up in the archive the topics that clients read at the tail. It does so
    without delaying them, once for all clients, and again after `log_start_max_age_ms`. Until the
    log start is known, clients see -1 in place of the broker's log start if an archive may lie
    below it. librdkafka takes a log start that it was shown for the beginning, without asking: with
    the broker's own it would skip the archive. No client waits for these look-ups.
    """

    _cluster: Cluster
    _rlmm: ReadableArchive
    _knowledge: ArchivedKnowledge
    _clock: Callable[[], float]
    _max_age_s: float
    # How many clients ask for each topic, so that a join costs by the names that it brings.
    _clients_of: Counter[TopicName] = field(default_factory=Counter)
    _read_at: dict[TopicName, float] = field(default_factory=dict)  # the oldest look-up first
    _waiting: deque[TopicsOfConnection] = field(default_factory=deque)  # those with new names
    _changes: deque[_Change] = field(default_factory=deque)  # of clients with very many names
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    # The topics looked up so far. None: the topic has no archive.
    starts: dict[TopicName, LogStartOf | None] = field(default_factory=dict)
    generation: int = 0  # grows with each change of `starts`

    def change(self, client: TopicsOfConnection, more: _Names, fewer: _Names) -> None:
        """The client asks for these topics now, and for those no longer.

        Very many names are counted later, in steps: a hundred clients that come or go in the same
        moment would hold the loop for half a second. The changes of one client keep their order.
        """
        few = not client.changes and len(more.refs) + len(fewer.refs) <= LISTED_TOPICS_AT_ONCE
        if few:
            self._join(client, list(more.each()))
            self._forget(list(fewer.each()))
        else:
            changes = [_Change(client, True, more.each()), _Change(client, False, fewer.each())]
            client.changes += len(changes)
            self._changes.extend(changes)
        if self._changes or self._waiting:  # not for each connection that only comes and goes
            self._wake.set()

    def _next_change(self) -> None:
        """Count some more names of the first change."""
        change = self._changes[0]
        some = list(islice(change.names, LISTED_TOPICS_AT_ONCE))
        if len(some) < LISTED_TOPICS_AT_ONCE:
            self._changes.popleft()
            change.client.changes -= 1
        if change.joins:
            self._join(change.client, some)
        else:
            self._forget(some)

    def _join(self, client: TopicsOfConnection, names: Sequence[TopicName]) -> None:
        self._clients_of.update(names)
        if client.left or not names:
            return
        if not client.new:
            self._waiting.append(client)
        client.new.extend(names)

    def _forget(self, names: Iterable[TopicName]) -> None:
        """For each time that a name comes, one client less asks for it."""
        forgotten = len(self.starts)
        for name in names:
            self._clients_of[name] -= 1
            if not self._clients_of[name]:
                del self._clients_of[name]
                self._read_at.pop(name, None)
                self.starts.pop(name, None)
        if len(self.starts) < forgotten:
            self.generation += 1

    async def run(self) -> None:
        """For ever: look up the topics that clients read."""
        while True:
            self._wake.clear()
            while self._changes:
                self._next_change()
                await asyncio.sleep(0)
            due_at = await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await self._wake.wait()

    async def _look(self) -> float | None:
        """Look up some of the topics that are due. Returns the loop time of the next look-up; None:
        no client reads.
        """
        now = self._clock()
        due = [*self._too_old(now), *self._new()]
        for name in due:
            self._read_at.pop(name, None)  # to the end
            self._read_at[name] = now
        try:
            if due:
                await self._look_up(due)
        except (ClusterError, RemoteStorageError):
            pass  # counted already; clients see the log starts known before
        except Exception as error:  # no client depends on this, so the gateway must not fail by it
            log.exception("log_start_lookup_failed", error=repr(error))
        if self._waiting:
            return now
        return next(iter(self._read_at.values())) + self._max_age_s if self._read_at else None

    def _too_old(self, now: float) -> Iterator[TopicName]:
        # The same sum as in `_look`: with other rounding, a topic might not be due when its time
        # comes.
        for name, at in islice(self._read_at.items(), LOOK_UPS_AT_ONCE // 2):
            if now < at + self._max_age_s:
                return
            yield name

    def _new(self) -> set[TopicName]:
        """Some new names of each client in turn, so that one with many does not hold up others."""
        new_topics, read = set[TopicName](), 0
        while self._waiting and read < LOOK_UPS_AT_ONCE:
            client = self._waiting.popleft()
            some = [client.new.popleft() for _ in range(min(len(client.new), LOOK_UPS_A_CLIENT))]
            read += 1 + len(some)
            new_topics.update(n for n in some if n in self._clients_of and n not in self._read_at)
            if client.new:
                self._waiting.append(client)
        return new_topics

    async def _look_up(self, due: Sequence[TopicName]) -> None:
        """One Metadata request for all names, one for all ids; one listing per archived topic."""
        keys = {name: topic_key(*name) for name in due}
        topics = await self._cluster.topics_of(
            set(keys.values()), max_age_ms=int(self._max_age_s * 1000)
        )
        for name, key in keys.items():
            topic = topics[key]
            if isinstance(topic, ClusterError):
                if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    self._note(name, None)  # clients see only the broker's own log start
            else:
                with suppress(RemoteStorageError):  # counted; the log starts stay as they were
                    self._note(name, await self._starts_of(topic))

    async def _starts_of(self, topic: TopicInfo) -> LogStartOf | None:
        if not await self._knowledge.archived_among({topic.topic_id}):
            return None
        # Half the age: one read of the metadata topic covers all topics, so it serves the others.
        oldest = self._clock() - self._max_age_s / 2
        partitions = await self._rlmm.refresh_topic(topic.topic_id, oldest)
        tps = {n: TopicIdPartition(topic.topic_id, topic.name, n) for n in partitions}
        return self._reader_of(tps) if tps else None

    def _reader_of(self, tps: Mapping[int, TopicIdPartition]) -> LogStartOf:
        view_of = self._rlmm.view

        def log_start(partition: int) -> int | None:
            tp = tps.get(partition)
            if tp is None:
                return None
            view = view_of(tp)
            return _not_known(partition) if view is None else view.log_start_offset

        return log_start

    def _note(self, name: TopicName, starts: LogStartOf | None) -> None:
        if name in self._clients_of:  # else its last client has left meanwhile
            self.starts[name] = starts
            self.generation += 1


class _StartsWhenRead(Mapping[TopicRef, LogStartOf]):
    """The log starts of very many topics. Each is looked for when a response names its topic."""

    def __init__(
        self, starts: Mapping[TopicName, LogStartOf | None], topics: Set[TopicRef], by_id: bool
    ) -> None:
        self._starts, self._topics, self._by_id = starts, topics, by_id

    def __getitem__(self, topic: TopicRef) -> LogStartOf:
        start = self._starts.get((self._by_id, topic), _not_known)
        if start is None or topic not in self._topics:
            raise KeyError(topic)
        return start

    def __iter__(self) -> Iterator[TopicRef]:
        return iter(self._topics)

    def __len__(self) -> int:
        return len(self._topics)


class TopicsOfConnection:
    """The topics that one client asks for, and the log starts that it is shown."""

    def __init__(self, shared: ArchivedTopics) -> None:
        self._shared = shared
        self._topics: set[TopicRef] = set()
        # For `ArchivedTopics`: names that are not looked up yet; changes that are not counted yet;
        # whether the client has disconnected.
        self.new: deque[TopicName] = deque()
        self.changes = 0
        self.left = False
        self._by_id = False
        self._generation = -1
        self._starts: LogStarts | None = None

    def note(self, keys: Set[PartitionKey], by_id: bool, only_these: bool) -> None:
        """`keys`: partitions that the client reads. `only_these`: it reads no others any more."""
        topics = {topic for topic, _ in keys}
        if not only_these and by_id is self._by_id:
            topics |= self._topics
        if topics == self._topics and by_id is self._by_id:
            return
        self._change(topics, by_id)

    def leave(self) -> None:
        """The client has disconnected."""
        self.left = True
        self.new.clear()
        self._change(set(), self._by_id)

    def _change(self, topics: set[TopicRef], by_id: bool) -> None:
        before, was_by_id = self._topics, self._by_id
        common = topics & before if by_id is was_by_id else frozenset[TopicRef]()
        more = _Names(by_id, topics - common if common else topics)
        fewer = _Names(was_by_id, before - common if common else before)
        self._topics, self._by_id = topics, by_id
        self._generation = -1
        self._shared.change(self, more, fewer)

    def log_starts(self) -> LogStarts | None:
        """For the scan of a response; None: every topic is known to have no archive."""
        shared = self._shared
        if len(self._topics) > LISTED_TOPICS_AT_ONCE:
            return _StartsWhenRead(shared.starts, self._topics, self._by_id)
        if self._generation != shared.generation:
            self._generation = shared.generation
            names = _Names(self._by_id, self._topics).each()
            starts = {name[1]: shared.starts.get(name, _not_known) for name in names}
            known = {topic: start for topic, start in starts.items() if start is not None}
            self._starts = known or None
        return self._starts

    def drop(self) -> None:
        """The client asks for nothing any more."""
        self._starts = None


def archive_start(view: PartitionView) -> tuple[int, int]:
    """The start of a view with segments: offset and leader epoch. Pure.

    The first archived offsets that clients may see, kept until something changes.

    Clients ask for thousands of partitions at once, and nearly always nothing has changed since the
    last time. An entry is valid for the view that it was found in and for the leaders with which
    that view was compared. Everything else takes the longer way (`offset_lookup`).
    """
    # Skips a segment whose metadata cannot be read: the client would wait there for ever.
    offset = max(view.segments.start_offset(0), view.raised_log_start)
    return offset, view.segments.epoch_at(offset)


@dataclass(slots=True)
class _Topic:
    """`starts`: the archive's start by partition, each with the view that it was found in."""

    leaders: Mapping[int, tuple[int, int]]
    tps: dict[int, TopicIdPartition] = field(default_factory=dict)
    starts: dict[int, tuple[PartitionView, tuple[int, int]]] = field(default_factory=dict)

    def tp(self, topic: TopicInfo, partition: int) -> TopicIdPartition:
        """The same object each time, as look-ups by it are faster."""
        tp = self.tps.get(partition)
        if tp is None:
            tp = self.tps[partition] = TopicIdPartition(topic.topic_id, topic.name, partition)
        return tp


class ArchiveStarts:
    """The first archived offset of each partition, for clients that ask where a log begins. One per
    gateway. `views`: the views of `rlmm` that clients may see.
    """

    def __init__(self, cluster: Cluster, rlmm: PartitionViews, views: LeaderViews) -> None:
        self._cluster = cluster
        self._rlmm = rlmm
        self._views = views
        # By id and name, as brokers before 2.8 have no ids.
        self._topics: dict[tuple[UUID, str], _Topic] = {}

    def of(self, topic: TopicInfo, oldest: float) -> StartOf:
        """Uses only views that were read at or after `oldest` (loop time, s)."""
        known = self._entry_of(topic)
        view_of, checked_view = self._rlmm.view, self._views.checked_view

        def start_of(partition: int) -> tuple[int, int] | None:
            view = view_of(known.tp(topic, partition))
            if view is None or view.read_at < oldest:
                return None
            cached = known.starts.get(partition)
            if cached is not None and cached[0] is view:
                return cached[1]
            settled_view = checked_view(view) if view.segments else None
            if settled_view is None or not settled_view.segments:
                return None
            start = archive_start(settled_view)
            known.starts[partition] = view, start
            known.tps[partition] = view.tp
            return start

        return start_of

    def view_of(self, topic: TopicInfo, partition: int, oldest: float) -> PartitionView | None:
        """The view that clients may see, read at or after `oldest`. None: memory has none, or its
        leader must be asked first.
        """
        known = self._topics.get((topic.topic_id, topic.name)) or self._entry_of(topic)
        view = self._rlmm.view(known.tp(topic, partition))
        if view is None or view.read_at < oldest or not view.segments:
            return None
        known.tps[partition] = view.tp
        return self._views.checked_view(view)

    async def forget_topics(self, is_gone: Callable[[UUID], bool]) -> None:
        def topic_is_gone(key: tuple[UUID, str]) -> bool:
            topic_id, name = key
            return is_gone(topic_id) or self._cluster.cached_topic_by_name(name) is None

        await forget(self._topics, topic_is_gone)

    def _entry_of(self, topic: TopicInfo) -> _Topic:
        """The entry for the leaders known now, which may be newer than those in `topic`."""
        current = self._cluster.cached_topic_by_name(topic.name) or topic
        leaders = current.leaders
        key = topic.topic_id, topic.name
        cached = self._topics.get(key)
        if cached is not None and (cached.leaders is leaders or cached.leaders == leaders):
            cached.leaders = leaders
            return cached
        self._topics[key] = cached = _Topic(leaders)
        return cached


class Deletion(NamedTuple):
    """A partition that had no archive when a client deleted its records below `offset`, at loop
    time `at` (s).
    """

    offset: int
    at: float


@dataclass(frozen=True, slots=True)
class ServedArchive:
    """The archive and the brokers in front of it; one per process. `clock` is the running loop's
    time in seconds.

    `rlmm` has the archive as it is, `views` as clients may see it. `knowledge`: which topics have
    an archive. `starts`: where the archives begin. `is_archiving`: an archiver in this process has
    the partition. `positions`: what archivers report that they accumulate. `reads_at_once`:
    parallel reads of records for one look-up. `deletions`: to be checked by `apis.delete_records`.
    """

    cluster: Cluster
    rlmm: ReadableArchive
    views: LeaderViews
    purgatory: RemoteFetchPurgatory
    knowledge: ArchivedKnowledge
    starts: ArchiveStarts
    positions: ArchiverPositions
    is_archiving: Callable[[TopicIdPartition], bool]
    reads_at_once: int
    warnings: SparingWarnings
    clock: Callable[[], float]
    deletions: dict[TopicIdPartition, Deletion] = field(default_factory=dict)
