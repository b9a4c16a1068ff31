"""DescribeCluster answers (KIP-700): the brokers' addresses, or the controllers' (KIP-919)."""

from __future__ import annotations

from fetchproxy_protocol.addresses import Place, PlainAddresses, read_place
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.primitives import Cursor


def _locate(cursor: Cursor, version: int) -> list[Place]:
    cursor.skip(6, "throttle time and error code")
    cursor.skip_string(flexible=True)
    if version >= 1:
        cursor.skip(1, "endpoint type")
    cursor.skip_string(flexible=True)
    cursor.skip(4, "controller id")
    places = []
    for _ in range(cursor.count(flexible=True) or 0):
        places.append(read_place(cursor, flexible=True))
        cursor.skip_string(flexible=True)
        if version >= 2:
            cursor.skip(1, "is fenced")
        cursor.skip_tags()
    return places


ADDRESSES = PlainAddresses(ApiKey.DESCRIBE_CLUSTER, _locate)
