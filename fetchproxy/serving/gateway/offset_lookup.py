"""Starts, ends and offsets at a time, for ListOffsets responses about very many partitions.

`rows_in` reads a response. `patch_starts` and its siblings overwrite the broker's values with those
that are in memory, and return the results that memory cannot settle. `ArchiveLookup` looks these up
in the store and at the brokers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from fetchproxy_protocol import list_offsets as wire
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.headers import response_body
from fetchproxy_protocol.list_offsets import OffsetResult
from fetchproxy_protocol.primitives import TopicRows

from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.errors import ClusterError, ClusterUnavailable, CorruptSegment, RemoteStorageError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PARTITIONS_ALONE_MAX
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.runtime.cooperative import a_turn, chosen, cooperative, for_each, pieces
from fetchproxy.serving.gateway.route_decision import COMPARE_WAIT_MAX_S, IDENTITY_AGE_MAX_MS
from fetchproxy.serving.gateway.served_archive import ServedArchive, StartOf, archive_start

# Maximum age of a view with segments. The archive's start only rises, and a client that begins at a
# start that is gone gets OffsetOutOfRange and asks again, which uses a view read since then.
VIEW_AGE_MAX_S = 60.0
# An older view is read again in the background: no client waits for that.
VIEW_RENEWED_AFTER_S = 20.0
# How long to wait for a store that does not answer, if an older view will do.
REFRESH_WAIT_MAX_S = 2.0
_LISTINGS_AT_ONCE = 32
# Comparing a view with its leader's responses takes some 20 µs, building one takes longer.
_VIEWS_AT_ONCE = 50
# Some 2 µs each.
ROWS_AT_ONCE = 400
# Records searched for in memory, some 20 µs each.
SEARCHED_AT_ONCE = 50
# From a partition and the offset of the broker's record: the archive's (offset, ms, epoch).
_Search = Callable[[int, int], tuple[int, int, int] | None]


# ListOffsets results with the archive's values instead of the broker's. Pure.


def of_records(timestamp: int) -> bool:
    """Whether the request looks for records by their own timestamps. Pure."""
    return timestamp >= 0 or timestamp == wire.MAX_TIMESTAMP


def not_known(result: OffsetResult) -> OffsetResult:
    """Retriable: the client asks again."""
    return result._replace(
        error_code=ErrorCode.KAFKA_STORAGE_ERROR,
        timestamp=wire.UNKNOWN_TIMESTAMP,
        offset=wire.UNKNOWN_OFFSET,
        leader_epoch=wire.UNKNOWN_EPOCH,
    )


def edge_of_archive(result: OffsetResult, timestamp: int, view: PartitionView) -> OffsetResult:
    """Corrects EARLIEST and LATEST_TIERED; other results stay the broker's. Pure."""
    if not view.segments:
        return result
    if timestamp == wire.EARLIEST:
        offset, epoch = archive_start(view)
        if 0 <= result.offset <= offset:
            return result
    elif timestamp == wire.LATEST_TIERED:
        offset = view.segments.end_offset(len(view.segments) - 1)
        if result.offset >= offset:  # the broker's own tier reaches further
            return result
        epoch = view.segments.epoch_at(offset)
    else:
        return result
    return found_at(result, offset, result.timestamp, epoch)


def found_at(result: OffsetResult, offset: int, timestamp_ms: int, epoch: int) -> OffsetResult:
    # Not `_replace`, which takes twice as long.
    topic, partition, error_code, position = result.topic, result.partition, result[2], result[-1]
    return OffsetResult(topic, partition, error_code, timestamp_ms, offset, epoch, position)


class ViewResult(NamedTuple):
    """The archive as clients may see it. `failure`: why its present state is not known.

    Then `view` is the last one, if there is one that may be shown.
    """

    view: PartitionView | None
    failure: Exception | None


class Identified(NamedTuple):
    """Topics by name. For topics in none of these only the broker's response counts: the proxy's
    own user may not describe them.

    `others` have nothing in the archive; `unknown` says why that is not known. `unlisted`: topics
    that the brokers know, while the store has never been listed.
    """

    archived: dict[str, TopicInfo]
    others: dict[str, TopicInfo]
    unknown: dict[str, Exception]
    unlisted: dict[str, TopicInfo]


@dataclass(eq=False, repr=False)
class ArchiveLookup:
    """For one response, which came at loop time `responded_at` (s).

    `_first_wait_max_s`: wait for the store if a partition was never read; None: without limit.

    The archive's knowledge of many partitions at once, for a response that their broker has given.

    One Metadata request identifies the topics, and one list says which of them may be archived; the
    store is not asked about the others. An archived topic is listed once, several topics at the
    same time, and a list of some seconds' age serves every connection. Decides nothing about the
    responses.
    """

    archive: ServedArchive
    responded_at: float
    _first_wait_max_s: float | None = None
    _failures: dict[TopicIdPartition, Exception] = field(default_factory=dict)

    async def identify(self, names: Collection[str]) -> Identified:
        """Asks the brokers, and no store: the list of archived topics is in memory."""
        knowledge = self.archive.knowledge
        identified = Identified({}, {}, {}, {})
        for name, topic in (await self._topics(names)).items():
            if isinstance(topic, TopicInfo):
                identified.others[name] = topic
            elif not self._is_hidden(name, topic):
                identified.unknown[name] = topic
        ids = {topic.topic_id for topic in identified.others.values()}
        try:
            archived = await knowledge.archived_among(ids)
        except RemoteStorageError as error:
            identified.unknown.update(dict.fromkeys(identified.others, error))
            return identified._replace(others={}, unlisted=identified.others)
        for name in [name for name, t in identified.others.items() if t.topic_id in archived]:
            identified.archived[name] = identified.others.pop(name)
        return identified

    async def _topics(self, names: Collection[str]) -> Mapping[str, TopicInfo | ClusterError]:
        cluster = self.archive.cluster
        try:
            return await cluster.topics_by_name(names, IDENTITY_AGE_MAX_MS)
        except ClusterError as error:
            return {name: cluster.cached_topic_by_name(name) or error for name in names}

    def _is_hidden(self, name: str, error: ClusterError) -> bool:
        """The proxy's own user may not describe the topic, so it cannot archive it either."""
        if error.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return False
        self.archive.warnings.warn(
            "topic_not_described",
            name,
            topic=name,
            error="the proxy's own user may not describe it, so only the broker is used",
            hint="give the proxy's user the right DESCRIBE on the topic",
        )
        return True

    async def views(self, tps: Collection[TopicIdPartition]) -> dict[TopicIdPartition, ViewResult]:
        """Views of archived topics: read a while ago, or since the response if they have no
        segment.

        Raises nothing.
        """
        oldest = self.archive.clock() - VIEW_AGE_MAX_S
        results: dict[TopicIdPartition, ViewResult] = {}
        wanting = await self._settled(tps, oldest, results)
        if wanting:
            # Concurrent callers with an old view share the first one's read.
            await self._refresh(wanting, oldest)
            bare = await chosen(wanting, self._is_bare)
            await self._refresh(bare, self.responded_at)
            results |= await self._views_to_show(wanting)
        return results

    async def _settled(
        self,
        tps: Collection[TopicIdPartition],
        oldest: float,
        results: dict[TopicIdPartition, ViewResult],
    ) -> list[TopicIdPartition]:
        """Puts partitions that need no read and no request into `results`; returns the others.

        In one pass, because nearly always nearly all are settled.
        """
        view_of, checked_view = self.archive.rlmm.view, self.archive.views.checked_view
        left: list[TopicIdPartition] = []
        async for tp in cooperative(tps):
            view = view_of(tp)
            settled_view = None
            if view is not None and view.read_at >= oldest and view.segments:
                settled_view = checked_view(view)
            if settled_view is None:
                left.append(tp)
            else:
                results[tp] = ViewResult(settled_view, None)
        return left

    async def views_reaching(
        self,
        tps: Collection[TopicIdPartition],
        log_offsets: Mapping[TopicIdPartition, LogOffsets | ClusterError],
    ) -> dict[TopicIdPartition, ViewResult]:
        """As `views`, and includes records that were archived and left the broker since then.

        `log_offsets`: of the broker's log, asked for after the response. If the archive ends below
        the broker's log start, or that is not known, the archive is read again.
        """
        await self.views(tps)
        short = await chosen(tps, lambda tp: not self._reaches(tp, log_offsets[tp]))
        await self._refresh(short, self.responded_at)
        return await self._views_to_show(tps)

    async def last_views(
        self, tps: Collection[TopicIdPartition]
    ) -> dict[TopicIdPartition, ViewResult]:
        """As `views`, however old; reads partitions that were never read."""
        await self._refresh(tps, float("-inf"))
        return await self._views_to_show(tps)

    def _is_older(self, tp: TopicIdPartition, oldest: float) -> bool:
        view = self.archive.rlmm.view(tp)
        return view is None or view.read_at < oldest

    def _is_bare(self, tp: TopicIdPartition) -> bool:
        view = self.archive.rlmm.view(tp)
        return view is None or not view.segments

    def _reaches(self, tp: TopicIdPartition, log_offsets: LogOffsets | ClusterError) -> bool:
        view = self.archive.rlmm.view(tp)
        end = None if view is None else view.log_end_offset
        return not isinstance(log_offsets, ClusterError) and log_offsets.log_start_offset <= (
            end or 0
        )

    def renew(self, topics: Iterable[TopicInfo]) -> None:
        """Called after the response: reads the next response's views in the background."""
        for topic in topics:
            self.archive.rlmm.refresh_topic_in_background(topic.topic_id, VIEW_RENEWED_AFTER_S)

    async def _refresh(self, tps: Collection[TopicIdPartition], oldest: float) -> None:
        """Refreshes the partitions that were read before `oldest`."""
        by_topic: dict[UUID, list[TopicIdPartition]] = {}
        async for tp in cooperative(await chosen(tps, lambda tp: self._is_older(tp, oldest))):
            by_topic.setdefault(tp.topic_id, []).append(tp)

        async def refresh(tps_of_topic: Sequence[TopicIdPartition]) -> None:
            if len(tps_of_topic) > PARTITIONS_ALONE_MAX:
                await self._refresh_topic(tps_of_topic, oldest)
            else:
                await self._refresh_alone(tps_of_topic[0], oldest)

        reads: list[Sequence[TopicIdPartition]] = []
        async for tps_of_topic in cooperative(by_topic.values()):
            together = len(tps_of_topic) > PARTITIONS_ALONE_MAX
            reads += [tps_of_topic] if together else [[tp] for tp in tps_of_topic]
        await for_each(reads, refresh, _LISTINGS_AT_ONCE)

    async def _refresh_topic(self, tps: Sequence[TopicIdPartition], oldest: float) -> None:
        topic_id = tps[0].topic_id
        await self._try(tps, lambda: self.archive.rlmm.refresh_topic(topic_id, oldest))
        failure = self._failures.get(tps[0])
        if isinstance(failure, RemoteStorageError) and failure.may_be_of_object:
            # One partition's folder cannot be listed: each one is looked at alone.
            for tp in tps:
                del self._failures[tp]
        async for tp in cooperative(tps, _VIEWS_AT_ONCE):
            if tp not in self._failures and self._is_older(tp, oldest):
                # It was not in the listing: this returns without another look.
                await self._refresh_alone(tp, oldest)

    async def _refresh_alone(self, tp: TopicIdPartition, oldest: float) -> None:
        await self._try([tp], lambda: self.archive.rlmm.refresh(tp, oldest))

    async def _try(
        self, tps: Sequence[TopicIdPartition], refresh: Callable[[], Awaitable[object]]
    ) -> None:
        # If each has an older view that will do, a store that hangs is not waited for long.
        bare = await chosen(tps, self._is_bare)
        wait_max_s = self._first_wait_max_s if bare else REFRESH_WAIT_MAX_S
        failure: Exception
        try:
            async with asyncio.timeout(wait_max_s):
                await refresh()
            return
        except TimeoutError:
            failure = RemoteStorageError(f"not listed within {wait_max_s} s")
        except RemoteStorageError as error:
            failure = error
        async for tp in cooperative(tps):
            self._failures[tp] = failure

    async def _views_to_show(
        self, tps: Collection[TopicIdPartition]
    ) -> dict[TopicIdPartition, ViewResult]:
        """The views that clients may see, compared with their leaders."""
        views = self.archive.views
        checked = await views.check(tps, self.archive.clock() + COMPARE_WAIT_MAX_S)
        results: dict[TopicIdPartition, ViewResult] = {}
        async for tp in cooperative(tps):
            failure = self._failures.get(tp)
            if tp in checked:
                failure = ClusterUnavailable(f"{tp}: its new leader does not respond")
            results[tp] = ViewResult(None if tp in checked else views.view(tp), failure)
        return results


def rows_in(payload: bytes, version: int) -> Iterator[TopicRows]:
    """The results of a response, v4 or newer. Raises WireError."""
    body = response_body(payload, ApiKey.LIST_OFFSETS, version)
    return wire.result_rows_in(body, version)


async def topics_above_0(payload: bytes, version: int) -> set[str]:
    """Topics with a partition that begins above 0: the others have no archived records below."""
    topics: set[str] = set()
    async for topic, rows, _, _ in cooperative(rows_in(payload, version)):
        if topic in topics:
            continue
        for piece in pieces(rows, ROWS_AT_ONCE):
            if any(offset and not error_code for _, error_code, _, offset, _ in piece):
                topics.add(topic)
                break
            await a_turn()
    return topics


async def patch_starts(
    response: bytearray, version: int, rows: TopicRows, start_of: StartOf
) -> list[OffsetResult]:
    """Write the archive's start over results with a higher offset.

    Returns the results whose start is not known.
    """
    left: list[OffsetResult] = []
    at, stride = rows.position, rows.stride
    for piece in pieces(rows.rows, ROWS_AT_ONCE):
        for partition, error_code, timestamp, offset, epoch in piece:
            if offset and not error_code:
                start = start_of(partition)
                if start is None:
                    left.append(
                        OffsetResult(
                            rows.topic, partition, error_code, timestamp, offset, epoch, at
                        )
                    )
                elif not 0 <= offset <= start[0]:
                    wire.patch_at(response, version, at, error_code, timestamp, *start)
            at += stride
        if len(piece) == ROWS_AT_ONCE:
            await a_turn()
    return left


async def patch_times(
    archive: ServedArchive,
    archived: Mapping[str, TopicInfo],
    results: Sequence[tuple[OffsetResult, int]],
    response: bytearray,
    version: int,
) -> list[tuple[OffsetResult, int]]:
    """Write the archive's record at a timestamp over results with a later record.

    Only if the archive holds all offsets below the broker's record. Returns the other results with
    their timestamps, also those not asked for by time. `archived`: topics by name.
    """
    left: list[tuple[OffsetResult, int]] = []
    of_topic: dict[tuple[str, int], _Search] = {}
    async for result, timestamp in cooperative(results, SEARCHED_AT_ONCE):
        search = of_topic.get((result.topic, timestamp))
        if search is None:
            topic = archived.get(result.topic) if timestamp >= 0 else None
            search = of_topic[result.topic, timestamp] = _search_of(archive, topic, timestamp)
        record = search(result.partition, result.offset)
        if record is None:
            left.append((result, timestamp))
        elif record[0] < result.offset:
            offset, found_ms, epoch = record
            place = result.position, result.error_code
            wire.patch_at(response, version, *place, found_ms, offset, epoch)
    return left


async def patch_times_of_topic(
    archive: ServedArchive,
    topic: TopicInfo | None,
    timestamp: int,
    response: bytearray,
    version: int,
    rows: TopicRows,
) -> list[OffsetResult]:
    """As `patch_times`, for one topic and one timestamp. `topic`: None if it is not archived."""
    search = _search_of(archive, topic, timestamp)
    left: list[OffsetResult] = []
    at, stride = rows.position, rows.stride
    for piece in pieces(rows.rows, SEARCHED_AT_ONCE):
        for partition, error_code, broker_ms, offset, epoch in piece:
            if offset and not error_code:
                record = search(partition, offset)
                if record is None:
                    fields = (error_code, broker_ms, offset, epoch, at)
                    left.append(OffsetResult(rows.topic, partition, *fields))
                elif record[0] < offset:
                    first, first_ms, first_epoch = record
                    wire.patch_at(response, version, at, error_code, first_ms, first, first_epoch)
            at += stride
        if len(piece) == SEARCHED_AT_ONCE:
            await a_turn()
    return left


def _search_of(archive: ServedArchive, topic: TopicInfo | None, timestamp: int) -> _Search:
    """Finds None if memory does not have the record, or the archive not all below the broker's."""
    view_of, in_memory = archive.starts.view_of, archive.purgatory.first_offset_in_memory
    oldest = archive.clock() - VIEW_AGE_MAX_S

    def search(partition: int, broker_offset: int) -> tuple[int, int, int] | None:
        view = None if topic is None else view_of(topic, partition, oldest)
        if view is None or not 0 <= broker_offset <= (view.log_end_offset or -1):
            return None
        try:
            return in_memory(view, timestamp)
        except CorruptSegment:  # the longer way reports it
            return None

    return search
