"""SaslHandshake and SaslAuthenticate: a client logs in before it is answered anything else.

SaslHandshake v0, after which tokens come without any header, is answered with error 35, as by the
gateway. A session does not end (KIP-368): nobody has to log in again on a connection.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.standalone.handling import (
    ArchiveOnlyParts,
    Request,
    RequestRefused,
    ServedApi,
)
from fetchproxy.serving.standalone.logins import Login

# Both inclusive. The handshake's v0 is answered, and not advertised.
LOGIN_VERSIONS: Mapping[ApiKey, tuple[int, int]] = {
    ApiKey.SASL_HANDSHAKE: (1, 1),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
}
_FAILED = "Authentication failed: invalid credentials with SASL mechanism"


def handshake(login: Login, request: Request) -> tuple[Sequence[Buffer], bool]:
    """The answer, and whether the connection goes on."""
    if request.version == 0:
        values = {"error_code": ErrorCode.UNSUPPORTED_VERSION, "mechanisms": ()}
        return request.respond(values), False
    if request.version > LOGIN_VERSIONS[ApiKey.SASL_HANDSHAKE][1]:
        raise RequestRefused(request.head, "no such version")
    known = login.choose(request.read()["mechanism"])
    error = ErrorCode.NONE if known else ErrorCode.UNSUPPORTED_SASL_MECHANISM
    values = {"error_code": error, "mechanisms": login.mechanisms}
    return request.respond(values), known


async def authenticate(login: Login, request: Request) -> Sequence[Buffer]:
    """Raises LoginRefused, RequestRefused, WireError."""
    if request.version > LOGIN_VERSIONS[ApiKey.SASL_AUTHENTICATE][1]:
        raise RequestRefused(request.head, "no such version")
    token = await login.step(request.read()["auth_bytes"])
    return request.respond({"auth_bytes": token})


def refusal(request: Request, mechanism: str | None) -> Sequence[Buffer]:
    """Says no more than a broker does: not which of user and password is wrong."""
    values = {
        "error_code": ErrorCode.SASL_AUTHENTICATION_FAILED,
        "error_message": f"{_FAILED} {mechanism or 'none'}",
    }
    return request.respond(values)


async def _refuse_handshake(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Of one who has logged in, or needs not: as a broker's plaintext listener answers."""
    values = {"error_code": ErrorCode.ILLEGAL_SASL_STATE, "mechanisms": ()}
    return request.respond(values)


SASL_HANDSHAKE_REFUSED = ServedApi(ApiKey.SASL_HANDSHAKE, 0, 1, _refuse_handshake)
