"""One client connection and its own connection to one broker; what becomes of each request.

A request either *passes* to the broker as it arrives, without ever being whole, and only its answer
is looked at; or it is *held* until it is whole, within `held_request_bytes_max`, and given to its
API's handler. Requests go upstream in order and answers come back in order. Nothing here knows a
single API: a module in `apis` has one `API`, or the `APIS` that are handled alike, and `apis.table`
puts them together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, Protocol

import structlog
from fetchproxy_protocol.apis import (
    PROXIED_VERSIONS,
    ApiKey,
    FrameTooLarge,
    MalformedMessage,
    Truncated,
    WireError,
)
from fetchproxy_protocol.headers import RequestHead, response_body
from fetchproxy_protocol.primitives import INT32, Buffer

from fetchproxy.observability.metrics import (
    CONNECTIONS_REFUSED,
    LIMITS_REACHED,
    RELAYED_BYTES_TO_BROKER,
)
from fetchproxy.serving.admission import Admission
from fetchproxy.serving.relay.addresses import ToldAddresses
from fetchproxy.serving.relay.broker_link import Answer, BrokerLink, HeldAnswer, Payload
from fetchproxy.serving.relay.served_archive import ServedArchive
from fetchproxy.serving.session import ClientSession, RequestFraming, SessionOwner
from fetchproxy.serving.transport import RecordPipe
from fetchproxy.tls.contexts import in_words

log = structlog.get_logger(__name__)


# What the gateway does with a request, by API key and version.

VERSION_MAX = 32_767


class Treatment(StrEnum):
    """In a word, for the compatibility page."""

    RELAYED = "relayed"  # request and answer pass untouched
    REWRITTEN = "rewritten"  # the broker answers, and the proxy changes its answer
    ANSWERED = "answered"  # the broker is not asked


@dataclass(frozen=True, slots=True)
class Passes:
    """`expect(session, head, view, end)` says which answer to await; None: there will be none.

    `view[head.body_position:end]` is what has arrived of the body. Raises `Truncated` where that
    is too little to tell, and is then called again with more.
    """

    expect: Callable[[RelaySession, RequestHead, Buffer, int], Answer | None]


@dataclass(frozen=True, slots=True)
class Held:
    """`on_request(session, frame, head, body_at)`: `frame` is whole, with its size prefix.

    The body begins `body_at` bytes behind that prefix. False: look at the request again later.
    """

    on_request: Callable[[RelaySession, bytes, RequestHead, int], bool]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Versions `first` to `last` of an API; `why` is one line for the compatibility page."""

    first: int
    last: int
    treatment: Treatment
    handling: Passes | Held
    why: str


@dataclass(frozen=True, slots=True)
class Api:
    """`behaviours` are by version, without overlaps; other versions are refused."""

    key: ApiKey
    behaviours: tuple[Behaviour, ...]


# By API key.
ApiTable = Mapping[int, Sequence[Behaviour]]


def rewritten(key: ApiKey, handling: Passes | Held, why: str) -> Api:
    """In all versions that the proxy can read."""
    versions = PROXIED_VERSIONS[key]
    return Api(key, (Behaviour(*versions, Treatment.REWRITTEN, handling, why),))


RELAY = Passes(lambda session, head, view, end: Answer(head.correlation_id))


def relayed(first: int, last: int, why: str) -> Behaviour:
    return Behaviour(first, last, Treatment.RELAYED, RELAY, why)


def _fetch(session: RelaySession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    return session.on_fetch(frame, body_at)


# A connection has one handler of fetches (`apis.fetch`), as they build upon each other.
FETCH = Held(_fetch)


def _refuse(session: RelaySession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    raise MalformedMessage(
        f"request with API key {head.api_key} version {head.api_version} is not served"
    )


REFUSED = Held(_refuse)


def handling_of(apis: ApiTable, head: RequestHead) -> Passes | Held:
    for behaviour in apis.get(head.api_key, ()):
        if behaviour.first <= head.api_version <= behaviour.last:
            return behaviour.handling
    return REFUSED


# The session.

Connect = Callable[[Callable[[], BrokerLink]], Awaitable[BrokerLink]]


class Upstream(NamedTuple):
    """A fetch that goes to the broker. `expect` makes its answer, when it has been sent: what the
    broker says cannot come before the loop's next turn, and nobody waits for what is done then.
    """

    frame: Buffer
    expect: Callable[[], Answer]


class Muting(NamedTuple):
    """A fetch that the client is muted for while `work` is done. `again`: it is looked at anew
    afterwards.
    """

    work: Coroutine[None, None, object]
    name: str
    again: bool = False


class InTurn(NamedTuple):
    """A fetch that is answered by `work`, behind all that is due before it: `work(waited)`."""

    work: Callable[[bool], Awaitable[None]]
    name: str


class Fetches(Protocol):
    """The fetches of one connection (`apis.fetch`)."""

    @property
    def parked(self) -> object | None:
        """A poll upstream waits for a fetch of the client that takes it up."""

    def on_request(self, frame: bytes, body_at: int) -> Upstream | InTurn | Muting:
        """What becomes of a whole framed request."""

    def only_parked(self, expected: Iterable[Answer]) -> bool:
        """Nothing is due but that poll's answer."""

    async def discard_parked(self) -> None:
        """Get a parked poll out of the way."""

    @property
    def kept_bytes(self) -> int: ...

    def close(self) -> None:
        """The client is gone."""

    def drop(self) -> None:
        """Nor is anything under way any more."""


@dataclass(frozen=True, slots=True)
class Relay:
    """What all sessions of the relay share. `clients_use_sasl`: brokers ask them for it."""

    archive: ServedArchive
    admission: Admission
    apis: ApiTable
    new_fetches: Callable[[RelaySession], Fetches]
    records: RecordPipe | None
    clients_use_sasl: bool


class RelaySession(ClientSession):
    """`connect(factory)` reaches the broker that this listener stands for, or raises OSError.

    `addresses`: as this client is told them. `node_id` is the broker's, None at the bootstrap
    address.
    """

    requests: RelayedRequests

    def __init__(
        self,
        owner: SessionOwner,
        relay: Relay,
        addresses: ToldAddresses,
        connect: Connect,
        node_id: int | None = None,
    ) -> None:
        super().__init__(owner, relay.archive.purgatory.steps, relay.admission)
        self._relay = relay
        self._connect = connect
        self.archive = relay.archive
        self.addresses = addresses
        self.node_id = node_id
        self.link: BrokerLink | None = None
        self._upstream_slow = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._wanted = asyncio.Event()  # the broker, or nothing any more
        self.fetch = relay.new_fetches(self)
        self.requests = RelayedRequests(self, owner, relay)

    # -- asyncio -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._owner.tells_reached:
            local = transport.get_extra_info("sockname")
            self.addresses.reached = local[0] if local else None
        super().connection_made(transport)

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            return  # as the base, without the call: each packet of the tail comes here
        self.heard = True
        self._take(self._receive.view[:nbytes])
        self._receive.release(self.link.transport if self.link else None)

    def eof_received(self) -> bool:
        if self.link is not None:
            self.link.tells_answered = True
        return super().eof_received()

    def pause_writing(self) -> None:
        self._writable.clear()
        if self.link is not None:
            self.link.client_slow(True)

    def resume_writing(self) -> None:
        self._writable.set()
        if self.link is not None:
            self.link.client_slow(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fetch.close()
        super().connection_lost(exc)

    # -- life --------------------------------------------------------------------------------------
    async def _may_begin(self) -> bool:
        await self._wanted.wait()
        return not self.closing and await self._reach_broker()

    async def _reach_broker(self) -> bool:
        transport, records = self._transport, self._relay.records
        frame_max = self._config.frame_bytes_max
        if transport is None:
            return False
        try:
            self.link = await self._connect(
                lambda: BrokerLink(self, self._receive, transport, frame_max, records)
            )
        except OSError as error:
            CONNECTIONS_REFUSED.labels("broker_unreachable").inc()
            log.warning("broker_unreachable", client=self.client, error=str(error))
            return False
        if self.link.transport is None:
            return False
        self.link.tells_answered = self.requests.ended
        self.link.transport.set_write_buffer_limits(high=self._limits.buffer_bytes_max)
        return True

    def _drop(self) -> None:
        self.link = None
        self.fetch.drop()

    def _transports(self) -> list[asyncio.Transport]:
        both = self._transport, self.link.transport if self.link else None
        return [transport for transport in both if transport is not None]

    def _end(self) -> None:
        self._wanted.set()
        super()._end()

    # -- looked at by the listener, again and again ------------------------------------------------
    def silent_s(self, now: float) -> float:
        """Neither side has sent anything."""
        link = self.link
        if self.heard or (link is not None and link.heard):
            self._heard_at, self.heard = now, False
            if link is not None:
                link.heard = False
        return now - self._heard_at

    @property
    def kept_bytes(self) -> int:
        """In memory: unsent to either side, what is not whole, and the fetch session."""
        of_broker = 0 if self.link is None else self.link.kept_bytes
        return super().kept_bytes + of_broker + self.fetch.kept_bytes

    # -- what the link tells (LinkOwner) -----------------------------------------------------------
    def answered(self) -> None:
        assert self.link is not None
        if not self.link.expected:
            self._drained.set()
        if self.requests.limited and not self.at_inflight_limit():
            self.requests.limited = False
            self._take(memoryview(b""))
            self._pace()
        if self.requests.ended:  # the bytes of this answer are yet to be written
            asyncio.get_running_loop().call_soon(self.requests.close_if_answered)
        waits = self.requests.limited or self.requests.ended or not self._drained.is_set()
        self.link.tells_answered = waits

    def rewrite(self, answer: HeldAnswer) -> Payload | None:
        payload = answer.rewrite(bytes(answer.payload))
        if isinstance(payload, Awaitable):
            self.spawn(self._rewrite(payload), "rewrite-answer")
            return None
        return payload

    async def _rewrite(self, payload: Awaitable[Payload]) -> None:
        try:
            new = await payload
        except WireError as error:
            self._refuse(error, "broker")
        except OSError as error:
            self.close("no_listener_for_broker", error=str(error))
        else:
            if self.link is not None:
                self.link.rewritten(new)

    def link_failed(self, error: WireError) -> None:
        self._refuse(error, "broker")

    def link_closed(self, error: Exception | None) -> None:
        if error is not None:
            words = in_words(error) if isinstance(error, OSError) else str(error)
            log.info("broker_connection_lost", client=self.client, error=words)
        self.close()

    def broker_slow(self, slow: bool) -> None:
        self._upstream_slow = slow
        self._pace()

    # -- for the APIs ------------------------------------------------------------------------------
    def want_broker(self) -> None:
        """For the first request. Whoever sends none costs no broker a connection."""
        self.muted = True  # until it is connected
        self._wanted.set()

    def link_go_on(self) -> None:
        """An answer that was waited with may flow."""
        if self.link is not None:
            self.link.go_on()

    def expect(self, answer: Answer) -> None:
        """The answer of a request whose bytes pass."""
        if self.link is not None:
            self.link.expected.append(answer)

    def send_upstream(self, request: Buffer, answer: Answer | None) -> None:
        if self.link is not None:
            self.link.send(request, answer)

    def answer_in_turn(self, payload: bytes) -> None:
        """The proxy's own answer, without size prefix, behind all that are due before it."""

        async def answer(waited: bool) -> None:
            self.write_to_client(INT32.pack(len(payload)) + payload)

        self.mute_while(self._in_turn(answer), "own-answer")

    async def _in_turn(self, work: Callable[[bool], Awaitable[None]]) -> None:
        await work(await self._drained_before())

    def on_fetch(self, frame: bytes, body_at: int) -> bool:
        """As `Held.on_request`."""
        way = self.fetch.on_request(frame, body_at)
        if isinstance(way, Upstream):
            self.send_upstream(way.frame, None)
            self.expect(way.expect())
        elif isinstance(way, InTurn):
            self.mute_while(self._in_turn(way.work), way.name)
        else:
            self.mute_while(way.work, way.name)
            return not way.again
        return True

    def at_inflight_limit(self) -> bool:
        # A parked poll is the proxy's own: counted, it would keep out the fetch that takes it up.
        in_flight = len(self.link.expected) - (self.fetch.parked is not None) if self.link else 0
        return in_flight >= self._limits.inflight_requests_max

    @property
    def nothing_overtaken(self) -> bool:
        """The answer under way is the only one that is due, and no request waits behind it."""
        return self.link is not None and len(self.link.expected) == 1 and not self.muted

    async def _drained_before(self) -> bool:
        """Until every request so far has been answered, but for a parked fetch; True: it waited."""
        assert self.link is not None
        waited = False
        while self.link.expected and not self.fetch.only_parked(self.link.expected):
            waited = True
            self._drained.clear()
            self.link.tells_answered = True
            await self._drained.wait()
        return waited

    # -- requests ----------------------------------------------------------------------------------
    @property
    def _held_back(self) -> bool:
        return self.muted or self._upstream_slow or self.requests.limited


# How far a client is with SASL, where the brokers' listener asks for it.
#
# The broker authenticates its clients, and the proxy is not told when it is done. Until one of its
# answers to SaslAuthenticate is without an error, nothing but that, ApiVersions and SaslHandshake
# can be right: all else passes unread, for the broker to refuse. Of a client without credentials
# nothing is parsed and nothing is held. What is refused by its head does not reach a broker: a
# request larger than brokers take before that (some 30 ms of a broker's CPU), and one before any
# SaslHandshake.

# Kafka's default of sasl.server.max.receive.size.
SASL_REQUEST_BYTES_MAX = 512 * 1024
_READ_BEFORE = frozenset((ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE))


class SaslProgress:
    """Of one connection. `accepted`: the broker has taken some of what the client has shown.

    A mechanism may need another round then, which is no reason to read less.
    """

    def __init__(self, apis: ApiTable) -> None:
        self._apis = apis
        self._handshaken = False
        self.accepted = False
        self._authenticate = Passes(self._expect)

    def check(self, size: int) -> None:
        """Raises FrameTooLarge."""
        if not self.accepted and size > SASL_REQUEST_BYTES_MAX:
            raise FrameTooLarge(
                f"a request of {size} bytes before SASL has ended; brokers take at most "
                f"{SASL_REQUEST_BYTES_MAX}",
                "sasl_request_bytes_max",
            )

    def handling_of(self, head: RequestHead) -> Passes | Held:
        """Raises MalformedMessage, as Kafka's SaslServerAuthenticator refuses."""
        if head.api_key == ApiKey.SASL_HANDSHAKE:
            self._handshaken = True
        elif not (self._handshaken or head.api_key == ApiKey.API_VERSIONS):
            raise MalformedMessage(
                f"a request of API key {head.api_key} before SaslHandshake, on brokers that ask "
                "for SASL"
            )
        if head.api_key == ApiKey.SASL_AUTHENTICATE:
            return self._authenticate
        return handling_of(self._apis, head) if head.api_key in _READ_BEFORE else RELAY

    def _expect(self, session: RelaySession, head: RequestHead, view: Buffer, end: int) -> Answer:
        def look(payload: bytes) -> Sequence[Buffer]:
            body = response_body(payload, ApiKey.SASL_AUTHENTICATE, head.api_version)
            self.accepted = self.accepted or not body.int16()
            return [payload]

        return HeldAnswer(head.correlation_id, look)


class RelayedRequests(RequestFraming[Passes | Held]):
    _session: RelaySession

    def __init__(self, session: RelaySession, owner: SessionOwner, relay: Relay) -> None:
        super().__init__(session, owner.clock, owner.config.frame_bytes_max)
        self._config, self._limits = owner.config, owner.limits
        self._apis = relay.apis
        self._sasl = SaslProgress(relay.apis) if relay.clients_use_sasl else None
        if self._sasl is not None:
            self.bytes_max = min(self.bytes_max, SASL_REQUEST_BYTES_MAX)
        self._passing: Answer | None = None  # what it is to be answered with

    def drop(self) -> None:
        super().drop()
        self._passing = None

    @property
    def _all_answered(self) -> bool:
        session = self._session
        if session.muted or self.limited or self._goes_on:
            return False
        if session.link is None:
            return True
        cut_off = self._passing if self._left else None
        due = [answer for answer in session.link.expected if answer is not cut_off]
        return not due or session.fetch.only_parked(due)

    def _consume(self, view: memoryview) -> int:
        pos = emit = 0
        end = len(view)
        session = self._session
        while pos < end and not session.muted:
            if self._left:
                pos = self._go_on(pos, end)
                continue
            found = self._next(view, pos, end)
            if found is None:
                break
            size, head, handling = found
            if end - pos < size + 4 and isinstance(handling, Held) and handling is not REFUSED:
                self._whole_at = size + 4
                break
            if session.fetch.parked and handling is not FETCH:
                # its answer is in front of this one's: get it out of the way first
                session.mute_while(session.fetch.discard_parked(), "discard-parked-fetch")
                break
            if isinstance(handling, Passes):
                if not self._pass(view, end, pos + 4 + size, head, handling):
                    break
                self._left = size + 4
                continue
            if emit < pos:
                session.send_upstream(view[emit:pos], None)
                emit = pos
            frame = bytes(view[pos : pos + 4 + size])
            body_at = head.body_position - pos - 4
            if handling is FETCH:  # nearly all of them: without a step in between
                taken = session.on_fetch(frame, body_at)
            else:
                taken = handling.on_request(session, frame, head, body_at)
            if not taken:
                break
            pos = emit = pos + 4 + size
            self.begun_at = None
        if emit < pos:
            session.send_upstream(view[emit:pos], None)
        RELAYED_BYTES_TO_BROKER.total += pos
        return pos

    def _go_on(self, pos: int, end: int) -> int:
        """Within a request that passes: where it, or what has arrived of it, ends."""
        step = min(self._left, end - pos)
        self._left -= step
        if not self._left:
            self.begun_at = None
        return pos + step

    def _is_full(self) -> bool:
        session = self._session
        link = session.link
        at_most = self._limits.inflight_requests_max
        if link is not None and len(link.expected) >= at_most and session.at_inflight_limit():
            LIMITS_REACHED.labels("inflight_requests_max").inc()
            self.limited = link.tells_answered = True
            return True
        return False

    def _accept(self, size: int, head: RequestHead) -> Passes | Held | None:
        handling = handling_of(self._apis, head) if self._sasl is None else self._before_sasl(head)
        held_max = self._limits.held_request_bytes_max
        if size > held_max and isinstance(handling, Held) and handling is not REFUSED:
            raise FrameTooLarge(
                f"{ApiKey(head.api_key).name} of {size} bytes is beyond "
                f"held_request_bytes_max, which is {held_max}",
                "held_request_bytes_max",
            )
        if self._session.link is None:
            self._session.want_broker()
            return None
        return handling

    def _before_sasl(self, head: RequestHead) -> Passes | Held:
        """Until the broker knows the client, it alone reads what he sends."""
        assert self._sasl is not None
        if self._sasl.accepted and head.api_key != ApiKey.SASL_AUTHENTICATE:
            self._sasl = None
            return handling_of(self._apis, head)
        return self._sasl.handling_of(head)

    def _check_size(self, size: int) -> None:
        if size > self._config.frame_bytes_max:
            raise self._not_a_size(size, self._config.frame_bytes_max)
        if self._sasl is not None:
            self._sasl.check(size)
        self.bytes_max = self._config.frame_bytes_max

    def _pass(
        self, view: memoryview, end: int, frame_end: int, head: RequestHead, passes: Passes
    ) -> bool:
        """Expect the answer of a request that passes untouched; False: not to be passed yet."""
        session = self._session
        try:
            answer = passes.expect(session, head, view, min(end, frame_end))
        except Truncated as error:
            begin = head.client_id_start
            self._wait_for_more(error, min(end, frame_end) - begin, frame_end - begin)
            return False
        self._passing = answer
        if answer is not None:
            session.expect(answer)
        return True
