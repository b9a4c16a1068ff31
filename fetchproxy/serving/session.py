"""One client's connection: cuts its bytes into requests, sends responses in order, and limits how
long each may take.

A request that takes work *mutes* the client: later requests wait in the socket, as they would
behind a delayed request on a broker. Each server decides how to handle a request, and whether there
is a broker behind it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from enum import IntEnum
from typing import Any, Generic, Protocol, TypeVar, cast

from fetchproxy_protocol.apis import (
    ApiKey,
    FrameTooLarge,
    MalformedMessage,
    Truncated,
    WireError,
    is_known,
)
from fetchproxy_protocol.headers import (
    REQUEST_HEADER_BYTES_MAX,
    REQUEST_HEADER_BYTES_MIN,
    RequestHead,
    peek_request_header,
)
from fetchproxy_protocol.primitives import INT32, Buffer

from fetchproxy.config.schema import GatewayConfig, KiB
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import LIMITS_REACHED, WIRE_ERRORS
from fetchproxy.runtime.cooperative import MESSAGES_A_TURN, LoopSteps, a_turn
from fetchproxy.serving.admission import Admission, ClientQuota, certificate_user, payer_of
from fetchproxy.serving.limits import AccumulatedBytes, ServingLimits
from fetchproxy.serving.transport import (
    OtherSide,
    ReceiveBuffer,
    join_small,
    other_side,
    write_step,
)
from fetchproxy.serving.upstream import ARCHIVE_ALONE, Upstream
from fetchproxy.tls.acceptor import ClientProtocol
from fetchproxy.tls.handshake_errors import hint_for, other_protocol

Address = tuple[str, int]
Handling = TypeVar("Handling")  # how a server handles a request
# Smaller incomplete requests count at the listener's intervals alone.
COUNTED_BYTES_MIN = 64 * KiB
# The connection of a client that has broken the protocol, or could not log in, stays for this long
# (KIP-306 has 0.1 s). It is shorter than what clients wait for a response.
CLOSE_DELAY_S = 0.5
# A client that is let go has had its last response. For this long it may read it and close.
LEAVE_MAX_S = 1.0


class Drain(IntEnum):
    """How far a process that ends is in letting its clients go."""

    NODES = 0  # connections to single brokers go, as clients soon have new ones
    ALL = 1  # those to the bootstrap address, which clients seldom use, go too
    FORCE = 2  # no client waits to be told, and fetches that wait at the broker are answered here


class SessionOwner(Protocol):
    """The listener, as its sessions see it. `clock` is the running loop's time in seconds.

    `tells_reached`: the listener advertises to each client the address that this client has dialed.
    """

    config: GatewayConfig
    limits: ServingLimits
    receive: ReceiveBuffer
    accumulated: AccumulatedBytes
    clock: Callable[[], float]
    warnings: SparingWarnings
    tells_reached: bool

    def advertised(self, address_reached: str) -> Address:
        """The address advertised to a client that has reached us at `address_reached`."""

    def too_large(self, limit: str, message: str) -> None:
        """A message was refused by its size. `message` describes it; `limit` is the name of
        the setting or constant that it exceeds.
        """

    def made(self, session: ClientSession) -> None:
        """The session's client has connected."""

    def lost(self, session: ClientSession) -> None: ...


class OtherProtocol(MalformedMessage):
    """The client does not speak Kafka's protocol, but one that is known."""

    def __init__(self, other: str) -> None:
        plaintext = ", and this listener plaintext" if other == "TLS" else ""
        super().__init__(f"the client speaks {other}{plaintext}")
        self.hint = hint_for(other)


class _SessionOver(Exception):
    """Ends the session's task group."""


class ClientSession(ClientProtocol):
    """One client's connection: reads its requests and sends the responses in their order. `steps`:
    awaited before each step of a large response, as readers of the tail come first.
    """

    requests: RequestFraming[Any]

    def __init__(self, owner: SessionOwner, steps: LoopSteps, admission: Admission) -> None:
        self._owner = owner
        self._config = owner.config
        self._limits = owner.limits
        self._receive = owner.receive
        self._steps = steps
        self.warnings = owner.warnings
        self.client = ""  # set when it has connected
        self.share = ClientQuota(admission)
        self._transport: asyncio.Transport | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self.upstream: Upstream = ARCHIVE_ALONE
        self.closing = False
        self._over = asyncio.Event()  # set when `closing` is set
        self._served = False  # `run` has ended
        self.muted = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent, self._taken_at = 0, 0.0  # unsent bytes at the last check; when they changed
        self.has_received = False  # since the last check
        self._heard_at = self._unsent_at = owner.clock()  # the second: when there last were any
        self._responding = False  # the client is receiving a response
        self._closes: asyncio.TimerHandle | None = None  # set by `close_late` and `leave`
        self.draining = False  # see `drain`
        # Its last Metadata request is of a version that can tell a client to bootstrap again.
        self.supports_rebootstrap = False

    # -- asyncio -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.client = self.address_of_client(transport)
        self.share.payer = payer_of(transport, None if self.peer is None else self.peer[0])
        self.share.user = certificate_user(transport)
        self._transport.set_write_buffer_limits(high=self._limits.buffer_bytes_max)
        self._owner.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.view

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            return  # TLS reads on while it ends, even within close()
        self.has_received = True
        self._take(self._receive.view[:nbytes])

    def eof_received(self) -> bool:
        """A client that has ended its sending still gets the responses due, as from a broker, if it
        does not wait for them too long (`look`).

        asyncio's TLS always ends both directions at once.
        """
        self.upstream.tells_responded = True
        plain = self._transport and self._transport.get_extra_info("sslcontext") is None
        return bool(plain) and not self.closing and self.requests.end()

    def pause_writing(self) -> None:
        self._writable.clear()
        self.upstream.client_slow(True)

    def resume_writing(self) -> None:
        self._writable.set()
        self.upstream.client_slow(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._closes is not None:
            self._closes.cancel()
        self.share.close()
        self._end()
        self._owner.lost(self)
        if self._served:
            self._let_go()

    @property
    def client_host(self) -> str:
        return self.client.rpartition(":")[0]

    # -- life --------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Runs as long as the connection, and owns every task that serves it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                if await self._may_begin():
                    self._unmute()
                    await self._over.wait()
                # A task made in this step of the loop must take its first step: otherwise its
                # coroutine would be dropped without ever being started. To free much takes
                # milliseconds: of sessions that end together, one does so in each turn.
                self._end()
                await (a_turn() if self.kept_bytes > COUNTED_BYTES_MIN else asyncio.sleep(0))
                raise _SessionOver
        except* _SessionOver:
            pass
        finally:
            if self._closes is None:
                self.close()
            # A garbage collection would free these late, and hold the loop while it searches.
            self._tasks = None
            self.requests.drop()
            self._drop()
            self._served = True
            if self._transport is None:
                self._let_go()

    async def _may_begin(self) -> bool:
        """Wait until requests can be answered. False: they cannot."""
        return not self.closing

    def _drop(self) -> None:
        """Free a server's own memory when the session is over."""

    def _let_go(self) -> None:
        """The session is over and its client gone. Its parts refer to it: forget them, as a
        collection of garbage may never find it (`spare_collections`).
        """
        del self.requests

    def spawn(self, work: Coroutine[None, None, object], name: str) -> None:
        """Start a task. Does nothing if the session is over."""
        if self.closing:
            work.close()
            return
        assert self._tasks is not None
        self._tasks.create_task(work, name=name)

    def close(self, reason: str | None = None, **context: object) -> None:
        """Close the session. Bytes already written still leave. Logs `reason` if given."""
        if reason is not None:
            self._say_closed(reason, **context)
        self._end()
        for transport in self._transports():
            # asyncio's TLS transport fails on any question after a second close.
            if not transport.is_closing():
                transport.close()

    def close_late(self, reason: str | None = None, **context: object) -> None:
        """As `close`, but a client that has broken the rules keeps its connection for a moment.

        Otherwise a client that tries again at once would do so hundreds of times a second. Its
        connection counts towards the limits meanwhile, so opening another one does not help it.
        """
        if reason is not None:
            self._say_closed(reason, **context)
        self._end()
        for transport in self._transports():
            if transport.is_closing():  # see `close`
                continue
            if transport is self._transport:
                transport.pause_reading()
                self._closes = asyncio.get_running_loop().call_later(CLOSE_DELAY_S, self.close)
            else:
                transport.close()

    # -- the end of the process --------------------------------------------------------------------
    def drain(self, stage: Drain) -> None:
        """The process ends. The client is let go between two responses, and what only waits is
        answered without records.

        A client that understands it is told to bootstrap again with its next Metadata, and is
        served until then.
        """
        self.draining = True
        in_turn = stage >= Drain.ALL or not self.is_bootstrap
        if stage is Drain.FORCE or (in_turn and not self.supports_rebootstrap):
            self.take_no_more()
        if stage is Drain.FORCE:
            self._respond_for_broker()

    @property
    def is_bootstrap(self) -> bool:
        """Its client has got other addresses for most of what it does."""
        return False

    def take_no_more(self) -> None:
        """Begin no further request, and leave when all are answered."""
        if not (self.closing or self.requests.final):
            self.requests.final = True
            self._hurry()
            self._leave_soon()

    def _hurry(self) -> None:
        """Answer at once what only waits for records, now and from now on."""

    def _respond_for_broker(self) -> None:
        """Answer a fetch that waits at the broker."""

    def _leave_soon(self) -> None:
        """When what was written in this turn has left the caller's hands."""
        asyncio.get_running_loop().call_soon(self.requests.close_if_responded)

    def leave(self) -> None:
        """Close so that the client loses no response: it reads to the end, and closes first.

        What it has sent meanwhile is dropped unread. Closing at once would answer that with a
        reset, which may overtake the last response.
        """
        if self.closing:
            return
        self._end()
        for transport in self._transports():
            if transport.is_closing():  # see `close`
                continue
            if transport is self._transport and transport.can_write_eof():
                transport.write_eof()
                transport.resume_reading()
                self._closes = asyncio.get_running_loop().call_later(LEAVE_MAX_S, self.close)
            else:
                transport.close()  # TLS does the same within `close`

    def _say_closed(self, reason: str, **context: object) -> None:
        """The same reason of the same client is not logged again within the minute."""
        self.warnings.warn(
            "client_connection_closed",
            (self.client_host, reason, context.get("kind"), context.get("user")),
            client=self.client,
            reason=reason,
            **context,
        )

    def abort(self) -> None:
        """Close at once: do not wait until the client takes the bytes already written."""
        for transport in self._transports():
            transport.abort()

    def give_up(self) -> None:
        """Close at once, as the connection takes too much of the memory for all."""
        LIMITS_REACHED.labels("connection_buffers_bytes_max").inc()
        over = self.closing  # then `run` drops the requests, or has done so
        self.close("connection_buffers_bytes_max")
        self.abort()  # otherwise its buffers would stay in memory
        if not over:
            self.requests.drop()

    def _transports(self) -> list[asyncio.Transport]:
        """The transports that end with the session."""
        both = self._transport, self.upstream.transport
        return [transport for transport in both if transport is not None]

    def _end(self) -> None:
        self.closing = True
        self._over.set()

    def _refuse(self, error: WireError, side: str) -> None:
        WIRE_ERRORS.labels(type(error).__name__).inc()
        if isinstance(error, FrameTooLarge):
            LIMITS_REACHED.labels(error.limit).inc()
        hint = {"hint": error.hint} if isinstance(error, OtherProtocol) else {}
        (self.close_late if side == "client" else self.close)(
            "wire_error", error=str(error), kind=type(error).__name__, side=side, **hint
        )

    def refused_as_too_large(self, limit: str, message: str) -> None:
        """`limit`: a setting's key or a constant's name. `message` describes it."""
        self._owner.too_large(limit, f"{message} (client {self.client_host})")

    # -- checked by the listener at intervals ------------------------------------------------------
    def look(self, now: float) -> None:
        """Close the session if the client is silent or gone, takes nothing, or leaves a frame
        incomplete.

        A client that has closed its connection looks like one that has only ended its sending. No
        Kafka client ends its sending alone, so such a client gets only a short time.
        """
        config, begun, silent_s = self._config, self.requests.begun_at, self.silent_s(now)
        stalled_s, side = self.stalled_s(now), self._other_side
        # While it takes bytes, perhaps slowly, the other side is paused, and so silent.
        waits_s = min(silent_s, now - self._unsent_at)
        if stalled_s > self._limits.client_stall_max_ms / 1000:
            LIMITS_REACHED.labels("client_stall_max_ms").inc()
            self.close("client_stall_max_ms")
            self.abort()  # the client does not take the unsent bytes
        elif side is OtherSide.GONE:
            self.abort()  # the client is gone, but a broker may hold the response for hours
        elif side is OtherSide.ENDED and waits_s > self._limits.ended_client_max_ms / 1000:
            self.close()  # no fault, so it is not logged
        elif begun is not None and now - begun > self._limits.half_frame_max_ms / 1000:
            LIMITS_REACHED.labels("half_frame_max_ms").inc()
            self.close("half_frame_max_ms", waited_s=round(now - begun, 1))
        elif silent_s > config.idle_max_ms / 1000:
            if self.closing:
                self.abort()  # the client never took the unsent bytes
                return
            LIMITS_REACHED.labels("idle_max_ms").inc()
            self.close("idle_max_ms")

    def silent_s(self, now: float) -> float:
        """For how long (s) neither side was heard. Called at intervals, so no packet is timed.

        A response that the client is taking counts as a sign of life.
        """
        if self.has_received or self.upstream.has_received or self._responding:
            self._heard_at, self.has_received, self.upstream.has_received = now, False, False
        return now - self._heard_at

    def stalled_s(self, now: float) -> float:
        """For how long (s) the client has taken none of its unsent bytes. Called at intervals."""
        transport = self._transport
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        if unsent != self._unsent or not unsent:
            self._unsent, self._taken_at = unsent, now
        if unsent:
            self._unsent_at = now
        return now - self._taken_at

    @property
    def _other_side(self) -> OtherSide:
        """Asked of the kernel where asyncio watches no socket, as it does not read it.

        The last bytes of a client that has ended its sending may be unread. TLS ends both
        directions at once.
        """
        ended = self.requests.ended
        if self._transport is None or not (ended or self._must_wait):
            return OtherSide.THERE
        side = other_side(self._transport)
        if side is OtherSide.ENDED and self._transport.get_extra_info("sslcontext") is not None:
            return OtherSide.GONE
        return OtherSide.ENDED if ended and side is OtherSide.THERE else side

    @property
    def kept_bytes(self) -> int:
        """Bytes in memory: unsent, incomplete requests and responses, and the client's pace."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        others = self.requests.kept_bytes + self.share.kept_bytes + self.upstream.kept_bytes
        return unsent + others

    # -- responses ---------------------------------------------------------------------------------
    def write_to_client(self, data: Buffer) -> None:
        # A closing transport drops the bytes, and asyncio complains if that happens often.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def write_pieces(self, pieces: Iterable[Buffer]) -> None:
        """Write a whole response. Small pieces are joined; records are not copied."""
        for piece in join_small(pieces):
            self.write_to_client(piece)

    async def write_as_taken(self, pieces: Iterable[Buffer]) -> None:
        """As `write_pieces`, but no faster than the client takes them.

        Nothing else may be written meanwhile, so the client must be muted and no response due.
        """
        pieces_left = [memoryview(piece) for piece in join_small(pieces)]
        self._responding = True
        try:
            while pieces_left:
                await self._writable.wait()
                await self._steps.begin()
                if self._transport is None or self._transport.is_closing():
                    return
                pieces_left = write_step(self._transport, pieces_left)
                if pieces_left:
                    await asyncio.sleep(0)  # a fast client must not keep the loop for all of them
        finally:
            self.has_received, self._responding = True, False

    # -- requests ----------------------------------------------------------------------------------
    def accumulates(self, size: int) -> None:
        """`size` bytes of incomplete requests are in memory."""
        self._owner.accumulated.hold(self, size)

    def _take(self, view: memoryview) -> None:
        if self.closing:
            return
        try:
            self.requests.take(view)
        except WireError as error:
            self._refuse(error, "client")
            return
        # Keep reading from a client that only waits for its response: it seldom sends more.
        requests = self.requests
        if requests.at_limit or ((self.muted or requests.final) and requests.kept_bytes):
            self._pace()
        if requests.final:
            self._leave_soon()

    def take_more(self) -> None:
        """Handle the requests that were left for a later turn of the loop."""
        if self.closing:
            return
        self._take(memoryview(b""))
        self._pace()
        self.requests.close_if_responded()

    def mute_while(self, work: Coroutine[None, None, object], name: str) -> None:
        """Handle no further request before `work` is done; `work` may write to the client."""
        self.muted = True
        if self.closing:
            work.close()
            return
        self.spawn(self._muted_work(work), name)

    async def _muted_work(self, work: Coroutine[None, None, object]) -> None:
        try:
            await work
        except WireError as error:
            self._refuse(error, "client")
            return
        self._unmute()

    def _unmute(self) -> None:
        self.muted = False
        self.take_more()

    @property
    def _must_wait(self) -> bool:
        """No further request is handled now, so reading may be paused."""
        return self.muted or self.requests.must_wait

    def _pace(self) -> None:
        transport = self._transport
        if transport is not None and not (self.closing or transport.is_closing()):
            (transport.pause_reading if self._must_wait else transport.resume_reading)()


class RequestFraming(ABC, Generic[Handling]):
    """Cuts one client's bytes into requests. A request that cannot be valid is refused by its first
    bytes. Bytes that arrive while the session is muted are kept for later.

    `begun_at`: loop time at which the current incomplete frame began, else None.
    `bytes_max`: largest request, without its size prefix.
    """

    def __init__(self, session: ClientSession, clock: Callable[[], float], bytes_max: int) -> None:
        self._session = session
        self._clock = clock
        self.bytes_max = bytes_max
        self._carry = bytearray()
        self._whole_at = 0  # length of `_carry` at which its first request is whole
        self._left = 0  # bytes still to come of a request that passes
        self.at_limit = False  # the limit of requests in flight is reached
        self._left_in_turn = 0  # of MESSAGES_A_TURN
        self._goes_on = False  # the next requests are handled in the loop's next turn
        self.ended = False  # the client sends no more
        self.final = False  # no further request is begun, as the client is let go
        self.begun_at: float | None = None
        self._accumulated = 0  # bytes of `_carry`, if they are counted

    @abstractmethod
    def _consume(self, view: memoryview) -> int:
        """Handle the requests in `view`; returns the position up to which they are handled."""

    @abstractmethod
    def _is_full(self) -> bool:
        """The limit of requests in flight is reached: `at_limit` is True until there is room."""

    @abstractmethod
    def _accept(self, size: int, head: RequestHead) -> Handling | None:
        """How to handle the request, by its header; None: look at it again later."""

    @abstractmethod
    def _check_size(self, size: int, head: RequestHead | None) -> None:
        """Check a request larger than `bytes_max`: raises WireError, or lets it pass. `head`: None
        if it has not arrived yet.
        """

    @property
    def kept_bytes(self) -> int:
        """Bytes of requests that are incomplete, or wait to be handled."""
        return len(self._carry)

    @property
    def must_wait(self) -> bool:
        """No further request is handled now."""
        return self.at_limit or (self.final and bool(self._carry))

    def takes_alone(self, size: int) -> bool:
        """A request of this size, prefix included, could be handled at once if it came now."""
        if self._carry or self._left or self.at_limit or self.ended or self.final:
            return False
        return size - INT32.size <= self.bytes_max and not self._session.muted

    def _has_begun(self) -> bool:
        """The next request was looked at and left for later."""
        return False

    def drop(self) -> None:
        """Drop the bytes that were kept."""
        self._carry = bytearray()
        self._accumulates(0)

    def _accumulates(self, size: int) -> None:
        self._accumulated = size
        self._session.accumulates(size)

    def end(self) -> bool:
        """The client sends no more. True: some request is still to be answered."""
        self.ended = True
        self.begun_at = None
        return not self._all_responded

    def close_if_responded(self) -> None:
        """Close the session if no request follows and the client waits for no response."""
        if not (self.ended or self.final) or self._session.closing or not self._all_responded:
            return
        if self.ended:
            self._session.close()
        else:
            self._session.leave()

    @property
    def _all_responded(self) -> bool:
        """All whole requests are answered. The rest of a cut-off request will not come."""
        return not (self._session.muted or self.at_limit or self._goes_on)

    def take(self, view: memoryview) -> None:
        """Raises WireError. Bytes that cannot be handled yet are kept."""
        carry = self._carry
        if carry:
            carry += view  # in place: a large request is not copied or parsed at every packet
        arrived = carry or view
        if arrived and len(arrived) >= self._whole_at and not self._session.muted:
            self._whole_at = 0
            view, self._carry = memoryview(arrived), bytearray()
            self._left_in_turn = MESSAGES_A_TURN
            bytes_left = self._consume(view)
            if bytes_left < len(view):
                self._carry = bytearray(view[bytes_left:])
        elif not carry:
            self._carry = bytearray(view)
        if len(self._carry) > COUNTED_BYTES_MIN or self._accumulated:
            self._accumulates(len(self._carry))
        waits = self._session.muted or self.at_limit or self.ended or self.final
        if not (self._carry or self._left) or waits:
            self.begun_at = None
        elif self.begun_at is None:
            self.begun_at = self._clock()

    def _next(
        self, view: memoryview, pos: int, end: int
    ) -> tuple[int, RequestHead, Handling] | None:
        """(size, header, handling) of the request at `pos`; None: look at it again later."""
        if end - pos < 4 or (self.final and not self._has_begun()):
            return None
        size: int = INT32.unpack_from(view, pos)[0]
        if size < REQUEST_HEADER_BYTES_MIN or (
            size > self.bytes_max and other_protocol(size) is not None
        ):
            raise self._not_a_size(size)
        if end - pos < 4 + REQUEST_HEADER_BYTES_MIN:
            if size > self.bytes_max:
                self._check_size(size, None)
            return None
        if not self._left_in_turn:
            self._go_on_soon()
            return None
        if self._is_full():
            return None
        try:
            head = peek_request_header(view, pos + 4, min(end, pos + 4 + size))
        except Truncated as error:
            if size > self.bytes_max:
                self._check_size(size, None)
            self._wait_for_more(error, end - pos, size + 4)
            return None
        if size > self.bytes_max:
            self._check_size(size, head)
        handling = self._accept(size, head)
        if handling is None:
            return None
        self._left_in_turn -= 1
        return size, head, handling

    def _go_on_soon(self) -> None:
        """Continue in the loop's next turn: other clients' requests come first."""
        if not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._take_more)

    def _take_more(self) -> None:
        self._goes_on = False
        self._session.take_more()

    @staticmethod
    def _wait_for_more(error: Truncated, available_bytes: int, frame_bytes: int) -> None:
        """Raises WireError if the rest of a request, `frame_bytes` bytes in all, would not help."""
        if available_bytes >= frame_bytes:
            raise error
        if available_bytes >= REQUEST_HEADER_BYTES_MAX:
            raise MalformedMessage(
                f"the beginning of a request is longer than {REQUEST_HEADER_BYTES_MAX} bytes"
            )

    @staticmethod
    def _not_a_size(size: int) -> MalformedMessage:
        other = other_protocol(size)
        if other is None:
            return MalformedMessage(f"{size} is not the size of a request")
        return OtherProtocol(other)

    def _too_large(
        self, size: int, head: RequestHead | None, limit: str, bytes_max: int
    ) -> FrameTooLarge:
        """The refusal of a request, which the client will send again and again."""
        api = "a"
        if head is not None:
            api = ApiKey(head.api_key).name if is_known(head.api_key) else "an unknown"
        message = f"{api} request of {size} bytes is larger than {limit} = {bytes_max}"
        self._session.refused_as_too_large(limit, message)
        return FrameTooLarge(message, limit.rpartition(".")[2])
