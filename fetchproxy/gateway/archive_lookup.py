"""What the archive has of many partitions at once, behind an answer that their broker has given.

One Metadata request says which topics they are, one list which of them may be archived; of the
others the store hears nothing. An archived topic is listed once, topics at the same time, and what
is some seconds old serves every connection. Decides nothing about what clients are told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from fetchproxy.cluster.client import TopicInfo
from fetchproxy.errors import ClusterError, ClusterUnavailable, RemoteStorageError
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.judgement import COMPARE_WAIT_MAX_S
from fetchproxy.gateway.topic_identity import IDENTITY_AGE_MAX_MS
from fetchproxy.many_items import chosen, each_of
from fetchproxy.metadata.api import PARTITIONS_ALONE_MAX
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import LogEdges, TopicIdPartition
from protocol.error_codes import ErrorCode

# So old a view with segments may be: where the archive begins only rises, and whoever begins at a
# start that is gone is told OffsetOutOfRange and asks again, by a view that was read since then.
VIEW_AGE_MAX_S = 60.0
# An older one is read again in the background: no client waits for that.
VIEW_RENEWED_AFTER_S = 20.0
# So long a store that does not answer is waited for where an older view will do.
REFRESH_WAIT_MAX_S = 2.0
LISTINGS_AT_ONCE = 32
# Holding a view against what its leader has said takes some 20 µs, making one anew more.
VIEWS_AT_ONCE = 50


class Looked(NamedTuple):
    """The archive as clients may see it. `failure`: why it is not known as it is now.

    Then `view` is the last one, if there is any that may be shown.
    """

    view: PartitionView | None
    failure: Exception | None


class Identified(NamedTuple):
    """Topics by name. Of those that are in none of these their broker's answer is all there is:
    the proxy's own user may not describe them.

    `others` have nothing in the archive; `unknown` says why that is not known. Those of it whose
    topic is known are `unlisted`: the store has never said what is archived.
    """

    archived: dict[str, TopicInfo]
    others: dict[str, TopicInfo]
    unknown: dict[str, Exception]
    unlisted: dict[str, TopicInfo]


class ArchiveLookup:
    """For one answer, which came at loop time `answered_at` (s).

    `first_wait_max_s`: for the store, where a partition was never read; None: as long as it takes.
    """

    def __init__(
        self, parts: GatewayParts, answered_at: float, first_wait_max_s: float | None = None
    ) -> None:
        self._parts = parts
        self.answered_at = answered_at
        self._first_wait_max_s = first_wait_max_s
        self._listings = asyncio.Semaphore(LISTINGS_AT_ONCE)
        self._failures: dict[TopicIdPartition, Exception] = {}

    async def identify(self, names: Collection[str], starts: int | None = None) -> Identified:
        """`starts`: a hash of where the answer says that logs begin, if it says that."""
        knowledge = self._parts.knowledge
        found = Identified({}, {}, {}, {})
        for name, topic in (await self._topics(names)).items():
            if isinstance(topic, TopicInfo):
                found.others[name] = topic
            elif not self._is_hidden(name, topic):
                found.unknown[name] = topic
        ids = {topic.topic_id for topic in found.others.values()}
        try:
            since = None if starts is None else knowledge.list_for(starts)
            archived = await knowledge.archived_among(ids, since)
        except RemoteStorageError as error:
            found.unknown.update(dict.fromkeys(found.others, error))
            return found._replace(others={}, unlisted=found.others)
        for name in [name for name, t in found.others.items() if t.topic_id in archived]:
            found.archived[name] = found.others.pop(name)
        return found

    async def _topics(self, names: Collection[str]) -> Mapping[str, TopicInfo | ClusterError]:
        cluster = self._parts.cluster
        try:
            return await cluster.topics_by_name(names, IDENTITY_AGE_MAX_MS)
        except ClusterError as error:
            return {name: cluster.cached_topic_by_name(name) or error for name in names}

    def _is_hidden(self, name: str, error: ClusterError) -> bool:
        """The proxy's own user may not describe it, so nobody has archived it through this user."""
        if error.error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
            return False
        self._parts.warnings.warn(
            "topic_not_described",
            name,
            topic=name,
            error="the proxy's own user may not describe it: only the broker is asked",
        )
        return True

    async def views(self, tips: Collection[TopicIdPartition]) -> dict[TopicIdPartition, Looked]:
        """Of archived topics; read a while ago, or since the answer if there is no segment.

        Raises nothing.
        """
        oldest = self._parts.clock() - VIEW_AGE_MAX_S
        found: dict[TopicIdPartition, Looked] = {}
        wanting = await self._settled(tips, oldest, found)
        if wanting:
            # Those that find it old at the same time share what the first of them reads.
            await self._refresh(await self._older(wanting, oldest), oldest)
            bare = await chosen(wanting, self._is_bare)
            await self._refresh(await self._older(bare, self.answered_at), self.answered_at)
            found |= await self._shown(wanting)
        return found

    async def _settled(
        self,
        tips: Collection[TopicIdPartition],
        oldest: float,
        found: dict[TopicIdPartition, Looked],
    ) -> list[TopicIdPartition]:
        """Those that are left: of the others nothing is to be read or asked, and it is found.

        In one pass, as it is nearly always nearly all of them.
        """
        view_of, settled = self._parts.rlmm.view, self._parts.views.settled
        left: list[TopicIdPartition] = []
        async for tip in each_of(tips):
            view = view_of(tip)
            shown = None
            if view is not None and view.read_at >= oldest and view.segments:
                shown = settled(view)
            if shown is None:
                left.append(tip)
            else:
                found[tip] = Looked(shown, None)
        return left

    async def _older(
        self, tips: Collection[TopicIdPartition], oldest: float
    ) -> list[TopicIdPartition]:
        return await chosen(tips, lambda tip: self._is_older(tip, oldest))

    async def views_reaching(
        self,
        tips: Collection[TopicIdPartition],
        edges: Mapping[TopicIdPartition, LogEdges | ClusterError],
    ) -> dict[TopicIdPartition, Looked]:
        """As `views`, and nothing is missed that was archived, and left the broker, since then.

        `edges`: of the broker's log, asked for after the answer. Where the archive ends below its
        start, or that is not known, the archive is read again.
        """
        await self.views(tips)
        short = await chosen(
            tips,
            lambda tip: (
                self._is_older(tip, self.answered_at) and not self._reaches(tip, edges[tip])
            ),
        )
        await self._refresh(short, self.answered_at)
        return await self._shown(tips)

    async def last_views(
        self, tips: Collection[TopicIdPartition]
    ) -> dict[TopicIdPartition, Looked]:
        """As `views`, however old; what was never read is read."""
        never = float("-inf")
        await self._refresh(await self._older(tips, never), never)
        return await self._shown(tips)

    def _is_older(self, tip: TopicIdPartition, oldest: float) -> bool:
        view = self._parts.rlmm.view(tip)
        return view is None or view.read_at < oldest

    def _is_bare(self, tip: TopicIdPartition) -> bool:
        view = self._parts.rlmm.view(tip)
        return view is None or not view.segments

    def _reaches(self, tip: TopicIdPartition, edges: LogEdges | ClusterError) -> bool:
        view = self._parts.rlmm.view(tip)
        end = None if view is None else view.log_end_offset
        return not isinstance(edges, ClusterError) and edges.log_start_offset <= (end or 0)

    def renew(self, topics: Iterable[TopicInfo]) -> None:
        """When the answer is made: the next one's views are read while nobody waits."""
        for topic in topics:
            self._parts.rlmm.renew_topic(topic.topic_id, VIEW_RENEWED_AFTER_S)

    async def _refresh(self, tips: Collection[TopicIdPartition], oldest: float) -> None:
        by_topic: dict[UUID, list[TopicIdPartition]] = {}
        async for tip in each_of(tips):
            by_topic.setdefault(tip.topic_id, []).append(tip)
        async with asyncio.TaskGroup() as refreshing:
            for topic_id, its in by_topic.items():
                if len(its) > PARTITIONS_ALONE_MAX:
                    refreshing.create_task(self._refresh_topic(topic_id, its, oldest))
                else:
                    for tip in its:
                        refreshing.create_task(self._refresh_alone(tip, oldest))

    async def _refresh_topic(
        self, topic_id: UUID, tips: Sequence[TopicIdPartition], oldest: float
    ) -> None:
        await self._try(tips, lambda: self._parts.rlmm.refresh_topic(topic_id, oldest))
        async for tip in each_of(tips, VIEWS_AT_ONCE):
            if tip not in self._failures and self._is_older(tip, oldest):
                # It was not in what was listed: that is said without another look.
                await self._refresh_alone(tip, oldest)

    async def _refresh_alone(self, tip: TopicIdPartition, oldest: float) -> None:
        await self._try([tip], lambda: self._parts.rlmm.refresh(tip, oldest))

    async def _try(
        self, tips: Sequence[TopicIdPartition], refresh: Callable[[], Awaitable[object]]
    ) -> None:
        # Where each has an older view that will do, a store that hangs is not waited for long.
        bare = await chosen(tips, self._is_bare)
        wait_max_s = self._first_wait_max_s if bare else REFRESH_WAIT_MAX_S
        failure: Exception
        try:
            async with self._listings, asyncio.timeout(wait_max_s):
                await refresh()
            return
        except TimeoutError:
            failure = RemoteStorageError(f"not listed within {wait_max_s} s")
        except RemoteStorageError as error:
            failure = error
        async for tip in each_of(tips):
            self._failures[tip] = failure

    async def _shown(self, tips: Collection[TopicIdPartition]) -> dict[TopicIdPartition, Looked]:
        """As clients may see them: held against their leaders."""
        views = self._parts.views
        held = await views.check(tips, self._parts.clock() + COMPARE_WAIT_MAX_S)
        found: dict[TopicIdPartition, Looked] = {}
        async for tip in each_of(tips):
            failure = self._failures.get(tip)
            if tip in held:
                failure = ClusterUnavailable(f"{tip}: its new leader does not answer")
            found[tip] = Looked(None if tip in held else views.view(tip), failure)
        return found
