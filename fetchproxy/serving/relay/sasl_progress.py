"""How far a client is with SASL, where the brokers' listener asks for it.

The broker authenticates its clients, and the proxy is not told when it is done. Until one of its
answers to SaslAuthenticate is without an error, nothing but that, ApiVersions and SaslHandshake can
be right: all else passes unread, for the broker to refuse. Of a client without credentials nothing
is parsed and nothing is held. What is refused by its head does not reach a broker: a request larger
than brokers take before that (some 30 ms of a broker's CPU), and one before any SaslHandshake.
"""

from __future__ import annotations

from collections.abc import Sequence

from fetchproxy_protocol.apis import ApiKey, FrameTooLarge, MalformedMessage
from fetchproxy_protocol.headers import RequestHead, response_body
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.relay.answers import Answer, HeldAnswer
from fetchproxy.serving.relay.apis.table import RELAY, handling_of
from fetchproxy.serving.relay.handling import Held, Passes, Session

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
