"""The archive's topics as a cluster would show them, and the watch that keeps up with the archive.

A topic that was deleted and re-created is in the archive twice. Its name means the incarnation that
was archived last; the older one can be reached only by its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from uuid import UUID

import structlog

from fetchproxy.cluster_state.state import EPOCH_UNKNOWN
from fetchproxy.errors import RemoteStorageError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import (
    PARTITIONS_ALONE_MAX,
    READS_AT_ONCE_MAX,
    RemoteLogMetadataManager,
)
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import ARCHIVE_ONLY_TOPICS
from fetchproxy.runtime.cooperative import cooperative, for_each
from fetchproxy.runtime.retrying import Backoff
from fetchproxy.segments.topic_description import TopicDescription
from fetchproxy.serving.archive_only.kept_state import KeptState
from fetchproxy.storage.listings import Unlisted

log = structlog.get_logger(__name__)

_RETRY_PAUSES = Backoff(500, 10_000, 0)
_VIEWS_AT_ONCE = 50


@dataclass(frozen=True, slots=True)
class ArchivedTopic:
    """Partitions 0 … `partition_count` - 1. One without archived records is an empty log."""

    name: str
    topic_id: UUID
    partition_count: int

    def partition(self, number: int) -> TopicIdPartition | None:
        if 0 <= number < self.partition_count:
            return TopicIdPartition(self.topic_id, self.name, number)
        return None


@dataclass(frozen=True, slots=True)
class Catalogue:
    by_name: Mapping[str, ArchivedTopic]  # sorted
    by_id: Mapping[UUID, ArchivedTopic]

    def partition(self, topic: str, number: int) -> TopicIdPartition | None:
        archived_topic = self.by_name.get(topic)
        return None if archived_topic is None else archived_topic.partition(number)


def build_catalogue(
    tps: Iterable[TopicIdPartition],
    archived_at: Mapping[UUID, int],
    described: Mapping[UUID, TopicDescription],
) -> Catalogue:
    """`archived_at`: when an incarnation was last archived (ms), if a name has several.

    `described`: tells the number of partitions. Without it, as in an archive of an older program,
    the highest archived partition does.
    """
    counts = {
        (description.topic, description.topic_id): description.partitions
        for description in described.values()
    }
    described_at = {
        topic_id: description.described_at_ms for topic_id, description in described.items()
    }
    with_records: set[UUID] = set()
    for tp in tps:
        key = (tp.topic, tp.topic_id)
        counts[key] = max(counts.get(key, 0), tp.partition + 1)
        with_records.add(tp.topic_id)
    topics = [ArchivedTopic(name, topic_id, count) for (name, topic_id), count in counts.items()]

    def order(topic: ArchivedTopic) -> tuple[str, bool, int, int, UUID]:
        """The last topic of a name stays: one with records, if there is one."""
        id_ = topic.topic_id
        at = archived_at.get(id_, 0), described_at.get(id_, 0)
        return topic.name, id_ in with_records, *at, id_

    topics.sort(key=order)
    return Catalogue({t.name: t for t in topics}, {t.topic_id: t for t in topics})


def _of_several_topics(tps: Sequence[TopicIdPartition]) -> list[TopicIdPartition]:
    """Partitions of topics that share their name with another one. Pure."""
    ids: dict[str, set[UUID]] = {}
    for tp in tps:
        ids.setdefault(tp.topic, set()).add(tp.topic_id)
    return [tp for tp in tps if len(ids[tp.topic]) > 1]


def log_start_and_end(view: PartitionView, empty_at: int) -> tuple[int, int]:
    """(log start, log end). An empty log begins and ends at the offset that DeleteRecords set, or
    where the brokers' log began (`empty_at`). With unreadable metadata there may be more: see
    `PartitionView.uncertain_at`.
    """
    start, end = view.log_start_offset, view.log_end_offset
    if start is None or end is None:
        only = max(view.raised_log_start, empty_at)
        return only, only
    return start, end


class ArchiveWatch:
    """`load()` first; then `run()` keeps `catalogue` and the watched views at most
    `refresh_interval_s` old. While the store does not answer, the last ones stay.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        descriptions: TopicDescriptions,
        refresh_interval_s: float,
        kept_state: KeptState | None = None,
    ) -> None:
        """`kept`: None: nothing is known of the cluster but its records."""
        self._rlmm = rlmm
        self.kept_state = kept_state
        self._descriptions = descriptions
        self._interval_s = refresh_interval_s
        self._reads = asyncio.Semaphore(READS_AT_ONCE_MAX)
        self._ends: dict[TopicIdPartition, float] = {}  # watched until (loop time)
        self._refreshed = asyncio.Event()
        self._failing = False
        self._unlisted: frozenset[str] = frozenset()  # topics whose folder cannot be listed
        self.catalogue = Catalogue({}, {})

    async def load(self) -> None:
        """Returns once the archive was listed. Raises RemoteStorageError if retries cannot help."""
        for failures in count(1):
            try:
                await self._list()
                self._note(None)
                return
            except RemoteStorageError as error:
                if not error.retriable:
                    raise
                self._note(error)
            await asyncio.sleep(_RETRY_PAUSES.pause_ms(failures, 0) / 1000)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self._list()
                await self._follow_ends()
                self._note(None)
            except RemoteStorageError as error:
                self._note(error)
            self._refreshed.set()
            self._refreshed = asyncio.Event()

    async def view(self, tp: TopicIdPartition) -> PartitionView:
        """A view at most the interval old; an older one if the store does not answer. Raises
        RemoteStorageError if the partition was never read.
        """
        try:
            async with self._reads:
                now = asyncio.get_running_loop().time()
                return await self._rlmm.refresh(tp, now - self._interval_s)
        except RemoteStorageError:
            view = self._rlmm.view(tp)
            if view is None:
                raise
            return view

    async def views(
        self, tps: Iterable[TopicIdPartition]
    ) -> dict[TopicIdPartition, PartitionView | RemoteStorageError]:
        """As `view`, for all of them at once; a topic with many of them is listed once."""
        results = await self._look_at(tps, self._interval_s, self.view)
        async for tp in cooperative(list(results), _VIEWS_AT_ONCE):
            if isinstance(results[tp], RemoteStorageError):
                results[tp] = self._rlmm.view(tp) or results[tp]
        return results

    async def _look_at(
        self,
        tps: Iterable[TopicIdPartition],
        age_max_s: float,
        read: Callable[[TopicIdPartition], Awaitable[PartitionView]],
    ) -> dict[TopicIdPartition, PartitionView | RemoteStorageError]:
        """`read` one, if it is not one of many of its topic. A topic is listed once, unless that
        was done less than `age_max_s` ago.
        """
        results: dict[TopicIdPartition, PartitionView | RemoteStorageError] = {}
        by_topic: dict[UUID, set[TopicIdPartition]] = {}
        async for tp in cooperative(tps):
            by_topic.setdefault(tp.topic_id, set()).add(tp)

        async def look(tp: TopicIdPartition) -> None:
            try:
                results[tp] = await read(tp)
            except RemoteStorageError as error:
                results[tp] = error

        async def look_at_topic(tps_of_topic: Collection[TopicIdPartition]) -> None:
            topic_id = next(iter(tps_of_topic)).topic_id
            in_topic: Collection[int] = ()
            try:
                async with self._reads:
                    now = asyncio.get_running_loop().time()
                    in_topic = await self._rlmm.refresh_topic(topic_id, now - age_max_s)
            except RemoteStorageError as error:
                if not error.may_be_of_object:
                    results.update(dict.fromkeys(tps_of_topic, error))
                    return
                # One partition's folder cannot be listed: the others are looked at alone.
            async for tp in cooperative(tps_of_topic, _VIEWS_AT_ONCE):
                view = self._rlmm.view(tp) if tp.partition in in_topic else None
                if view is None:
                    await look(tp)
                else:
                    results[tp] = view

        many: list[Collection[TopicIdPartition]] = []
        few: list[TopicIdPartition] = []
        async for of_topic in cooperative(by_topic.values()):
            if len(of_topic) > PARTITIONS_ALONE_MAX:
                many.append(of_topic)
            else:
                few += of_topic
        async with asyncio.TaskGroup() as looks:
            looks.create_task(for_each(many, look_at_topic, READS_AT_ONCE_MAX))
            looks.create_task(for_each(few, look, READS_AT_ONCE_MAX))
        return results

    def leader_epoch(self, tp: TopicIdPartition) -> int:
        """As the cluster had it, or the archive has it; -1: there is no state of the cluster."""
        if self.kept_state is None:
            return EPOCH_UNKNOWN
        return self.kept_state.leader_epoch(tp, self._rlmm.view(tp))

    def watch_ends(self, tps: Iterable[TopicIdPartition]) -> None:
        """Clients wait at these ends: look for a while whether they grow."""
        until = asyncio.get_running_loop().time() + 2 * self._interval_s
        for tp in tps:
            self._ends[tp] = until

    def log_start_and_end(self, view: PartitionView) -> tuple[int, int]:
        """(log start, log end), see `log_offsets`."""
        return log_start_and_end(view, self._descriptions.log_start(view.tp))

    async def wait_for_look(self, deadline: float) -> None:
        """Until the next look has ended, or loop time `deadline`."""
        try:
            async with asyncio.timeout_at(deadline):
                await self._refreshed.wait()
        except TimeoutError:
            pass

    async def _list(self) -> None:
        unlisted: Unlisted = {}
        tps = list(await self._rlmm.list_partitions(unlisted))
        for name, error in unlisted.items():  # it stays as it was
            listed_topic = self.catalogue.by_name.get(name)
            if listed_topic is not None:
                count = range(listed_topic.partition_count)
                tps += [TopicIdPartition(listed_topic.topic_id, name, number) for number in count]
            if name not in self._unlisted:
                log.warning("topic_not_listed", topic=name, error=str(error))
        self._unlisted = frozenset(unlisted)
        archived_at: dict[UUID, int] = {}
        for tp in await asyncio.to_thread(_of_several_topics, tps):
            at_ms = (await self.view(tp)).segments.archived_at_ms()
            archived_at[tp.topic_id] = max(archived_at.get(tp.topic_id, 0), at_ms)
        described = await self._descriptions.refresh()
        if self.kept_state is not None:
            await self.kept_state.refresh()
        # 10,000 partitions take 40 ms.
        self.catalogue = await asyncio.to_thread(build_catalogue, tps, archived_at, described)
        ARCHIVE_ONLY_TOPICS.set(len(self.catalogue.by_name))

    async def _follow_ends(self) -> None:
        now = asyncio.get_running_loop().time()
        self._ends = {tp: until for tp, until in self._ends.items() if until > now}

        async def follow(tp: TopicIdPartition) -> PartitionView:
            async with self._reads:
                return await self._rlmm.refresh(tp, now)

        views = await self._look_at(list(self._ends), 0.0, follow)
        error = next((each for each in views.values() if isinstance(each, Exception)), None)
        if error is not None:
            raise error

    def _note(self, error: RemoteStorageError | None) -> None:
        if error is not None and not self._failing:
            log.warning("archive_unreachable", error=str(error))
        elif error is None and self._failing:
            log.info("archive_reachable_again")
        self._failing = error is not None
