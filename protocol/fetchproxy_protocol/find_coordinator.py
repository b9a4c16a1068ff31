"""FindCoordinator answers: one address up to v3, one for each key from v4 on (KIP-699)."""

from __future__ import annotations

from fetchproxy_protocol.addresses import Place, PlainAddresses, read_place
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.primitives import Cursor


def _locate(cursor: Cursor, version: int) -> list[Place]:
    flexible = version >= 3
    if version >= 1:
        cursor.skip(4, "throttle time")
    if version < 4:
        cursor.skip(2, "error code")
        if version >= 1:
            cursor.skip_string(flexible)
        return [read_place(cursor, flexible)]
    places = []
    for _ in range(cursor.count(flexible) or 0):
        cursor.skip_string(flexible)
        places.append(read_place(cursor, flexible))
        cursor.skip(2, "error code")
        cursor.skip_string(flexible)
        cursor.skip_tags()
    return places


ADDRESSES = PlainAddresses(ApiKey.FIND_COORDINATOR, _locate)
