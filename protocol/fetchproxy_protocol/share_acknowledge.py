"""ShareAcknowledge answers (KIP-932): NodeEndpoints as a plain array behind all topics."""

from __future__ import annotations

from fetchproxy_protocol.addresses import Place, PlainAddresses, read_node_endpoints
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.primitives import Cursor


def _locate(cursor: Cursor, version: int) -> list[Place]:
    cursor.skip(6, "throttle time and error code")
    cursor.skip_string(flexible=True)
    if version >= 2:
        cursor.skip(4, "acquisition lock timeout")
    for _ in range(cursor.count(flexible=True) or 0):
        cursor.skip(16, "topic id")
        for _ in range(cursor.count(flexible=True) or 0):
            cursor.skip(6, "partition and error code")
            cursor.skip_string(flexible=True)
            cursor.skip(8, "current leader")
            cursor.skip_tags()
            cursor.skip_tags()
        cursor.skip_tags()
    return read_node_endpoints(cursor)


ADDRESSES = PlainAddresses(ApiKey.SHARE_ACKNOWLEDGE, _locate)
