"""The user that a client's SASL token names: PLAIN (RFC 4616) and SCRAM (RFC 5802). Pure.

Only for figures and pages: the broker alone decides whether the token is right. Nothing else of a
token is kept.
"""

from __future__ import annotations

from fetchproxy_protocol.apis import ApiKey, WireError, is_flexible
from fetchproxy_protocol.headers import RequestHead
from fetchproxy_protocol.primitives import Buffer, Cursor

# A longer token is no user's name with a password or a nonce.
TOKEN_BYTES_MAX = 4 * 1024


def user_of_request(buf: Buffer, head: RequestHead, end: int) -> str:
    """Of a SaslAuthenticate request; "" if it does not tell, or came in part only."""
    if end - head.body_position > TOKEN_BYTES_MAX:
        return ""
    flexible = is_flexible(ApiKey.SASL_AUTHENTICATE, head.api_version)
    try:
        token = Cursor(buf, head.body_position, end).nullable_bytes(flexible)
    except WireError:
        return ""
    return "" if token is None else user_of_token(token)


def user_of_token(token: bytes) -> str:
    """ "" for tokens of other mechanisms, and for those that follow the first one."""
    if token.count(b"\0") == 2:
        _, user, _ = token.split(b"\0")
        return user.decode(errors="replace")
    header, _, remainder = token.partition(b",")
    if header not in (b"n", b"y"):
        return ""
    for field in remainder.split(b","):
        if field.startswith(b"n="):
            name = field[2:].replace(b"=2C", b",").replace(b"=3D", b"=")
            return name.decode(errors="replace")
    return ""
