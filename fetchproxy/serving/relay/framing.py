"""Cuts a client's bytes into requests and handles each as its API says (`apis.table`).

Most requests pass as they arrive, without being whole; the others are held until they are, within
`held_request_bytes_max`. What cannot be right is refused by its first bytes. Reading stops
where the session is muted, or where as many requests are in flight as may be.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fetchproxy.observability.metrics import LIMITS_REACHED, RELAYED_BYTES_TO_BROKER
from fetchproxy.runtime.loop import MESSAGES_A_TURN
from fetchproxy.serving.relay.answers import Answer
from fetchproxy.serving.relay.apis.behaviour import Held, Passes
from fetchproxy.serving.relay.apis.table import FETCH, REFUSED, RELAY, handling_of
from fetchproxy.serving.relay.parts import GatewayParts
from fetchproxy.serving.relay.sasl_progress import SaslProgress
from fetchproxy.tls.contexts import looks_like_tls
from protocol.apis import ApiKey, FrameTooLarge, MalformedMessage, Truncated
from protocol.headers import REQUEST_HEADER_BYTES_MAX, RequestHead, peek_request_header
from protocol.primitives import INT32

if TYPE_CHECKING:
    from fetchproxy.serving.relay.session import ClientSession

_REQUEST_BYTES_MIN = 10  # api key, version, correlation id, client id length


class RequestReader:
    """One client's requests. `begun_at` is loop time while a frame is under way, else None."""

    def __init__(self, session: ClientSession, parts: GatewayParts) -> None:
        self._session = session
        self._parts = parts
        self._config = parts.config
        self._limits = parts.limits
        self._clock = parts.clock
        self._sasl = SaslProgress() if parts.clients_use_sasl else None
        self._carry = bytearray()
        self._whole_at = 0  # bytes of `_carry` with which the request is whole that it begins with
        self._left = 0  # of a request that passes through
        self._passing: Answer | None = None  # what it is to be answered with
        self.limited = False  # as many requests in flight as may be
        self._left_in_turn = 0  # of MESSAGES_A_TURN
        self._goes_on = False  # with the next requests, in the loop's next turn
        self.ended = False  # the client sends no more
        self.begun_at: float | None = None

    @property
    def kept_bytes(self) -> int:
        """Of requests that are not whole, or not to be looked at yet."""
        return len(self._carry)

    def drop(self) -> None:
        """Nobody wants the rest any more."""
        self._carry, self._passing = bytearray(), None

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
        session = self._session
        if session.muted or self.limited or self._goes_on:
            return False
        if session.link is None:
            return True
        cut_off = self._passing if self._left else None
        due = [answer for answer in session.link.expected if answer is not cut_off]
        return not due or session.fetch.only_parked(due)

    def take(self, view: memoryview) -> None:
        """Raises WireError; what is not to be looked at yet is kept."""
        carry = self._carry
        if carry:
            carry += view  # in place: a large request is neither copied nor read at every packet
        if len(carry or view) >= self._whole_at and not self._session.muted:
            self._whole_at = 0
            view, self._carry = memoryview(carry or view), bytearray()
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

    def _consume(self, view: memoryview) -> int:
        """Work through `view`; returns the position up to which it is done with."""
        pos = emit = 0
        end = len(view)
        session = self._session
        self._left_in_turn = MESSAGES_A_TURN
        while pos < end and not session.muted:
            if self._left:
                pos = self._go_on(pos, end)
                continue
            found = self._next(view, pos, end)
            if found is None:
                break
            size, head, handling = found
            if isinstance(handling, Passes):
                if not self._pass(view, end, pos + 4 + size, head, handling):
                    break
                self._left = size + 4
                continue
            if end - pos < size + 4 and handling is not REFUSED:
                self._whole_at = size + 4
                break
            if emit < pos:
                session.send_upstream(view[emit:pos], None)
                emit = pos
            frame = bytes(view[pos : pos + 4 + size])
            body_at = head.body_position - pos - 4
            if handling is FETCH:  # nearly all of them: without a step in between
                if not session.fetch.on_request(frame, body_at):
                    break
            elif not self._handle(frame, head, body_at, handling):
                break
            pos = emit = pos + 4 + size
            self.begun_at = None
        if emit < pos:
            session.send_upstream(view[emit:pos], None)
        RELAYED_BYTES_TO_BROKER.total += pos
        return pos

    def _go_on_soon(self) -> None:
        """The others' requests come first."""
        if not self._goes_on:
            self._goes_on = True
            asyncio.get_running_loop().call_soon(self._take_more)

    def _take_more(self) -> None:
        self._goes_on = False
        self._session.take_more()

    def _go_on(self, pos: int, end: int) -> int:
        """Within a request that passes: where it, or what has arrived of it, ends."""
        step = min(self._left, end - pos)
        self._left -= step
        if not self._left:
            self.begun_at = None
        return pos + step

    def _next(
        self, view: memoryview, pos: int, end: int
    ) -> tuple[int, RequestHead, Passes | Held] | None:
        """(size, header, handling) of the request at `pos`; None: not to be looked at yet."""
        if end - pos < 4:
            return None
        size: int = INT32.unpack_from(view, pos)[0]
        if not _REQUEST_BYTES_MIN <= size <= self._config.frame_bytes_max:
            raise self._not_a_size(size)
        if self._sasl is not None:
            self._sasl.check(size)
        if end - pos < 4 + _REQUEST_BYTES_MIN:
            return None
        if not self._left_in_turn:
            self._go_on_soon()
            return None
        link = self._session.link
        in_flight = len(link.expected) if link else 0
        if in_flight >= self._limits.inflight_requests_max and self._session.at_inflight_limit():
            LIMITS_REACHED.labels("inflight_requests_max").inc()
            self.limited = True
            return None
        try:
            head = peek_request_header(view, pos + 4, min(end, pos + 4 + size))
        except Truncated as error:
            self._wait_for_more(error, end - pos, size + 4)
            return None
        handling = handling_of(head) if self._sasl is None else self._before_sasl(head)
        if isinstance(handling, Held) and handling is not REFUSED:
            self._check_held(size, head)
        if link is None:
            self._session.want_broker()
            return None
        self._left_in_turn -= 1
        return size, head, handling

    def _before_sasl(self, head: RequestHead) -> Passes | Held:
        """Until the broker knows the client, it alone reads what he sends."""
        assert self._sasl is not None
        if self._sasl.accepted and head.api_key != ApiKey.SASL_AUTHENTICATE:
            self._sasl = None
            return handling_of(head)
        return self._sasl.handling_of(head)

    @staticmethod
    def _wait_for_more(error: Truncated, there: int, whole: int) -> None:
        """Raises where what is still to come of a request, `whole` bytes in all, would not help."""
        if there >= whole:
            raise error
        if there >= REQUEST_HEADER_BYTES_MAX:
            raise MalformedMessage(
                f"the beginning of a request is longer than {REQUEST_HEADER_BYTES_MAX} bytes"
            )

    def _not_a_size(self, size: int) -> FrameTooLarge:
        tls = ": it speaks TLS, and this listener plaintext" if looks_like_tls(size) else ""
        return FrameTooLarge(
            f"size prefix {size} is not within {_REQUEST_BYTES_MIN} … "
            f"{self._config.frame_bytes_max}{tls}"
        )

    def _check_held(self, size: int, head: RequestHead) -> None:
        limit = self._limits.held_request_bytes_max
        if size > limit:
            raise FrameTooLarge(
                f"{ApiKey(head.api_key).name} of {size} bytes is beyond "
                f"held_request_bytes_max, which is {limit}",
                "held_request_bytes_max",
            )

    def _pass(
        self, view: memoryview, end: int, frame_end: int, head: RequestHead, passes: Passes
    ) -> bool:
        """Expect the answer of a request that passes untouched; False: not to be passed yet."""
        session = self._session
        if session.fetch.parked:
            # its answer is in front of this one's: get it out of the way first
            session.mute_while(session.fetch.discard_parked(), "discard-parked-fetch")
            return False
        if passes is RELAY:
            self._passing = Answer(head.correlation_id)
            session.expect(self._passing)
            return True
        try:
            answer = passes.expect(self._parts, head, view, min(end, frame_end))
        except Truncated as error:
            begin = head.client_id_start
            self._wait_for_more(error, min(end, frame_end) - begin, frame_end - begin)
            return False
        self._passing = answer
        if answer is not None:
            session.expect(answer)
        return True

    def _handle(self, frame: bytes, head: RequestHead, body_at: int, held: Held) -> bool:
        """A request, but no Fetch, that was held whole; its body begins `body_at` behind the size
        prefix.

        False: look at it again later.
        """
        session = self._session
        if session.fetch.parked:
            session.mute_while(session.fetch.discard_parked(), "discard-parked-fetch")
            return False
        return held.on_request(session, frame, head, body_at)
