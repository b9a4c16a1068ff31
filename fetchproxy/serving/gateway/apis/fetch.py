"""Plans which tier serves each partition of a fetch, and merges the responses: one handler per
connection.

A fetch of the tail passes unchanged, and the proxy only scans its response. If the scan finds
OffsetOutOfRange, the proxy decides the partition's route. From then on it may leave the partition
out of what it asks the broker and reads it from the archive; the rest of the fetch goes to the
broker. A response of the broker without records is dropped then, and the same fetch is answered
from the archive. A response with records leaves at once with that partition empty, and the next
fetch gets the archived records.

The tier that is ready first is answered first. Tail data never waits for the archive. Archived data
does not wait for the broker's long poll, which is then *parked* until the next fetch.

If a response is empty although there is more to read, it leaves at the client's own deadline.

Both tiers together stay within the fetch's max_bytes. If one response has no room for both, the
tiers take turns. Remote data does not wait for min_bytes (as with Kafka's DelayedRemoteFetch).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial

from fetchproxy_protocol.apis import ErrorCode, MalformedMessage
from fetchproxy_protocol.fetch import (
    PARTITIONS_MAX,
    TOPIC_IDS_FROM,
    FetchRequest,
    FetchResponseHead,
    HeadPatch,
    LogStarts,
    PartitionKey,
    PartitionPatch,
    TopicRef,
    encode_error_response,
    fetch_offset,
    head_bytes,
    parse_fetch_request,
    plain_session_id,
    request_in_steps,
    with_bytes_max,
    with_session,
)
from fetchproxy_protocol.fetch_scan import FetchResponseScan, OnError, OnHead, SpliceTags, Suppress
from fetchproxy_protocol.headers import client_id, peek_request_header
from fetchproxy_protocol.primitives import INT32, Buffer

from fetchproxy.errors import OffsetLost, OffsetNotArchived
from fetchproxy.model import TopicIdPartition
from fetchproxy.reading.segment_reader import (
    PARTITIONS_READ_MAX,
    READ_WAIT_MIN_S,
    RemoteReadResult,
    kafka_error_code,
)
from fetchproxy.runtime.cooperative import (
    READ_AT_ONCE_BYTES_MAX,
    checkpoint,
    cooperative,
    in_steps,
    pieces,
)
from fetchproxy.runtime.waits import first_of
from fetchproxy.serving.admission import Client
from fetchproxy.serving.archived_reads import NO_VIEWS_READ, ArchivedReads
from fetchproxy.serving.fetch_response import (
    EncodedTopics,
    PartitionResponse,
    ResponseRoom,
    encode_proxy_response,
    encode_topics,
)
from fetchproxy.serving.gateway.broker_link import ExpectedResponse, ScannedResponse
from fetchproxy.serving.gateway.fetch_routing import (
    ALL_FROM_BROKERS,
    FetchPlan,
    FetchRoutes,
    FetchRouting,
    SharedByFetches,
)
from fetchproxy.serving.gateway.fetch_session import FetchKind, FetchSessionMirror
from fetchproxy.serving.gateway.out_of_range import WAITING_ROUTES, Route, RouteDecision
from fetchproxy.serving.gateway.served_archive import TopicsOfConnection
from fetchproxy.serving.gateway.session import GatewaySession, InTurn, Muting, Upstream

# The broker's session id → the client's session id.
OnPlain = Callable[[int], int]
NOTHING_INJECTED: EncodedTopics = {}
# A response with more partitions is received in small pieces. Each partition costs the loop a
# microsecond or two, and a piece is walked in one turn.
WALKED_AT_ONCE = 1_000
PARTITION_BYTES_MIN = 16  # of a request (v4)
# A poll that may be parked waits at the broker no longer than this: it delays later requests, and a
# reader's change from the archive back to the broker.
PARKED_WAIT_MAX_MS = 500
# Longest that one tier waits for the other: for a response that is due at once, or for Metadata.
TAIL_GRACE_S = 0.05
# Most archived bytes in front of a broker's response. More go in a response of their own, which is
# written no faster than the client takes it.
_MERGED_BYTES_MAX = 1024 * 1024


class TailMarks:
    """The broker's partitions, as the proxy's own answers show them. Waits for no broker.

    A response shows the log ends of partitions that the broker lately let this connection read.

    `is_read`: the broker's last response had no partition out of range: this client reads the tail.
    """

    def __init__(self, shared: SharedByFetches, routing: FetchRouting) -> None:
        self._shared = shared
        self._clock = shared.archive.clock
        self._routing = routing
        self._readable: Set[PartitionKey] = frozenset()  # the broker answered them, without error
        self._readable_until = 0.0
        # In the broker's response in progress: topics with an error other than OffsetOutOfRange,
        # and whether a partition was out of range.
        self.refused: set[TopicRef] = set()
        self.caught = False
        self.is_read = False

    def responded(self, lists_all: bool, keys: Set[PartitionKey]) -> None:
        """The broker's response about `keys` has left. A response that lists all partitions shows
        which of them the client may read.
        """
        if lists_all:
            refused = self.refused
            fine = (key for key in keys if key[0] not in refused) if refused else keys
            self._readable = set(fine)
            self._readable_until = self._clock() + self._shared.permit_ttl_s
        if self.refused:
            self.refused = set()
        self.is_read, self.caught = not self.caught, False

    async def responses(self, keys: Iterable[PartitionKey]) -> list[PartitionResponse]:
        """Entries without records; with log ends only for partitions that the client may read."""
        now = self._clock()
        responses: list[PartitionResponse] = []
        tps: list[TopicIdPartition] = []
        async for key in cooperative(keys):
            patch = PartitionPatch()
            readable = key in self._readable and now < self._readable_until
            if readable or self._routing.routes.permitted(key[0], now):
                tp = self._routing.identify(*key)
                patch = self._shared.watermarks(tp)
                if tp is not None:
                    tps.append(tp)
            responses.append(PartitionResponse(key, patch))
        await self._routing.refresh_log_offsets(tps)
        return responses


@dataclass(eq=False, repr=False, slots=True)
class PendingFetch(ScannedResponse):
    """A Fetch response that the broker owes: either attached to the client's fetch, or parked."""

    correlation_id: int
    version: int
    _splice_tags: SpliceTags
    log_starts: LogStarts | None = None
    frame_bytes: int = 0  # set when it arrives
    _on_head: OnHead | None = None
    _on_error: OnError | None = None
    _suppress: Suppress | None = None
    any_empty: bool = False  # call `suppress` for every response without records
    _on_done: Callable[[], None] | None = None
    on_arrival: Callable[[], None] | None = None
    on_plain: OnPlain | None = None  # called instead of `on_head` and `on_error`
    walked_slowly: bool = False  # it may list very many partitions
    discarded: bool = False  # scanned as usual, but not sent to the client

    def arrived(self, frame_bytes: int) -> bool:
        self.frame_bytes = frame_bytes
        attached = self._on_head is not None
        if not attached and self.on_arrival is not None:
            self.on_arrival()
        return attached

    def attach(
        self,
        on_head: OnHead,
        on_error: OnError,
        on_done: Callable[[], None],
        suppress: Suppress | None = None,
    ) -> None:
        """Let the response through. If it is parked, the caller must tell the link to go on.

        `suppress`: see `FetchResponseScan`. `on_done` is called for a suppressed response too.
        """
        self._on_head, self._on_error, self._on_done = on_head, on_error, on_done
        self._suppress = suppress

    def done(self) -> None:
        if (on_done := self._on_done) is not None:
            self.let_go()
            on_done()

    def let_go(self) -> None:
        """Drop the callbacks: they may keep this response and a whole large request in memory."""
        self._on_head = self._on_error = self._suppress = None
        self._on_done = self.on_arrival = self.on_plain = None

    def passes(self, frame: memoryview) -> bool:
        """False: the response must be scanned."""
        if self.on_plain is None:
            return False
        session_id = plain_session_id(frame, self.version, self.log_starts)
        if session_id is None:
            return False
        self.frame_bytes = len(frame)
        client_id = self.on_plain(session_id)
        if client_id != session_id:
            INT32.pack_into(frame, head_bytes(self.version) - INT32.size, client_id)
        return True

    def begin(self) -> FetchResponseScan:
        assert self._on_head is not None
        assert self._on_error is not None
        return FetchResponseScan(
            self.version,
            self.frame_bytes,
            self._on_head,
            self._on_error,
            self._splice_tags,
            self.log_starts,
            self._suppress,
            self.any_empty,
        )


# A fetch that the proxy sends in the client's place, for the partitions of the tail.


@dataclass(slots=True)
class UpstreamPoll:
    """A poll may outlive the client's fetch and serve the next fetch. That fetch must have the same
    version and isolation level, as any other needs another format or other records.

    `due_at` (loop time): until then, remote data that is ready may wait to join the poll's answer.
    For a long poll it is the time of sending, or an idle tail would slow every remote read.
    """

    response: PendingFetch
    isolation_level: int
    due_at: float
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)

    def serves(self, request: FetchRequest) -> bool:
        return (
            self.response.version == request.version
            and self.isolation_level == request.isolation_level
        )


class FetchHandler:
    """Handles the fetches of one connection.

    `parked`: a poll at the broker that no fetch of the client has taken up yet.
    `cut_short`: the tail left no room for archived records, so the archive has the next turn.
    `throttle_time_ms`: the throttle time of broker answers that the client did not see.
    """

    def __init__(self, session: GatewaySession, shared: SharedByFetches) -> None:
        self.session = session
        self.shared = shared
        self.clock = shared.archive.clock
        self.steps = shared.archive.purgatory.steps
        self.mirror = FetchSessionMirror(shared.new_session_id)
        self.routing = FetchRouting(shared, self.mirror, session.spawn, session.node_id)
        self.tail = TailMarks(shared, self.routing)
        self.share = session.share
        self.topics = TopicsOfConnection(shared.topics)
        self.cut_short = False
        self.throttle_time_ms = 0
        self.head: FetchResponseHead | None = None  # of the broker's response in progress
        self.parked: UpstreamPoll | None = None
        self._client: Client | None = None  # known from its first fetch
        self._busy = False  # a fetch that passed is not answered yet
        self._read: FetchRequest | None = None  # a fetch that is already parsed
        self._paced = False  # the current fetch has already waited for the client's pace
        self._idle = asyncio.Event()

    def close(self) -> None:
        """The client has disconnected."""
        self.topics.leave()
        self.shared.held_readers.leave(self.routing)

    def drop(self) -> None:
        """The session is over: drop all its state."""
        if self.parked is not None:
            self.parked.response.let_go()
        self.mirror.forget()
        self.routing.drop()
        self.topics.drop()
        self.head = self.parked = None

    @property
    def kept_bytes(self) -> int:
        """Memory that the fetch session takes."""
        return self.mirror.kept_bytes

    # -- requests ----------------------------------------------------------------------------------
    def on_request(self, frame: bytes, body_at: int) -> Upstream | InTurn | Muting:
        if self._busy:
            return Muting(self._until_idle(), "fetch-behind-fetch", again=True)
        if self._read is None and len(frame) > READ_AT_ONCE_BYTES_MAX:
            return Muting(self._read_in_steps(frame, body_at), "read-large-fetch", again=True)
        request, self._read = self._read or parse_fetch_request(frame[4:], body_at), None
        if request.replica_id >= 0:  # a follower must get its leader's own response (KIP-405)
            return Upstream(frame, partial(ExpectedResponse, request.correlation_id))
        if not self._paced and (due_in := self._due_in(frame, request)):
            self._read, self._paced = request, True
            return Muting(asyncio.sleep(due_in), "pace-by-appetite", again=True)
        self._paced = False
        bytes_max = self.share.budget_bytes(request.bytes_max)
        if bytes_max < request.bytes_max:
            frame = with_bytes_max(frame, body_at, request.version, bytes_max)
            request = request._replace(bytes_max=bytes_max)
        kind = self.mirror.on_request(request)
        if kind.error_code:
            return InTurn(partial(self._refuse, request, kind.error_code), "fetch-session-error")
        if len(self.mirror.partitions) > PARTITIONS_MAX:
            raise MalformedMessage(f"a fetch session of more than {PARTITIONS_MAX} partitions")
        by_id = request.version >= TOPIC_IDS_FROM
        if by_id is not self.routing.by_id:
            # Routes are keyed by name or by id: forget those of the other kind.
            self.routing.by_id = by_id
            self.routing.routes = FetchRoutes(self.shared.permit_ttl_s)
        self.topics.note(request.partitions.keys(), by_id, only_these=kind.lists_all)
        plan = self.plan_at_once()
        ended = not self.mirror.partitions and not self.mirror.in_lockstep
        if plan is None or plan.archive_keys or self.parked is not None or ended:
            fetch = ServedFetch(self, request, kind, self._client_of(frame), self.clock())
            return InTurn(partial(fetch.run, plan), "serve-fetch")
        return self._pass(frame, body_at, request, kind)

    def _due_in(self, frame: bytes, request: FetchRequest) -> float:
        return self.share.due_in(
            lambda: self._client_of(frame),
            self.session.node_id,
            request.partitions,
            len(self.mirror.partitions),
        )

    async def _read_in_steps(self, frame: bytes, body_at: int) -> None:
        """Parse in steps, so that one client's ten thousand partitions do not delay the others."""
        steps = request_in_steps(memoryview(frame)[4:], body_at)
        self._read = await in_steps(steps, self.steps.go_on)

    def _client_of(self, frame: bytes) -> Client:
        if self._client is None:
            name = client_id(frame, peek_request_header(frame, 4))
            self._client = self.session.client_host, name
        return self._client

    def only_parked(self, expected: Iterable[ExpectedResponse]) -> bool:
        return self.parked is not None and list(expected) == [self.parked.response]

    async def _until_idle(self) -> None:
        while self._busy:
            self._idle.clear()
            await self._idle.wait()

    async def _refuse(self, request: FetchRequest, code: int, waited: bool) -> None:
        self.session.write_to_client(
            encode_error_response(request.version, request.correlation_id, code)
        )

    def _pass(self, frame: bytes, body_at: int, request: FetchRequest, kind: FetchKind) -> Upstream:
        """Nothing comes from the archive: the request passes unchanged, unless the two sessions
        differ.
        """
        if not self.mirror.rejoin():
            brokers_own = self.mirror.pass_on(request)
            if brokers_own is not None:
                frame = with_session(frame, body_at, request.version, *brokers_own)
            elif (upstream := self.mirror.upstream_request(frozenset())) is not None:
                frame = upstream.encode(request, request.max_wait_ms)
        return Upstream(frame, partial(self._expect_passed, frame, request, kind))

    def _expect_passed(self, frame: bytes, request: FetchRequest, kind: FetchKind) -> PendingFetch:
        response = self.expect(request)
        # The broker answers a partition as often as the request names it.
        response.walked_slowly |= len(frame) > WALKED_AT_ONCE * PARTITION_BYTES_MIN
        requested_at = self.clock()

        def suppress(patched: bool, errors_left: bool) -> bool:
            if not self.session.nothing_overtaken:
                return False
            self.drop_response()
            # Mute the client now: the next request may be taken before this response is done.
            fetch = ServedFetch(self, request, kind, self._client_of(frame), requested_at)
            run = fetch.run(self.plan_at_once(), waited=False)
            self.session.mute_while(run, "serve-caught-fetch")
            return True

        def passed() -> None:
            self.share.responded(response.frame_bytes)
            self.tail.responded(kind.lists_all, self.mirror.partitions.keys())
            self._busy = False
            self._idle.set()

        response.attach(
            lambda head: self.on_head(request, head, NOTHING_INJECTED),
            self.on_error,
            passed,
            suppress,
        )
        if not self.throttle_time_ms:  # otherwise the response's head must change
            response.on_plain = self.mirror.on_fine_response
        self._busy = True
        return response

    # -- the current fetch -------------------------------------------------------------------------
    def plan_at_once(self) -> FetchPlan | None:
        """None: there are too many partitions for one step of the loop."""
        routes = self.routing.routes
        if not (routes.routes or routes.permits) and self.mirror.in_lockstep:
            return ALL_FROM_BROKERS  # nearly always: no partition was out of range lately
        return self.routing.plan_at_once()

    def expect(self, request: FetchRequest) -> PendingFetch:
        if self.tail.is_read:
            self.steps.tail_is_read(request.max_wait_ms / 1000)
        splice = self.session.addresses.splice_fetch_tags
        log_starts = self.topics.log_starts()
        response = PendingFetch(request.correlation_id, request.version, splice, log_starts)
        response.walked_slowly = len(self.mirror.partitions) > WALKED_AT_ONCE
        return response

    def drop_response(self) -> None:
        """Do not send the broker's current answer: it has no records, and another one follows."""
        assert self.head is not None
        self.mirror.on_suppressed_response(self.head.session_id)
        self.throttle_time_ms = max(self.throttle_time_ms, self.head.throttle_time_ms)

    def on_head(
        self,
        request: FetchRequest,
        head: FetchResponseHead,
        injected: EncodedTopics,
        listed: Mapping[TopicRef, int] | None = None,
    ) -> HeadPatch:
        self.head = head
        session_id = self.mirror.on_response(head.error_code, head.session_id)
        if head.error_code:  # the client ignores everything else
            injected = NOTHING_INJECTED
        throttle_time_ms, self.throttle_time_ms = self.throttle_time_ms, 0
        return HeadPatch(
            request.correlation_id, session_id, injected, listed or {}, throttle_time_ms
        )

    def on_error(self, topic: TopicRef, partition: int, code: int) -> PartitionPatch | None:
        """Show a partition that is out of range as empty, and have its route decided."""
        key = (topic, partition)
        entry = self.mirror.partitions.get(key)
        if code != ErrorCode.OFFSET_OUT_OF_RANGE or entry is None:
            self.tail.refused.add(topic)
            return None
        self.tail.caught = True
        return self.routing.catch(key, entry, self.session.client)

    async def discard_parked(self) -> None:
        """Discard a parked poll's answer; the broker sends its data again when asked."""
        poll = self.parked
        if poll is None:
            return

        def on_head(head: FetchResponseHead) -> HeadPatch:
            self.mirror.on_discarded_response(head.error_code, head.session_id)
            self.throttle_time_ms = max(self.throttle_time_ms, head.throttle_time_ms)
            return HeadPatch(head.correlation_id, head.session_id)

        poll.response.discarded = True
        poll.response.attach(on_head, lambda topic, partition, code: None, poll.done.set)
        self.session.link_go_on()
        await poll.done.wait()
        self.parked = None


# A fetch is answered when its time is over or when there is something to answer. If the broker was
# asked and its response is not needed yet, that response stays parked for the next fetch.


class ServedFetch:
    """`requested_at`: loop time at which the client asked; its max_wait starts then."""

    def __init__(
        self,
        on: FetchHandler,
        request: FetchRequest,
        kind: FetchKind,
        client: Client,
        requested_at: float,
    ) -> None:
        self._on = on
        self._request = request
        self._kind = kind
        self._client = client
        wait_max_s = on.shared.wait_max_s
        self._deadline = requested_at + min(request.max_wait_ms / 1000, wait_max_s)
        self._archive_deadline = max(
            self._deadline, requested_at + min(READ_WAIT_MIN_S, wait_max_s)
        )

    async def run(self, plan: FetchPlan | None, waited: bool) -> None:
        """`plan`: None if not yet known. It is made anew if the fetch `waited` for its turn."""
        on = self._on
        try:
            if waited or plan is None:
                plan = await on.routing.plan()  # a permit may have run out meanwhile
            while not await self._respond(plan):
                plan = await on.routing.plan()
        finally:
            on.share.to_store()
        await on.share.pay()

    async def _respond(self, plan: FetchPlan) -> bool:
        """False: nothing was answered yet, and the fetch must be planned anew."""
        on, clock = self._on, self._on.clock
        tail_deadline = min(self._deadline, clock() + TAIL_GRACE_S)
        plan, waiting = await on.routing.confirmed(plan, tail_deadline, self._archive_deadline)
        side = self._remote_side(on.share.owed_s())
        alone, views = on.routing.alone(plan), plan.remote
        patience = self._archive_deadline if alone else self._deadline
        if side.owed_s:  # told at once; with partitions of the tail, the archive counts as empty
            patience = clock() if alone else min(self._deadline, clock() + side.owed_s)
        elif alone:
            entered = await on.share.enter(side.requested_bytes(plan.archive_keys), patience)
            if await on.steps.begin() or entered:
                views = NO_VIEWS_READ  # the views may be old by now
        side.watch(zip(plan.remote, plan.tps, strict=True), patience, views, waiting)
        await checkpoint(len(plan.remote))
        ready = side.ready
        if not ready:
            on.share.to_store()
        try:
            poll = await self._poll_upstream(plan, ready)
            if await self._first_ready(plan, side, poll, patience):
                return False
            await self._hold_refusal(plan, side, poll)
            turn = on.cut_short and any(result.records for _, result in side.results().values())
            joins = poll is not None and side.ready and not turn and not poll.arrived.is_set()
            if poll is not None and joins and clock() < poll.due_at:
                await first_of([poll.arrived.wait()], poll.due_at - clock())
            if poll is None or turn or not poll.arrived.is_set():
                await self._respond_alone(plan, side)
            elif not await self._merge(plan, side, poll, patience):
                return False
        finally:
            side.cancel()
        await on.routing.refresh_log_offsets(plan.tps)
        return True

    def _remote_side(self, owed_s: float) -> ArchivedReads:
        shared, request = self._on.shared, self._request
        most = min(request.bytes_max, shared.response_bytes_max)
        bytes_max = self._on.share.reads_max(most)
        purgatory = shared.archive.purgatory
        return ArchivedReads(
            purgatory, request, self._on.mirror.partitions, self._client, bytes_max, owed_s
        )

    async def _hold_refusal(
        self, plan: FetchPlan, side: ArchivedReads, poll: UpstreamPoll | None
    ) -> None:
        """Hold back a mere refusal until the client's deadline: some clients retry at once, and
        for ever.
        """
        if self._on.shared.refuses_lost and self._only_refuses(plan, side):
            left = self._deadline - self._on.clock()
            if left > 0 and not (poll and poll.arrived.is_set()):
                waits = [] if poll is None else [poll.arrived.wait()]
                await first_of(waits, left)

    def _only_refuses(self, plan: FetchPlan, side: ArchivedReads) -> bool:
        """True: the response would say only that offsets are lost."""
        decisions = map(self._on.routing.decision, plan.undecided)
        decisions_so_far = {decision.outcome for decision in decisions if decision is not None}
        results = side.results().values()
        return (
            bool(results or Route.REFUSED in decisions_so_far)
            and decisions_so_far <= {Route.REFUSED, *WAITING_ROUTES}
            and all(isinstance(result.error, OffsetLost) for _, result in results)
        )

    async def _poll_upstream(self, plan: FetchPlan, ready: bool) -> UpstreamPoll | None:
        """Ask the broker for the partitions of the tail, or take up a parked poll that
        asks for the same.
        """
        parked, request = self._on.parked, self._request
        if parked is not None:
            if parked.serves(request) and self._on.mirror.take_up(plan.archive_keys):
                return parked
            await self._on.discard_parked()
        upstream = self._on.mirror.upstream_request(plan.archive_keys)
        if upstream is None:
            return None
        now = self._on.clock()
        left_ms = max(int((self._deadline - now) * 1000), 0)
        wait_ms = 0 if ready else min(left_ms, PARKED_WAIT_MAX_MS)
        due_at = now + (0 if wait_ms else TAIL_GRACE_S)
        poll = UpstreamPoll(self._on.expect(request), request.isolation_level, due_at)
        poll.response.on_arrival = poll.arrived.set
        poll.response.any_empty = True
        self._on.parked = poll
        frame = upstream.encode(request, wait_ms)
        self._on.session.send_upstream(frame, poll.response)
        return poll

    async def _first_ready(
        self, plan: FetchPlan, side: ArchivedReads, poll: UpstreamPoll | None, deadline: float
    ) -> bool:
        """Wait until something can be answered, or `deadline` has passed. True: plan the fetch
        anew, as a partition was found to be the broker's.

        The wait for a poll ends no earlier than its `due_at` if nothing can be answered. If nothing
        comes from the archive, it lasts until the broker answers, as without a proxy.
        """
        if poll is not None and not plan.archive_keys:
            await poll.arrived.wait()
            return False
        if poll is not None:
            deadline = max(deadline, poll.due_at)
        elif side.ready and not plan.undecided:
            return False
        undecided = dict.fromkeys(plan.undecided)
        while True:
            self._on.routing.decided.clear()
            found = await self._on.routing.decisions_so_far(undecided)
            side.watch(found.remote.items(), deadline)
            if not (found.undecided or side.watched):  # only an archiver can bring something now
                deadline = min(deadline, self._deadline)
            left = deadline - self._on.clock()
            if side.ready or found.has_error or (poll and poll.arrived.is_set()):
                return False
            if found.ask_broker:
                return True
            if left <= 0:
                return False
            waits = [side.completed.wait()]
            if undecided:
                waits.append(self._on.routing.decided.wait())
            if poll is not None:
                waits.append(poll.arrived.wait())
            await first_of(waits, left)

    async def _responses(
        self, plan: FetchPlan, side: ArchivedReads, room: ResponseRoom
    ) -> list[PartitionResponse]:
        """The entries of the archive's partitions that must be listed, with the records that
        fit.
        """
        on, routes, results = self._on, self._on.routing.routes, side.results()
        archive_keys = [item for item in routes.routes.items() if item[0] in plan.archive_keys]
        if len(plan.archive_keys) > PARTITIONS_READ_MAX:
            for key in side.read_for():
                routes.had_its_turn(key)
        named: list[PartitionResponse] = []
        for piece in pieces(archive_keys):
            for key, route in piece:
                _, result = results.get(key, (None, None))
                response = room.fit(self._response_of(key, route.decision, plan, result))
                now = routes.routes[key]  # a new route if the partition is decided again
                if self._kind.lists_all or response.has_news(now.last_sent):
                    now.last_sent = response.watermarks
                    named.append(response)
                if response.records:
                    routes.had_its_turn(key)
                    if response.skipped is not None and (tp := on.routing.identify(*key)):
                        on.shared.skipped.note(tp, *response.skipped)
                if response.error_code:
                    routes.error_sent(key)
            await checkpoint(len(piece))
        if room.left_off or any(response.records for response in named):
            on.cut_short = room.left_off  # otherwise the archive still waits for its turn
        return named

    def _response_of(
        self,
        key: PartitionKey,
        decision: RouteDecision | None,
        plan: FetchPlan,
        result: RemoteReadResult | None,
    ) -> PartitionResponse:
        offset, watermarks = (
            fetch_offset(self._on.mirror.partitions[key]),
            self._on.shared.watermarks,
        )
        if decision and (response := decided_response(key, offset, decision, watermarks)):
            return response
        view = plan.remote.get(key)
        tp = view.tp if view else decision.tp if decision else None
        patch = watermarks(tp, result and result.view)
        response = read_response(key, patch, result, may_fail=self._on.routing.alone(plan))
        if result is not None and isinstance(result.error, OffsetNotArchived):
            self._on.routing.again(key)
        return response

    async def _merge(
        self, plan: FetchPlan, side: ArchivedReads, poll: UpstreamPoll, deadline: float
    ) -> bool:
        """Stream the broker's response to the client, with the archive's part in front of it.

        False: it was dropped, as neither tier has anything yet and the client's time is not over.
        """
        left = self._request.bytes_max - poll.response.frame_bytes
        room, _ = self._on.share.room(min(left, _MERGED_BYTES_MAX))
        responses = await self._responses(plan, side, ResponseRoom(room, first_whole=False))
        injected = await in_steps(encode_topics(self._request, responses))
        listed = self._listed_by_broker(injected)
        self._on.share.charge(sum(a.size for a in responses), must_wait=False)
        side.forget()
        routes = self._on.routing.routes.routes
        archive_keys = False

        def suppress(patched: bool, errors_left: bool) -> bool:
            nonlocal archive_keys
            if any(a.records or a.error_code for a in responses) or self._on.clock() >= deadline:
                return False
            waits = bool(plan.archive_keys) and self._request.min_bytes > 0 and not errors_left
            if not (patched or waits) or (self._on.head is not None and self._on.head.error_code):
                return False
            archive_keys = True
            self._on.drop_response()
            for response in responses:
                routes[response.key].last_sent = None  # the client has not seen it
            return True

        def done() -> None:
            self._on.tail.responded(
                self._kind.lists_all, self._on.mirror.partitions.keys() - plan.archive_keys
            )
            poll.done.set()

        poll.response.attach(
            lambda head: self._on.on_head(self._request, head, injected, listed),
            self._on.on_error,
            done,
            suppress,
        )
        with self._on.share.sending([p for each in injected.values() for p in each.pieces]):
            self._on.session.link_go_on()
            await poll.done.wait()
        self._on.parked = None
        return not archive_keys

    def _listed_by_broker(self, injected: EncodedTopics) -> Mapping[TopicRef, int]:
        """Topics that the client must see as one entry for both tiers → the broker's partitions.

        Kafka may list a topic twice in incremental answers, as its order of partitions changes. So
        clients with a session merge two entries. If a response lists all partitions, sarama keeps
        only the last entry of a topic.
        """
        if not (injected and self._kind.lists_all):
            return {}
        counts = self._on.mirror.listed_upstream()
        return {topic: counts[topic] for topic in injected if counts[topic]}

    async def _respond_alone(self, plan: FetchPlan, side: ArchivedReads) -> None:
        """Answer without the broker. If the broker was asked, its response is parked.

        A client waits for what it owes by its byte rate only if it reads the archive alone: the
        connection is muted meanwhile, and tail data never waits for the archive.
        """
        of_tail: list[PartitionResponse] = []
        alone = self._on.routing.alone(plan)
        if self._kind.lists_all and not alone:
            rest = [key for key in self._on.mirror.partitions if key not in plan.archive_keys]
            of_tail = await self._on.tail.responses(rest)
        room, first_whole = self._on.share.room(self._request.bytes_max)
        responses = await self._responses(plan, side, ResponseRoom(room, first_whole))
        self._on.cut_short &= not any(response.records for response in responses)
        owed_ms = self._on.share.charge(sum(a.size for a in responses), must_wait=alone)
        throttle_time_ms, self._on.throttle_time_ms = max(self._on.throttle_time_ms, owed_ms), 0
        session_id = self._on.mirror.on_proxy_response()
        every = [*responses, *of_tail]
        pieces: Sequence[Buffer] = await in_steps(
            encode_proxy_response(self._request, session_id, every, throttle_time_ms)
        )
        del responses, every
        side.forget()
        with self._on.share.sending(pieces) as pieces:
            await self._on.session.write_as_taken(pieces)


def read_response(
    key: PartitionKey, routes: PartitionPatch, result: RemoteReadResult | None, may_fail: bool
) -> PartitionResponse:
    """The archive's response for one of its partitions. `result` None: nothing is read yet.

    `may_fail`: the client sees a storage error. False if tail partitions share the response: some
    clients throw a whole response away for one partition's error.
    """
    if result is None or isinstance(result.error, OffsetNotArchived):
        return PartitionResponse(key, routes)
    if result.error is not None:
        is_reported = may_fail or isinstance(result.error, OffsetLost)
        return PartitionResponse(key, routes, kafka_error_code(result.error) if is_reported else 0)
    return PartitionResponse(key, routes, 0, result.records, result.aborted_txns, result.skipped)


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
