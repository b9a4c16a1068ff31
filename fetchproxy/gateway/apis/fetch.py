"""Where a fetch is caught, split and merged (DESIGN §3.5, §4.1): one handler per connection.

A fetch of the tail passes as it came; its answer is only scanned. When the scan meets
OffsetOutOfRange the partition is answered empty and judged, and from the next fetch on it is
*withheld* from the broker and read from the archive, while the rest of the fetch goes upstream.
What is ready first is answered first: tail data never waits for the archive, and data of the
archive does not wait for the broker's long poll, which is then *parked* until the next fetch.

Both tiers together stay within the fetch's max_bytes. Where one answer cannot take what both have,
they take turns. Remote data does not wait for min_bytes (as with Kafka's DelayedRemoteFetch).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from fetchproxy.gateway.answer_turns import ConnectionTurn
from fetchproxy.gateway.answers import Answer, FetchAnswer
from fetchproxy.gateway.archived_topics import TopicsOfConnection
from fetchproxy.gateway.breathing import MANY_PARTITIONS, breathe
from fetchproxy.gateway.client_rates import Client, ConnectionPace
from fetchproxy.gateway.fetch_answer import (
    EncodedTopics,
    PartitionAnswer,
    encode_own_answer,
    encode_topics,
    within,
)
from fetchproxy.gateway.fetch_judging import FetchJudging
from fetchproxy.gateway.fetch_marks import Split
from fetchproxy.gateway.fetch_session import FetchKind, FetchSessionMirror
from fetchproxy.gateway.first_of import first_of
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.remote_side import RemoteSide, partition_answers
from fetchproxy.gateway.tail_marks import TailMarks
from fetchproxy.gateway.upstream_poll import UpstreamPoll, encode_poll
from fetchproxy.model import IsolationLevel
from protocol.error_codes import ErrorCode
from protocol.fetch_request import (
    TOPIC_IDS_FROM,
    FetchRequest,
    TopicRef,
    parse_fetch_request,
    with_session,
)
from protocol.fetch_response import (
    FetchResponseHead,
    HeadPatch,
    PartitionPatch,
    encode_error_response,
)
from protocol.headers import client_id, peek_request_header
from protocol.primitives import Buffer

if TYPE_CHECKING:
    from fetchproxy.gateway.client_session import ClientSession

# A poll that may be parked holds up the crossing back, and requests behind it, at most this long.
PARKED_WAIT_MAX_MS = 500
# So long one tier may wait for the other: for an answer that is due at once, or a look at Metadata.
TAIL_GRACE_S = 0.05
# Archived records that go in front of a broker's answer; more goes out in an answer of its own,
# which is written no faster than the client takes it.
MERGED_BYTES_MAX = 1024 * 1024

NOTHING_INJECTED = EncodedTopics(0, ())


class FetchHandler:
    def __init__(self, session: ClientSession, parts: GatewayParts) -> None:
        self._session = session
        self._parts = parts
        self._mirror = FetchSessionMirror(parts.new_session_id)
        self._judging = FetchJudging(parts, session.spawn, session.node_id)
        self._tail = TailMarks(parts, self._judging)
        self._pace = ConnectionPace(parts.rates)
        self._turn = ConnectionTurn(parts.turns)
        self._topics = TopicsOfConnection(parts.archived)
        self._busy = False  # a fetch that passed is not answered yet
        self._idle = asyncio.Event()
        self._cut_short = False  # the tail left the archive no room: it is the archive's turn
        self._throttle_time_ms = 0  # of answers that the client did not see
        self.parked: UpstreamPoll | None = None

    def close(self) -> None:
        """The client is gone."""
        self._topics.close()

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
        kind = self._mirror.on_request(request)
        if kind.error_code:
            refusal = self._refuse(request, kind.error_code)
            self._session.mute_while(refusal, "fetch-session-error")
            return True
        by_id = request.version >= TOPIC_IDS_FROM
        self._judging.name_topics(by_id)
        self._topics.asked(request.partitions, by_id, only_these=kind.lists_all)
        split = self._split()
        ended = not self._mirror.in_lockstep and not self._mirror.asked
        if split.withheld or self.parked is not None or ended:
            client = (self._session.client_host, client_id(frame, peek_request_header(frame, 4)))
            self._session.mute_while(self._serve(request, kind, split, client), "serve-fetch")
        else:
            self._pass(frame, body_at, request, kind)
        return True

    def only_parked(self, expected: Iterable[Answer]) -> bool:
        return self.parked is not None and list(expected) == [self.parked.answer]

    def _split(self) -> Split:
        return self._judging.split(self._mirror.asked, self._mirror.changed)

    async def _until_idle(self) -> None:
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    async def _refuse(self, request: FetchRequest, code: int) -> None:
        await self._session.drained()
        self._session.write_to_client(
            encode_error_response(request.version, request.correlation_id, code)
        )

    def _pass(self, frame: bytes, body_at: int, request: FetchRequest, kind: FetchKind) -> None:
        """Nothing is withheld: the request goes as it came, unless the sessions have parted."""
        if not self._mirror.rejoin():
            brokers_own = self._mirror.pass_on(request)
            if brokers_own is not None:
                frame = with_session(frame, body_at, request.version, *brokers_own)
            elif (upstream := self._mirror.upstream_request(frozenset())) is not None:
                frame = encode_poll(request, upstream, request.max_wait_ms)
        answer = self._expect(request)

        def passed() -> None:
            self._tail.answered(kind.lists_all, self._mirror.asked.keys())
            self._busy = False
            self._idle.set()

        answer.attach(
            lambda head: self._on_head(request, head, NOTHING_INJECTED), self._on_error, passed
        )
        self._busy = True
        self._session.send_upstream(frame, answer)

    def _expect(self, request: FetchRequest) -> FetchAnswer:
        splice = self._parts.addresses.splice_fetch_tags
        log_starts = self._topics.log_starts()
        return FetchAnswer(request.correlation_id, request.version, splice, log_starts)

    # -- the scan asks -----------------------------------------------------------------------------
    def _on_head(
        self, request: FetchRequest, head: FetchResponseHead, injected: EncodedTopics
    ) -> HeadPatch:
        session_id = self._mirror.on_answer(head.error_code, head.session_id)
        if head.error_code:  # the client drops everything else
            injected = NOTHING_INJECTED
        throttle_time_ms, self._throttle_time_ms = self._throttle_time_ms, 0
        return HeadPatch(
            request.correlation_id, session_id, injected.topics, injected.pieces, throttle_time_ms
        )

    def _on_error(self, topic: TopicRef, partition: int, code: int) -> PartitionPatch | None:
        """The catch: out of range becomes empty, and is judged before the next fetch."""
        key = (topic, partition)
        asked = self._mirror.asked.get(key)
        if code != ErrorCode.OFFSET_OUT_OF_RANGE or asked is None:
            self._tail.refuse(topic)
            return None
        return self._judging.catch(key, asked, self._session.client)

    # -- fetches with a part in the archive --------------------------------------------------------
    async def _serve(
        self, request: FetchRequest, kind: FetchKind, split: Split, client: Client
    ) -> None:
        try:
            await self._answer(request, kind, split, client)
        finally:
            self._turn.give_back()
        await self._pace.pause()  # nothing of the answer is held any more

    async def _answer(
        self, request: FetchRequest, kind: FetchKind, split: Split, client: Client
    ) -> None:
        if await self._session.drained():
            split = self._split()  # a permit may have run out meanwhile
        clock = self._parts.clock
        wait_ms = min(request.max_wait_ms, self._parts.remote_fetch.remote_fetch_max_wait_ms)
        deadline = clock() + wait_ms / 1000
        if await self._judging.forget_lost_topics(split, self._patience(split, deadline)):
            split = self._split()
        held = await self._judging.held_by_leaders(split, self._patience(split, deadline))
        if held is not None:
            split = self._split()
        asked = self._mirror.asked
        offsets = {key: (asked[key].fetch_offset, asked[key].bytes_max) for key in split.withheld}
        alone = len(split.withheld) >= len(asked)
        side = RemoteSide(self._parts, request, offsets, client, self._pace.owed_s(client))
        if side.owed_s:  # told at once; where the tail has a part, it is as if nothing were there
            deadline = clock() if alone else min(deadline, clock() + side.owed_s)
        elif alone:
            await self._turn.take(side.asked_bytes, deadline)
            await self._parts.answers.wait_for_room(deadline)
        held = held or frozenset()
        side.watch({key: tip for key, tip in split.remote.items() if tip not in held}, deadline)
        if not side.ready:
            self._turn.give_back()
        await breathe(len(split.remote))
        try:
            poll = await self._poll_upstream(request, split, side.ready)
            await self._first_ready(split, side, poll, deadline)
            turn = self._cut_short and side.ready
            if poll is not None and side.ready and not turn and not poll.arrived.is_set():
                await first_of([poll.arrived.wait()], poll.due_at - clock())
            if poll is not None and poll.arrived.is_set() and not turn:
                await self._merge(request, kind, split, side, poll)
            else:
                await self._answer_alone(request, kind, split, side)
        finally:
            side.cancel()
        for number, tip in enumerate(split.remote.values(), 1):
            self._judging.refresh_edges(tip)
            if not number % MANY_PARTITIONS:
                await asyncio.sleep(0)

    def _patience(self, split: Split, deadline: float) -> float:
        """How long what is only looked up may take: partitions of the tail wait too."""
        if len(split.withheld) >= len(self._mirror.asked):
            return deadline
        return min(deadline, self._parts.clock() + TAIL_GRACE_S)

    async def _poll_upstream(
        self, request: FetchRequest, split: Split, ready: bool
    ) -> UpstreamPoll | None:
        """Ask the broker for the rest; a parked poll is taken up if it asks for the same."""
        if self.parked is not None:
            if self._mirror.take_up(split.withheld):
                return self.parked
            await self.discard_parked()
        upstream = self._mirror.upstream_request(split.withheld)
        if upstream is None:
            return None
        wait_ms = 0 if ready else min(request.max_wait_ms, PARKED_WAIT_MAX_MS)
        due_at = self._parts.clock() + (0 if wait_ms else TAIL_GRACE_S)
        poll = UpstreamPoll(self._expect(request), due_at)
        poll.answer.on_arrival = poll.arrived.set
        self.parked = poll
        frame = encode_poll(request, upstream, wait_ms)
        self._session.send_upstream(frame, poll.answer)
        return poll

    async def _first_ready(
        self, split: Split, side: RemoteSide, poll: UpstreamPoll | None, deadline: float
    ) -> None:
        """Until anything can be answered, or the time is over.

        That is not before the broker had its moment; and a broker that was asked for all that the
        client wants is waited for as a relay does.
        """
        if poll is not None and not split.withheld:
            await poll.arrived.wait()
            return
        if poll is not None:
            deadline = max(deadline, poll.due_at)
        elif side.ready and not split.judging:
            return
        judging = set(split.judging)
        while True:
            self._judging.judged.clear()
            found, passed_on = self._judging.verdicts(judging)
            side.watch(found, deadline)
            left = deadline - self._parts.clock()
            if side.ready or passed_on or left <= 0 or (poll and poll.arrived.is_set()):
                return
            waits = [side.completed.wait()]
            if judging:
                waits.append(self._judging.judged.wait())
            if poll is not None:
                waits.append(poll.arrived.wait())
            await first_of(waits, left)

    async def _gather(self, split: Split, side: RemoteSide) -> list[PartitionAnswer]:
        """What the archive has to say now of every withheld partition."""
        marks, asked = self._judging.marks.marks, self._mirror.asked
        order = [key for key in marks if key in split.withheld]
        tips = {key: split.remote.get(key) or self._judging.judged_tip(key) for key in order}
        alone = len(split.withheld) >= len(asked)
        answers, again = partition_answers(self._parts, tips, side.results(), may_fail=alone)
        for key in again:
            self._judging.again(key, asked[key].bytes_max)
        await breathe(len(order))
        return answers

    def _named(
        self, kind: FetchKind, answers: list[PartitionAnswer], room: int, first_whole: bool
    ) -> list[PartitionAnswer]:
        """Those that must be named, cut to `room` bytes."""
        marks = self._judging.marks
        answers, self._cut_short = within(answers, room, first_whole)
        named = []
        for answer in answers:
            mark = marks.marks[answer.key]
            if kind.lists_all or answer.has_news(mark.shown):
                mark.shown = answer.watermarks
                named.append(answer)
            if answer.records:
                marks.served(answer.key)
        return named

    async def _merge(
        self,
        request: FetchRequest,
        kind: FetchKind,
        split: Split,
        side: RemoteSide,
        poll: UpstreamPoll,
    ) -> None:
        """The broker's answer streams through, with the archive's part in front of it."""
        answers = await self._gather(split, side)
        left = request.bytes_max - poll.answer.frame_bytes
        room = min(left, MERGED_BYTES_MAX, self._parts.answers.room())
        answers = self._named(kind, answers, room, first_whole=False)
        isolation = IsolationLevel(request.isolation_level)
        injected = encode_topics(request.version, isolation, answers)
        self._pace.spend(side.client, sum(a.size for a in answers), told=False)
        side.forget()

        def done() -> None:
            self._tail.answered(kind.lists_all, self._mirror.asked.keys() - split.withheld)
            poll.done.set()

        poll.answer.attach(
            lambda head: self._on_head(request, head, injected), self._on_error, done
        )
        with self._parts.answers.taking(injected.pieces):
            self._session.link_go_on()
            await poll.done.wait()
        self.parked = None

    async def _answer_alone(
        self, request: FetchRequest, kind: FetchKind, split: Split, side: RemoteSide
    ) -> None:
        """Without the broker, whose answer is parked, if it was asked.

        Only who reads nothing but the archive is made to wait for what he owes by his byte rate:
        the connection is shut meanwhile, and tail data never waits for the archive.
        """
        answers = await self._gather(split, side)
        of_tail: list[PartitionAnswer] = []
        alone = len(split.withheld) >= len(self._mirror.asked)
        if kind.lists_all and not alone:
            of_tail = self._tail.answers(self._mirror.asked.keys() - split.withheld)
            await breathe(len(of_tail))
        budget = self._parts.answers
        room = self._parts.rates.room(min(request.bytes_max, budget.room()))
        answers = self._named(kind, answers, room, first_whole=not budget.full)
        self._cut_short = False
        owed_ms = self._pace.spend(side.client, sum(a.size for a in answers), told=alone)
        throttle_time_ms, self._throttle_time_ms = max(self._throttle_time_ms, owed_ms), 0
        session_id = self._mirror.on_own_answer()
        isolation = IsolationLevel(request.isolation_level)
        topics = encode_topics(request.version, isolation, [*answers, *of_tail])
        pieces: Sequence[Buffer] = encode_own_answer(
            request.version, request.correlation_id, session_id, topics, throttle_time_ms
        )
        del answers, topics
        side.forget()
        with budget.taking(pieces) as pieces:
            await self._session.write_as_taken(pieces)

    async def discard_parked(self) -> None:
        """Get a parked poll out of the way; the broker will send its data again when asked."""
        poll = self.parked
        if poll is None:
            return

        def on_head(head: FetchResponseHead) -> HeadPatch:
            self._mirror.on_discarded_answer(head.error_code, head.session_id)
            self._throttle_time_ms = max(self._throttle_time_ms, head.throttle_time_ms)
            return HeadPatch(head.correlation_id, head.session_id)

        poll.answer.discarded = True
        poll.answer.attach(on_head, lambda topic, partition, code: None, poll.done.set)
        self._session.link_go_on()
        await poll.done.wait()
        self.parked = None
