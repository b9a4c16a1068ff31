"""Metadata answers: the brokers' addresses. They come first; the topics behind are not read."""

from __future__ import annotations

from fetchproxy_protocol.addresses import Place, PlainAddresses, read_place
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.primitives import Cursor


def _locate(cursor: Cursor, version: int) -> list[Place]:
    flexible = version >= 9
    if version >= 3:
        cursor.skip(4, "throttle time")
    places = []
    for _ in range(cursor.count(flexible) or 0):
        places.append(read_place(cursor, flexible))
        if version >= 1:
            cursor.skip_string(flexible)
        if flexible:
            cursor.skip_tags()
    return places


ADDRESSES = PlainAddresses(ApiKey.METADATA, _locate)
