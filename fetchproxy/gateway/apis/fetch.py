"""Where a fetch is caught, split and merged (DESIGN §3.5, §4.1): one handler per connection.

A fetch of the tail passes as it came; its answer is only scanned. When the scan meets
OffsetOutOfRange the partition is answered empty and judged, and from the next fetch on it is
*withheld* from the broker and read from the archive, while the rest of the fetch goes upstream.
What is ready first is answered first: tail data never waits for the archive, and data of the
archive does not wait for the broker's long poll, which is then *parked* until the next fetch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from fetchproxy.errors import ClusterError
from fetchproxy.gateway.answers import Answer, FetchAnswer
from fetchproxy.gateway.fetch_answer import (
    EncodedTopics,
    PartitionAnswer,
    encode_own_answer,
    encode_topics,
)
from fetchproxy.gateway.fetch_marks import FetchMarks, Knowledge, Mark, Split
from fetchproxy.gateway.fetch_session import FetchKind, FetchSessionMirror
from fetchproxy.gateway.first_of import first_of
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.judgement import Verdict, judge
from fetchproxy.gateway.remote_side import (
    EDGES_AGE_MAX_MS,
    RemoteSide,
    partition_answers,
    watermarks,
)
from fetchproxy.gateway.topic_identity import TopicIdentities
from fetchproxy.gateway.upstream_poll import UpstreamPoll, encode_poll
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.observability.metrics import CATCHES
from fetchproxy.observability.recent import RECENT_EVENTS
from fetchproxy.remote_fetch.api import RemoteReadRequest
from protocol.error_codes import ErrorCode
from protocol.fetch_request import (
    TOPIC_IDS_FROM,
    FetchRequest,
    PartitionKey,
    TopicRef,
    parse_fetch_request,
)
from protocol.fetch_response import (
    FetchResponseHead,
    HeadPatch,
    PartitionPatch,
    encode_error_response,
)

if TYPE_CHECKING:
    from fetchproxy.gateway.client_session import ClientSession

# A poll that may be parked holds up the crossing back, and requests behind it, at most this long.
PARKED_WAIT_MAX_MS = 500
# So long one tier may wait for the other: for an answer that is due at once, or a look at Metadata.
TAIL_GRACE_S = 0.05

NOTHING_INJECTED = EncodedTopics(0, ())


class FetchHandler:
    def __init__(self, session: ClientSession, parts: GatewayParts) -> None:
        self._session = session
        self._parts = parts
        self._mirror = FetchSessionMirror(parts.new_session_id)
        self._marks = FetchMarks(parts.config.permit_ttl_ms / 1000)
        self._known = Knowledge(parts.rlmm.view, parts.cluster.cached_log_edges, self._identify)
        self._identities = TopicIdentities(parts.cluster, parts.clock)
        self._by_id = False
        self._busy = False  # a fetch that passed is not answered yet
        self._idle = asyncio.Event()
        self._judged = asyncio.Event()
        self._refreshing: set[TopicIdPartition] = set()
        self.parked: UpstreamPoll | None = None

    # -- requests --------------------------------------------------------------------------------
    def on_request(self, frame: bytes, body_at: int) -> bool:
        """A whole framed request. False: one is under way, come again when the session unmutes."""
        if self._busy:
            self._session.mute_while(self._until_idle(), "fetch-behind-fetch")
            return False
        request = parse_fetch_request(memoryview(frame)[4:], body_at)
        if request.replica_id >= 0:  # a follower must get its leader's own answer (KIP-405)
            self._session.send_upstream(frame, Answer(request.correlation_id))
            return True
        self._by_id = request.version >= TOPIC_IDS_FROM
        kind = self._mirror.on_request(request)
        if kind.error_code:
            refusal = self._refuse(request, kind.error_code)
            self._session.mute_while(refusal, "fetch-session-error")
            return True
        split = self._marks.split(self._mirror.asked, self._parts.clock(), self._known)
        nothing_upstream = not self._mirror.in_lockstep and not self._mirror.asked
        if split.withheld or self.parked is not None or nothing_upstream:
            self._session.mute_while(self._serve(request, kind, split), "serve-fetch")
        else:
            self._pass(frame, request)
        return True

    def only_parked(self, expected: Iterable[Answer]) -> bool:
        return self.parked is not None and list(expected) == [self.parked.answer]

    async def _until_idle(self) -> None:
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    async def _refuse(self, request: FetchRequest, code: int) -> None:
        await self._session.drained()
        self._session.write_to_client(
            encode_error_response(request.version, request.correlation_id, code)
        )

    def _pass(self, frame: bytes, request: FetchRequest) -> None:
        """Nothing is withheld: the request goes as it came, unless the sessions have parted."""
        if not self._mirror.rejoin():
            upstream = self._mirror.upstream_request(frozenset())
            if upstream is not None:
                frame = encode_poll(request, upstream, request.max_wait_ms)
        answer = self._expect(request)
        answer.attach(
            lambda head: self._on_head(request, head, NOTHING_INJECTED),
            self._on_error,
            self._passed,
        )
        self._busy = True
        self._session.send_upstream(frame, answer)

    def _passed(self) -> None:
        self._busy = False
        self._idle.set()

    def _expect(self, request: FetchRequest) -> FetchAnswer:
        splice = self._parts.addresses.splice_fetch_tags
        return FetchAnswer(request.correlation_id, request.version, splice)

    # -- the scan asks -----------------------------------------------------------------------------
    def _on_head(
        self, request: FetchRequest, head: FetchResponseHead, injected: EncodedTopics
    ) -> HeadPatch:
        session_id = self._mirror.on_answer(head.error_code, head.session_id)
        if head.error_code:  # the client drops everything else
            injected = NOTHING_INJECTED
        return HeadPatch(request.correlation_id, session_id, injected.topics, injected.pieces)

    def _on_error(self, topic: TopicRef, partition: int, code: int) -> PartitionPatch | None:
        """The catch: out of range becomes empty, and is judged before the next fetch."""
        key = (topic, partition)
        asked = self._mirror.asked.get(key)
        if code != ErrorCode.OFFSET_OUT_OF_RANGE or asked is None:
            return None
        mark = self._marks.catch(key, asked.fetch_offset, self._parts.clock())
        tip = self._identify(topic, partition)
        CATCHES.labels(tip.topic if tip else "").inc()
        if mark is None:
            return None
        if mark.judgement is None:
            RECENT_EVENTS.note(
                "offset_out_of_range_caught",
                client=self._session.client,
                topic=tip.topic if tip else "",
                partition=partition,
                offset=asked.fetch_offset,
            )
            self._start_judging(key, mark)
        return watermarks(self._parts, tip)

    def _start_judging(self, key: PartitionKey, mark: Mark) -> None:
        self._session.spawn(self._judge(key, mark), "judge-out-of-range")

    async def _judge(self, key: PartitionKey, mark: Mark) -> None:
        parts = self._parts
        topic, partition = key
        caught_at = parts.clock()
        judgement = await judge(parts, topic, self._by_id, partition, mark.offset, caught_at)
        mark.withheld_until = parts.clock() + parts.remote_fetch.remote_fetch_max_wait_ms / 1000
        mark.judgement = judgement
        self._judged.set()
        tip = judgement.tip
        if judgement.verdict is Verdict.REMOTE and tip is not None:
            asked = self._mirror.asked.get(key)
            size = asked.bytes_max if asked else parts.remote_fetch.chunk_bytes
            parts.purgatory.warm(
                RemoteReadRequest(tip, mark.offset, size, IsolationLevel.READ_UNCOMMITTED)
            )
            await self._ask_edges(tip, not_older_than=caught_at)

    def _refresh_edges(self, tip: TopicIdPartition) -> None:
        """Keep the shown watermarks current while the archive is read; off the fetch's path."""
        if tip not in self._refreshing:
            self._refreshing.add(tip)
            oldest = self._parts.clock() - EDGES_AGE_MAX_MS / 1000
            self._session.spawn(self._ask_edges(tip, oldest), "refresh-log-edges")

    async def _ask_edges(self, tip: TopicIdPartition, not_older_than: float) -> None:
        try:
            await self._parts.cluster.log_edges(tip, not_older_than=not_older_than)
        except ClusterError:
            pass  # lag figures stay as they were; the cluster client has counted the failure
        finally:
            self._refreshing.discard(tip)

    def _identify(self, topic: TopicRef, partition: int) -> TopicIdPartition | None:
        cluster = self._parts.cluster
        if self._by_id:
            info = cluster.cached_topic_by_id(UUID(bytes=topic))
        else:
            info = cluster.cached_topic_by_name(topic.decode(errors="replace"))
        return None if info is None else TopicIdPartition(info.topic_id, info.name, partition)

    # -- fetches with a part in the archive --------------------------------------------------------
    async def _serve(self, request: FetchRequest, kind: FetchKind, split: Split) -> None:
        await self._session.drained()
        clock = self._parts.clock
        wait_ms = min(request.max_wait_ms, self._parts.remote_fetch.remote_fetch_max_wait_ms)
        deadline = clock() + wait_ms / 1000
        asked = self._mirror.asked
        split = await self._without_lost_topics(split, deadline)
        offsets = {key: (asked[key].fetch_offset, asked[key].bytes_max) for key in split.withheld}
        side = RemoteSide(self._parts, request, offsets)
        side.watch(split.remote, deadline)
        try:
            poll = await self._poll_upstream(request, split, side.ready)
            await self._first_ready(split, side, poll, deadline)
            if poll is not None and side.ready and not poll.arrived.is_set():
                await first_of([poll.arrived.wait()], poll.due_at - clock())
            if poll is not None and poll.arrived.is_set():
                await self._merge(request, kind, split, side, poll)
            else:
                self._answer_alone(request, kind, split, side, poll)
        finally:
            side.cancel()
        for tip in split.remote.values():
            self._refresh_edges(tip)

    async def _without_lost_topics(self, split: Split, deadline: float) -> Split:
        if len(split.withheld) < len(self._mirror.asked):  # partitions of the tail wait too
            deadline = min(deadline, self._parts.clock() + TAIL_GRACE_S)
        lost = await self._identities.lost(split.remote.values(), deadline)
        if lost:
            topics = {key[0] for key, tip in split.remote.items() if tip.topic_id in lost}
            self._marks.forget_topics(topics)
            split = self._marks.split(self._mirror.asked, self._parts.clock(), self._known)
        return split

    async def _poll_upstream(
        self, request: FetchRequest, split: Split, ready: bool
    ) -> UpstreamPoll | None:
        """Ask the broker for the rest; a parked poll is taken up if it asks for the same."""
        asked = self._mirror.asked
        withheld = split.withheld
        local = {key: p.fetch_offset for key, p in asked.items() if key not in withheld}
        if self.parked is not None:
            if self.parked.offsets == local:
                return self.parked
            await self.discard_parked()
        upstream = self._mirror.upstream_request(withheld)
        if upstream is None:
            return None
        wait_ms = 0 if ready else min(request.max_wait_ms, PARKED_WAIT_MAX_MS)
        due_at = self._parts.clock() + (0 if wait_ms else TAIL_GRACE_S)
        poll = UpstreamPoll(self._expect(request), local, due_at)
        poll.answer.on_arrival = poll.arrived.set
        self.parked = poll
        frame = encode_poll(request, upstream, wait_ms)
        self._session.send_upstream(frame, poll.answer)
        return poll

    async def _first_ready(
        self, split: Split, side: RemoteSide, poll: UpstreamPoll | None, deadline: float
    ) -> None:
        """Until anything can be answered, or the time is over."""
        judging = set(split.judging)
        while True:
            self._judged.clear()
            passed_on = self._take_verdicts(judging, side, deadline)
            left = deadline - self._parts.clock()
            if side.ready or passed_on or left <= 0 or (poll and poll.arrived.is_set()):
                return
            waits = [side.completed.wait()]
            if judging:
                waits.append(self._judged.wait())
            if poll is not None:
                waits.append(poll.arrived.wait())
            await first_of(waits, left)

    def _take_verdicts(self, judging: set[PartitionKey], side: RemoteSide, deadline: float) -> bool:
        """Start reading what was found in the archive; True if an error must reach the client."""
        found: dict[PartitionKey, TopicIdPartition] = {}
        passed_on = False
        for key in sorted(judging):
            mark = self._marks.marks.get(key)
            if mark is None or mark.judgement is None:
                continue
            judging.discard(key)
            if mark.judgement.verdict is Verdict.REMOTE and mark.judgement.tip is not None:
                found[key] = mark.judgement.tip
            elif mark.judgement.verdict is Verdict.PASS_ON:
                passed_on = True
        side.watch(found, deadline)
        return passed_on

    def _remote_part(
        self, request: FetchRequest, kind: FetchKind, split: Split, side: RemoteSide
    ) -> list[PartitionAnswer]:
        """What the archive has to say now, for every withheld partition that must be named."""
        tips: dict[PartitionKey, TopicIdPartition | None] = {}
        for key in sorted(split.withheld):
            mark = self._marks.marks.get(key)
            judged = mark.judgement.tip if mark is not None and mark.judgement else None
            tips[key] = split.remote.get(key) or judged
        alone = len(split.withheld) >= len(self._mirror.asked)
        answers, again = partition_answers(self._parts, tips, side.results(), may_fail=alone)
        for key in again:
            mark = self._marks.rejudge(key)
            if mark is not None:
                self._start_judging(key, mark)
        for answer in answers:
            if answer.records:
                self._marks.served(answer.key)
        return [a for a in answers if kind.lists_all or a.has_news]

    async def _merge(
        self,
        request: FetchRequest,
        kind: FetchKind,
        split: Split,
        side: RemoteSide,
        poll: UpstreamPoll,
    ) -> None:
        """The broker's answer streams through, with the archive's part in front of it."""
        answers = self._remote_part(request, kind, split, side)
        injected = encode_topics(request.version, IsolationLevel(request.isolation_level), answers)
        poll.answer.attach(
            lambda head: self._on_head(request, head, injected), self._on_error, poll.done.set
        )
        self._session.link_go_on()
        await poll.done.wait()
        self.parked = None

    def _answer_alone(
        self,
        request: FetchRequest,
        kind: FetchKind,
        split: Split,
        side: RemoteSide,
        poll: UpstreamPoll | None,
    ) -> None:
        answers = self._remote_part(request, kind, split, side)
        if poll is not None and kind.lists_all:
            for key in poll.offsets:
                answers.append(PartitionAnswer(key, watermarks(self._parts, self._identify(*key))))
        topics = encode_topics(request.version, IsolationLevel(request.isolation_level), answers)
        session_id = self._mirror.on_own_answer()
        self._session.write_pieces(
            encode_own_answer(request.version, request.correlation_id, session_id, topics)
        )

    async def discard_parked(self) -> None:
        """Get a parked poll out of the way; the broker will send its data again when asked."""
        poll = self.parked
        if poll is None:
            return

        def on_head(head: FetchResponseHead) -> HeadPatch:
            self._mirror.on_discarded_answer(head.error_code, head.session_id)
            return HeadPatch(head.correlation_id, head.session_id)

        poll.answer.discarded = True
        poll.answer.attach(on_head, lambda topic, partition, code: None, poll.done.set)
        self._session.link_go_on()
        await poll.done.wait()
        self.parked = None
