"""The fetches of one connection, as a state machine without sockets, tasks and timers.

The client has one fetch open at a time. `FetchState` says how far it is, `TRANSITIONS` where it may
go from there, and only `FetchConversation.move` takes it there. What happens is a call, and what
must be done about it is the call's result: the shell (`apis.fetch`) reads, sends, waits and writes.

A fetch of the tail passes unchanged, and the proxy only scans its response (`RelayedFetch`). If the
scan finds OffsetOutOfRange, the fetch is caught: the partition is shown as empty and its route is
decided. A response of the broker without records is dropped then, and the same fetch is served: a
plan says which partitions the archive answers, and the broker is asked for the others
(`BrokerPoll`). A response with records leaves at once with that partition empty, and the next fetch
gets the archived records.

Idle consumers send the same fetch again and again, and get the same response. The second of them is
a `RepeatedFetch`, which stands for all that follow: it compares bytes and leaves out what would
change nothing. Whatever is different takes the way of any other fetch.

The tier that is ready first is answered first (`next_state`). Tail data never waits for the
archive. Archived data does not wait for the broker's long poll, which is then *parked* until the
next fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache, partial
from struct import Struct
from typing import NamedTuple, Protocol

from fetchproxy_protocol.apis import ErrorCode, MalformedMessage
from fetchproxy_protocol.fetch import (
    PARTITIONS_MAX,
    FetchRequest,
    FetchResponseHead,
    HeadPatch,
    LogStarts,
    PartitionKey,
    PartitionPatch,
    TopicRef,
    head_bytes,
    parse_fetch_request,
    plain_session_id,
    session_epoch_at,
    with_bytes_max,
    with_session,
)
from fetchproxy_protocol.fetch_layout import SESSIONS_FROM, TOPIC_IDS_FROM
from fetchproxy_protocol.fetch_scan import FetchResponseScan
from fetchproxy_protocol.headers import client_id, peek_request_header
from fetchproxy_protocol.primitives import INT32

from fetchproxy.config.schema import KiB
from fetchproxy.runtime.cooperative import READ_AT_ONCE_BYTES_MAX
from fetchproxy.serving.archived_entries import EncodedTopics
from fetchproxy.serving.gateway.broker_link import ScannedResponse
from fetchproxy.serving.gateway.fetch_routing import (
    ALL_FROM_BROKERS,
    FetchPlan,
    FetchRouter,
    SharedByFetches,
)
from fetchproxy.serving.gateway.fetch_session import FetchKind, FetchSessionPair
from fetchproxy.serving.gateway.served_archive import TopicsOfConnection
from fetchproxy.serving.gateway.session import GatewaySession, ToBroker
from fetchproxy.serving.upstream import ExpectedResponse
from fetchproxy.storage.reader_accounts import Client

NOTHING_INJECTED: EncodedTopics = {}
# A response with more partitions is received in small pieces. Each partition costs the loop a
# microsecond or two, and a piece is walked in one turn.
WALKED_AT_ONCE = 1_000
PARTITION_BYTES_MIN = 16  # of a request (v4)
# Longer requests and responses are not kept for a comparison with the next ones.
REPEATED_REQUEST_BYTES_MAX = 4 * KiB
REPEATED_RESPONSE_BYTES_MAX = 512
_CORRELATION_ID_AT = 8  # in a request; in a response, it ends there
# Longest that one tier waits for the other: for a response that is due at once, or for Metadata.
TAIL_GRACE_S = 0.05


class FetchState(Enum):
    IDLE = "no fetch of the client is open"
    READING = "a long request is read in steps"
    PACED = "the fetch waits until the client's application needs records"
    RELAYING = "the broker has the request, and its response is forwarded to the client"
    CAUGHT = "the forwarded response has a partition out of range, which the client sees as empty"
    PLANNING = "the proxy looks up which tier serves which partition"
    WAITING = "neither tier has anything yet"
    MERGING = "the broker's response is forwarded, after the archive's part"
    RESPONDING = "the proxy sends its own response, and parks the broker's"


_S = FetchState
# docs/contribute/architecture.md shows these.
TRANSITIONS: Mapping[FetchState, Sequence[FetchState]] = {
    _S.IDLE: (_S.READING, _S.PACED, _S.RELAYING, _S.PLANNING, _S.RESPONDING),
    _S.READING: (_S.IDLE, _S.PACED, _S.RELAYING, _S.PLANNING, _S.RESPONDING),
    _S.PACED: (_S.RELAYING, _S.PLANNING, _S.RESPONDING),
    _S.RELAYING: (_S.IDLE, _S.CAUGHT),
    _S.CAUGHT: (_S.IDLE, _S.PLANNING),
    _S.PLANNING: (_S.WAITING, _S.MERGING, _S.RESPONDING),
    _S.WAITING: (_S.PLANNING, _S.MERGING, _S.RESPONDING),
    _S.MERGING: (_S.IDLE, _S.CAUGHT, _S.PLANNING),
    _S.RESPONDING: (_S.IDLE,),
}


# What the shell must do with a fetch that does not go `ToBroker`.
class Later(NamedTuple):
    """Take the fetch in again: in PACED after `due_in_s`, in READING when it is read, and in
    RELAYING when the fetch before it has its response.
    """

    state: FetchState
    due_in_s: float = 0.0


class Refuse(NamedTuple):
    request: FetchRequest
    error_code: int


class Serve(NamedTuple):
    """`requested_at`: loop time at which the client asked; its max_wait starts then.

    `plan`: None if it takes more than one step of the loop.
    """

    request: FetchRequest
    kind: FetchKind
    client: Client
    requested_at: float
    plan: FetchPlan | None


Output = ToBroker | Later | Refuse | Serve


class TiersSoFar(NamedTuple):
    """What a served fetch knows of both tiers. Times are loop times (s).

    `broker_deadline`: until then, archived data waits for the broker's response; -inf: it is not
    asked. `archive_first`: archived records are there, and the tail left no room for them last
    time. `has_error`: the client must get an error. `ask_broker`: a partition is the broker's after
    all. `only_refuses`: the response would say only that offsets are lost. `client_deadline`: the
    client's own. `archive_deadline`: until then, something may still come.
    """

    broker_only: bool
    arrived: bool
    broker_deadline: float
    archive_ready: bool
    archive_first: bool
    has_error: bool
    ask_broker: bool
    only_refuses: bool
    client_deadline: float
    archive_deadline: float

    @property
    def has_news(self) -> bool:
        """There is something to answer: only the broker's response may still be waited for."""
        return self.arrived or self.archive_ready or self.has_error


def next_state(tiers: TiersSoFar, now: float) -> tuple[FetchState, float | None]:
    """The state that follows PLANNING or WAITING; and until when it lasts if it is WAITING.

    If nothing comes from the archive, the fetch waits until the broker answers, as without a proxy.
    """
    if tiers.broker_only:
        return FetchState.MERGING if tiers.arrived else FetchState.WAITING, None
    if not tiers.has_news:
        if tiers.ask_broker:
            return FetchState.PLANNING, None
        if now < tiers.archive_deadline:
            return FetchState.WAITING, tiers.archive_deadline
    if tiers.arrived and not tiers.archive_first:
        return FetchState.MERGING, None
    if not tiers.arrived and tiers.only_refuses and now < tiers.client_deadline:
        return FetchState.WAITING, tiers.client_deadline  # some clients retry at once, and for ever
    if tiers.archive_ready and not tiers.archive_first and now < tiers.broker_deadline:
        return FetchState.WAITING, tiers.broker_deadline
    return FetchState.RESPONDING, None


class FetchShell(Protocol):
    def poll_arrived(self) -> None:
        """The response to the parked poll is here."""

    def responded(self) -> None:
        """The broker's response has left, or was dropped or discarded."""

    def serve_caught(self, serve: Serve) -> None:
        """Mute the client at once, and serve the fetch whose response is dropped."""


class FetchConversation:
    """The fetches of one connection, as a state machine. Each fetch is answered before the next one
    is taken in.

    `parked`: a poll at the broker that no fetch of the client has taken up yet.
    `repeated`: the last fetch, if it equals the one before it and has passed.
    `archive_has_next_turn`: the tail has left no room for archived records.
    `tail_is_read`: the broker's last response had no partition out of range.
    `throttle_time_ms`: the throttle time of responses that the client did not see.
    """

    def __init__(
        self,
        session: GatewaySession,
        shared: SharedByFetches,
        mirror: FetchSessionPair,
        routing: FetchRouter,
        shell: FetchShell,
    ) -> None:
        self.session = session
        self.clock = shared.archive.clock
        self.mirror = mirror
        self.topics = TopicsOfConnection(shared.topics)
        self._shared = shared
        self._steps = shared.archive.purgatory.steps
        self._routing = routing
        self._share = session.share
        self._shell = shell
        self.state = FetchState.IDLE
        self.parsed: FetchRequest | None = None  # in READING and PACED
        self.parked: BrokerPoll | None = None
        self.repeated: RepeatedFetch | None = None
        self._frame_before = b""  # the last request that passed
        self.archive_has_next_turn = False
        self.tail_is_read = False
        self.throttle_time_ms = 0
        self.head: FetchResponseHead | None = None  # of the broker's response in progress
        self._client: Client | None = None  # known from its first fetch
        self._groups_seen = 0  # `GroupsOfClients.changes` of that time
        self._named: Set[PartitionKey] | None = None  # by the last request, if it named all
        # Topics with an error other than OffsetOutOfRange in the response in progress, and the
        # partitions that the broker lately let this connection read.
        self._refused: set[TopicRef] = set()
        self._readable: Set[PartitionKey] = frozenset()
        self._readable_until = 0.0

    def move(self, state: FetchState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise AssertionError(f"no fetch goes from {self.state.name} to {state.name}")
        self.state = state

    def drop(self) -> None:
        """The session is over: drop all state, and what refers to this object."""
        self.mirror.forget()
        self.topics.drop()
        self.head = self.parsed = self.parked = self.repeated = self._named = None
        del self._shell

    # -- requests ----------------------------------------------------------------------------------
    @property
    def is_relaying(self) -> bool:
        return self.state is FetchState.RELAYING or self.state is FetchState.CAUGHT

    @property
    def is_begun(self) -> bool:
        return self.state is FetchState.READING or self.state is FetchState.PACED

    def only_parked(self, expected: Iterable[ExpectedResponse]) -> bool:
        """True: the parked poll's response is the only one in `expected`."""
        return self.parked is not None and list(expected) == [self.parked]

    def on_request(self, frame: bytes, body_at: int) -> Output:
        """A whole framed fetch has come, or comes again (`Later`)."""
        state, self.repeated = self.state, None
        if self.is_relaying:
            return Later(FetchState.RELAYING)
        if state is FetchState.IDLE and len(frame) > READ_AT_ONCE_BYTES_MAX:
            self.move(FetchState.READING)
            return Later(FetchState.READING)
        request, self.parsed = self.parsed or parse_fetch_request(frame[4:], body_at), None
        if request.replica_id >= 0:  # a follower must get its leader's own response (KIP-405)
            if state is not FetchState.IDLE:
                self.move(FetchState.IDLE)
            return ToBroker(frame, partial(ExpectedResponse, request.correlation_id))
        if state is not FetchState.PACED and (due_in := self._due_in(frame, request)):
            self.parsed = request
            self.move(FetchState.PACED)
            return Later(FetchState.PACED, due_in)
        bytes_max = self._share.budget_bytes(request.bytes_max)
        if bytes_max < request.bytes_max:
            frame = with_bytes_max(frame, body_at, request.version, bytes_max)
            request = request._replace(bytes_max=bytes_max)
        return self._take_in(frame, body_at, request)

    def _due_in(self, frame: bytes, request: FetchRequest) -> float:
        return self._share.due_in(
            lambda: self._client_of(frame),
            self.session.node_id,
            request.partitions,
            len(self.mirror.partitions),
        )

    def _client_of(self, frame: bytes) -> Client:
        """The client as it is known now: its group may be named after its first fetch."""
        changes = self._share.groups.changes
        if self._client is None or changes != self._groups_seen:
            name = client_id(frame, peek_request_header(frame, 4))
            self._client = self._share.client(self.session.client_host, name)
            self._groups_seen = changes
        return self._client

    def _take_in(self, frame: bytes, body_at: int, request: FetchRequest) -> Output:
        mirror = self.mirror
        kind = mirror.on_request(request)
        if kind.error_code:
            self.move(FetchState.RESPONDING)
            return Refuse(request, kind.error_code)
        if len(mirror.partitions) > PARTITIONS_MAX:
            raise MalformedMessage(f"a fetch session of more than {PARTITIONS_MAX} partitions")
        self._note_topics(request, kind.lists_all)
        plan = self._plan_at_once()
        ended = not mirror.partitions and not mirror.in_lockstep
        if plan is None or plan.kept_from_broker or self.parked is not None or ended:
            self.move(FetchState.PLANNING)
            return Serve(request, kind, self._client_of(frame), self.clock(), plan)
        self.move(FetchState.RELAYING)
        outgoing = self._for_broker(frame, body_at, request)
        if outgoing is frame and self._is_as_before(frame, body_at, request, kind):
            self.repeated = RepeatedFetch(self, request, kind, frame, body_at)
            return ToBroker(frame, self.repeated.expect)
        return ToBroker(
            outgoing, RelayedFetch(self, request.correlation_id, request, kind, outgoing).expect
        )

    def _is_as_before(
        self, frame: bytes, body_at: int, request: FetchRequest, kind: FetchKind
    ) -> bool:
        """The last request was the same, but for correlation id and session epoch."""
        before = self._frame_before
        self._frame_before = frame if len(frame) <= REPEATED_REQUEST_BYTES_MAX else b""
        if len(before) != len(frame) or request.version < SESSIONS_FROM or kind is FetchKind.FULL:
            return False
        at, after = _CORRELATION_ID_AT, _CORRELATION_ID_AT + INT32.size
        if kind is FetchKind.SESSIONLESS:
            same = before[after:] == frame[after:] and before[:at] == frame[:at]
        elif request.partitions or request.forgotten:
            return False
        else:
            cut = _around(len(frame), at, session_epoch_at(body_at, request.version))
            same = cut.unpack(before)[::2] == cut.unpack(frame)[::2]
        return same and self.mirror.in_lockstep

    def passes_again(self, fetch: RepeatedFetch, epoch: int) -> bool:
        """`fetch` comes again, with this session epoch. True: it is RELAYING; what `on_request`
        would do besides has been done. False: nothing was done.
        """
        request, mirror, table = fetch.request, self.mirror, self._routing.table
        if (
            self.state is not FetchState.IDLE
            or self.parked is not None
            or table.routes
            or table.permits
            or not mirror.repeats(request.session_id, epoch)
            or not self._share.fetch_repeats(len(request.partitions), len(mirror.partitions))
        ):
            return False
        self.move(FetchState.RELAYING)
        return True

    def _note_topics(self, request: FetchRequest, lists_all: bool) -> None:
        by_id = request.version >= TOPIC_IDS_FROM
        if by_id is not self._routing.by_id:
            self._routing.name_topics(by_id)
            self._named = None
        keys = request.partitions.keys()
        if not (lists_all and keys == self._named):  # nearly always they are the same
            self._named = keys if lists_all else None
            self.topics.note(keys, by_id, only_these=lists_all)

    def _plan_at_once(self) -> FetchPlan | None:
        """None: there are too many partitions for one step of the loop."""
        table = self._routing.table
        if not (table.routes or table.permits) and self.mirror.in_lockstep:
            return ALL_FROM_BROKERS  # nearly always: no partition was out of range lately
        return self._routing.plan_at_once()

    def _for_broker(self, frame: bytes, body_at: int, request: FetchRequest) -> bytes:
        """Nothing comes from the archive: the request passes unchanged, unless the two sessions
        differ.
        """
        if not self.mirror.rejoin():
            brokers_own = self.mirror.pass_on(request)
            if brokers_own is not None:
                return with_session(frame, body_at, request.version, *brokers_own)
            if (upstream := self.mirror.split_off_broker_part(frozenset())) is not None:
                return upstream.encode(request, request.max_wait_ms)
        return frame

    # -- the broker's response in progress ---------------------------------------------------------
    def on_head(
        self,
        request: FetchRequest,
        head: FetchResponseHead,
        injected: EncodedTopics = NOTHING_INJECTED,
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

    def on_partition_error(
        self, topic: TopicRef, partition: int, code: int
    ) -> PartitionPatch | None:
        """Show a partition that is out of range as empty, and have its route decided."""
        key = (topic, partition)
        entry = self.mirror.partitions.get(key)
        if code != ErrorCode.OFFSET_OUT_OF_RANGE or entry is None:
            self._refused.add(topic)
            return None
        if self.state is not FetchState.CAUGHT:
            self.move(FetchState.CAUGHT)
        return self._routing.catch(key, entry, self.session.client)

    def drop_response(self) -> None:
        """Do not send the broker's current response: it has no records, and another one follows."""
        assert self.head is not None
        self.mirror.on_suppressed_response(self.head.session_id)
        self.throttle_time_ms = max(self.throttle_time_ms, self.head.throttle_time_ms)

    def responded(
        self, lists_all: bool, kept_from_broker: Set[PartitionKey], dropped: bool
    ) -> None:
        """The broker's response has left, or was dropped. A response that lists all partitions
        shows which of them the client may read.
        """
        refused = self._refused
        if lists_all:
            keys = self.mirror.partitions.keys() - kept_from_broker
            self._readable = {key for key in keys if key[0] not in refused} if refused else keys
            self._readable_until = self.clock() + self._shared.permit_ttl_s
        if refused:
            self._refused = set()
        self.tail_is_read = self.state is not FetchState.CAUGHT
        self.move(FetchState.PLANNING if dropped else FetchState.IDLE)
        self._shell.responded()

    def may_read(self, key: PartitionKey, now: float) -> bool:
        """True: the broker has answered this partition lately, without an error."""
        return key in self._readable and now < self._readable_until

    # -- a fetch that is served --------------------------------------------------------------------
    def takes_up_parked(self, request: FetchRequest, kept_from_broker: Set[PartitionKey]) -> bool:
        """The parked poll asks for the same as `request` does without `kept_from_broker`."""
        parked = self.parked
        return (
            parked is not None
            and parked.version == request.version
            and parked.isolation_level == request.isolation_level
            and self.mirror.take_up(kept_from_broker)
        )

    def park(self, request: FetchRequest, wait_ms: int) -> BrokerPoll:
        """A fetch of the proxy's own goes to the broker, in place of `request`."""
        self.parked = BrokerPoll(
            self,
            request.correlation_id,
            request.version,
            request.isolation_level,
            self.clock() + (0 if wait_ms else TAIL_GRACE_S),
            self.on_sent(request),
            self.is_wide,
        )
        return self.parked

    def step(self, tiers: TiersSoFar) -> float | None:
        """Go to the next state. Returns the time until which WAITING lasts; None: it has no end."""
        state, until = next_state(tiers, self.clock())
        if state is not self.state:
            self.move(state)
        return until

    # -- for responses that are expected -----------------------------------------------------------
    @property
    def is_wide(self) -> bool:
        """A response may list very many partitions."""
        return len(self.mirror.partitions) > WALKED_AT_ONCE

    def on_sent(self, request: FetchRequest) -> LogStarts | None:
        """The fetch goes to the broker. Returns the log starts that its response shall show."""
        if self.tail_is_read:
            self._steps.tail_is_read(request.max_wait_ms / 1000)
        return self.topics.log_starts()

    def serve_instead(self, fetch: RelayedFetch) -> bool:
        """Serve a caught fetch, whose response has no records. False: other requests wait."""
        if not self.session.nothing_overtaken:
            return False
        self.drop_response()
        client, plan = self._client_of(fetch.frame), self._plan_at_once()
        self._shell.serve_caught(Serve(fetch.request, fetch.kind, client, fetch.requested_at, plan))
        return True

    def passed(self, fetch: RelayedFetch) -> None:
        self._share.responded(fetch.frame_bytes)
        self.responded(fetch.kind.lists_all, frozenset(), fetch.dropped)

    def passed_again(self, fetch: RepeatedFetch) -> None:
        """As `passed`, after another response that could be passed."""
        self._share.responded(fetch.frame_bytes)
        if fetch.kind.lists_all:
            self._readable_until = self.clock() + self._shared.permit_ttl_s
        self.tail_is_read = True
        self.move(FetchState.IDLE)
        self._shell.responded()

    def poll_arrived(self) -> None:
        self._shell.poll_arrived()

    def on_discarded_head(self, head: FetchResponseHead) -> HeadPatch:
        self.mirror.on_discarded_response(head.error_code, head.session_id)
        self.throttle_time_ms = max(self.throttle_time_ms, head.throttle_time_ms)
        return HeadPatch(head.correlation_id, head.session_id)

    def poll_done(self, merge: Merge | None) -> None:
        """The poll's response has left or was dropped; it is discarded without a `merge`."""
        self.parked = None
        if merge is None:
            self._shell.responded()
        else:
            self.responded(merge.kind.lists_all, merge.kept_from_broker, merge.dropped)


@dataclass(eq=False, repr=False, slots=True)
class RelayedFetch(ScannedResponse):
    """The response to a fetch that passes. `frame`: the request as the broker gets it.

    `walked_slowly`: it may list very many partitions. `dropped`: the fetch is served instead.
    """

    _conversation: FetchConversation
    correlation_id: int
    request: FetchRequest
    kind: FetchKind
    frame: bytes
    requested_at: float = 0.0
    log_starts: LogStarts | None = None
    frame_bytes: int = 0  # set when it arrives
    walked_slowly: bool = False
    discarded: bool = False
    dropped: bool = False

    def expect(self) -> RelayedFetch:
        """The request is on its way."""
        conversation = self._conversation
        self.log_starts = conversation.on_sent(self.request)
        # The broker answers a partition as often as the request names it.
        self.walked_slowly = (
            len(self.frame) > WALKED_AT_ONCE * PARTITION_BYTES_MIN or conversation.is_wide
        )
        self.requested_at = conversation.clock()
        return self

    def passes(self, frame: memoryview) -> bool:
        """False: the response must be scanned, as its head or a partition may change."""
        conversation = self._conversation
        if conversation.throttle_time_ms:
            return False
        version = self.request.version
        session_id = plain_session_id(frame, version, self.log_starts)
        if session_id is None:
            return False
        self.frame_bytes = len(frame)
        clients_id = conversation.mirror.on_ok_response(session_id)
        if clients_id != session_id:
            INT32.pack_into(frame, head_bytes(version) - INT32.size, clients_id)
        return True

    def as_sent(self) -> FetchRequest:
        """The request that waits for this response."""
        return self.request

    def arrived(self, frame_bytes: int) -> bool:
        self.frame_bytes = frame_bytes
        return True

    def begin(self) -> FetchResponseScan:
        return FetchResponseScan(
            self.request.version,
            self.frame_bytes,
            self._on_head,
            self._conversation.on_partition_error,
            self._conversation.session.addresses.splice_fetch_tags,
            self.log_starts,
            self._suppress,
        )

    def _on_head(self, head: FetchResponseHead) -> HeadPatch:
        return self._conversation.on_head(self.request, head)

    def _suppress(self, patched: bool, errors_left: bool) -> bool:
        self.dropped = self._conversation.serve_instead(self)
        return self.dropped

    def done(self) -> None:
        self._conversation.passed(self)


@lru_cache(maxsize=1_000)
def _around(size: int, *numbers_at: int) -> Struct:
    """Cuts a frame of `size` bytes into its int32 numbers at these positions, and what is around
    them.
    """
    parts, pos = ">", 0
    for at in numbers_at:
        parts, pos = f"{parts}{at - pos}si", at + INT32.size
    return Struct(f"{parts}{size - pos}s")


class RepeatedFetch(RelayedFetch):
    """A fetch that has come twice in the same form, and stands for all that follow.

    So these need no new object, and no parsing. `takes` says whether a request is one of them. If
    its response must be scanned, this is a `RelayedFetch` as any other, and the last of its kind.
    """

    __slots__ = (
        "_around",
        "_body_at",
        "_epoch",
        "_head",
        "_middle",
        "_passed",
        "_response",
        "_rest",
        "_session_id",
        "_size",
    )  # fmt: skip

    def __init__(
        self,
        conversation: FetchConversation,
        request: FetchRequest,
        kind: FetchKind,
        frame: bytes,
        body_at: int,
    ) -> None:
        super().__init__(conversation, request.correlation_id, request, kind, frame)
        self._body_at, self._epoch = body_at, request.session_epoch
        epoch_at = session_epoch_at(body_at, request.version)
        self._size = len(frame)
        self._around = _around(self._size, _CORRELATION_ID_AT, epoch_at)
        self._head, _, self._middle, _, self._rest = self._around.unpack(frame)
        self._passed = False  # its last response was passed
        self._response, self._session_id = b"", 0  # that response, if it is short enough

    def takes(self, frame: memoryview) -> bool:
        """True: `frame` is the same fetch again. It passes unchanged, and `expect` follows."""
        if len(frame) != self._size:
            return False
        head, correlation_id, middle, epoch, rest = self._around.unpack(frame)
        if rest != self._rest or middle != self._middle or head != self._head:
            return False
        if not self._conversation.passes_again(self, epoch):
            return False
        self.correlation_id, self._epoch = correlation_id, epoch
        return True

    def passes(self, frame: memoryview) -> bool:
        conversation, size = self._conversation, len(frame)
        short = self.log_starts is None and size <= REPEATED_RESPONSE_BYTES_MAX
        # The archive's log starts may have changed, so they are compared with nothing.
        body = bytes(frame[_CORRELATION_ID_AT:]) if short else b""
        if body and body == self._response and not conversation.throttle_time_ms:
            self.frame_bytes = size
            conversation.mirror.on_ok_response(self._session_id)
            return True
        self._response = b""
        if not super().passes(frame):
            return False
        if conversation.mirror.in_lockstep:
            at = head_bytes(self.request.version) - INT32.size
            self._response, (self._session_id,) = body, INT32.unpack_from(frame, at)
        return True

    def begin(self) -> FetchResponseScan:
        self._conversation.repeated, self._passed = None, False
        self.as_sent()
        return super().begin()

    def as_sent(self) -> FetchRequest:
        parts = self._head, self.correlation_id, self._middle, self._epoch, self._rest
        self.frame = self._around.pack(*parts)
        self.request = parse_fetch_request(self.frame[INT32.size :], self._body_at)
        return self.request

    def done(self) -> None:
        if self._passed:
            self._conversation.passed_again(self)
        else:
            self._conversation.passed(self)
            self._passed = True


@dataclass(eq=False, repr=False, slots=True)
class BrokerPoll(ScannedResponse):
    """The response to a fetch of the proxy's own, for the tail's partitions of a client's fetch.

    It is parked until a fetch merges or discards it. A poll may outlive the client's fetch and
    serve the next one. That fetch must have the same version and isolation level, as any other
    needs another format or other records.

    `broker_deadline` (loop time): until then, archived records that are ready may wait to join it.
    For a long poll it is the time of sending, or an idle tail would slow every archived read.
    """

    _conversation: FetchConversation
    correlation_id: int
    version: int
    isolation_level: int
    broker_deadline: float
    log_starts: LogStarts | None
    walked_slowly: bool
    frame_bytes: int = 0  # 0 until it arrives
    discarded: bool = False
    merge: Merge | None = None

    def passes(self, frame: memoryview) -> bool:
        return False

    def arrived(self, frame_bytes: int) -> bool:
        self.frame_bytes = frame_bytes
        if self.merge is None and not self.discarded:
            self._conversation.poll_arrived()
            return False
        return True

    def begin(self) -> FetchResponseScan:
        conversation, merge = self._conversation, self.merge
        splice_tags = conversation.session.addresses.splice_fetch_tags
        read = self.version, self.frame_bytes
        if merge is None:
            on_head = conversation.on_discarded_head
            return FetchResponseScan(*read, on_head, _leave_error, splice_tags, self.log_starts)
        return FetchResponseScan(
            *read,
            merge.on_head,
            conversation.on_partition_error,
            splice_tags,
            self.log_starts,
            merge.suppress,
            any_empty=True,
        )

    def done(self) -> None:
        merge, self.merge = self.merge, None
        self._conversation.poll_done(merge)


def _leave_error(topic: TopicRef, partition: int, code: int) -> None:
    return None


@dataclass(eq=False, repr=False, slots=True)
class Merge:
    """How a poll's response goes to the client: with `injected`, the archive's part, in front.

    `listed`: see HeadPatch. `has_news`: the archive's part has records or an error.
    `deadline`: until then, a response without anything is `dropped`, and the fetch goes on.
    """

    _conversation: FetchConversation
    request: FetchRequest
    kind: FetchKind
    kept_from_broker: Set[PartitionKey]
    injected: EncodedTopics
    listed: Mapping[TopicRef, int]
    has_news: bool
    deadline: float
    dropped: bool = False

    def on_head(self, head: FetchResponseHead) -> HeadPatch:
        return self._conversation.on_head(self.request, head, self.injected, self.listed)

    def suppress(self, patched: bool, errors_left: bool) -> bool:
        """True: neither tier has anything yet, and the client's time is not over."""
        conversation = self._conversation
        if self.has_news or conversation.clock() >= self.deadline:
            return False
        waits = bool(self.kept_from_broker) and self.request.min_bytes > 0 and not errors_left
        head = conversation.head
        if not (patched or waits) or (head is not None and head.error_code):
            return False
        conversation.drop_response()
        self.dropped = True
        return True
