"""What becomes of each request of a client (`apis.table`).

Most requests pass as they arrive, without being whole; the others are held until they are, within
`held_request_bytes_max`. Reading stops where the session is muted, or where as many
requests are in flight as may be.
"""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy_protocol.apis import ApiKey, FrameTooLarge, MalformedMessage, Truncated
from fetchproxy_protocol.headers import RequestHead, response_body
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.observability.metrics import LIMITS_REACHED, RELAYED_BYTES_TO_BROKER
from fetchproxy.serving.framing import RequestFraming
from fetchproxy.serving.relay.answers import Answer, HeldAnswer
from fetchproxy.serving.relay.apis.table import FETCH, REFUSED, handling_of
from fetchproxy.serving.relay.handling import RELAY, Held, Passes, Session
from fetchproxy.serving.session import SessionOwner

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

    def __init__(self) -> None:
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
        return handling_of(head) if head.api_key in _READ_BEFORE else RELAY

    def _expect(self, session: Session, head: RequestHead, view: Buffer, end: int) -> Answer:
        def look(payload: bytes) -> Sequence[Buffer]:
            body = response_body(payload, ApiKey.SASL_AUTHENTICATE, head.api_version)
            self.accepted = self.accepted or not body.int16()
            return [payload]

        return HeldAnswer(head.correlation_id, look)


class RelayedRequests(RequestFraming[Passes | Held]):
    """`sasl`: the brokers' listener asks for it."""

    def __init__(
        self,
        session: Session,
        owner: SessionOwner,
        sasl: bool,
    ) -> None:
        super().__init__(session, owner.clock, owner.config.frame_bytes_max)
        self._session = session
        self._config, self._limits = owner.config, owner.limits
        self._sasl = SaslProgress() if sasl else None
        if sasl:
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
        in_flight = len(link.expected) if link else 0
        if in_flight >= self._limits.inflight_requests_max and session.at_inflight_limit():
            LIMITS_REACHED.labels("inflight_requests_max").inc()
            self.limited = True
            return True
        return False

    def _accept(self, size: int, head: RequestHead) -> Passes | Held | None:
        handling = handling_of(head) if self._sasl is None else self._before_sasl(head)
        if size > self._limits.held_request_bytes_max:
            self._check_held(size, head, handling)
        if self._session.link is None:
            self._session.want_broker()
            return None
        return handling

    def _before_sasl(self, head: RequestHead) -> Passes | Held:
        """Until the broker knows the client, it alone reads what he sends."""
        assert self._sasl is not None
        if self._sasl.accepted and head.api_key != ApiKey.SASL_AUTHENTICATE:
            self._sasl = None
            return handling_of(head)
        return self._sasl.handling_of(head)

    def _check_size(self, size: int) -> None:
        if size > self._config.frame_bytes_max:
            raise self._not_a_size(size, self._config.frame_bytes_max)
        if self._sasl is not None:
            self._sasl.check(size)
        self.bytes_max = self._config.frame_bytes_max

    def _check_held(self, size: int, head: RequestHead, handling: Passes | Held) -> None:
        if isinstance(handling, Held) and handling is not REFUSED:
            raise FrameTooLarge(
                f"{ApiKey(head.api_key).name} of {size} bytes is beyond "
                f"held_request_bytes_max, which is {self._limits.held_request_bytes_max}",
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
            answer = passes.expect(session, head, view, min(end, frame_end))
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
