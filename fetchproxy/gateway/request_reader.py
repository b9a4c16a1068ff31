"""Cuts a client's bytes into requests and gives each its treatment (`requests.treatment_of`).

Most requests pass as they arrive, without being whole; the others are held until they are. Reading
stops where the session is muted, or where as many requests are in flight as may be.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from fetchproxy.gateway.answers import Answer, HeldAnswer, Payload
from fetchproxy.gateway.apis.list_offsets import ListOffsetsHandler
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.requests import Treatment, produce_answer_is_relayed, treatment_of
from fetchproxy.observability.metrics import LIMITS_REACHED, RELAYED_BYTES_TO_BROKER
from protocol.api_versions import intersect_response, unsupported_version_response
from protocol.errors import FrameTooLarge, MalformedMessage, Truncated
from protocol.headers import RequestHead, peek_request_header
from protocol.primitives import INT32, Buffer
from protocol.produce import acks_of
from protocol.sasl import handshake_refusal

if TYPE_CHECKING:
    from fetchproxy.gateway.client_session import ClientSession

_REQUEST_BYTES_MIN = 10  # api key, version, correlation id, client id length


class RequestReader:
    """One client's requests. `begun_at` is loop time while a frame is under way, else None."""

    def __init__(self, session: ClientSession, parts: GatewayParts) -> None:
        self._session = session
        self._parts = parts
        self._config = parts.config
        self._clock = parts.clock
        self._list_offsets = ListOffsetsHandler(parts)
        self._carry = bytearray()
        self._left = 0  # of a request that passes through
        self.limited = False  # as many requests in flight as may be
        self.begun_at: float | None = None

    def take(self, view: memoryview) -> None:
        """Raises WireError; what is not to be looked at yet is kept."""
        if self._carry:
            self._carry += view
            view = memoryview(self._carry)
            self._carry = bytearray()
        rest = self._consume(view) if not self._session.muted else 0
        if rest < len(view):
            self._carry = bytearray(view[rest:])
        waits = self._session.muted or self.limited
        if waits or not (self._carry or self._left):
            self.begun_at = None
        elif self.begun_at is None:
            self.begun_at = self._clock()

    def _consume(self, view: memoryview) -> int:
        """Work through `view`; returns the position up to which it is done with."""
        pos = emit = 0
        end = len(view)
        while pos < end and not self._session.muted:
            if self._left:
                pos = self._go_on(pos, end)
                continue
            found = self._next(view, pos, end)
            if found is None:
                break
            size, head, treatment = found
            if treatment.passes:
                if not self._pass(view, end, head, treatment):
                    break
                self._left = size + 4
                continue
            if end - pos < size + 4:
                break  # held until whole
            if emit < pos:
                self._session.send_upstream(view[emit:pos], None)
                emit = pos
            frame = bytes(view[pos : pos + 4 + size])
            if not self._handle(frame, head, head.body_position - pos - 4, treatment):
                break
            pos = emit = pos + 4 + size
            self.begun_at = None
        if emit < pos:
            self._session.send_upstream(view[emit:pos], None)
        if pos:
            RELAYED_BYTES_TO_BROKER.inc(pos)
        return pos

    def _go_on(self, pos: int, end: int) -> int:
        """Within a request that passes: where it, or what has arrived of it, ends."""
        step = min(self._left, end - pos)
        self._left -= step
        if not self._left:
            self.begun_at = None
        return pos + step

    def _next(
        self, view: memoryview, pos: int, end: int
    ) -> tuple[int, RequestHead, Treatment] | None:
        """(size, header, treatment) of the request at `pos`; None: not to be looked at yet."""
        if end - pos < 4 + _REQUEST_BYTES_MIN:
            if end - pos >= 4:
                self._size(view, pos)
            return None
        if self._session.at_inflight_limit():
            LIMITS_REACHED.labels("inflight_requests_max").inc()
            self.limited = True
            return None
        size = self._size(view, pos)
        try:
            head = peek_request_header(view, pos + 4, min(end, pos + 4 + size))
        except Truncated:
            if end - pos >= size + 4:
                raise
            return None
        return size, head, treatment_of(head)

    def _size(self, view: memoryview, pos: int) -> int:
        size: int = INT32.unpack_from(view, pos)[0]
        if not _REQUEST_BYTES_MIN <= size <= self._config.frame_bytes_max:
            raise FrameTooLarge(
                f"size prefix {size} is not within {_REQUEST_BYTES_MIN} … "
                f"{self._config.frame_bytes_max}"
            )
        return size

    def _pass(self, view: memoryview, end: int, head: RequestHead, treatment: Treatment) -> bool:
        """Expect the answer of a request that passes untouched; False: not to be passed yet."""
        session = self._session
        if session.fetch.parked:
            # its answer is in front of this one's: get it out of the way first
            session.mute_while(session.fetch.discard_parked(), "discard-parked-fetch")
            return False
        if treatment is Treatment.PRODUCE:
            acks = acks_of(view, head.body_position, head.api_version, end)
            if acks is None:
                return False
            if acks == 0:
                return True  # a Produce with acks=0 has no answer
            if produce_answer_is_relayed(head.api_version):
                treatment = Treatment.RELAY
        answer: Answer
        if treatment is Treatment.RELAY:
            answer = Answer(head.correlation_id)
        else:
            answer = HeldAnswer(head.correlation_id, self._rewriter(head, treatment))
        session.expect(answer)
        return True

    def _rewriter(
        self, head: RequestHead, treatment: Treatment
    ) -> Callable[[bytes], Payload | Awaitable[Payload]]:
        if treatment is Treatment.API_VERSIONS:
            return lambda payload: [intersect_response(payload, head.api_version)]
        addresses = self._parts.addresses

        def rewrite(payload: bytes) -> Payload | Awaitable[Payload]:
            spliced = addresses.rewrite(payload, head.api_key, head.api_version)
            return _as_payload(spliced) if isinstance(spliced, Awaitable) else [spliced]

        return rewrite

    def _handle(self, frame: bytes, head: RequestHead, body_at: int, treatment: Treatment) -> bool:
        """A request that was held whole; its body begins `body_at` behind the size prefix.

        False: look at it again later.
        """
        session = self._session
        if session.fetch.parked and treatment is not Treatment.FETCH:
            session.mute_while(session.fetch.discard_parked(), "discard-parked-fetch")
            return False
        match treatment:
            case Treatment.FETCH:
                return session.fetch.on_request(frame, body_at)
            case Treatment.LIST_OFFSETS:
                answer = self._list_offsets.on_request(frame, head, body_at)
                session.send_upstream(frame, answer)
            case Treatment.API_VERSIONS_TOO_NEW:
                session.answer_in_turn(unsupported_version_response(head.correlation_id))
            case Treatment.SASL_HANDSHAKE_V0:
                session.answer_in_turn(handshake_refusal(head.correlation_id))
            case _:
                raise MalformedMessage(
                    f"request with API key {head.api_key} version {head.api_version} is not served"
                )
        return True


async def _as_payload(spliced: Awaitable[Buffer]) -> Payload:
    return [await spliced]
