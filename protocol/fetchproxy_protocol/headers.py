"""Headers of requests and responses, and ApiVersions, which chooses their versions. Pure.

Source: Kafka's RequestHeader.json and ResponseHeader.json. A request header is v1, or v2 (with
tagged fields) if the body is flexible; `client_id` has the classic form in both. A response header
is v0 (correlation id), or v1 (with tagged fields) if the body is flexible, except that ApiVersions
always answers with v0 (KIP-511). No client sends header v0 (ControlledShutdown v0).
"""

from __future__ import annotations

from functools import lru_cache
from struct import Struct
from typing import NamedTuple

from fetchproxy_protocol.apis import (
    FLEXIBLE_FROM,
    PROXIED_VERSIONS,
    ApiKey,
    ErrorCode,
    MalformedMessage,
    Truncated,
    WireError,
    is_flexible,
    offered_versions,
)
from fetchproxy_protocol.primitives import INT32, Buffer, Cursor, encode_count

_START = Struct(">hhih")
REQUEST_HEADER_BYTES_MIN = _START.size
# A client id has at most half this length, and no client sends tagged fields here.
REQUEST_HEADER_BYTES_MAX = 64 * 1024

_flexible_from = FLEXIBLE_FROM.get
_SOFTWARE_FROM = 3  # ApiVersions; KIP-511
_RANGE = Struct(">hhh")
_REFUSAL = Struct(">ihihhh")
_HANDSHAKE_REFUSAL = Struct(">ihi")
_FLEXIBLE_FROM = 3
_ERROR_END = 6  # correlation id and error code; the header is always v0
_INT16_BYTES = 2
# Kafka has 90 APIs. The whole list is read in one step.
APIS_MAX = 1_000
# With the broker's features and tags, some 1 KiB. Some responses are kept.
_API_VERSIONS_BYTES_MAX = 64 * 1024


class RequestHead(NamedTuple):
    """Positions count from the start of the read buffer. The client id is empty also if it is null.
    For an unknown API key, `body_position` may lie before tagged header fields.
    """

    api_key: int
    api_version: int
    correlation_id: int
    client_id_start: int
    client_id_end: int
    body_position: int


def peek_request_header(buf: Buffer, pos: int = 0, end: int | None = None) -> RequestHead:
    """The header that begins at `pos`, right after the frame's size prefix.

    Raises `Truncated` if `buf[pos:end]` ends within the header (a caller that streams may try
    again with more bytes) and `MalformedMessage` for a client id length below -1.
    """
    limit = len(buf) if end is None else end
    after = pos + 10
    if after > limit:
        raise Truncated(f"request header at byte {pos} needs 10 bytes, {limit - pos} left")
    api_key, api_version, correlation_id, length = _START.unpack_from(buf, pos)
    body = after
    if length > 0:
        body += length
    elif length < -1:
        raise MalformedMessage(f"client id length {length} at byte {pos + 8}")
    if body > limit:
        raise Truncated(f"client id at byte {after} needs {length} bytes, {limit - after} left")
    client_id_end = body
    if api_version >= _flexible_from(api_key, 0x8000):
        if body < limit and buf[body] == 0:
            body += 1
        else:
            cursor = Cursor(buf, body, limit)
            cursor.skip_tags()
            body = cursor.pos
    # Runs once a request: this avoids the Python call of a named tuple's own constructor.
    return tuple.__new__(
        RequestHead, (api_key, api_version, correlation_id, after, client_id_end, body)
    )


def client_id(buf: Buffer, head: RequestHead) -> str:
    """For logs and metrics: bytes that are not UTF-8 become replacement characters."""
    return bytes(buf[head.client_id_start : head.client_id_end]).decode(errors="replace")


def request_header(api_key: int, api_version: int, correlation_id: int, client_id: str) -> bytes:
    raw = client_id.encode()
    tags = b"\x00" if is_flexible(api_key, api_version) else b""
    return _START.pack(api_key, api_version, correlation_id, len(raw)) + raw + tags


def client_software(buf: Buffer, head: RequestHead, end: int) -> tuple[str, str]:
    """The client library's name and version in an ApiVersions request; else ""."""
    if head.api_version < _SOFTWARE_FROM:
        return "", ""
    cursor = Cursor(buf, head.body_position, end)
    parts = []
    try:
        for field in ("client software name", "client software version"):
            size = cursor.uvarint() - 1
            position = cursor.skip(size, field)
            parts.append(bytes(buf[position : position + size]).decode(errors="replace"))
    except WireError:
        parts += ["", ""]
    return parts[0], parts[1]


def response_header_version(api_key: int, api_version: int) -> int:
    if api_key == ApiKey.API_VERSIONS:
        return 0
    return 1 if is_flexible(api_key, api_version) else 0


def correlation_id(payload: Buffer) -> int:
    """The correlation id of a response without its size prefix. Raises `Truncated`."""
    if len(payload) < 4:
        raise Truncated(f"response of {len(payload)} bytes has no correlation id")
    return INT32.unpack_from(payload)[0]  # type: ignore[no-any-return]


def response_body(payload: Buffer, api_key: int, api_version: int) -> Cursor:
    """A cursor at the body of a response without size prefix. Raises `WireError`."""
    cursor = Cursor(payload)
    cursor.skip(4, "correlation id")
    cursor.skip_tags(response_header_version(api_key, api_version) == 1)
    return cursor


# ApiVersions responses are cut down to the versions that the broker and this proxy share (KIP-511).
# Only the list of API ranges is rebuilt; error code, throttle time, features and unknown tagged
# fields keep their bytes.


def intersect_response(payload: Buffer, api_version: int) -> bytes:
    """The response with each range narrowed to `offered_versions` and without unknown keys.

    `payload` begins with the correlation id. A response with error 35 has the body of v0, whatever
    version was asked for. Raises `WireError`.
    """
    if len(payload) > _API_VERSIONS_BYTES_MAX:
        raise MalformedMessage(f"an ApiVersions response of {len(payload)} bytes")
    return bytes(payload[:4]) + _intersected_versions(bytes(payload[4:]), api_version)


@lru_cache(maxsize=64)
def _intersected_versions(after_header: bytes, api_version: int) -> bytes:
    """From after the correlation id. Cached: a cluster gives all clients the same few responses."""
    payload = bytes(4) + after_header
    cursor = response_body(payload, ApiKey.API_VERSIONS, api_version)
    if cursor.int16() == ErrorCode.UNSUPPORTED_VERSION:
        return _mend_refusal(payload)[4:]
    return _intersect(payload, cursor, api_version)[4:]


def _mend_refusal(payload: Buffer) -> bytes:
    """A response with error 35 in the body of v0. Its array may have any form: librdkafka's mock
    cluster encodes the count its own way. A client takes the range of ApiVersions from it.
    """
    start = _ERROR_END
    try:
        whole = _intersect(payload, Cursor(payload, start), 0)
    except WireError:
        position = bytes(payload).find(ApiKey.API_VERSIONS.to_bytes(2, "big"), start)
        high = 0
        if 0 <= position <= len(payload) - _RANGE.size:
            _, _, high = _RANGE.unpack_from(payload, position)
        mended = unsupported_version_response(INT32.unpack_from(payload)[0])
        offered = min(max(high, 0), PROXIED_VERSIONS[ApiKey.API_VERSIONS][1])
        return mended[:-_INT16_BYTES] + offered.to_bytes(2, "big")
    return whole


def _intersect(payload: Buffer, cursor: Cursor, version: int) -> bytes:
    """Rebuilds the list of ranges at `cursor`."""
    flexible = version >= _FLEXIBLE_FROM
    list_start = cursor.pos
    count = cursor.count(flexible)
    if (count or 0) > APIS_MAX:
        raise MalformedMessage(f"an ApiVersions response of {count} APIs")
    common_apis = []
    for _ in range(count or 0):
        start = cursor.skip(_RANGE.size, "API range")
        tags_start = cursor.pos
        cursor.skip_tags(flexible)
        api_key, low, high = _RANGE.unpack_from(payload, start)
        offered = offered_versions(api_key, low, high)
        if offered is not None:
            common_apis.append(
                _RANGE.pack(api_key, *offered) + bytes(payload[tags_start : cursor.pos])
            )
    kept_count = encode_count(None if count is None else len(common_apis), flexible)
    after_array = payload[cursor.pos :]
    return b"".join((payload[:list_start], kept_count, *common_apis, after_array))


def unsupported_version_response(correlation_id: int) -> bytes:
    """The response to an ApiVersions request newer than we read, without a size prefix: error 35
    and our own range, in the body of v0 (KIP-511). The client asks again.
    """
    low, high = PROXIED_VERSIONS[ApiKey.API_VERSIONS]
    return _REFUSAL.pack(
        correlation_id, ErrorCode.UNSUPPORTED_VERSION, 1, ApiKey.API_VERSIONS, low, high
    )


def handshake_refusal(correlation_id: int) -> bytes:
    """The response to SaslHandshake v0, without a size prefix: error 35, no mechanisms."""
    return _HANDSHAKE_REFUSAL.pack(correlation_id, ErrorCode.UNSUPPORTED_VERSION, 0)
