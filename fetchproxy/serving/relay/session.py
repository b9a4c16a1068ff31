"""One client connection and its own connection to one broker.

Requests are cut into frames as they arrive. Most pass through untouched; the few that need a look
are held until whole and given to their API's handler. Requests go upstream in order and answers
come back in order. A request that the proxy must think about *mutes* the client: later requests
wait in the socket, as they would behind a delayed request on a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import cast

import structlog

from fetchproxy.observability.metrics import CONNECTIONS_REFUSED, LIMITS_REACHED, WIRE_ERRORS
from fetchproxy.serving.relay.answers import Answer, HeldAnswer, Payload
from fetchproxy.serving.relay.apis.fetch import FetchHandler
from fetchproxy.serving.relay.broker_link import BrokerLink
from fetchproxy.serving.relay.framing import RequestReader
from fetchproxy.serving.relay.parts import GatewayParts
from fetchproxy.serving.transport import is_reset, join_small, may_half_close, write_step
from fetchproxy.tls.contexts import in_words
from protocol.apis import FrameTooLarge, WireError
from protocol.primitives import INT32, Buffer

log = structlog.get_logger(__name__)

Connect = Callable[[Callable[[], BrokerLink]], Awaitable[BrokerLink]]


class _SessionOver(Exception):
    """Ends the session's task group."""


class ClientSession(asyncio.BufferedProtocol):
    """`connect(factory)` reaches the broker that this listener stands for, or raises OSError.

    `node_id` is that broker's, None at the bootstrap address.
    """

    def __init__(
        self,
        parts: GatewayParts,
        connect: Connect,
        on_made: Callable[[ClientSession, asyncio.BaseTransport], None],
        on_lost: Callable[[ClientSession], None],
        node_id: int | None = None,
    ) -> None:
        self.parts = parts
        self.node_id = node_id
        self._config = parts.config
        self._limits = parts.limits
        self._connect = connect
        self._on_made = on_made
        self._on_lost = on_lost
        self._receive = parts.receive
        self.client = self.payer = ""  # both set when it is there
        self._transport: asyncio.Transport | None = None
        self.link: BrokerLink | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self.closing = False
        self._over = asyncio.Event()  # the same, to wait for
        self._drained = asyncio.Event()
        self._wanted = asyncio.Event()  # the broker, or nothing any more
        self.muted = False
        self._upstream_slow = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._unsent, self._taken_at = 0, 0.0  # bytes, when last looked at
        self.heard = False  # since the last look
        self._heard_at = parts.clock()
        self.fetch = FetchHandler(self, parts)
        self.requests = RequestReader(self, parts)

    # -- asyncio ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.client = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        self._transport.set_write_buffer_limits(high=self._limits.buffer_bytes_max)
        self._on_made(self, transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.view

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            return  # TLS reads on while it ends, even within close()
        self.heard = True
        self._take(self._receive.view[:nbytes])
        self._receive.release(self.link.transport if self.link else None)

    def eof_received(self) -> bool:
        """Who sends no more still takes what he has asked for, as from a broker."""
        transport = self._transport
        return transport is not None and may_half_close(transport) and self.requests.end()

    def pause_writing(self) -> None:
        self._writable.clear()
        if self.link is not None:
            self.link.client_slow(True)

    def resume_writing(self) -> None:
        self._writable.set()
        if self.link is not None:
            self.link.client_slow(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._end()
        self.fetch.close()
        self._on_lost(self)

    @property
    def client_host(self) -> str:
        return self.client.rpartition(":")[0]

    def silent_s(self, now: float) -> float:
        """Since when (s) neither side has sent anything; called regularly, so no piece is timed."""
        link = self.link
        if self.heard or (link is not None and link.heard):
            self._heard_at, self.heard = now, False
            if link is not None:
                link.heard = False
        return now - self._heard_at

    # -- life ------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Lives as long as the connection; owns every task that serves it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await self._wanted.wait()
                if not self.closing and await self._reach_broker():
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
            self.link = self._tasks = None
            self.requests.drop()
            self.fetch.drop()

    def want_broker(self) -> None:
        """For the first request. Whoever sends none costs no broker a connection."""
        self.muted = True  # until it is connected
        self._wanted.set()

    async def _reach_broker(self) -> bool:
        transport, records = self._transport, self.parts.records
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
        self.link.transport.set_write_buffer_limits(high=self._limits.buffer_bytes_max)
        return True

    def spawn(self, work: Coroutine[None, None, object], name: str) -> None:
        """Nothing is begun for a session that is over."""
        if self.closing:
            work.close()
            return
        assert self._tasks is not None
        self._tasks.create_task(work, name=name)

    def close(self, reason: str | None = None, **context: object) -> None:
        """Both connections; what was written already still leaves. Logs `reason` if given.

        A client that goes on giving the same reason is not logged again within the minute.
        """
        if reason is not None:
            self.parts.warnings.warn(
                "client_connection_closed",
                (self.client_host, reason, context.get("kind")),
                client=self.client,
                reason=reason,
                **context,
            )
        self._end()
        for transport in (self._transport, self.link.transport if self.link else None):
            # asyncio's TLS transport cannot be asked anything after a second close.
            if transport is not None and not transport.is_closing():
                transport.close()

    def abort(self) -> None:
        """Without waiting for a client that does not take what was written."""
        for transport in (self._transport, self.link.transport if self.link else None):
            if transport is not None:
                transport.abort()

    def _end(self) -> None:
        self.closing = True
        self._wanted.set()
        self._over.set()

    def _refuse(self, error: WireError, side: str) -> None:
        WIRE_ERRORS.labels(type(error).__name__).inc()
        if isinstance(error, FrameTooLarge):
            LIMITS_REACHED.labels(error.limit).inc()
        self.close("wire_error", error=str(error), kind=type(error).__name__, side=side)

    # -- what the link tells (LinkOwner) -----------------------------------------------------------
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
            await self.parts.purgatory.steps.begin()
            if self._transport is None or self._transport.is_closing():
                return
            left = write_step(self._transport, left)
            if left:
                await asyncio.sleep(0)  # a fast client must not keep the loop for a whole answer

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
        """In memory: unsent to either side, what is not whole, and the fetch session."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        of_broker = 0 if self.link is None else self.link.kept_bytes
        return unsent + of_broker + self.requests.kept_bytes + self.fetch.kept_bytes

    def link_go_on(self) -> None:
        if self.link is not None:
            self.link.go_on()

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

    # -- requests --------------------------------------------------------------------------------
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

    def expect(self, answer: Answer) -> None:
        """The answer of a request whose bytes pass."""
        if self.link is not None:
            self.link.expected.append(answer)

    def answer_in_turn(self, payload: bytes) -> None:
        """The proxy's own answer, without size prefix, behind all that are due before it."""

        async def answer() -> None:
            await self.drained()
            self.write_to_client(INT32.pack(len(payload)) + payload)

        self.mute_while(answer(), "own-answer")

    # -- muting ----------------------------------------------------------------------------------
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
        return self.muted or self._upstream_slow or self.requests.limited

    def _pace(self) -> None:
        transport = self._transport
        if transport is not None and not transport.is_closing():
            (transport.pause_reading if self._held_back else transport.resume_reading)()

    def at_inflight_limit(self) -> bool:
        # A parked poll is the proxy's own: counted, it would keep out the fetch that takes it up.
        in_flight = len(self.link.expected) - self.fetch.parked if self.link else 0
        return in_flight >= self._limits.inflight_requests_max

    async def drained(self) -> bool:
        """Until every request so far has been answered, but for a parked fetch; True: it waited."""
        assert self.link is not None
        waited = False
        while self.link.expected and not self.fetch.only_parked(self.link.expected):
            waited = True
            self._drained.clear()
            await self._drained.wait()
        return waited

    def send_upstream(self, request: Buffer, answer: Answer | None) -> None:
        if self.link is not None:
            self.link.send(request, answer)
