"""One connection's catches: who is asked about them, and what becomes of the answer.

Judging runs beside the fetches of the client; they look at the marks, and wait for nothing here
but `judged`. Reads no records, except that it has what was found in the archive warmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from uuid import UUID

from fetchproxy.errors import ClusterError
from fetchproxy.gateway.fetch_marks import FetchMarks, Knowledge, Mark, Split
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.judgement import Verdict, judge
from fetchproxy.gateway.remote_side import EDGES_AGE_MAX_MS, watermarks
from fetchproxy.gateway.topic_identity import TopicIdentities
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.observability.metrics import CATCHES
from fetchproxy.observability.recent import RECENT_EVENTS
from fetchproxy.remote_fetch.api import RemoteReadRequest
from protocol.error_codes import ErrorCode
from protocol.fetch_request import FetchPartition, PartitionKey, TopicRef
from protocol.fetch_response import PartitionPatch

Spawn = Callable[[Coroutine[None, None, object], str], None]


class FetchJudging:
    """`by_id`: the client's last fetch named topics by id (v13+).

    `node_id` is the broker's, None where the client came by the bootstrap address.
    """

    def __init__(self, parts: GatewayParts, spawn: Spawn, node_id: int | None) -> None:
        self._parts = parts
        self._spawn = spawn
        self._node_id = node_id
        self.by_id = False
        self.marks = FetchMarks(parts.config.permit_ttl_ms / 1000)
        self.judged = asyncio.Event()
        self._known = Knowledge(parts.views.view, parts.cluster.cached_log_edges, self.identify)
        self._refreshing: set[TopicIdPartition] = set()
        self._identities = TopicIdentities(parts.cluster, parts.clock)

    def name_topics(self, by_id: bool) -> None:
        """How the next fetch names them. What is known under the other names is forgotten."""
        if by_id is not self.by_id:
            self.by_id = by_id
            self.marks = FetchMarks(self.marks.permit_ttl_s)

    def split(
        self,
        asked: Mapping[PartitionKey, FetchPartition],
        changed: Iterable[PartitionKey],
    ) -> Split:
        return self.marks.split(asked, self._parts.clock(), self._known, changed)

    async def forget_lost_topics(self, split: Split, deadline: float) -> bool:
        """True: some of its topics are no more, and what was known of them is forgotten."""
        lost = await self._identities.lost(split.remote.values(), deadline)
        if lost:
            topics = {key[0] for key, tip in split.remote.items() if tip.topic_id in lost}
            self.marks.forget_topics(topics)
        return bool(lost)

    async def held_by_leaders(
        self, split: Split, deadline: float
    ) -> frozenset[TopicIdPartition] | None:
        """After an election: what must wait until the new leader has said what is in its log.

        None: there was none, and nothing is changed. Until there is a leader this looks no further
        than memory.
        """
        views = self._parts.views
        tips = [tip for tip in split.remote.values() if views.wants_check(tip)]
        return await views.check(tips, deadline) if tips else None

    def identify(self, topic: TopicRef, partition: int) -> TopicIdPartition | None:
        """As far as it is known without asking."""
        cluster = self._parts.cluster
        if self.by_id:
            info = cluster.cached_topic_by_id(UUID(bytes=topic))
        else:
            info = cluster.cached_topic_by_name(topic.decode(errors="replace"))
        return None if info is None else TopicIdPartition(info.topic_id, info.name, partition)

    def catch(self, key: PartitionKey, asked: FetchPartition, client: str) -> PartitionPatch | None:
        """The broker called it out of range; returns what the client is shown instead.

        None: judged so already, the client must hear it.
        """
        if self.marks.denied_again(key, asked.fetch_offset):
            return self._denied_again(key)
        now = self._parts.clock()
        mark = self.marks.catch(key, asked.fetch_offset, now, asked.leader_epoch)
        tip = self.identify(*key)
        topic = tip.topic if tip else ""
        CATCHES.labels(topic).inc()
        if mark is None:
            return None
        if mark.judgement is None:
            RECENT_EVENTS.note(
                "offset_out_of_range_caught",
                client=client,
                topic=topic,
                partition=key[1],
                offset=asked.fetch_offset,
            )
            self._start(key, mark, asked.bytes_max)
        return watermarks(self._parts, tip)

    def _denied_again(self, key: PartitionKey) -> PartitionPatch | None:
        """A follower lacks what its leader has (KIP-392): clients that hear so go to the leader.

        The leader itself contradicts what it told the proxy: the client looks anew who leads.
        """
        topic, number = key
        tip = self.identify(topic, number)
        info = None if tip is None else self._parts.cluster.cached_topic_by_id(tip.topic_id)
        leader = None if info is None else info.leaders.get(number)
        if leader is not None and self._node_id is not None and leader[0] != self._node_id:
            return None
        return PartitionPatch(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)

    def again(self, key: PartitionKey, bytes_max: int) -> None:
        """What was found in the archive is not there: its segment was deleted meanwhile."""
        mark = self.marks.rejudge(key)
        if mark is not None:
            self._start(key, mark, bytes_max)

    def _start(self, key: PartitionKey, mark: Mark, bytes_max: int) -> None:
        # The names' kind and the marks are those of the fetch, whatever the next one has.
        judging = self._judge(key, mark, bytes_max, self.by_id, self.marks)
        self._spawn(judging, "judge-out-of-range")

    async def _judge(
        self, key: PartitionKey, mark: Mark, bytes_max: int, by_id: bool, marks: FetchMarks
    ) -> None:
        parts = self._parts
        topic, partition = key
        caught_at = parts.clock()
        judgement = await judge(parts, topic, by_id, partition, mark.offset, caught_at)
        mark.withheld_until = parts.clock() + parts.remote_fetch.remote_fetch_max_wait_ms / 1000
        mark.judgement = judgement
        self.judged.set()
        tip = judgement.tip
        if judgement.verdict is Verdict.REMOTE and tip is not None:
            parts.purgatory.warm(
                RemoteReadRequest(tip, mark.offset, bytes_max, IsolationLevel.READ_UNCOMMITTED)
            )
            await self._ask_edges(tip, not_older_than=caught_at)
            marks.learned.add(topic)

    def verdicts(
        self, judging: set[PartitionKey]
    ) -> tuple[dict[PartitionKey, TopicIdPartition], bool]:
        """(what was found in the archive, whether an error must reach the client) of `judging`.

        Judged ones leave the set. Where the permit ran out meanwhile nothing is given: the next
        fetch goes upstream for a new one.
        """
        found: dict[PartitionKey, TopicIdPartition] = {}
        passed_on = False
        now = self._parts.clock()
        for key in sorted(judging):
            mark = self.marks.marks.get(key)
            if mark is None or mark.judgement is None:
                continue
            judging.discard(key)
            verdict, tip = mark.judgement.verdict, mark.judgement.tip
            if verdict is Verdict.REMOTE and tip is not None:
                if self.marks.permitted(key[0], now):
                    found[key] = tip
            elif verdict is Verdict.PASS_ON:
                passed_on = True
        return found, passed_on

    def judged_tip(self, key: PartitionKey) -> TopicIdPartition | None:
        mark = self.marks.marks.get(key)
        return mark.judgement.tip if mark is not None and mark.judgement else None

    def refresh_edges(self, tip: TopicIdPartition) -> None:
        """Keep the shown watermarks current while the archive is read; off the fetch's path."""
        oldest = self._parts.clock() - EDGES_AGE_MAX_MS / 1000
        if tip not in self._refreshing and not self._parts.cluster.knows_log_edges(tip, oldest):
            self._refreshing.add(tip)
            self._spawn(self._ask_edges(tip, oldest), "refresh-log-edges")

    async def _ask_edges(self, tip: TopicIdPartition, not_older_than: float) -> None:
        try:
            await self._parts.cluster.log_edges(tip, not_older_than=not_older_than)
        except ClusterError:
            pass  # lag figures stay as they were; the cluster client has counted the failure
        finally:
            self._refreshing.discard(tip)
