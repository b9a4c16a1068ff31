"""One client connection and its own connection to one broker (DESIGN §3).

Requests are cut into frames as they arrive. Most pass through untouched; the few that need a look
are held until whole and given to their API's handler. Requests go upstream in order and answers
come back in order. A request that the proxy must think about *mutes* the client: later requests
wait in the socket, as they would behind a delayed request on a broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from typing import cast

import structlog

from fetchproxy.gateway.answers import Answer, HeldAnswer, Payload
from fetchproxy.gateway.broker_link import BrokerLink
from fetchproxy.gateway.fetch_handler import FetchHandler
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.list_offsets_handler import ListOffsetsHandler
from fetchproxy.gateway.requests import Treatment, produce_answer_is_relayed, treatment_of
from fetchproxy.observability.metrics import LIMITS_REACHED, RELAYED_BYTES_TO_BROKER, WIRE_ERRORS
from protocol.api_versions import intersect_response, unsupported_version_response
from protocol.errors import FrameTooLarge, MalformedMessage, Truncated, WireError
from protocol.headers import RequestHead, peek_request_header
from protocol.primitives import INT32, Buffer
from protocol.produce import acks_of
from protocol.sasl import handshake_refusal

log = structlog.get_logger(__name__)

_JOINED_BYTES_MAX = 32 * 1024  # a system call costs as much as copying about this
_REQUEST_BYTES_MIN = 10  # api key, version, correlation id, client id length

Connect = Callable[[Callable[[], BrokerLink]], Awaitable[BrokerLink]]


class _SessionOver(Exception):
    """Ends the session's task group."""


class ClientSession(asyncio.BufferedProtocol):
    """`connect(factory)` reaches the broker that this listener stands for, or raises OSError."""

    def __init__(
        self,
        parts: GatewayParts,
        connect: Connect,
        on_made: Callable[[ClientSession], None],
        on_lost: Callable[[ClientSession], None],
    ) -> None:
        self.parts = parts
        self._config = parts.config
        self._connect = connect
        self._on_made = on_made
        self._on_lost = on_lost
        self._clock = parts.clock
        self._receive = parts.receive
        self.client = ""
        self._transport: asyncio.Transport | None = None
        self.link: BrokerLink | None = None
        self._tasks: asyncio.TaskGroup | None = None
        self._over = asyncio.Event()
        self._drained = asyncio.Event()
        self._carry = bytearray()
        self._left = 0  # of a request that passes through
        self._muted = True  # until the broker is connected
        self._upstream_slow = False
        self._limited = False  # as many requests in flight as may be
        self.last_received = self._clock()
        self.frame_begun: float | None = None
        self.fetch = FetchHandler(self, parts)
        self._list_offsets = ListOffsetsHandler(parts)

    # -- asyncio ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.client = f"{peer[0]}:{peer[1]}" if peer else "unknown"
        self._transport.set_write_buffer_limits(high=self._config.buffer_bytes_max)
        self._on_made(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receive.view

    def buffer_updated(self, nbytes: int) -> None:
        self.last_received = self._clock()
        self._take(self._receive.view[:nbytes])
        self._receive.release(self.link.transport if self.link else None)

    def pause_writing(self) -> None:
        if self.link is not None:
            self.link.client_slow(True)

    def resume_writing(self) -> None:
        if self.link is not None:
            self.link.client_slow(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._over.set()
        self._on_lost(self)

    @property
    def last_activity(self) -> float:
        """Loop time of the last byte from either side."""
        link = self.link
        return self.last_received if link is None else max(self.last_received, link.last_received)

    # -- life ------------------------------------------------------------------------------------
    async def run(self) -> None:
        """Lives as long as the connection; owns every task that serves it."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                if await self._reach_broker():
                    self._unmute()
                    await self._over.wait()
                raise _SessionOver
        except* _SessionOver:
            pass
        finally:
            self.close()

    async def _reach_broker(self) -> bool:
        transport = self._transport
        if transport is None:
            return False
        try:
            self.link = await self._connect(
                lambda: BrokerLink(
                    self, self._receive, transport, self._config.frame_bytes_max, self._clock
                )
            )
        except OSError as error:
            log.warning("broker_unreachable", client=self.client, error=str(error))
            return False
        link_transport = self.link.transport
        if link_transport is None:
            return False
        link_transport.set_write_buffer_limits(high=self._config.buffer_bytes_max)
        return True

    def spawn(self, work: Coroutine[None, None, object], name: str) -> asyncio.Task[object]:
        assert self._tasks is not None
        return self._tasks.create_task(work, name=name)

    def close(self, reason: str | None = None, **context: object) -> None:
        """Both connections; what was written already still leaves. Logs `reason` if given."""
        if reason is not None:
            log.warning("client_connection_closed", client=self.client, reason=reason, **context)
        if self._transport is not None:
            self._transport.close()
        if self.link is not None and self.link.transport is not None:
            self.link.transport.close()
        self._over.set()

    def _refuse(self, error: WireError, side: str) -> None:
        WIRE_ERRORS.labels(type(error).__name__).inc()
        if isinstance(error, FrameTooLarge):
            LIMITS_REACHED.labels("frame_bytes_max").inc()
        self.close("wire_error", error=str(error), kind=type(error).__name__, side=side)

    # -- what the link tells (LinkOwner) -----------------------------------------------------------
    def write_to_client(self, data: Buffer) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def write_pieces(self, pieces: Iterable[Buffer]) -> None:
        """A whole answer; small pieces are joined, records are not copied."""
        if self._transport is not None:
            for piece in join_small(pieces):
                self._transport.write(piece)

    def link_go_on(self) -> None:
        if self.link is not None:
            self.link.go_on()

    def answered(self) -> None:
        assert self.link is not None
        if not self.link.expected:
            self._drained.set()
        if self._limited and not self._at_inflight_limit():
            self._limited = False
            self._take(memoryview(b""))
            self._pace()

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
            log.info("broker_connection_lost", client=self.client, error=str(error))
        self.close()

    def pause_requests(self) -> None:
        self._upstream_slow = True
        self._pace()

    def resume_requests(self) -> None:
        self._upstream_slow = False
        self._pace()

    # -- muting ----------------------------------------------------------------------------------
    def mute_while(self, work: Coroutine[None, None, object], name: str) -> None:
        """No further request is looked at before `work` is done; it may write to the client."""
        self._muted = True
        self.spawn(self._muted_work(work), name)

    async def _muted_work(self, work: Coroutine[None, None, object]) -> None:
        try:
            await work
        except WireError as error:
            self._refuse(error, "client")
            return
        self._unmute()

    def _unmute(self) -> None:
        self._muted = False
        self._take(memoryview(b""))
        self._pace()

    def _pace(self) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._muted or self._upstream_slow or self._limited:
            transport.pause_reading()
        else:
            transport.resume_reading()

    def _at_inflight_limit(self) -> bool:
        # A parked poll is the proxy's own: counted, it would keep out the fetch that takes it up.
        link, parked = self.link, self.fetch.parked is not None
        return link is not None and len(link.expected) - parked >= self._config.inflight_requests_max

    async def drained(self) -> None:
        """Until every request so far has been answered, but for a parked fetch."""
        assert self.link is not None
        while self.link.expected and not self.fetch.only_parked(self.link.expected):
            self._drained.clear()
            await self._drained.wait()

    def send_upstream(self, request: Buffer, answer: Answer | None) -> None:
        if self.link is not None and self.link.transport is not None:
            self.link.send(request, answer)

    # -- requests --------------------------------------------------------------------------------
    def _take(self, view: memoryview) -> None:
        if self._carry:
            self._carry += view
            view = memoryview(self._carry)
            self._carry = bytearray()
        try:
            rest = self._consume(view) if not self._muted else 0
        except WireError as error:
            self._refuse(error, "client")
            return
        if rest < len(view):
            self._carry = bytearray(view[rest:])
        self._note_progress()

    def _note_progress(self) -> None:
        half = bool(self._carry or self._left) and not self._muted and not self._limited
        if not half:
            self.frame_begun = None
        elif self.frame_begun is None:
            self.frame_begun = self._clock()
        if self._muted or self._limited:
            self._pace()

    def _consume(self, view: memoryview) -> int:
        """Work through `view`; returns the position up to which it is done with."""
        pos = emit = 0
        end = len(view)
        while pos < end and not self._muted:
            if self._left:
                step = min(self._left, end - pos)
                self._left -= step
                pos += step
                if not self._left:
                    self.frame_begun = None
                continue
            if end - pos < 4 + _REQUEST_BYTES_MIN:
                self._check_size(view, pos, end)
                break
            if self._at_inflight_limit():
                LIMITS_REACHED.labels("inflight_requests_max").inc()
                self._limited = True
                break
            size = self._check_size(view, pos, end)
            head = self._peek(view, pos, end, size)
            if head is None:
                break
            treatment = treatment_of(head)
            if treatment.passes:
                if not self._pass(view, pos, end, head, treatment):
                    break
                self._left = size + 4
                continue
            if end - pos < size + 4:
                break  # held until whole
            if emit < pos:
                self.send_upstream(view[emit:pos], None)
            body_at = head.body_position - pos - 4
            if not self._handle(bytes(view[pos : pos + 4 + size]), head, body_at, treatment):
                emit = pos
                break
            pos = emit = pos + 4 + size
            self.frame_begun = None
        if emit < pos:
            self.send_upstream(view[emit:pos], None)
        RELAYED_BYTES_TO_BROKER.inc(pos)
        return pos

    def _check_size(self, view: memoryview, pos: int, end: int) -> int:
        if end - pos < 4:
            return 0
        size: int = INT32.unpack_from(view, pos)[0]
        if not _REQUEST_BYTES_MIN <= size <= self._config.frame_bytes_max:
            raise FrameTooLarge(
                f"size prefix {size} is not within {_REQUEST_BYTES_MIN} … "
                f"{self._config.frame_bytes_max}"
            )
        return size

    def _peek(self, view: memoryview, pos: int, end: int, size: int) -> RequestHead | None:
        try:
            return peek_request_header(view, pos + 4, min(end, pos + 4 + size))
        except Truncated:
            if end - pos >= size + 4:
                raise
            return None

    def _pass(
        self, view: memoryview, pos: int, end: int, head: RequestHead, treatment: Treatment
    ) -> bool:
        """Expect the answer of a request that passes untouched; False: not to be passed yet."""
        if self.fetch.parked:
            # its answer is in front of this one's: get it out of the way first
            self.mute_while(self.fetch.discard_parked(), "discard-parked-fetch")
            return False
        link = self.link
        assert link is not None
        answer: Answer | None
        if treatment is Treatment.PRODUCE:
            acks = acks_of(view, head.body_position, head.api_version, end)
            if acks is None:
                return False
            if acks == 0:
                return True  # a Produce with acks=0 has no answer
        if treatment is Treatment.RELAY or (
            treatment is Treatment.PRODUCE and produce_answer_is_relayed(head.api_version)
        ):
            answer = Answer(head.correlation_id)
        else:
            answer = HeldAnswer(head.correlation_id, self._rewriter(head, treatment))
        link.expected.append(answer)
        return True

    def _rewriter(
        self, head: RequestHead, treatment: Treatment
    ) -> Callable[[bytes], Payload | Awaitable[Payload]]:
        if treatment is Treatment.API_VERSIONS:
            return lambda payload: [intersect_response(payload, head.api_version)]
        addresses = self.parts.addresses

        def rewrite(payload: bytes) -> Payload | Awaitable[Payload]:
            spliced = addresses.rewrite(payload, head.api_key, head.api_version)
            return _as_payload(spliced) if isinstance(spliced, Awaitable) else [spliced]

        return rewrite

    def _handle(self, frame: bytes, head: RequestHead, body_at: int, treatment: Treatment) -> bool:
        """A request that was held whole; its body begins `body_at` behind the size prefix.

        False: look at it again later.
        """
        if self.fetch.parked and treatment is not Treatment.FETCH:
            self.mute_while(self.fetch.discard_parked(), "discard-parked-fetch")
            return False
        match treatment:
            case Treatment.FETCH:
                return self.fetch.on_request(frame, body_at)
            case Treatment.LIST_OFFSETS:
                answer = self._list_offsets.on_request(frame, head, body_at)
                self.send_upstream(frame, answer)
            case Treatment.API_VERSIONS_TOO_NEW:
                self._answer_in_turn(unsupported_version_response(head.correlation_id))
            case Treatment.SASL_HANDSHAKE_V0:
                self._answer_in_turn(handshake_refusal(head.correlation_id))
            case _:
                raise MalformedMessage(
                    f"request with API key {head.api_key} version {head.api_version} is not served"
                )
        return True

    def _answer_in_turn(self, payload: bytes) -> None:
        async def answer() -> None:
            await self.drained()
            self.write_to_client(INT32.pack(len(payload)) + payload)

        self.mute_while(answer(), "own-answer")


def join_small(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """The same bytes with neighbours below `_JOINED_BYTES_MAX` in one piece."""
    small: list[Buffer] = []
    for piece in pieces:
        if len(piece) < _JOINED_BYTES_MAX:
            small.append(piece)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield piece
    if small:
        yield b"".join(small)


async def _as_payload(spliced: Awaitable[Buffer]) -> Payload:
    return [await spliced]
