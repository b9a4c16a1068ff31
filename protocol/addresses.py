"""Broker addresses in answers: found, and replaced by others. All other bytes stay as they were.

Where they are (from Kafka's response schemas): Metadata,
FindCoordinator, DescribeCluster, NodeEndpoints as a tagged field of Produce >= 10 and
Fetch >= 16 (KIP-951), NodeEndpoints as a plain array of ShareFetch and ShareAcknowledge
(KIP-932). Node ids and racks are never changed. A negative node id or an empty host is what an
answer with an error has in place of an address: it is left alone.

A payload is a whole response without its size prefix, so it begins with the correlation id.
Fetch answers are not handled here as a whole, since they are relayed while they stream: only
their last tagged-field section comes here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from protocol.apis import ApiKey, is_flexible
from protocol.headers import response_body
from protocol.primitives import INT32, Buffer, Cursor, encode_string, encode_uvarint

NODE_ENDPOINTS_TAG = 0
PRODUCE_ENDPOINTS_FROM = 10
FETCH_ENDPOINTS_FROM = 16

# (node id, host, port) as the broker names it -> (host, port) as the client shall see it.
Lookup = Callable[[int, str, int], tuple[str, int]]


class NodeAddress(NamedTuple):
    node_id: int
    host: str
    port: int


class _Place(NamedTuple):
    """An address and where its host and port lie: they are adjacent in every API."""

    address: NodeAddress
    start: int
    end: int


def _read_place(cursor: Cursor, flexible: bool) -> _Place:
    node_id = cursor.int32()
    start = cursor.pos
    host = cursor.nullable_string(flexible) or ""
    port = cursor.int32()
    return _Place(NodeAddress(node_id, host, port), start, cursor.pos)


def _is_address(place: _Place) -> bool:
    return place.address.node_id >= 0 and place.address.host != ""


def _replaced(
    buf: Buffer, start: int, end: int, places: Iterable[_Place], flexible: bool, lookup: Lookup
) -> list[Buffer]:
    """`buf[start:end]` in pieces, with other hosts and ports at `places`."""
    view = memoryview(buf)
    pieces: list[Buffer] = []
    for place in places:
        host, port = lookup(*place.address)
        pieces.append(view[start : place.start])
        pieces.append(encode_string(host, flexible) + INT32.pack(port))
        start = place.end
    pieces.append(view[start:end])
    return pieces


def _metadata(cursor: Cursor, version: int) -> list[_Place]:
    """The brokers come first; the topics behind them are not looked at."""
    flexible = version >= 9
    if version >= 3:
        cursor.skip(4, "throttle time")
    places = []
    for _ in range(cursor.count(flexible) or 0):
        places.append(_read_place(cursor, flexible))
        if version >= 1:
            cursor.skip_string(flexible)
        if flexible:
            cursor.skip_tags()
    return places


def _find_coordinator(cursor: Cursor, version: int) -> list[_Place]:
    flexible = version >= 3
    if version >= 1:
        cursor.skip(4, "throttle time")
    if version < 4:
        cursor.skip(2, "error code")
        if version >= 1:
            cursor.skip_string(flexible)
        return [_read_place(cursor, flexible)]
    places = []
    for _ in range(cursor.count(flexible) or 0):
        cursor.skip_string(flexible)
        places.append(_read_place(cursor, flexible))
        cursor.skip(2, "error code")
        cursor.skip_string(flexible)
        cursor.skip_tags()
    return places


def _describe_cluster(cursor: Cursor, version: int) -> list[_Place]:
    cursor.skip(6, "throttle time and error code")
    cursor.skip_string(flexible=True)
    if version >= 1:
        cursor.skip(1, "endpoint type")
    cursor.skip_string(flexible=True)
    cursor.skip(4, "controller id")
    places = []
    for _ in range(cursor.count(flexible=True) or 0):
        places.append(_read_place(cursor, flexible=True))
        cursor.skip_string(flexible=True)
        if version >= 2:
            cursor.skip(1, "is fenced")
        cursor.skip_tags()
    return places


def _node_endpoints(cursor: Cursor) -> list[_Place]:
    places = []
    for _ in range(cursor.count(flexible=True) or 0):
        places.append(_read_place(cursor, flexible=True))
        cursor.skip_string(flexible=True)
        cursor.skip_tags()
    return places


def _share_fetch(cursor: Cursor, version: int) -> list[_Place]:
    cursor.skip(6, "throttle time and error code")
    cursor.skip_string(flexible=True)
    if version >= 1:
        cursor.skip(4, "acquisition lock timeout")
    for _ in range(cursor.count(flexible=True) or 0):
        cursor.skip(16, "topic id")
        for _ in range(cursor.count(flexible=True) or 0):
            cursor.skip(6, "partition and error code")
            cursor.skip_string(flexible=True)
            cursor.skip(2, "acknowledge error code")
            cursor.skip_string(flexible=True)
            _skip_leader(cursor)
            cursor.skip_bytes(flexible=True)
            for _ in range(cursor.count(flexible=True) or 0):
                cursor.skip(18, "acquired records")
                cursor.skip_tags()
            cursor.skip_tags()
        cursor.skip_tags()
    return _node_endpoints(cursor)


def _share_acknowledge(cursor: Cursor, version: int) -> list[_Place]:
    cursor.skip(6, "throttle time and error code")
    cursor.skip_string(flexible=True)
    if version >= 2:
        cursor.skip(4, "acquisition lock timeout")
    for _ in range(cursor.count(flexible=True) or 0):
        cursor.skip(16, "topic id")
        for _ in range(cursor.count(flexible=True) or 0):
            cursor.skip(6, "partition and error code")
            cursor.skip_string(flexible=True)
            _skip_leader(cursor)
            cursor.skip_tags()
        cursor.skip_tags()
    return _node_endpoints(cursor)


def _skip_leader(cursor: Cursor) -> None:
    cursor.skip(8, "current leader")
    cursor.skip_tags()


# Null or empty record errors, null message, no tags: how a partition without an error ends.
_QUIET_PARTITION = frozenset((b"\x00\x00\x00", b"\x01\x00\x00"))


def _behind_single_quiet_partition(buf: Buffer, pos: int, version: int) -> int:
    """Most Produce answers: one topic, one partition, no error. 0 for any other.

    Every byte that has to be a length is looked at, so what passes here is not guessed.
    """
    try:
        if buf[pos] != 2:
            return 0
        name = buf[pos + 1]
        partitions = pos + (17 if version >= 13 else 1 + name)
        if version < 13 and not 0 < name < 0x80:
            return 0
        ends = partitions + 31
        quiet = buf[partitions] == 2 and bytes(buf[ends : ends + 3]) in _QUIET_PARTITION
        # Behind the partition: the topic's tags (none) and the throttle time.
        return ends + 4 if quiet and buf[ends + 3] == 0 and len(buf) >= ends + 8 else 0
    except IndexError:
        return 0


def _produce_tags_position(cursor: Cursor, version: int) -> int:
    """Where the last tagged-field section of a Produce answer begins (v10 and newer)."""
    buf = cursor.buf
    single = _behind_single_quiet_partition(buf, cursor.pos, version)
    if single:
        return single + 4
    for _ in range(cursor.count(flexible=True) or 0):
        if version >= 13:
            cursor.skip(16, "topic id")
        else:
            cursor.skip_string(flexible=True)
        for _ in range(cursor.count(flexible=True) or 0):
            pos = cursor.skip(30, "partition result") + 30
            if bytes(buf[pos : pos + 3]) in _QUIET_PARTITION:
                cursor.pos = pos + 3
                continue
            for _ in range(cursor.count(flexible=True) or 0):
                cursor.skip(4, "batch index")
                cursor.skip_string(flexible=True)
                cursor.skip_tags()
            cursor.skip_string(flexible=True)
            cursor.skip_tags()
        cursor.skip_tags()
    cursor.skip(4, "throttle time")
    return cursor.pos


_LOCATE: dict[int, Callable[[Cursor, int], list[_Place]]] = {
    ApiKey.METADATA: _metadata,
    ApiKey.FIND_COORDINATOR: _find_coordinator,
    ApiKey.DESCRIBE_CLUSTER: _describe_cluster,
    ApiKey.SHARE_FETCH: _share_fetch,
    ApiKey.SHARE_ACKNOWLEDGE: _share_acknowledge,
}


def carries_addresses(api_key: int, api_version: int) -> bool:
    """Whether answers of this kind must go through `splice` before a client may see them.

    Not true of Fetch: see `splice_node_endpoints_tag`.
    """
    if api_key == ApiKey.PRODUCE:
        return api_version >= PRODUCE_ENDPOINTS_FROM
    return api_key in _LOCATE


def _places(payload: Buffer, api_key: int, api_version: int) -> list[_Place]:
    cursor = response_body(payload, api_key, api_version)
    return [place for place in _LOCATE[api_key](cursor, api_version) if _is_address(place)]


def node_addresses(payload: Buffer, api_key: int, api_version: int) -> list[NodeAddress]:
    """Every node's address in the answer, in its order. Raises `WireError`."""
    if not carries_addresses(api_key, api_version):
        return []
    if api_key == ApiKey.PRODUCE:
        cursor = response_body(payload, api_key, api_version)
        return node_endpoints_in(memoryview(payload)[_produce_tags_position(cursor, api_version) :])
    return [place.address for place in _places(payload, api_key, api_version)]


def splice(payload: Buffer, api_key: int, api_version: int, lookup: Lookup) -> bytes:
    """The answer with each address replaced by what `lookup` says for it. Raises `WireError`.

    An answer of another API, or of a version without addresses, comes back as it is.
    """
    if not carries_addresses(api_key, api_version):
        return bytes(payload)
    if api_key == ApiKey.PRODUCE:
        cursor = response_body(payload, api_key, api_version)
        tags = _produce_tags_position(cursor, api_version)
        view = memoryview(payload)
        return b"".join((view[:tags], splice_node_endpoints_tag(view[tags:], lookup)))
    places = _places(payload, api_key, api_version)
    flexible = is_flexible(api_key, api_version)
    return b"".join(_replaced(payload, 0, len(payload), places, flexible, lookup))


def node_endpoints_in(tag_section: Buffer) -> list[NodeAddress]:
    """The addresses in the last tagged-field section of a Fetch or Produce answer."""
    if len(tag_section) == 1 and tag_section[0] == 0:
        return []
    cursor = Cursor(tag_section)
    return [
        place.address
        for tag, start, end in cursor.tags()
        if tag == NODE_ENDPOINTS_TAG
        for place in _node_endpoints(Cursor(tag_section, start, end))
        if _is_address(place)
    ]


def splice_node_endpoints_tag(tag_section: Buffer, lookup: Lookup) -> bytes:
    """That section with the addresses in its tag 0 replaced, other tags byte for byte.

    Raises `WireError` when the section or its NodeEndpoints are broken. Bytes behind the section
    are kept.
    """
    if len(tag_section) == 1 and tag_section[0] == 0:
        return b"\x00"
    cursor = Cursor(tag_section)
    tags = cursor.tags()
    pieces: list[Buffer] = []
    kept_from = 0
    for tag, start, end in tags:
        if tag == NODE_ENDPOINTS_TAG:
            places = filter(_is_address, _node_endpoints(Cursor(tag_section, start, end)))
            data = b"".join(_replaced(tag_section, start, end, places, True, lookup))
            size_start = _size_start(tag_section, start, end)
            pieces += [tag_section[kept_from:size_start], encode_uvarint(len(data)), data]
            kept_from = end
    pieces.append(tag_section[kept_from:])
    return b"".join(pieces)


def _size_start(tag_section: Buffer, start: int, end: int) -> int:
    """Where the size before a tag's data at `start` begins; it need not be the shortest form."""
    pos = start - 1
    while pos > 0 and tag_section[pos - 1] & 0x80:
        pos -= 1
    return pos
