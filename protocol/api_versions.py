"""ApiVersions answers: cut down to what both the broker and this proxy understand (KIP-511).

Only the list of API ranges is rebuilt; error code, throttle time, features and unknown tagged
fields keep their bytes.
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct

from protocol.apis import PROXIED_VERSIONS, ApiKey, offered_versions
from protocol.error_codes import ErrorCode
from protocol.errors import WireError
from protocol.headers import response_body
from protocol.primitives import INT32, Buffer, Cursor, encode_count

_RANGE = Struct(">hhh")
_REFUSAL = Struct(">ihihhh")
_FLEXIBLE_FROM = 3
_ERROR_END = 6  # correlation id and error code; the header is v0 always
_INT16_BYTES = 2


def intersect_response(payload: Buffer, api_version: int) -> bytes:
    """The answer with each range narrowed to `offered_versions`, unknown keys left out.

    `payload` begins with the correlation id. An answer with error 35 has the body of v0,
    whatever version was asked for: the client learns from it which version to ask with.
    Raises `WireError` for a body that is not an ApiVersionsResponse of that version.
    """
    return bytes(payload[:4]) + _intersected(bytes(payload[4:]), api_version)


@lru_cache(maxsize=64)
def _intersected(rest: bytes, api_version: int) -> bytes:
    """Behind the correlation id: a cluster gives all clients the same few answers."""
    payload = bytes(4) + rest
    cursor = response_body(payload, ApiKey.API_VERSIONS, api_version)
    if cursor.int16() == ErrorCode.UNSUPPORTED_VERSION:
        return _mend_refusal(payload)[4:]
    return _intersect(payload, cursor, api_version)[4:]


def _mend_refusal(payload: Buffer) -> bytes:
    """An answer with error 35 in the body of v0, whatever its array looks like.

    librdkafka's mock cluster counts that array in a form of its own, which stops clients that
    read it. All that a client takes from it is the range of ApiVersions itself.
    """
    start = _ERROR_END
    try:
        whole = _intersect(payload, Cursor(payload, start), 0)
    except WireError:
        at = bytes(payload).find(ApiKey.API_VERSIONS.to_bytes(2, "big"), start)
        high = 0
        if 0 <= at <= len(payload) - _RANGE.size:
            _, _, high = _RANGE.unpack_from(payload, at)
        mended = unsupported_version_response(INT32.unpack_from(payload)[0])
        offered = min(max(high, 0), PROXIED_VERSIONS[ApiKey.API_VERSIONS][1])
        return mended[:-_INT16_BYTES] + offered.to_bytes(2, "big")
    return whole


def _intersect(payload: Buffer, cursor: Cursor, version: int) -> bytes:
    """From the list of ranges on, where `cursor` stands."""
    flexible = version >= _FLEXIBLE_FROM
    list_start = cursor.pos
    count = cursor.count(flexible)
    kept = []
    for _ in range(count or 0):
        start = cursor.skip(_RANGE.size, "API range")
        tags_start = cursor.pos
        if flexible:
            cursor.skip_tags()
        api_key, low, high = _RANGE.unpack_from(payload, start)
        offered = offered_versions(api_key, low, high)
        if offered is not None:
            kept.append(_RANGE.pack(api_key, *offered) + bytes(payload[tags_start : cursor.pos]))
    kept_count = encode_count(None if count is None else len(kept), flexible)
    rest = payload[cursor.pos :]
    return b"".join((payload[:list_start], kept_count, *kept, rest))


def unsupported_version_response(correlation_id: int) -> bytes:
    """The answer to an ApiVersions request newer than we read, without a size prefix.

    Error 35 and our own ApiVersions range, in the body of v0 (KIP-511): the client asks again.
    """
    low, high = PROXIED_VERSIONS[ApiKey.API_VERSIONS]
    return _REFUSAL.pack(
        correlation_id, ErrorCode.UNSUPPORTED_VERSION, 1, ApiKey.API_VERSIONS, low, high
    )
