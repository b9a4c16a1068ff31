"""One client connection, its own connection to one broker, and the handling of each request.

A request that *passes* goes to the broker as it arrives, without being buffered, and the proxy
looks only at its response. A request that is *buffered* is read whole, within
`held_request_bytes_max`, and given to its API's handler. Requests go to the broker in order, and
responses come back in order. This module knows no single API: each module in `apis` has one `API`,
or the `APIS` that it handles in the same way, and `apis.table` joins them.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

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
from fetchproxy_protocol.sasl_user import user_of_request

from fetchproxy.observability.metrics import (
    CONNECTIONS_REFUSED,
    LIMITS_REACHED,
    RELAYED_BYTES_TO_BROKER,
)
from fetchproxy.runtime.cooperative import READ_AT_ONCE_BYTES_MAX, cooperative
from fetchproxy.serving.admission import Admission
from fetchproxy.serving.gateway.addresses import AdvertisedAddresses
from fetchproxy.serving.gateway.broker_link import BrokerLink, BufferedResponse, Payload
from fetchproxy.serving.gateway.served_archive import ServedArchive
from fetchproxy.serving.record_pipe import RecordPipe
from fetchproxy.serving.session import ClientSession, RequestFraming, SessionOwner
from fetchproxy.serving.upstream import ARCHIVE_ALONE, ExpectedResponse
from fetchproxy.tls.handshake_errors import handshake_error_in_words

log = structlog.get_logger(__name__)


# How the gateway handles a request, by API key and version.

API_VERSION_MAX = 32_767
Connect = Callable[[Callable[[], BrokerLink]], Awaitable[BrokerLink]]
# Kafka's default of sasl.server.max.receive.size.
SASL_REQUEST_BYTES_MAX = 512 * 1024
_READ_BEFORE = frozenset((ApiKey.API_VERSIONS, ApiKey.SASL_HANDSHAKE))


class Treatment(StrEnum):
    """One word for the compatibility page."""

    RELAYED = "relayed"  # request and response pass unchanged
    REWRITTEN = "rewritten"  # the broker answers, and the proxy changes its response
    RESPONDED = "answered"  # the broker is not asked


@dataclass(frozen=True, slots=True)
class Passes:
    """`expect(session, head, view, end)` returns the response to await; None: there will be none.

    `view[head.body_position:end]` is the part of the body that has arrived. If it is too short,
    `expect` raises `Truncated` and is called again with more.
    """

    expect: Callable[[GatewaySession, RequestHead, Buffer, int], ExpectedResponse | None]


@dataclass(frozen=True, slots=True)
class Buffered:
    """`on_request(session, frame, head, body_at)`: `frame` is whole, with its size prefix.

    The body begins `body_at` bytes after that prefix. False: look at the request again later.
    """

    on_request: Callable[[GatewaySession, bytes, RequestHead, int], bool]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Versions `first` to `last` of an API; `why` is one line for the compatibility page."""

    first: int
    last: int
    treatment: Treatment
    handling: Passes | Buffered
    why: str


@dataclass(frozen=True, slots=True)
class Api:
    """`behaviours` are by version, without overlaps; other versions are refused."""

    key: ApiKey
    behaviours: tuple[Behaviour, ...]


# By API key.
ApiTable = Mapping[int, Sequence[Behaviour]]


def rewritten(key: ApiKey, handling: Passes | Buffered, why: str) -> Api:
    """In all versions that the proxy can read."""
    versions = PROXIED_VERSIONS[key]
    return Api(key, (Behaviour(*versions, Treatment.REWRITTEN, handling, why),))


RELAY = Passes(lambda session, head, view, end: ExpectedResponse(head.correlation_id))


def relayed(first: int, last: int, why: str, handling: Passes = RELAY) -> Behaviour:
    return Behaviour(first, last, Treatment.RELAYED, handling, why)


def _fetch(session: GatewaySession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    return session.on_fetch(frame, body_at)


# A connection has one handler for fetches (`apis.fetch`), as each fetch builds on the one before.
FETCH_TREATMENT = Buffered(_fetch)


def _refuse(session: GatewaySession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    raise MalformedMessage(
        f"request with API key {head.api_key} version {head.api_version} is not served"
    )


REFUSED_TREATMENT = Buffered(_refuse)


def handling_of(apis: ApiTable, head: RequestHead) -> Passes | Buffered:
    for behaviour in apis.get(head.api_key, ()):
        if behaviour.first <= head.api_version <= behaviour.last:
            return behaviour.handling
    return REFUSED_TREATMENT


# The session.


class ToBroker(NamedTuple):
    """A fetch that goes to the broker. `expect` makes its response and is called after sending: the
    broker's response cannot arrive before the loop's next turn, so this work delays nobody.
    """

    frame: Buffer
    expect: Callable[[], ExpectedResponse]


class Muting(NamedTuple):
    """A fetch that mutes the client during `work`, and comes again afterwards."""

    work: Coroutine[None, None, object]
    name: str


class InTurn(NamedTuple):
    """A fetch that `work(waited)` answers, after all responses that are due before it."""

    work: Callable[[bool], Awaitable[None]]
    name: str


class Repeats(Protocol):
    def takes(self, frame: memoryview) -> bool:
        """True: these bytes are the same fetch again. They pass as they are, and then `expect`
        returns the response that is due.
        """

    def expect(self) -> ExpectedResponse: ...


class FetchStates(Protocol):
    """How far the fetches of one connection are (`fetch_conversation`)."""

    @property
    def parked(self) -> object | None:
        """A poll at the broker that waits for a client's fetch to take it up."""

    @property
    def repeated(self) -> Repeats | None:
        """The last fetch, if its client may well send the same one again."""

    def on_request(self, frame: bytes, body_at: int) -> object:
        """How to handle a whole framed request: `ToBroker`, or see `Fetches.work_for`."""

    @property
    def is_begun(self) -> bool:
        """The client's fetch was read, and is handled later."""

    def only_parked(self, expected: Iterable[ExpectedResponse]) -> bool:
        """True: the parked poll's response is the only one in `expected`."""


class Fetches(Protocol):
    """The fetches of one connection (`apis.fetch`)."""

    @property
    def conversation(self) -> FetchStates: ...

    def work_for(self, output: Any, frame: bytes, body_at: int) -> InTurn | Muting:
        """What to do with a fetch for which the conversation has returned `output`."""

    async def discard_parked(self) -> None:
        """Discard a parked poll's response."""

    def hurry(self) -> None:
        """Answer at once what only waits for records, now and from now on."""

    async def respond_for_broker(self) -> None:
        """Answer a fetch that waits at the broker, and let the client go."""

    @property
    def kept_bytes(self) -> int: ...

    def close(self) -> None:
        """The client has disconnected."""

    def drop(self) -> None:
        """The session is over: drop all its state."""


@dataclass(frozen=True, slots=True)
class Gateway:
    """What all its sessions share. `clients_use_sasl`: brokers require SASL of clients."""

    archive: ServedArchive
    admission: Admission
    apis: ApiTable
    new_fetches: Callable[[GatewaySession], Fetches]
    records: RecordPipe | None
    clients_use_sasl: bool


class GatewaySession(ClientSession):
    """One client's connection to the gateway, and its connection to a broker. `connect(factory)`
    connects to the broker that this listener stands for, or raises OSError.

    `addresses`: the broker addresses that this client is told. `node_id` is the broker's; None at
    the bootstrap address.
    """

    requests: RelayedRequests

    def __init__(
        self,
        owner: SessionOwner,
        gateway: Gateway,
        addresses: AdvertisedAddresses,
        connect: Connect,
        node_id: int | None = None,
    ) -> None:
        super().__init__(owner, gateway.archive.purgatory.steps, gateway.admission)
        self._gateway = gateway
        self._connect = connect
        self.archive = gateway.archive
        self.addresses = addresses
        self.node_id = node_id
        self._upstream_slow = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._needs_broker = asyncio.Event()  # a request needs the broker, or the session is over
        self.fetch = gateway.new_fetches(self)
        self.requests = RelayedRequests(self, owner, gateway)

    # -- asyncio -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._owner.tells_reached:
            local = transport.get_extra_info("sockname")
            self.addresses.reached = local[0] if local else None
        super().connection_made(transport)

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            return  # repeats the base class to save a call: each packet of the tail comes here
        self.has_received = True
        view, upstream = self._receive.view[:nbytes], self.upstream
        fetch = self.fetch.conversation.repeated
        if (
            fetch is not None
            and not upstream.expected
            and upstream.transport is not None
            and self.requests.takes_alone(nbytes)
            and fetch.takes(view)
        ):
            upstream.send(view, None)
            upstream.expected.append(fetch.expect())
            RELAYED_BYTES_TO_BROKER.total += nbytes
        else:
            self._take(view)
        self._receive.release(upstream.transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fetch.close()
        super().connection_lost(exc)

    # -- life --------------------------------------------------------------------------------------
    async def _may_begin(self) -> bool:
        await self._needs_broker.wait()
        return not self.closing and await self._reach_broker()

    async def _reach_broker(self) -> bool:
        transport, records = self._transport, self._gateway.records
        frame_max = self._config.frame_bytes_max
        if transport is None:
            return False
        try:
            self.upstream = link = await self._connect(
                lambda: BrokerLink(
                    self, self._receive, transport, frame_max, records, self._owner.accumulated
                )
            )
        except OSError as error:
            CONNECTIONS_REFUSED.labels("broker_unreachable").inc()
            log.warning("broker_unreachable", client=self.client, error=str(error))
            return False
        if link.transport is None:
            return False
        link.tells_responded = self.requests.ended or self.requests.final
        link.transport.set_write_buffer_limits(high=self._limits.buffer_bytes_max)
        return True

    def _drop(self) -> None:
        self.upstream = ARCHIVE_ALONE
        self.fetch.drop()

    def _let_go(self) -> None:
        super()._let_go()
        del self.fetch

    def _end(self) -> None:
        self._needs_broker.set()
        super()._end()

    @property
    def is_bootstrap(self) -> bool:
        return self.node_id is None

    def _hurry(self) -> None:
        self.upstream.tells_responded = True
        self.fetch.hurry()

    def _respond_for_broker(self) -> None:
        self.spawn(self.fetch.respond_for_broker(), "respond-for-broker")

    # -- checked by the listener at intervals ------------------------------------------------------
    @property
    def kept_bytes(self) -> int:
        return super().kept_bytes + self.fetch.kept_bytes

    # -- called by the link (LinkOwner) ------------------------------------------------------------
    def responded(self) -> None:
        if not self.upstream.expected:
            self._drained.set()
        if self.requests.at_limit and not self.at_inflight_limit():
            self.requests.at_limit = False
            self._take(memoryview(b""))
            self._pace()
        is_last = self.requests.ended or self.requests.final
        if is_last:
            self._leave_soon()
        waits = self.requests.at_limit or is_last or not self._drained.is_set()
        self.upstream.tells_responded = waits

    def rewrite(self, response: BufferedResponse) -> Payload | None:
        whole, response.payload = bytes(response.payload), bytearray()
        payload = response.rewrite(whole)
        if isinstance(payload, Awaitable):
            self.spawn(self._rewrite(payload), "rewrite-response")
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
            self.upstream.rewritten(new)

    def link_failed(self, error: WireError) -> None:
        self._refuse(error, "broker")

    def link_closed(self, error: Exception | None) -> None:
        if error is not None:
            words = handshake_error_in_words(error) if isinstance(error, OSError) else str(error)
            log.info("broker_connection_lost", client=self.client, error=words)
        if not self.closing:
            # The broker has refused the login, or what came before it.
            (self.close_late if self.requests.logging_in else self.close)()

    def broker_slow(self, slow: bool) -> None:
        self._upstream_slow = slow
        self._pace()

    # -- for the APIs ------------------------------------------------------------------------------
    def want_broker(self) -> None:
        """Connect to the broker: a client without any request takes no broker connection."""
        self.muted = True  # until the broker is connected
        self._needs_broker.set()

    def send_counted(
        self, frame: bytes, topics: Iterator[object], expect: Callable[[], ExpectedResponse]
    ) -> None:
        """Send a whole request that names `topics`. A long one is counted first, in steps: it
        reaches no broker, and nothing is kept of it, if it names too many (WireError).
        """

        async def count_and_send() -> None:
            async for _ in cooperative(topics):
                pass
            self.upstream.send(frame, expect())

        if len(frame) <= READ_AT_ONCE_BYTES_MAX:
            self.upstream.send(frame, expect())
        else:
            self.mute_while(count_and_send(), "count-large-request")

    def respond_in_turn(self, payload: bytes) -> None:
        """Send the proxy's own response (without size prefix) after all that are due before it."""

        async def response(waited: bool) -> None:
            self.write_to_client(INT32.pack(len(payload)) + payload)

        self.mute_while(self._in_turn(response), "own-response")

    async def _in_turn(self, work: Callable[[bool], Awaitable[None]]) -> None:
        await work(await self._drained_before())

    def on_fetch(self, frame: bytes, body_at: int) -> bool:
        """False: the fetch comes again."""
        output = self.fetch.conversation.on_request(frame, body_at)
        if isinstance(output, ToBroker):
            self.upstream.send(output.frame, None)
            self.upstream.expected.append(output.expect())
            return True
        work = self.fetch.work_for(output, frame, body_at)
        if isinstance(work, InTurn):
            self.mute_while(self._in_turn(work.work), work.name)
            return True
        self.mute_while(work.work, work.name)
        return False

    def at_inflight_limit(self) -> bool:
        # Without the parked poll, which is the proxy's own: it would block the fetch that takes it.
        parked = self.fetch.conversation.parked is not None
        return len(self.upstream.expected) - parked >= self._limits.inflight_requests_max

    @property
    def nothing_overtaken(self) -> bool:
        """The response in progress is the only one due, and no request waits behind it."""
        return len(self.upstream.expected) == 1 and not self.muted

    async def _drained_before(self) -> bool:
        """Wait until all requests so far are answered, except a parked fetch. True: it waited."""
        waited, upstream = False, self.upstream
        while upstream.expected and not self.fetch.conversation.only_parked(upstream.expected):
            waited = True
            self._drained.clear()
            upstream.tells_responded = True
            await self._drained.wait()
        return waited

    # -- requests ----------------------------------------------------------------------------------
    @property
    def _must_wait(self) -> bool:
        requests = self.requests
        waits = requests.at_limit or (requests.final and requests.must_wait)
        return self.muted or self._upstream_slow or waits


class SaslProgress:
    """A client's progress with SASL, if the brokers' listener requires it. One per connection.

    `accepted`: the broker has answered a SaslAuthenticate without an error. The mechanism may need
    another round, but from then on the proxy reads all requests.

    The broker authenticates its clients, and does not tell the proxy when that is done. Until the
    broker has answered a SaslAuthenticate without an error, a client may only send
    SaslAuthenticate, ApiVersions and SaslHandshake. Every other request passes, and the broker
    refuses it: the proxy parses and keeps nothing of it. The proxy itself refuses two kinds of
    requests by their head, so that they reach no broker: those larger than brokers accept before
    authentication (some 30 ms of a broker's CPU), and those before any SaslHandshake.
    """

    def __init__(self, apis: ApiTable) -> None:
        self._apis = apis
        self._handshaken = False
        self.accepted = False
        self._authenticate = Passes(self._expect)

    def check(self, size: int) -> None:
        """Raises FrameTooLarge: not reported, as everybody on the network may cause it."""
        if not self.accepted and size > SASL_REQUEST_BYTES_MAX:
            raise FrameTooLarge(
                f"a request of {size} bytes before the SASL login is complete; brokers accept at "
                f"most {SASL_REQUEST_BYTES_MAX}",
                "sasl_request_bytes_max",
            )

    def handling_of(self, head: RequestHead) -> Passes | Buffered:
        """Raises MalformedMessage for requests that Kafka's SaslServerAuthenticator refuses."""
        if head.api_key == ApiKey.SASL_HANDSHAKE:
            self._handshaken = True
        elif not (self._handshaken or head.api_key == ApiKey.API_VERSIONS):
            raise MalformedMessage(
                f"a request of API key {head.api_key} before SaslHandshake, although the brokers "
                "require SASL"
            )
        if head.api_key == ApiKey.SASL_AUTHENTICATE:
            return self._authenticate
        return handling_of(self._apis, head) if head.api_key in _READ_BEFORE else RELAY

    def _expect(
        self, session: GatewaySession, head: RequestHead, view: Buffer, end: int
    ) -> ExpectedResponse:
        user = user_of_request(view, head, end)

        def look(payload: bytes) -> Sequence[Buffer]:
            body = response_body(payload, ApiKey.SASL_AUTHENTICATE, head.api_version)
            if not body.int16():
                self.accepted = True
                session.share.user = user or session.share.user
            return [payload]

        return BufferedResponse(head.correlation_id, look)


class RelayedRequests(RequestFraming[Passes | Buffered]):
    _session: GatewaySession

    def __init__(self, session: GatewaySession, owner: SessionOwner, gateway: Gateway) -> None:
        super().__init__(session, owner.clock, owner.config.frame_bytes_max)
        self._config, self._limits = owner.config, owner.limits
        self._apis = gateway.apis
        self._sasl = SaslProgress(gateway.apis) if gateway.clients_use_sasl else None
        if self._sasl is not None:
            self.bytes_max = min(self.bytes_max, SASL_REQUEST_BYTES_MAX)
        # The response due for the request that passes now.
        self._passing: ExpectedResponse | None = None

    def drop(self) -> None:
        super().drop()
        self._passing = None

    @property
    def logging_in(self) -> bool:
        """The brokers ask for SASL, and none has accepted this client yet."""
        return self._sasl is not None and not self._sasl.accepted

    @property
    def _all_responded(self) -> bool:
        session = self._session
        if session.muted or self.at_limit or self._goes_on or (self._left and not self.ended):
            return False
        cut_off = self._passing if self._left else None
        due = [response for response in session.upstream.expected if response is not cut_off]
        return not due or session.fetch.conversation.only_parked(due)

    def _consume(self, view: memoryview) -> int:
        pos = emit = 0
        end = len(view)
        session = self._session
        while pos < end and not session.muted:
            if self._left:
                pos = self._go_on(pos, end)
                continue
            next_request = self._next(view, pos, end)
            if next_request is None:
                break
            size, head, handling = next_request
            if (
                end - pos < size + 4
                and isinstance(handling, Buffered)
                and handling is not REFUSED_TREATMENT
            ):
                self._whole_at = size + 4
                break
            if session.fetch.conversation.parked and handling is not FETCH_TREATMENT:
                # the parked response comes before this request's response: discard it first
                session.mute_while(session.fetch.discard_parked(), "discard-parked-fetch")
                break
            if isinstance(handling, Passes):
                if not self._pass(view, end, pos + 4 + size, head, handling):
                    break
                self._left = size + 4
                continue
            if emit < pos:
                session.upstream.send(view[emit:pos], None)
                emit = pos
            frame = bytes(view[pos : pos + 4 + size])
            body_at = head.body_position - pos - 4
            if handling is FETCH_TREATMENT:  # nearly all requests: call the handler directly
                is_done = session.on_fetch(frame, body_at)
            else:
                is_done = handling.on_request(session, frame, head, body_at)
            if not is_done:
                break
            pos = emit = pos + 4 + size
            self.begun_at = None
        if emit < pos:
            session.upstream.send(view[emit:pos], None)
        RELAYED_BYTES_TO_BROKER.total += pos
        return pos

    def _has_begun(self) -> bool:
        return self._session.fetch.conversation.is_begun

    def _go_on(self, pos: int, end: int) -> int:
        """The position in a passing request where it ends, or where its arrived part ends."""
        step = min(self._left, end - pos)
        self._left -= step
        if not self._left:
            self.begun_at = None
        return pos + step

    def _is_full(self) -> bool:
        session = self._session
        upstream, at_most = session.upstream, self._limits.inflight_requests_max
        if len(upstream.expected) >= at_most and session.at_inflight_limit():
            LIMITS_REACHED.labels("inflight_requests_max").inc()
            self.at_limit = upstream.tells_responded = True
            return True
        return False

    def _accept(self, size: int, head: RequestHead) -> Passes | Buffered | None:
        handling = handling_of(self._apis, head) if self._sasl is None else self._before_sasl(head)
        held_max = self._limits.held_request_bytes_max
        if size > held_max and isinstance(handling, Buffered) and handling is not REFUSED_TREATMENT:
            raise self._too_large(size, head, "held_request_bytes_max", held_max)
        if not self._session.upstream.takes_requests:
            self._session.want_broker()
            return None
        return handling

    def _before_sasl(self, head: RequestHead) -> Passes | Buffered:
        """Before authentication, only the broker reads the client's requests."""
        assert self._sasl is not None
        if self._sasl.accepted and head.api_key != ApiKey.SASL_AUTHENTICATE:
            self._sasl = None
            return handling_of(self._apis, head)
        return self._sasl.handling_of(head)

    def _check_size(self, size: int, head: RequestHead | None) -> None:
        if self._sasl is not None:
            self._sasl.check(size)
        self.bytes_max = most = self._config.frame_bytes_max
        if size > most:
            raise self._too_large(size, head, "gateway.frame_bytes_max", most)

    def _pass(
        self, view: memoryview, end: int, frame_end: int, head: RequestHead, passes: Passes
    ) -> bool:
        """Expect the response to a request that passes unchanged; False: it must not pass yet."""
        session = self._session
        try:
            response = passes.expect(session, head, view, min(end, frame_end))
        except Truncated as error:
            begin = head.client_id_start
            self._wait_for_more(error, min(end, frame_end) - begin, frame_end - begin)
            return False
        self._passing = response
        if response is not None:
            session.upstream.expected.append(response)
        return True
