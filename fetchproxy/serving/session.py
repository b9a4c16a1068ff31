"""One client's connection: bytes in, cut into requests; answers out in order; and how long each may
take.

A request that must be thought about *mutes* the client: later requests wait in the socket, as they
would behind a delayed request on a broker. What becomes of a request, and whether there is a broker
behind it, is each server's own matter.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Generic, Protocol, TypeVar, cast

from fetchproxy_protocol.apis import FrameTooLarge, MalformedMessage, Truncated, WireError
from fetchproxy_protocol.headers import (
    REQUEST_HEADER_BYTES_MAX,
    REQUEST_HEADER_BYTES_MIN,
    RequestHead,
    peek_request_header,
)
from fetchproxy_protocol.primitives import INT32, Buffer

from fetchproxy.config.schema import GatewayConfig
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import LIMITS_REACHED, WIRE_ERRORS
from fetchproxy.runtime.loop import MESSAGES_A_TURN, LoopSteps
from fetchproxy.serving.admission import Admission, Share, payer_of
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.serving.transport import ReceiveBuffer, is_reset, join_small, write_step
from fetchproxy.tls.contexts import looks_like_tls

Address = tuple[str, int]
Handling = TypeVar("Handling")  # what a server does with a request


class SessionOwner(Protocol):
    """The listener, as its sessions see it. `clock` is the running loop's time in seconds.

    `tells_reached`: a client is told to dial the address that it has dialled.
    """

    config: GatewayConfig
    limits: ServingLimits
    receive: ReceiveBuffer
    clock: Callable[[], float]
    warnings: SparingWarnings
    tells_reached: bool

    def advertised(self, reached: str) -> Address:
        """Where a client is told to dial that has reached us at the address `reached`."""

    def made(self, session: ClientSession) -> None:
        """Its client is there."""

    def lost(self, session: ClientSession) -> None: ...


class _SessionOver(Exception):
    """Ends the session's task group."""


class ClientSession(asyncio.BufferedProtocol):
    """`steps`: before each step of a large answer, as whoever reads the tail comes first."""

    requests: RequestFraming[Any]

    def __init__(self, owner: SessionOwner, steps: LoopSteps, admission: Admission) -> None:
        self._owner = owner
        self._config = owner.config
        self._limits = owner.limits
        self._receive = owner.receive
        self._steps = steps
        self.warnings = owner.warnings
        self.client = ""  # set when it is there
        self.share = Share(admission)
        self._transport: asyncio.Transport | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self.closing = False
        self._over = asyncio.Event()  # the same, to wait for
        self.muted = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent, self._taken_at = 0, 0.0  # bytes, when last looked at
        self.heard = False  # since the last look
        self._heard_at = owner.clock()

    # -- asyncio -----------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.client = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        self.share.payer = payer_of(transport)
        self._transport.set_write_buffer_limits(high=self._limits.buffer_bytes_max)
        self._owner.made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.view

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            return  # TLS reads on while it ends, even within close()
        self.heard = True
        self._take(self._receive.view[:nbytes])

    def eof_received(self) -> bool:
        """Who sends no more still takes what he has asked for, as from a broker.

        asyncio's TLS always ends both directions at once.
        """
        plain = self._transport and self._transport.get_extra_info("sslcontext") is None
        return bool(plain) and self.requests.end()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self.share.close()
        self._end()
        self._owner.lost(self)

    @property
    def client_host(self) -> str:
        return self.client.rpartition(":")[0]

    # -- life --------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Lives as long as the connection; owns every task that serves it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                if await self._may_begin():
                    self._unmute()
                    await self._over.wait()
                # What was begun in this step of the loop takes its own first step, or the work that
                # it was given would be dropped without ever being started.
                self._end()
                await asyncio.sleep(0)
                raise _SessionOver
        except* _SessionOver:
            pass
        finally:
            self.close()
            # A collection of garbage would find these late, and hold the loop while it looks.
            self._tasks = None
            self.requests.drop()
            self._drop()

    async def _may_begin(self) -> bool:
        """Whether there is, by now, what requests are answered with."""
        return not self.closing

    def _drop(self) -> None:
        """What else would keep memory when it is over."""

    def spawn(self, work: Coroutine[None, None, object], name: str) -> None:
        """Nothing is begun for a session that is over."""
        if self.closing:
            work.close()
            return
        assert self._tasks is not None
        self._tasks.create_task(work, name=name)

    def close(self, reason: str | None = None, **context: object) -> None:
        """What was written already still leaves. Logs `reason` if given."""
        if reason is not None:
            self._say_closed(reason, **context)
        self._end()
        for transport in self._transports():
            # asyncio's TLS transport cannot be asked anything after a second close.
            if not transport.is_closing():
                transport.close()

    def _say_closed(self, reason: str, **context: object) -> None:
        """A client that goes on giving the same reason is not logged again within the minute."""
        self.warnings.warn(
            "client_connection_closed",
            (self.client_host, reason, context.get("kind"), context.get("user")),
            client=self.client,
            reason=reason,
            **context,
        )

    def abort(self) -> None:
        """Without waiting for a client that does not take what was written."""
        for transport in self._transports():
            transport.abort()

    def _transports(self) -> list[asyncio.Transport]:
        """What ends with it."""
        return [] if self._transport is None else [self._transport]

    def _end(self) -> None:
        self.closing = True
        self._over.set()

    def _refuse(self, error: WireError, side: str) -> None:
        WIRE_ERRORS.labels(type(error).__name__).inc()
        if isinstance(error, FrameTooLarge):
            LIMITS_REACHED.labels(error.limit).inc()
        self.close("wire_error", error=str(error), kind=type(error).__name__, side=side)

    # -- looked at by the listener, again and again ------------------------------------------------
    def look(self, now: float) -> None:
        """Closes it where it is silent, gone, takes nothing, or does not end a frame it began."""
        config, begun, silent_s = self._config, self.requests.begun_at, self.silent_s(now)
        if self.stalled_s(now) > self._limits.client_stall_max_ms / 1000:
            LIMITS_REACHED.labels("client_stall_max_ms").inc()
            self.close("client_stall_max_ms")
            self.abort()  # it does not take what is still to be written
        elif self.reset_unheard:
            self.abort()  # nobody is there: a broker may hold the answer for hours
        elif begun is not None and now - begun > self._limits.half_frame_max_ms / 1000:
            LIMITS_REACHED.labels("half_frame_max_ms").inc()
            self.close("half_frame_max_ms", waited_s=round(now - begun, 1))
        elif silent_s > config.idle_max_ms / 1000:
            if self.closing:
                self.abort()  # it never took what was still to be written
                return
            LIMITS_REACHED.labels("idle_max_ms").inc()
            self.close("idle_max_ms")

    def silent_s(self, now: float) -> float:
        """Since when (s) nothing was heard; called regularly, so no piece is timed."""
        if self.heard:
            self._heard_at, self.heard = now, False
        return now - self._heard_at

    def stalled_s(self, now: float) -> float:
        """Since when (s) the client has taken none of what waits for it; called regularly."""
        transport = self._transport
        unsent = 0 if transport is None else transport.get_write_buffer_size()
        if unsent != self._unsent or not unsent:
            self._unsent, self._taken_at = unsent, now
        return now - self._taken_at

    @property
    def reset_unheard(self) -> bool:
        """The client is gone; asyncio watches no socket that it does not read, and has not said so.

        A client that has only ended its sending is still there: what it sent may yet be unread.
        """
        unwatched = self._held_back or self.requests.ended
        return unwatched and self._transport is not None and is_reset(self._transport)

    @property
    def kept_bytes(self) -> int:
        """In memory: what is unsent, what is not whole, and of its appetite."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        return unsent + self.requests.kept_bytes + self.share.kept_bytes

    # -- answers -----------------------------------------------------------------------------------
    def write_to_client(self, data: Buffer) -> None:
        # One that is closing drops what it is given, and asyncio complains when that goes on.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def write_pieces(self, pieces: Iterable[Buffer]) -> None:
        """A whole answer; small pieces are joined, records are not copied."""
        for piece in join_small(pieces):
            self.write_to_client(piece)

    async def write_as_taken(self, pieces: Iterable[Buffer]) -> None:
        """As `write_pieces`, but no faster than the client takes them.

        Nothing else may be written meanwhile: for work that mutes the client, with nothing due.
        """
        left = [memoryview(piece) for piece in join_small(pieces)]
        while left:
            await self._writable.wait()
            await self._steps.begin()
            if self._transport is None or self._transport.is_closing():
                return
            left = write_step(self._transport, left)
            if left:
                await asyncio.sleep(0)  # a fast client must not keep the loop for a whole answer

    # -- requests ----------------------------------------------------------------------------------
    def _take(self, view: memoryview) -> None:
        if self.closing:
            return
        try:
            self.requests.take(view)
        except WireError as error:
            self._refuse(error, "client")
            return
        # One that only waits for its answer may be read from: it seldom has more to say.
        if self.requests.limited or (self.muted and self.requests.kept_bytes):
            self._pace()

    def take_more(self) -> None:
        """What was left for a later turn of the loop."""
        self._take(memoryview(b""))
        self._pace()
        self.requests.close_if_answered()

    def mute_while(self, work: Coroutine[None, None, object], name: str) -> None:
        """No further request is looked at before `work` is done; it may write to the client."""
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
    def _held_back(self) -> bool:
        """No further request is taken, so that reading may be paused."""
        return self.muted or self.requests.limited

    def _pace(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            (transport.pause_reading if self._held_back else transport.resume_reading)()


class RequestFraming(ABC, Generic[Handling]):
    """One client's requests, cut out of what it sends. What cannot be right is refused by its first
    bytes; what arrives while the session is muted is kept, and not looked at.

    `begun_at` is loop time while a frame is under way, else None. `bytes_max`: of a request,
    without its size prefix.
    """

    def __init__(self, session: ClientSession, clock: Callable[[], float], bytes_max: int) -> None:
        self._session = session
        self._clock = clock
        self.bytes_max = bytes_max
        self._carry = bytearray()
        self._whole_at = 0  # bytes of `_carry` with which the request is whole that it begins with
        self._left = 0  # of a request that leaves as it comes
        self.limited = False  # as many requests are in flight as may be
        self._left_in_turn = 0  # of MESSAGES_A_TURN
        self._goes_on = False  # with the next requests, in the loop's next turn
        self.ended = False  # the client sends no more
        self.begun_at: float | None = None

    @abstractmethod
    def _consume(self, view: memoryview) -> int:
        """Work through `view`; returns the position up to which it is done with."""

    @abstractmethod
    def _is_full(self) -> bool:
        """As many requests are in flight as may be: `limited` says so until there is room."""

    @abstractmethod
    def _accept(self, size: int, head: RequestHead) -> Handling | None:
        """What becomes of a request by its header; None: it is to be looked at again later."""

    @abstractmethod
    def _check_size(self, size: int) -> None:
        """Of a request that is larger than `bytes_max`: raises WireError, or lets it pass."""

    @property
    def kept_bytes(self) -> int:
        """Of requests that are not whole, or not to be looked at yet."""
        return len(self._carry)

    def drop(self) -> None:
        """Nobody wants the rest any more."""
        self._carry = bytearray()

    def end(self) -> bool:
        """The client sends no more. True: some of what it asked for is still to be answered."""
        self.ended = True
        self.begun_at = None
        return not self._all_answered

    def close_if_answered(self) -> None:
        """The session, if the client sends no more and has nothing to wait for."""
        if self.ended and self._all_answered:
            self._session.close()

    @property
    def _all_answered(self) -> bool:
        """All that has come whole: what was cut off has no other part to come."""
        return not (self._session.muted or self.limited or self._goes_on)

    def take(self, view: memoryview) -> None:
        """Raises WireError; what is not to be looked at yet is kept."""
        carry = self._carry
        if carry:
            carry += view  # in place: a large request is neither copied nor read at every packet
        if len(carry or view) >= self._whole_at and not self._session.muted:
            self._whole_at = 0
            view, self._carry = memoryview(carry or view), bytearray()
            self._left_in_turn = MESSAGES_A_TURN
            rest = self._consume(view)
            if rest < len(view):
                self._carry = bytearray(view[rest:])
        elif not carry:
            self._carry = bytearray(view)
        waits = self._session.muted or self.limited or self.ended
        if not (self._carry or self._left) or waits:
            self.begun_at = None
        elif self.begun_at is None:
            self.begun_at = self._clock()

    def _next(
        self, view: memoryview, pos: int, end: int
    ) -> tuple[int, RequestHead, Handling] | None:
        """(size, header, handling) of the request at `pos`; None: not to be looked at yet."""
        if end - pos < 4:
            return None
        size: int = INT32.unpack_from(view, pos)[0]
        if size < REQUEST_HEADER_BYTES_MIN:
            raise self._not_a_size(size, self.bytes_max)
        if size > self.bytes_max:
            self._check_size(size)
        if end - pos < 4 + REQUEST_HEADER_BYTES_MIN:
            return None
        if not self._left_in_turn:
            self._go_on_soon()
            return None
        if self._is_full():
            return None
        try:
            head = peek_request_header(view, pos + 4, min(end, pos + 4 + size))
        except Truncated as error:
            self._wait_for_more(error, end - pos, size + 4)
            return None
        handling = self._accept(size, head)
        if handling is None:
            return None
        self._left_in_turn -= 1
        return size, head, handling

    def _go_on_soon(self) -> None:
        """The others' requests come first."""
        if not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._take_more)

    def _take_more(self) -> None:
        self._goes_on = False
        self._session.take_more()

    @staticmethod
    def _wait_for_more(error: Truncated, there: int, whole: int) -> None:
        """Raises where what is still to come of a request, `whole` bytes in all, would not help."""
        if there >= whole:
            raise error
        if there >= REQUEST_HEADER_BYTES_MAX:
            raise MalformedMessage(
                f"the beginning of a request is longer than {REQUEST_HEADER_BYTES_MAX} bytes"
            )

    @staticmethod
    def _not_a_size(size: int, bytes_max: int, limit: str = "frame_bytes_max") -> FrameTooLarge:
        tls = ": it speaks TLS, and this listener plaintext" if looks_like_tls(size) else ""
        return FrameTooLarge(
            f"size prefix {size} is not within {REQUEST_HEADER_BYTES_MIN} … {bytes_max}{tls}",
            limit,
        )
