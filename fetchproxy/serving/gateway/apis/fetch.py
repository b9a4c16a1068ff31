"""Serves the fetches of one connection: the shell of `fetch_conversation`, which decides.

The shell reads from the archive while the broker is asked, waits for what comes first, and writes
responses. If a response is empty although there is more to read, it leaves at the client's own
deadline.

Both tiers together stay within the fetch's max_bytes. If one response has no room for both, the
tiers take turns. Remote data does not wait for min_bytes (as with Kafka's DelayedRemoteFetch).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.fetch import (
    FetchRequest,
    PartitionKey,
    PartitionPatch,
    TopicRef,
    encode_error_response,
    fetch_offset,
    request_in_steps,
)
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.errors import OffsetLost, OffsetNotArchived
from fetchproxy.model import TopicIdPartition
from fetchproxy.reading.purgatory import NO_VIEWS
from fetchproxy.reading.segment_reader import (
    PARTITIONS_READ_MAX,
    READ_WAIT_MIN_S,
    RemoteReadResult,
    kafka_error_code,
)
from fetchproxy.runtime.cooperative import checkpoint, cooperative, in_steps, pieces
from fetchproxy.runtime.waits import first_of
from fetchproxy.serving.archived_entries import (
    EncodedTopics,
    PartitionResponse,
    ResponseRoom,
    encode_proxy_response,
    encode_topics,
)
from fetchproxy.serving.archived_reads import ArchivedReads
from fetchproxy.serving.gateway.fetch_conversation import (
    TAIL_GRACE_S,
    BrokerPoll,
    FetchConversation,
    FetchState,
    Later,
    Merge,
    Output,
    Refuse,
    RelayedFetch,
    Serve,
    TiersSoFar,
)
from fetchproxy.serving.gateway.fetch_routing import (
    DecisionsSoFar,
    FetchPlan,
    FetchRouter,
    SharedByFetches,
)
from fetchproxy.serving.gateway.fetch_session import FetchSessionPair
from fetchproxy.serving.gateway.route_decision import WAITING_ROUTES, Route, RouteDecision
from fetchproxy.serving.gateway.session import GatewaySession, InTurn, Muting

# A poll that may be parked waits at the broker no longer than this: it delays later requests, and a
# reader's change from the archive back to the broker.
PARKED_WAIT_MAX_MS = 500
# Most archived bytes in front of a broker's response. More go in a response of their own, which is
# written no faster than the client takes it.
_MERGED_BYTES_MAX = 1024 * 1024
_NOTHING_DECIDED = DecisionsSoFar({}, has_error=False, ask_broker=False, undecided=False)


class FetchHandler:
    """Handles the fetches of one connection. Its client is muted while one waits."""

    def __init__(self, session: GatewaySession, shared: SharedByFetches) -> None:
        self.session = session
        self.shared = shared
        self.clock = shared.archive.clock
        self.share = session.share
        self.arrived, self._responded = asyncio.Event(), asyncio.Event()
        self.poll_arrived, self.responded = self.arrived.set, self._responded.set
        self.mirror = FetchSessionPair(shared.new_session_id)
        self.routing = FetchRouter(
            shared, self.mirror, session.spawn, session.node_id, self.share.asked_last
        )
        self.conversation = FetchConversation(session, shared, self.mirror, self.routing, self)
        self.current_fetch: ServedFetch | None = None  # while one is answered
        self.hurries = False

    def close(self) -> None:
        """The client has disconnected."""
        self.conversation.topics.leave()
        self.shared.held_readers.leave(self.routing)

    def drop(self) -> None:
        """The session is over: drop all its state."""
        self.conversation.drop()
        self.routing.drop()

    def hurry(self) -> None:
        """Answer at once what only waits for records, now and from now on."""
        self.hurries = True
        if self.current_fetch is not None:
            self.current_fetch.hurry()

    @property
    def kept_bytes(self) -> int:
        """Memory that the fetch session takes."""
        return self.mirror.kept_bytes

    # -- requests ----------------------------------------------------------------------------------
    def work_for(self, output: Output, frame: bytes, body_at: int) -> InTurn | Muting:
        """How the client's session deals with a fetch that does not go upstream now."""
        if isinstance(output, Serve):
            return InTurn(ServedFetch(self, output).run, "serve-fetch")
        if isinstance(output, Refuse):
            return InTurn(partial(self._refuse, output), "fetch-session-error")
        assert isinstance(output, Later)
        if output.state is FetchState.PACED:
            return Muting(asyncio.sleep(output.due_in_s), "pace-to-consumer")
        if output.state is FetchState.READING:
            return Muting(self._read_in_steps(frame, body_at), "read-large-fetch")
        return Muting(
            self.wait_until(lambda: not self.conversation.is_relaying), "fetch-behind-fetch"
        )

    async def _read_in_steps(self, frame: bytes, body_at: int) -> None:
        """Parse in steps, so that one client's ten thousand partitions do not delay the others."""
        steps = request_in_steps(memoryview(frame)[4:], body_at)
        self.conversation.parsed = await in_steps(steps, self.shared.archive.purgatory.steps.go_on)

    async def _refuse(self, refuse: Refuse, waited: bool) -> None:
        request = refuse.request
        self.session.write_to_client(
            encode_error_response(request.version, request.correlation_id, refuse.error_code)
        )
        self.conversation.move(FetchState.IDLE)

    def serve_caught(self, serve: Serve) -> None:
        """See `FetchShell`. The next request may be taken before this response is done."""
        run = ServedFetch(self, serve).run(waited=False)
        self.session.mute_while(run, "serve-caught-fetch")

    async def wait_until(self, is_over: Callable[[], bool]) -> None:
        """Wait for broker's responses until it is `over`."""
        while not is_over():
            self._responded.clear()
            await self._responded.wait()

    async def discard_parked(self) -> None:
        """Discard a parked poll's response; the broker sends its data again when asked."""
        poll = self.conversation.parked
        if poll is None:
            return
        poll.discarded = True
        self.session.upstream.go_on()
        await self.wait_until(lambda: self.conversation.parked is None)

    async def respond_for_broker(self) -> None:
        """The broker lets the only open fetch wait: answer it without records, and let the client
        go. The broker's response is then read by nobody.
        """
        upstream = self.session.upstream
        fetch = upstream.waiting_for
        if not isinstance(fetch, RelayedFetch) or self.session.muted:
            return
        request = fetch.as_sent()
        keys = list(self.mirror.partitions) if fetch.kind.lists_all else ()
        responses = [PartitionResponse(key, PartitionPatch()) async for key in cooperative(keys)]
        session_id = 0 if fetch.kind.lists_all else request.session_id
        pieces = await in_steps(encode_proxy_response(request, session_id, responses, 0))
        if upstream.waiting_for is fetch:
            self.session.write_pieces(pieces)
            self.session.leave()


class ServedFetch:
    """A fetch is answered when its time is over or when there is something to answer. If the broker
    was asked and its response is not needed yet, that response stays parked for the next fetch.
    """

    def __init__(self, on: FetchHandler, serve: Serve) -> None:
        self._on = on
        self._conversation = on.conversation
        self._request: FetchRequest = serve.request
        self._kind = serve.kind
        self._client = serve.client
        self._plan = serve.plan
        self._all_archived = False  # the broker is asked for no partition
        wait_max_s = on.shared.wait_max_s
        self._client_deadline = serve.requested_at + min(
            serve.request.max_wait_ms / 1000, wait_max_s
        )
        self._archive_deadline = max(
            self._client_deadline, serve.requested_at + min(READ_WAIT_MIN_S, wait_max_s)
        )
        self._archived_reads: ArchivedReads | None = None  # while it waits

    def hurry(self) -> None:
        """The client's time is over now: the response has what is there."""
        now = self._on.clock()
        self._client_deadline = min(self._client_deadline, now)
        self._archive_deadline = min(self._archive_deadline, now)
        if self._archived_reads is not None:
            self._archived_reads.completed.set()

    async def run(self, waited: bool) -> None:
        """The plan is made anew if the fetch `waited` for its turn."""
        on, plan = self._on, self._plan
        self._plan = None
        on.current_fetch = self
        if on.hurries:
            self.hurry()
        try:
            if waited or plan is None:
                plan = await on.routing.plan()  # a permit may have run out meanwhile
            await self._respond(plan)
            while self._conversation.state is FetchState.PLANNING:
                await self._respond(await on.routing.plan())
        finally:
            on.current_fetch = None
            on.share.to_store()
        await on.share.pay()

    async def _respond(self, plan: FetchPlan) -> None:
        """In PLANNING afterwards if nothing was answered yet."""
        on, clock = self._on, self._on.clock
        tail_deadline = min(self._client_deadline, clock() + TAIL_GRACE_S)
        plan, waiting = await on.routing.confirm_plan(plan, tail_deadline, self._archive_deadline)
        reads = self._new_archived_reads(on.share.owed_s())
        self._all_archived, views = on.routing.is_all_archived(plan), plan.remote
        wait_until = self._archive_deadline if self._all_archived else self._client_deadline
        if reads.owed_s:  # told at once; with partitions of the tail, the archive counts as empty
            wait_until = (
                clock()
                if self._all_archived
                else min(self._client_deadline, clock() + reads.owed_s)
            )
        elif self._all_archived:
            entered = await on.share.enter(reads.requested_bytes(plan.kept_from_broker), wait_until)
            if await on.shared.archive.purgatory.steps.begin() or entered:
                views = NO_VIEWS  # the views may be old by now
        with self._while_needed(reads):
            reads.watch(zip(plan.remote, plan.tps, strict=True), wait_until, views, waiting)
            await checkpoint(len(plan.remote))
            ready = reads.ready
            if not ready:
                on.share.to_store()
            poll = await self._poll_upstream(plan, ready)
            self._archived_reads = reads
            if on.hurries:
                self.hurry()
            await self._wait_for_first_tier(plan, reads, poll, wait_until)
            if self._conversation.state is FetchState.RESPONDING:
                await self._respond_alone(plan, reads)
            elif self._conversation.state is FetchState.MERGING:
                assert poll is not None
                await self._merge(plan, reads, poll, wait_until)
        if self._conversation.state is FetchState.IDLE:
            await on.routing.refresh_log_offsets(plan.tps)

    @contextmanager
    def _while_needed(self, reads: ArchivedReads) -> Iterator[None]:
        """The task is cancelled only if the client is gone."""
        try:
            yield
        except asyncio.CancelledError:
            reads.cancel(client_gone=True)
            raise
        finally:
            self._archived_reads = None
            reads.cancel()

    def _new_archived_reads(self, owed_s: float) -> ArchivedReads:
        shared, request = self._on.shared, self._request
        most = min(request.bytes_max, shared.response_bytes_max)
        bytes_max = self._on.share.reads_max(most)
        purgatory = shared.archive.purgatory
        return ArchivedReads(
            purgatory, request, self._on.mirror.partitions, self._client, bytes_max, owed_s
        )

    def _only_refuses(self, plan: FetchPlan, reads: ArchivedReads) -> bool:
        """True: the response would say only that offsets are lost."""
        decisions = map(self._on.routing.decision, plan.undecided)
        outcomes = {decision.outcome for decision in decisions if decision is not None}
        results = reads.results().values()
        return (
            bool(results or Route.REFUSED in outcomes)
            and outcomes <= {Route.REFUSED, *WAITING_ROUTES}
            and all(isinstance(result.error, OffsetLost) for result in results)
        )

    async def _poll_upstream(self, plan: FetchPlan, ready: bool) -> BrokerPoll | None:
        """Ask the broker for the partitions of the tail, or take up a parked poll that
        asks for the same.
        """
        conversation, request = self._conversation, self._request
        if conversation.parked is not None:
            if conversation.takes_up_parked(request, plan.kept_from_broker):
                return conversation.parked
            await self._on.discard_parked()
        upstream = self._on.mirror.split_off_broker_part(plan.kept_from_broker)
        if upstream is None:
            return None
        left_ms = max(int((self._client_deadline - self._on.clock()) * 1000), 0)
        wait_ms = 0 if ready else min(left_ms, PARKED_WAIT_MAX_MS)
        self._on.arrived.clear()
        poll = conversation.park(request, wait_ms)
        self._on.session.upstream.send(upstream.encode(request, wait_ms), poll)
        return poll

    async def _wait_for_first_tier(
        self, plan: FetchPlan, reads: ArchivedReads, poll: BrokerPoll | None, wait_until: float
    ) -> None:
        """Wait until something can be answered, or `wait_until` (loop time) is over.

        The wait for a poll ends no earlier than its `broker_deadline` if nothing can be answered.
        """
        on, conversation = self._on, self._conversation
        undecided, decisions = dict.fromkeys(plan.undecided), _NOTHING_DECIDED
        broker_deadline = float("-inf") if poll is None else poll.broker_deadline
        wait_until, tiers = max(wait_until, broker_deadline), None
        while True:
            on.routing.decided.clear()
            if undecided and not (tiers and tiers.has_news):
                decisions = await on.routing.decisions_so_far(undecided)
                reads.watch(decisions.remote.items(), wait_until)
            if not (
                decisions.undecided or reads.watched
            ):  # only an archiver can bring something now
                wait_until = min(wait_until, self._client_deadline)
            tiers = TiersSoFar(
                broker_only=poll is not None and not plan.kept_from_broker,
                arrived=poll is not None and poll.frame_bytes > 0,
                broker_deadline=broker_deadline,
                archive_ready=reads.ready,
                archive_first=conversation.archive_has_next_turn
                and any(result.records for result in reads.results().values()),
                has_error=decisions.has_error,
                ask_broker=decisions.ask_broker,
                only_refuses=on.shared.refuses_lost and self._only_refuses(plan, reads),
                client_deadline=self._client_deadline,
                archive_deadline=wait_until,
            )
            until = conversation.step(tiers)
            if conversation.state is not FetchState.WAITING:
                return
            if until is None:
                await on.arrived.wait()
                continue
            waits = [] if tiers.has_news else [reads.completed.wait()]
            if waits and undecided:
                waits.append(on.routing.decided.wait())
            if poll is not None:
                waits.append(on.arrived.wait())
            await first_of(waits, until - on.clock())

    async def _responses(
        self, plan: FetchPlan, reads: ArchivedReads, room: ResponseRoom
    ) -> list[PartitionResponse]:
        """The entries of the archive's partitions that must be listed, with the records that
        fit.
        """
        on, table, results = self._on, self._on.routing.table, reads.results()
        listed = [item for item in table.routes.items() if item[0] in plan.kept_from_broker]
        if len(plan.kept_from_broker) > PARTITIONS_READ_MAX:
            for key in reads.read_for():
                table.move_to_end(key)
        named: list[PartitionResponse] = []
        for piece in pieces(listed):
            for key, route in piece:
                result = results.get(key)
                response = room.fit(self._response_of(key, route.decision, plan, result))
                now = table.routes[key]  # a new route if the partition is decided again
                if self._kind.lists_all or response.has_news(now.last_sent):
                    now.last_sent = response.watermarks
                    named.append(response)
                if response.records:
                    table.move_to_end(key)
                    if response.skipped is not None and (tp := on.routing.identify(*key)):
                        on.shared.skipped.note(tp, *response.skipped)
                if response.error_code:
                    table.error_sent(key)
            await checkpoint(len(piece))
        if room.left_off or any(response.records for response in named):
            self._conversation.archive_has_next_turn = (
                room.left_off
            )  # otherwise the archive still waits for its turn
        return named

    def _response_of(
        self,
        key: PartitionKey,
        decision: RouteDecision | None,
        plan: FetchPlan,
        result: RemoteReadResult | None,
    ) -> PartitionResponse:
        watermarks = self._on.shared.watermarks
        offset = fetch_offset(self._on.mirror.partitions[key])
        if decision and (response := decided_response(key, offset, decision, watermarks)):
            return response
        view = plan.remote.get(key)
        tp = view.tp if view else decision.tp if decision else None
        patch = watermarks(tp, result.view if result else None)
        response = read_response(key, patch, result, may_fail=self._all_archived)
        if result is not None and isinstance(result.error, OffsetNotArchived):
            self._on.routing.again(key)
        return response

    async def _merge(
        self, plan: FetchPlan, reads: ArchivedReads, poll: BrokerPoll, deadline: float
    ) -> None:
        """Stream the broker's response to the client, with the archive's part in front of it.

        If that response was dropped, the state is PLANNING again afterwards.
        """
        on, conversation = self._on, self._conversation
        left = self._request.bytes_max - poll.frame_bytes
        room, _ = on.share.room(min(left, _MERGED_BYTES_MAX))
        responses = await self._responses(plan, reads, ResponseRoom(room, first_whole=False))
        injected = await in_steps(encode_topics(self._request, responses))
        on.share.charge(sum(a.size for a in responses), must_wait=False)
        reads.forget()
        poll.merge = merge = Merge(
            conversation,
            self._request,
            self._kind,
            plan.kept_from_broker,
            injected,
            self._listed_by_broker(injected),
            any(a.records or a.error_code for a in responses),
            deadline,
        )
        with on.share.sending([p for each in injected.values() for p in each.pieces]):
            on.session.upstream.go_on()
            await on.wait_until(lambda: conversation.parked is None)
        if merge.dropped:
            routes = on.routing.table.routes
            for response in responses:
                if response.key in routes:
                    routes[response.key].last_sent = None  # the client has not seen it

    def _listed_by_broker(self, injected: EncodedTopics) -> Mapping[TopicRef, int]:
        """Topics that the client must see as one entry for both tiers → the broker's partitions.

        Kafka may list a topic twice in incremental responses, as its order of partitions changes.
        So clients with a session merge two entries. If a response lists all partitions, sarama
        keeps only the last entry of a topic.
        """
        if not (injected and self._kind.lists_all):
            return {}
        counts = self._on.mirror.listed_upstream()
        return {topic: counts[topic] for topic in injected if counts[topic]}

    async def _respond_alone(self, plan: FetchPlan, reads: ArchivedReads) -> None:
        """Answer without the broker. If the broker was asked, its response is parked.

        A client waits for what it owes by its byte rate only if it reads the archive alone: the
        connection is muted meanwhile, and tail data never waits for the archive.
        """
        on, conversation = self._on, self._conversation
        of_tail: list[PartitionResponse] = []
        if self._kind.lists_all and not self._all_archived:
            of_tail = await self._tail_responses(
                key for key in on.mirror.partitions if key not in plan.kept_from_broker
            )
        room, first_whole = on.share.room(self._request.bytes_max)
        responses = await self._responses(plan, reads, ResponseRoom(room, first_whole))
        conversation.archive_has_next_turn &= not any(response.records for response in responses)
        owed_ms = on.share.charge(sum(a.size for a in responses), must_wait=self._all_archived)
        throttle_time_ms = max(conversation.throttle_time_ms, owed_ms)
        conversation.throttle_time_ms = 0
        session_id = on.mirror.on_proxy_response()
        every = [*responses, *of_tail]
        pieces: Sequence[Buffer] = await in_steps(
            encode_proxy_response(self._request, session_id, every, throttle_time_ms)
        )
        del responses, every
        reads.forget()
        with on.share.sending(pieces) as pieces:
            await on.session.write_as_taken(pieces)
        conversation.move(FetchState.IDLE)

    async def _tail_responses(self, keys: Iterable[PartitionKey]) -> list[PartitionResponse]:
        """The tail's entries without records, for which no broker is asked. They show the log ends
        of partitions that the client may read.
        """
        routing, now = self._on.routing, self._on.clock()
        responses: list[PartitionResponse] = []
        tps: list[TopicIdPartition] = []
        async for key in cooperative(keys):
            patch = PartitionPatch()
            if self._conversation.may_read(key, now) or routing.table.permitted(key[0], now):
                tp = routing.identify(*key)
                patch = self._on.shared.watermarks(tp)
                if tp is not None:
                    tps.append(tp)
            responses.append(PartitionResponse(key, patch))
        await routing.refresh_log_offsets(tps)
        return responses


def read_response(
    key: PartitionKey, watermarks: PartitionPatch, result: RemoteReadResult | None, may_fail: bool
) -> PartitionResponse:
    """The archive's response for one of its partitions. `result` None: nothing is read yet.

    `may_fail`: the client sees a storage error. False if tail partitions share the response: some
    clients throw a whole response away for one partition's error.
    """
    if result is None or isinstance(result.error, OffsetNotArchived):
        return PartitionResponse(key, watermarks)
    if result.error is not None:
        is_reported = may_fail or isinstance(result.error, OffsetLost)
        return PartitionResponse(
            key, watermarks, kafka_error_code(result.error) if is_reported else 0
        )
    return PartitionResponse(key, watermarks, 0, result.records, result.aborted, result.skipped)


def decided_response(
    key: PartitionKey,
    offset: int,
    decision: RouteDecision,
    watermarks: Callable[[TopicIdPartition | None], PartitionPatch],
) -> PartitionResponse | None:
    """The response for decisions by which no tier has anything at `offset`; None: another decision.

    If only lost offsets lie between the reader and the log's end, `offset` is shown as the end. So
    the reader has no lag, and a reader that waits for the end has reached it.
    """
    if decision.outcome is Route.RELAY_ERROR:
        return PartitionResponse(key, PartitionPatch(), ErrorCode.OFFSET_OUT_OF_RANGE)
    if decision.outcome is Route.REFUSED:
        lost = OffsetLost(f"{decision.tp}: offset {offset} is in neither tier")
        return PartitionResponse(key, watermarks(decision.tp), kafka_error_code(lost))
    if decision.outcome is Route.END:
        log_start = watermarks(decision.tp).log_start_offset
        return PartitionResponse(key, PartitionPatch(offset, offset, log_start))
    return None
