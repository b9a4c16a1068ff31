"""The archive as the relay knows it: of which topics there is anything, where it begins, and who is
adding to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import UUID

import structlog
from cachetools import LRUCache
from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.fetch import LogStarts, PartitionKey, TopicRef

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.metadata.archiver_positions import ArchiverPositions
from fetchproxy.metadata.leader_views import LeaderViews
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews, RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.reading.purgatory import RemoteFetchPurgatory

log = structlog.get_logger(__name__)

# Which topics have anything in the archive: so that the others are as if there were no archive.
#
# One list for the whole gateway, read at the start and kept fresh while somebody asks, so that it
# is known before an outage begins. While the store does not answer the last list counts, at once:
# what was never archived is not touched by an outage, however long, and nobody waits for a
# time-out.

# Look-ups by time may miss for so long that another process has begun to archive a topic. Where an
# offset is out of range, or a log begins where it did not, the list is read again.
LIST_AGE_MAX_S = 5.0
# For so long after somebody asked the next one need not wait.
IN_USE_S = 60.0
LIST_INTERVAL_IN_USE_S = 4.0
# While nobody asks: what an outage finds known is no older.
LIST_INTERVAL_S = 30.0
# Answers about where logs begin that are remembered: one is some 100 bytes.
STARTS_SEEN_MAX = 10_000
# Between two tries while the store does not answer.
RETRY_PAUSE_S = 1.0
# So long a caller waits for a list, where there is an older one and where there is none.
WAIT_MAX_S = 0.5
FIRST_WAIT_MAX_S = 2.0


@dataclass(eq=False, repr=False)
class ArchivedKnowledge:
    """One per gateway, whose task is `run`; `clock` gives loop seconds."""

    _rlmm: RemoteLogMetadataManager
    _clock: Callable[[], float]
    _warnings: SparingWarnings
    _failure: Exception | None = None  # of the last try
    _wanted: asyncio.Event = field(default_factory=asyncio.Event)
    _asked_at: float = float("-inf")
    _starts_seen: LRUCache[int, float] = field(default_factory=lambda: LRUCache(STARTS_SEEN_MAX))

    async def may_be_archived(self, topic_id: UUID, not_older_than: float | None = None) -> bool:
        """False: a list of archived topics that is fresh does not have it, or the last one there
        was, while the store does not answer.

        Fresh is what was read since `not_older_than` (loop time, s), or LIST_AGE_MAX_S ago.
        Raises RemoteStorageError where no list was ever read.
        """
        return bool(await self.archived_among((topic_id,), not_older_than))

    async def archived_among(
        self, topic_ids: Collection[UUID], not_older_than: float | None = None
    ) -> frozenset[UUID]:
        """Those of `topic_ids` that may be archived. Raises as `may_be_archived`."""
        known = self._rlmm.known_archived_topics()
        if known is not None and known[0].issuperset(topic_ids):
            return frozenset(topic_ids)
        return (await self.topics(not_older_than)).intersection(topic_ids)

    def list_for(self, starts: int) -> float:
        """How old a list (loop time, s) may be for logs that begin there: read since that was seen.

        What is archived is archived before its broker drops it, so that list shows whatever lies
        below. `starts`: a hash of which partitions begin where.
        """
        now = self._clock()
        first_seen: float = self._starts_seen.setdefault(starts, now)
        return max(first_seen, now - LIST_AGE_MAX_S)

    async def topics(self, not_older_than: float | None = None) -> frozenset[UUID]:
        """All that may be archived, as `may_be_archived` says."""
        known, now = self._rlmm.known_archived_topics(), self._clock()
        self._asked_at = now
        oldest = now - LIST_AGE_MAX_S if not_older_than is None else min(not_older_than, now)
        if known is None or known[1] < now - LIST_AGE_MAX_S / 2:
            self._wanted.set()
        if known is None or known[1] < oldest:
            await self._wait(oldest, FIRST_WAIT_MAX_S if known is None else WAIT_MAX_S)
            known = self._rlmm.known_archived_topics()
        if known is None:
            raise RemoteStorageError(f"archived topics are not known: {self._failure}")
        return known[0]

    async def _wait(self, oldest: float, wait_max_s: float) -> None:
        """Not where the last try has failed: `run` tries again."""
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
        """For ever: list, and again before somebody asks when the list is not fresh any more."""
        while True:
            self._wanted.clear()
            try:
                await self._rlmm.archived_topics(self._clock())
            except RemoteStorageError as error:
                self._failed(error)
                await asyncio.sleep(RETRY_PAUSE_S)
                continue
            self._failure = None
            with suppress(TimeoutError):
                async with asyncio.timeout(LIST_INTERVAL_S):
                    await self._until_wanted()

    async def _until_wanted(self) -> None:
        while not self._wanted.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LIST_INTERVAL_IN_USE_S):
                    await self._wanted.wait()
            if self._clock() - self._asked_at < IN_USE_S:
                return

    def _failed(self, error: Exception) -> None:
        self._failure = error
        self._wanted.set()
        self._warnings.warn("archived_topics_not_listed", None, error=str(error))


# Where the logs of the tail's topics really begin: shown in relayed Fetch answers.
#
# A Kafka with tiered storage shows the log start of both tiers, and so does the proxy, if it
# knows it: what clients read at the tail is looked up in the archive off their path, once for all
# of them and not before `log_start_max_age_ms` has passed again. Until it is known they see -1 in
# place of a broker's log start that something may lie below: librdkafka takes a log start that it
# was shown for the beginning, without asking, so the broker's own would have it skip the archive.
# Nothing here waits for an answer on behalf of a client.

# A topic as clients name it; by id or by name, as 16 bytes may be either.
TopicName = tuple[bool, TopicRef]
LogStartOf = Callable[[int], int | None]  # of a partition; None: the broker's own is right


def topic_key(by_id: bool, ref: TopicRef) -> str | UUID:
    return UUID(bytes=ref) if by_id else ref.decode(errors="replace")


def _not_known(partition: int) -> int:
    """Kafka's word for it: then a client asks ListOffsets where the log begins."""
    return -1


@dataclass(eq=False, repr=False)
class ArchivedTopics:
    """One per gateway; `run` looks topics up. `max_age_s`: between two looks at the same topic."""

    _cluster: Cluster
    _rlmm: RemoteLogMetadataManager
    _knowledge: ArchivedKnowledge
    _clock: Callable[[], float]
    _max_age_s: float
    _readers: set[TopicsOfConnection] = field(default_factory=set)
    _looked_at: dict[TopicName, float] = field(default_factory=dict)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    # What is known; None: nothing of it is archived.
    starts: dict[TopicName, LogStartOf | None] = field(default_factory=dict)
    generation: int = 0  # changes with it

    def join(self, reader: TopicsOfConnection) -> None:
        self._readers.add(reader)
        self._wake.set()

    def leave(self, reader: TopicsOfConnection) -> None:
        self._readers.discard(reader)

    async def run(self) -> None:
        """For ever: look up what clients read, one topic after the other."""
        while True:
            self._wake.clear()
            due_at = await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due_at):
                    await self._wake.wait()

    async def _look(self) -> float | None:
        """Look up what is due; the loop time when the next look is, None: nobody reads."""
        wanted = {name for reader in self._readers for name in reader.names()}
        for gone in self._looked_at.keys() - wanted:
            del self._looked_at[gone]
            if gone in self.starts:
                del self.starts[gone]
                self.generation += 1
        now = self._clock()
        # The same sum as below: rounded in another way, what is due might not be due yet.
        due = [
            name
            for name in sorted(wanted)
            if name not in self._looked_at or now >= self._looked_at[name] + self._max_age_s
        ]
        self._looked_at.update(dict.fromkeys(due, now))
        try:
            await self._look_up(due)
        except (ClusterError, RemoteStorageError):
            pass  # counted already; shown as before
        except Exception as error:  # no client may depend on this, so neither may the gateway
            log.exception("log_start_lookup_failed", error=repr(error))
        return min(self._looked_at.values()) + self._max_age_s if self._looked_at else None

    async def _look_up(self, due: Sequence[TopicName]) -> None:
        """One Metadata request for all names, one for all ids; one listing of an archived topic."""
        keys = {name: topic_key(*name) for name in due}
        topics = await self._cluster.topics_of(
            set(keys.values()), max_age_ms=int(self._max_age_s * 1000)
        )
        for name, key in keys.items():
            topic = topics[key]
            if isinstance(topic, ClusterError):
                if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                    self._note(name, None)  # all that clients hear of it is its broker's
            else:
                with suppress(RemoteStorageError):  # counted already; shown as before
                    self._note(name, await self._starts_of(topic))

    async def _starts_of(self, topic: TopicInfo) -> LogStartOf | None:
        if not await self._knowledge.may_be_archived(topic.topic_id):
            return None
        # Half as old: what one look at the metadata topic says of all topics serves the others.
        oldest = self._clock() - self._max_age_s / 2
        partitions = await self._rlmm.refresh_topic(topic.topic_id, oldest)
        tips = {n: TopicIdPartition(topic.topic_id, topic.name, n) for n in partitions}
        return self._reader_of(tips) if tips else None

    def _reader_of(self, tips: Mapping[int, TopicIdPartition]) -> LogStartOf:
        view_of = self._rlmm.view

        def log_start(partition: int) -> int | None:
            tip = tips.get(partition)
            if tip is None:
                return None
            view = view_of(tip)
            return _not_known(partition) if view is None else view.log_start_offset

        return log_start

    def _note(self, name: TopicName, starts: LogStartOf | None) -> None:
        self.starts[name] = starts
        self.generation += 1


class TopicsOfConnection:
    """The topics that one client asks for, and what is to be shown as their log starts."""

    def __init__(self, shared: ArchivedTopics) -> None:
        self._shared = shared
        self._topics: set[TopicRef] = set()
        self._keys: Set[PartitionKey] | None = None  # that were asked for last, and only these
        self._by_id = False
        self._generation = -1
        self._starts: LogStarts | None = None

    def names(self) -> Iterable[TopicName]:
        return [(self._by_id, topic) for topic in self._topics]

    def asked(self, keys: Set[PartitionKey], by_id: bool, only_these: bool) -> None:
        """`only_these`: the client reads nothing else (any more)."""
        if keys == self._keys and only_these and by_id is self._by_id:
            return
        self._keys = keys if only_these else None
        topics = {topic for topic, _ in keys}
        if only_these or by_id is not self._by_id:
            if topics == self._topics and by_id is self._by_id:
                return
            self._topics, self._by_id = topics, by_id
        elif topics <= self._topics:
            return
        else:
            self._topics |= topics
        self._generation = -1
        self._shared.join(self)

    def log_starts(self) -> LogStarts | None:
        """For the scan of an answer; None where every topic is known to have no archive."""
        shared = self._shared
        if self._generation != shared.generation:
            self._generation = shared.generation
            starts = {name[1]: shared.starts.get(name, _not_known) for name in self.names()}
            known = {topic: start for topic, start in starts.items() if start is not None}
            self._starts = known or None
        return self._starts

    def drop(self) -> None:
        """Nothing is asked any more."""
        self._keys = self._starts = None


# Where archived topics begin, as clients may see it: kept while nothing of it has changed.
#
# Thousands of partitions are asked for at once, and nearly always nothing has changed since the
# last time. What was found counts for the very view that it was found in and the very leaders that
# this was held against; whatever else there is takes the longer way (`offset_lookup`).

# Where the archive of a partition begins: offset and leader epoch; None: look at it.
StartOf = Callable[[int], tuple[int, int] | None]


def archive_start(view: PartitionView) -> tuple[int, int]:
    """Of a view with segments: offset and leader epoch. Pure."""
    # Not at one whose metadata cannot be read: the client would wait there for ever.
    offset = max(view.segments.start_offset(0), view.raised_log_start)
    return offset, view.segments.epoch_at(offset)


@dataclass(slots=True)
class _Topic:
    """`starts`: by partition, with the view that each was found in."""

    leaders: Mapping[int, tuple[int, int]]
    tips: dict[int, TopicIdPartition] = field(default_factory=dict)
    starts: dict[int, tuple[PartitionView, tuple[int, int]]] = field(default_factory=dict)

    def tip(self, topic: TopicInfo, partition: int) -> TopicIdPartition:
        """The same object each time: what is looked up by it is found faster."""
        tip = self.tips.get(partition)
        if tip is None:
            tip = self.tips[partition] = TopicIdPartition(topic.topic_id, topic.name, partition)
        return tip


class ArchiveStarts:
    """One per gateway. `views`: of `rlmm`."""

    def __init__(self, cluster: Cluster, rlmm: PartitionViews, views: LeaderViews) -> None:
        self._cluster = cluster
        self._rlmm = rlmm
        self._views = views
        # By name too: brokers before 2.8 have no ids.
        self._topics: dict[tuple[UUID, str], _Topic] = {}

    def of(self, topic: TopicInfo, oldest: float) -> StartOf:
        """By views that were read at or after `oldest` (loop s)."""
        known = self._kept(topic)
        view_of, settled = self._rlmm.view, self._views.settled

        def start_of(partition: int) -> tuple[int, int] | None:
            view = view_of(known.tip(topic, partition))
            if view is None or view.read_at < oldest:
                return None
            kept = known.starts.get(partition)
            if kept is not None and kept[0] is view:
                return kept[1]
            shown = settled(view) if view.segments else None
            if shown is None or not shown.segments:
                return None
            start = archive_start(shown)
            known.starts[partition] = view, start
            known.tips[partition] = view.tip
            return start

        return start_of

    def view_of(self, topic: TopicInfo, partition: int, oldest: float) -> PartitionView | None:
        """As clients may see it, read at or after `oldest`; None: that takes a longer look."""
        known = self._topics.get((topic.topic_id, topic.name)) or self._kept(topic)
        view = self._rlmm.view(known.tip(topic, partition))
        if view is None or view.read_at < oldest or not view.segments:
            return None
        known.tips[partition] = view.tip
        return self._views.settled(view)

    def _kept(self, topic: TopicInfo) -> _Topic:
        """For the leaders that are known now: an answer of a moment ago may not know the last."""
        current = self._cluster.cached_topic_by_name(topic.name) or topic
        leaders = current.leaders
        key = topic.topic_id, topic.name
        kept = self._topics.get(key)
        if kept is not None and (kept.leaders is leaders or kept.leaders == leaders):
            kept.leaders = leaders
            return kept
        self._topics[key] = kept = _Topic(leaders)
        return kept


@dataclass(frozen=True, slots=True)
class ServedArchive:
    """One per process, with the brokers in front of it. `clock` is the running loop's time in
    seconds.

    `views` is the archive as clients may see it, `rlmm` as it is; `knowledge` is of which topics it
    has anything, `starts` where it was found to begin. `is_archiving`: an archiver in this process
    has the partition. `positions`: what archivers say that they gather. `reads_at_once`: of records
    for one look-up.
    """

    cluster: Cluster
    rlmm: RemoteLogMetadataManager
    views: LeaderViews
    purgatory: RemoteFetchPurgatory
    knowledge: ArchivedKnowledge
    starts: ArchiveStarts
    positions: ArchiverPositions
    is_archiving: Callable[[TopicIdPartition], bool]
    reads_at_once: int
    warnings: SparingWarnings
    clock: Callable[[], float]
