"""SaslHandshake (v0–1): the client names the SASL mechanism that it is going to use.

v1 is relayed, and the SaslAuthenticate requests behind it as well, unread: the broker knows who the
client is, the proxy does not want to. v0 is answered with error 35: after it a client sends bare
tokens that no frame header announces (KIP-152 replaced that), which a relay of requests cannot
tell from requests. It is not advertised, so only clients that never ask for versions meet this.
"""

from __future__ import annotations

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey
from fetchproxy_protocol.headers import RequestHead, handshake_refusal

from fetchproxy.serving.relay.session import Api, Behaviour, Held, RelaySession, Treatment, relayed


def _refuse_v0(session: RelaySession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    session.answer_in_turn(handshake_refusal(head.correlation_id))
    return True


API = Api(
    ApiKey.SASL_HANDSHAKE,
    (
        Behaviour(
            0,
            0,
            Treatment.ANSWERED,
            Held(_refuse_v0),
            "Error 35: in v0 tokens without a frame header would follow.",
        ),
        relayed(*PROXIED_VERSIONS[ApiKey.SASL_HANDSHAKE], "The broker authenticates its clients."),
    ),
)
