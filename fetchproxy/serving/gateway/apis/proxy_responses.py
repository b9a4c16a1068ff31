"""APIs of which the proxy itself answers some versions.

ApiVersions (v0–5): a client's first request, by which it chooses all versions. The broker answers,
and each range is narrowed to the versions that the proxy understands too. APIs that the proxy does
not know are left out, because their responses might name brokers. A request newer than v5 gets
error 35 with the proxy's own range at once (KIP-511): the client asks again with a version that
both know.

SaslHandshake (v0–1): v1 is relayed, and so are the SaslAuthenticate requests after it, unread: only
the broker authenticates the client. v0 is answered with error 35. After v0 a client sends bare
tokens without a header (KIP-152 replaced that), which a relay cannot tell from requests. v0 is not
advertised, so only clients that never ask for versions meet this.
"""

from __future__ import annotations

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey
from fetchproxy_protocol.headers import (
    RequestHead,
    client_software,
    handshake_refusal,
    intersect_response,
    unsupported_version_response,
)
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.gateway.broker_link import BufferedResponse
from fetchproxy.serving.gateway.session import (
    API_VERSION_MAX,
    Api,
    Behaviour,
    Buffered,
    GatewaySession,
    Passes,
    Treatment,
    relayed,
)
from fetchproxy.serving.upstream import ExpectedResponse

_FIRST, _LAST = PROXIED_VERSIONS[ApiKey.API_VERSIONS]


def _expect(session: GatewaySession, head: RequestHead, view: Buffer, end: int) -> ExpectedResponse:
    version = head.api_version
    session.share.software_is(*client_software(view, head, end))
    return BufferedResponse(
        head.correlation_id, lambda payload: [intersect_response(payload, version)]
    )


def _response_too_new(
    session: GatewaySession, frame: bytes, head: RequestHead, body_at: int
) -> bool:
    session.respond_in_turn(unsupported_version_response(head.correlation_id))
    return True


def _refuse_v0(session: GatewaySession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    session.respond_in_turn(handshake_refusal(head.correlation_id))
    return True


API_VERSIONS = Api(
    ApiKey.API_VERSIONS,
    (
        Behaviour(
            _FIRST,
            _LAST,
            Treatment.REWRITTEN,
            Passes(_expect),
            "Ranges are narrowed to what broker and proxy both understand.",
        ),
        Behaviour(
            _LAST + 1,
            API_VERSION_MAX,
            Treatment.RESPONDED,
            Buffered(_response_too_new),
            "Error 35 with our own range, in the body of v0 (KIP-511).",
        ),
    ),
)
SASL_HANDSHAKE = Api(
    ApiKey.SASL_HANDSHAKE,
    (
        Behaviour(
            0,
            0,
            Treatment.RESPONDED,
            Buffered(_refuse_v0),
            "Error 35 (UNSUPPORTED_VERSION): after v0, tokens come without a header.",
        ),
        relayed(*PROXIED_VERSIONS[ApiKey.SASL_HANDSHAKE], "The broker authenticates its clients."),
    ),
)
APIS = (API_VERSIONS, SASL_HANDSHAKE)
