"""Produce requests: only `acks`, because a request with acks=0 has no answer."""

from __future__ import annotations

from protocol.apis import ApiKey, is_flexible
from protocol.errors import Truncated
from protocol.primitives import Buffer, Cursor

_TRANSACTIONAL_ID_FROM = 3


def acks_of(buf: Buffer, body_pos: int, api_version: int, end: int | None = None) -> int | None:
    """acks (0, 1 or -1) of a request whose body begins at `body_pos`; None: more bytes needed.

    Raises `MalformedMessage` for a transactional id with an impossible length.
    """
    cursor = Cursor(buf, body_pos, end)
    try:
        if api_version >= _TRANSACTIONAL_ID_FROM:
            cursor.skip_string(is_flexible(ApiKey.PRODUCE, api_version))
        return cursor.int16()
    except Truncated:
        return None
