"""One connection's catches: who is asked about them, and what becomes of the answer.

Judging runs beside the fetches of the client; they look at the marks, and wait for nothing here
but `judged`. Reads no records, except that it has what was found in the archive warmed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Generator, Iterable, Mapping, Sequence
from typing import NamedTuple
from uuid import UUID

from fetchproxy.errors import ClusterError
from fetchproxy.gateway.fetch_marks import NOTHING_WITHHELD, FetchMarks, Knowledge, Mark, Split
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.judgement import HELD_VERDICTS, Judgement, Verdict, judge
from fetchproxy.gateway.remote_side import EDGES_AGE_MAX_MS, watermarks
from fetchproxy.gateway.topic_identity import TopicIdentities
from fetchproxy.many_items import chosen, each_of
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.observability.metrics import CATCHES
from fetchproxy.observability.recent import RECENT_EVENTS
from fetchproxy.remote_fetch.api import PARTITIONS_READ_MAX, RemoteReadRequest
from protocol.error_codes import ErrorCode
from protocol.fetch_request import (
    FetchEntry,
    PartitionKey,
    TopicRef,
    entry_bytes_max,
    fetch_offset,
    leader_epoch,
)
from protocol.fetch_response import PartitionPatch

Spawn = Callable[[Coroutine[None, None, object], str], None]


class Verdicts(NamedTuple):
    """`remote`: found in the archive. `told`: the client must hear of some partition.

    `ask_broker`: some partition is the broker's to answer. `undecided`: some are being judged.
    """

    remote: Mapping[PartitionKey, TopicIdPartition]
    told: bool
    ask_broker: bool
    undecided: bool


class FetchJudging:
    """`by_id`: the client's last fetch named topics by id (v13+).

    `node_id` is the broker's, None where the client came by the bootstrap address.
    """

    def __init__(self, parts: GatewayParts, spawn: Spawn, node_id: int | None) -> None:
        self._parts = parts
        self._spawn = spawn
        self._node_id = node_id
        self.by_id = False
        self._asked: Mapping[PartitionKey, FetchEntry] = {}
        self._to_judge: dict[PartitionKey, Mark] = {}
        self.marks = FetchMarks(parts.config.permit_ttl_ms / 1000)
        self.judged = asyncio.Event()
        self._known = Knowledge(parts.views.view, parts.cluster.cached_log_edges, self.identify)
        self._refreshing: set[TopicIdPartition] = set()
        self._identities = TopicIdentities(parts.cluster, parts.clock)

    def name_topics(self, by_id: bool) -> None:
        """In the other way from now on. What is known under the former names is forgotten."""
        self.by_id = by_id
        self.marks = FetchMarks(self.marks.permit_ttl_s)

    def split_in_steps(
        self,
        asked: Mapping[PartitionKey, FetchEntry],
        changed: Collection[PartitionKey],
    ) -> Generator[None, None, Split]:
        self._asked = asked
        if self.marks.empty:  # nearly always: nothing of this client's was caught lately
            return NOTHING_WITHHELD
        now = self._parts.clock()
        split = yield from self.marks.split_in_steps(asked, now, self._known, changed)
        while self.marks.led_on:
            self._parts.skipped.note(*self.marks.led_on.pop())
        return split

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
        tips = await chosen(split.remote.values(), views.wants_check)
        return await views.check(tips, deadline) if tips else None

    def identify(self, topic: TopicRef, partition: int) -> TopicIdPartition | None:
        """As far as it is known without asking."""
        cluster = self._parts.cluster
        if self.by_id:
            info = cluster.cached_topic_by_id(UUID(bytes=topic))
        else:
            info = cluster.cached_topic_by_name(topic.decode(errors="replace"))
        return None if info is None else TopicIdPartition(info.topic_id, info.name, partition)

    def catch(self, key: PartitionKey, asked: FetchEntry, client: str) -> PartitionPatch | None:
        """The broker called it out of range; returns what the client is shown instead.

        None: judged so already, the client must hear it.
        """
        offset = fetch_offset(asked)
        if self.marks.denied_again(key, offset):
            return self._denied_again(key)
        now = self._parts.clock()
        mark = self.marks.catch(key, offset, now, leader_epoch(asked))
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
                offset=offset,
            )
            self._start(key, mark)
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

    def again(self, key: PartitionKey) -> None:
        """What was found in the archive is not there: its segment was deleted meanwhile."""
        mark = self.marks.rejudge(key)
        if mark is not None:
            self._start(key, mark)

    def _start(self, key: PartitionKey, mark: Mark) -> None:
        """All that one answer brings is judged together, in the next turn of the loop."""
        self._to_judge[key] = mark
        if len(self._to_judge) == 1:
            # The names' kind and the marks are those of the fetch, whatever the next one has.
            self._spawn(self._judge(self.by_id, self.marks), "judge-out-of-range")

    async def _judge(self, by_id: bool, marks: FetchMarks) -> None:
        parts = self._parts
        batch, self._to_judge = self._to_judge, {}
        caught_at = parts.clock()
        offsets = {key: mark.offset for key, mark in batch.items()}
        remote: list[TopicIdPartition] = []
        judged = await judge(parts, by_id, offsets, caught_at)
        async for key, judgement in each_of(judged.items()):
            mark = batch[key]
            mark.judgement = judgement
            if judgement.verdict in HELD_VERDICTS:
                parts.held.hold(self, by_id, key, mark.offset, judgement)
            elif judgement.verdict is Verdict.REMOTE and judgement.tip is not None:
                remote.append(judgement.tip)
                if len(remote) <= PARTITIONS_READ_MAX:
                    self._warm(judgement.tip, key, mark.offset)
        self.judged.set()
        if remote:
            await self._ask_edges(remote, not_older_than=caught_at)
            marks.learned.update(key[0] for key in batch)

    def _warm(self, tip: TopicIdPartition, key: PartitionKey, offset: int) -> None:
        asked = self._asked.get(key)
        if asked is not None and fetch_offset(asked) == offset:
            wanted = tip, offset, entry_bytes_max(asked), IsolationLevel.READ_UNCOMMITTED
            self._parts.purgatory.warm(RemoteReadRequest(*wanted))

    def settle(self, key: PartitionKey, offset: int, judgement: Judgement) -> None:
        """See `HeldReaders`."""
        mark = self.marks.marks.get(key)
        if mark is None or mark.offset != offset or mark.judgement is None:
            return
        if mark.judgement.verdict in HELD_VERDICTS:
            mark.judgement = judgement
            self.judged.set()

    async def still_held(self, judging: Iterable[PartitionKey]) -> None:
        """The client asks for these again: `HeldReaders` is told, or asked anew."""
        async for key in each_of(judging):
            mark = self.marks.marks.get(key)
            if mark is None or mark.judgement is None:
                continue
            if mark.judgement.verdict not in HELD_VERDICTS:
                continue
            if not self._parts.held.waits(self, self.by_id, key, mark.offset):
                self._parts.held.hold(self, self.by_id, key, mark.offset, mark.judgement)

    async def verdicts(self, judging: dict[PartitionKey, None]) -> Verdicts:
        """What is judged of `judging` by now; what is decided leaves it.

        Where the permit ran out meanwhile nothing is given: the next fetch goes upstream for a new
        one.
        """
        found: dict[PartitionKey, TopicIdPartition] = {}
        told = ask_broker = undecided = False
        now = self._parts.clock()
        async for key in each_of(list(judging)):
            mark = self.marks.marks.get(key)
            if mark is None or mark.judgement is None:
                undecided = undecided or mark is not None
                continue
            if mark.judgement.verdict in HELD_VERDICTS:
                continue
            del judging[key]
            verdict, tip = mark.judgement.verdict, mark.judgement.tip
            if verdict in (Verdict.LOCAL, Verdict.LOST):
                ask_broker = True
            elif verdict is not Verdict.REMOTE:
                told = True
            elif tip is not None and self.marks.permitted(key[0], now):
                found[key] = tip
        return Verdicts(found, told, ask_broker, undecided)

    def judgement(self, key: PartitionKey) -> Judgement | None:
        mark = self.marks.marks.get(key)
        return None if mark is None else mark.judgement

    def close(self) -> None:
        """The client is gone."""
        self._parts.held.leave(self)

    def drop(self) -> None:
        """Nothing is judged any more."""
        self._asked, self._to_judge = {}, {}

    async def refresh_edges(self, tips: Iterable[TopicIdPartition]) -> None:
        """Keep the shown watermarks current while the archive is read; off the fetch's path.

        The brokers are asked once for all that are old: one fetch may name ten thousand.
        """
        oldest, cluster = self._parts.clock() - EDGES_AGE_MAX_MS / 1000, self._parts.cluster

        def is_old(tip: TopicIdPartition) -> bool:
            return tip not in self._refreshing and not cluster.knows_log_edges(tip, oldest)

        if old := await chosen(tips, is_old):
            self._refreshing.update(old)
            self._spawn(self._ask_edges(old, oldest), "refresh-log-edges")

    async def _ask_edges(self, tips: Sequence[TopicIdPartition], not_older_than: float) -> None:
        try:
            await self._parts.cluster.log_edges_of(tips, not_older_than=not_older_than)
        except ClusterError:
            pass  # lag figures stay as they were; the cluster client has counted the failure
        finally:
            self._refreshing.difference_update(tips)
