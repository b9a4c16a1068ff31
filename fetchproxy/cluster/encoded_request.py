"""A request whose body was written by us, byte by byte: for those that may name very many topics.

kafka-python makes an object for every partition: of 10,000 it would hold the event loop for half a
second. No I/O.
"""

from __future__ import annotations

from protocol.headers import request_header, response_header_version
from protocol.primitives import INT32, Cursor


class EncodedRequest:
    """One of `messages.Request`; `body` in pieces."""

    def __init__(self, api_key: int, version: int, body: list[bytes]) -> None:
        self.API_KEY = api_key
        self.API_VERSION = version
        self._body = body
        self._header = b""

    def with_header(self, correlation_id: int, client_id: str) -> None:
        self._header = request_header(self.API_KEY, self.API_VERSION, correlation_id, client_id)

    def encode(self, *, header: bool, framed: bool) -> bytes:
        message = b"".join([self._header if header else b"", *self._body])
        return INT32.pack(len(message)) + message if framed else message


def body_at(payload: memoryview, api_key: int, version: int) -> Cursor:
    """A cursor at the body of an answer, of which the correlation id was read. Raises WireError."""
    cursor = Cursor(payload)
    if response_header_version(api_key, version) == 1:
        cursor.skip_tags()
    return cursor


def whole(payload: memoryview, version: int) -> memoryview:
    """An answer as it came, for those who read it piece by piece."""
    return payload
