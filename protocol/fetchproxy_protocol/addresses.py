"""Finds broker addresses in responses and replaces them. All other bytes stay as they were.

`_LOCATE` says where each API's responses have them. Fetch responses are relayed while they stream,
so only their last tagged-field section comes here. In requests only Produce's `acks` is read,
because a request with acks=0 has no response. Node ids and racks are never changed. In a response
with an error, a negative node id or an empty host replaces the address; it is left alone.

A payload is a whole response without its size prefix, so it begins with the correlation id.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

from fetchproxy_protocol.apis import (
    ApiKey,
    ErrorCode,
    MalformedMessage,
    Truncated,
    is_flexible,
)
from fetchproxy_protocol.headers import response_body
from fetchproxy_protocol.primitives import (
    INT16,
    INT32,
    Buffer,
    Cursor,
    encode_string,
    encode_uvarint,
)

NODE_ENDPOINTS_TAG = 0
UNKNOWN_TAG = 0x7F  # one byte, as the tag it replaces; no Kafka version defines it

# (node id, host, port) from the broker -> (host, port) for the client.
Lookup = Callable[[int, str, int], tuple[str, int]]


# (node id, host, port)
NodeAddress = tuple[int, str, int]
# Nodes that a response may name. The largest clusters have a few hundred brokers, and the proxy
# opens a port for each.
NODES_MAX = 1_000
# Coordinators in a response: one for each group, of which admin clients name all at once.
COORDINATORS_MAX = 100_000
# Metadata with an error of the whole response: a client may be told to bootstrap again (KIP-1102).
REBOOTSTRAP_FROM = 13
# A step over this many elements takes up to a millisecond.
_ELEMENTS_PER_STEP = 100
_Steps = Generator[None, None, None]
PRODUCE_ENDPOINTS_FROM = 10
_TRANSACTIONAL_ID_FROM = 3
# How a partition without an error ends: null or empty record errors, null message, no tags.
_QUIET_PARTITION = frozenset((b"\x00\x00\x00", b"\x01\x00\x00"))


class _AddressSpan(NamedTuple):
    """An address and the position of its host and port, which are adjacent in every API."""

    node_id: int
    host: str
    port: int
    start: int
    end: int


class LocatedAddresses:
    """The addresses in a response, in order. `nodes`: each once. `tags_at`: where Produce's last
    tagged fields begin, which have a size before them; else 0.
    """

    def __init__(self) -> None:
        self.spans: list[_AddressSpan] = []
        self.nodes: dict[NodeAddress, None] = {}
        self.tags_at = 0

    def add(self, span: _AddressSpan) -> None:
        if _is_address(span):
            self.spans.append(span)
            self.nodes[span[:3]] = None


def locate_addresses(
    payload: Buffer, api_key: int, api_version: int
) -> Generator[None, None, LocatedAddresses]:
    """In steps. Raises `WireError`."""
    located = LocatedAddresses()
    yield from _LOCATE[api_key](response_body(payload, api_key, api_version), api_version, located)
    return located


def splice_addresses(
    payload: Buffer, api_key: int, api_version: int, located: LocatedAddresses, lookup: Lookup
) -> Generator[None, None, bytes]:
    """The response with each address replaced by the result of `lookup`, in steps. Raises
    `WireError`.
    """
    if located.tags_at:
        view = memoryview(payload)
        tags = splice_node_endpoints_tag(view[located.tags_at :], lookup)
        return b"".join((view[: located.tags_at], tags))
    flexible = is_flexible(api_key, api_version)
    pieces: list[Buffer] = []
    start = 0
    for first in range(0, len(located.spans), _ELEMENTS_PER_STEP):
        if first:
            yield
        step = located.spans[first : first + _ELEMENTS_PER_STEP]
        pieces += _replaced(payload, start, step[-1].end, step, flexible, lookup)
        start = step[-1].end
    return b"".join([*pieces, memoryview(payload)[start:]])


def rebootstrap_response(correlation_id: int) -> bytes:
    """A Metadata response (v13) that names nothing and tells the client to bootstrap again."""
    head = INT32.pack(correlation_id) + b"\x00"
    # No throttle time, brokers, cluster id, controller or topics.
    nothing = bytes(4) + b"\x01" + b"\x00" + INT32.pack(-1) + b"\x01"
    return head + nothing + INT16.pack(ErrorCode.REBOOTSTRAP_REQUIRED) + b"\x00"


def read_address_span(cursor: Cursor, flexible: bool) -> _AddressSpan:
    """Node id, host and port, in this order in every API."""
    node_id = cursor.int32()
    start = cursor.pos
    host = cursor.nullable_string(flexible) or ""
    port = cursor.int32()
    return _AddressSpan(node_id, host, port, start, cursor.pos)


def read_node_endpoints(cursor: Cursor) -> list[_AddressSpan]:
    """The array of KIP-951, plain or inside its tag."""
    spans = []
    for _ in range(_count(cursor, True, NODES_MAX)):
        spans.append(read_address_span(cursor, flexible=True))
        cursor.skip_string(flexible=True)
        cursor.skip_tags()
    return spans


def _count(cursor: Cursor, flexible: bool, count_max: int) -> int:
    """Of an array whose elements are kept. Raises `WireError`."""
    count = cursor.count(flexible) or 0
    if count > count_max:
        raise MalformedMessage(
            f"{count} nodes before byte {cursor.pos}; expected at most {count_max}"
        )
    return count


def tagged_node_endpoints(cursor: Cursor) -> list[_AddressSpan]:
    """The endpoints in the last tagged-field section of a Fetch or Produce response."""
    return [
        span
        for tag, start, end in cursor.tags()
        if tag == NODE_ENDPOINTS_TAG
        for span in read_node_endpoints(Cursor(cursor.buf, start, end))
    ]


def splice_node_endpoints_tag(tag_section: Buffer, lookup: Lookup) -> bytes:
    """The section with the addresses in its tag 0 replaced. Other tags, and the bytes after the
    section, stay byte for byte. Raises `WireError`.
    """
    if len(tag_section) == 1 and tag_section[0] == 0:
        return b"\x00"
    pieces: list[Buffer] = []
    kept_from = 0
    for tag, start, end in Cursor(tag_section).tags():
        if tag == NODE_ENDPOINTS_TAG:
            spans = filter(_is_address, read_node_endpoints(Cursor(tag_section, start, end)))
            data = b"".join(_replaced(tag_section, start, end, spans, True, lookup))
            size_start = _size_start(tag_section, start, end)
            pieces += [tag_section[kept_from:size_start], encode_uvarint(len(data)), data]
            kept_from = end
    pieces.append(tag_section[kept_from:])
    return b"".join(pieces)


def _is_address(span: _AddressSpan) -> bool:
    return span.node_id >= 0 and span.host != ""


def _replaced(
    buf: Buffer, start: int, end: int, spans: Iterable[_AddressSpan], flexible: bool, lookup: Lookup
) -> list[Buffer]:
    """`buf[start:end]` in pieces, with other hosts and ports at `spans`."""
    view = memoryview(buf)
    pieces: list[Buffer] = []
    for span in spans:
        host, port = lookup(*span[:3])
        pieces.append(view[start : span.start])
        pieces.append(encode_string(host, flexible) + INT32.pack(port))
        start = span.end
    pieces.append(view[start:end])
    return pieces


def _size_start(tag_section: Buffer, start: int, end: int) -> int:
    """Where the size before a tag's data at `start` begins; it may not be the shortest form."""
    pos = start - 1
    while pos > 0 and tag_section[pos - 1] & 0x80:
        pos -= 1
    return pos


def hide_node_endpoints(tags: bytes) -> bytes:
    """The tagged fields with NodeEndpoints under a tag that clients skip; same length."""
    cursor = Cursor(tags)
    out = bytearray(tags)
    for _ in range(cursor.uvarint()):
        position = cursor.pos
        tag = cursor.uvarint()
        size = cursor.uvarint()
        start = cursor.skip(size, "tagged field")
        if tag == NODE_ENDPOINTS_TAG:
            out[position] = UNKNOWN_TAG
            out[start : start + size] = bytes(size)
    return bytes(out)


def _in_metadata(cursor: Cursor, version: int, located: LocatedAddresses) -> _Steps:
    """The brokers come first; the topics after them are not read."""
    flexible = version >= 9
    if version >= 3:
        cursor.skip(4, "throttle time")
    for number in range(_count(cursor, flexible, NODES_MAX)):
        if number % _ELEMENTS_PER_STEP == _ELEMENTS_PER_STEP - 1:
            yield
        located.add(read_address_span(cursor, flexible))
        if version >= 1:
            cursor.skip_string(flexible)
        cursor.skip_tags(flexible)


def _in_find_coordinator(cursor: Cursor, version: int, located: LocatedAddresses) -> _Steps:
    """One address up to v3, one address a key from v4 on (KIP-699)."""
    flexible = version >= 3
    if version >= 1:
        cursor.skip(4, "throttle time")
    if version < 4:
        cursor.skip(2, "error code")
        if version >= 1:
            cursor.skip_string(flexible)
        located.add(read_address_span(cursor, flexible))
        return
    for number in range(_count(cursor, flexible, COORDINATORS_MAX)):
        if number % _ELEMENTS_PER_STEP == _ELEMENTS_PER_STEP - 1:
            yield
        cursor.skip_string(flexible)
        located.add(read_address_span(cursor, flexible))
        cursor.skip(2, "error code")
        cursor.skip_string(flexible)
        cursor.skip_tags()


def _in_describe_cluster(cursor: Cursor, version: int, located: LocatedAddresses) -> _Steps:
    """The brokers (KIP-700), or the controllers (KIP-919)."""
    cursor.skip(6, "throttle time and error code")
    cursor.skip_string(flexible=True)
    if version >= 1:
        cursor.skip(1, "endpoint type")
    cursor.skip_string(flexible=True)
    cursor.skip(4, "controller id")
    for number in range(_count(cursor, True, NODES_MAX)):
        if number % _ELEMENTS_PER_STEP == _ELEMENTS_PER_STEP - 1:
            yield
        located.add(read_address_span(cursor, flexible=True))
        cursor.skip_string(flexible=True)
        if version >= 2:
            cursor.skip(1, "is fenced")
        cursor.skip_tags()


def _behind_share_topics(
    cursor: Cursor, lock_timeout: bool, fetched: bool, located: LocatedAddresses
) -> _Steps:
    """ShareFetch and ShareAcknowledge (KIP-932): a plain array after all topics."""
    cursor.skip(6, "throttle time and error code")
    cursor.skip_string(flexible=True)
    if lock_timeout:
        cursor.skip(4, "acquisition lock timeout")
    passed = 0
    for _ in range(cursor.count(flexible=True) or 0):
        cursor.skip(16, "topic id")
        for _ in range(cursor.count(flexible=True) or 0):
            passed += 1
            if not passed % _ELEMENTS_PER_STEP:
                yield
            cursor.skip(6, "partition and error code")
            cursor.skip_string(flexible=True)
            if fetched:
                cursor.skip(2, "acknowledge error code")
                cursor.skip_string(flexible=True)
            cursor.skip(8, "current leader")
            cursor.skip_tags()
            if fetched:
                cursor.skip_bytes(flexible=True)
                for _ in range(cursor.count(flexible=True) or 0):
                    passed += 1
                    if not passed % _ELEMENTS_PER_STEP:
                        yield
                    cursor.skip(18, "acquired records")
                    cursor.skip_tags()
            cursor.skip_tags()
        passed += 1
        if not passed % _ELEMENTS_PER_STEP:
            yield
        cursor.skip_tags()
    for span in read_node_endpoints(cursor):
        located.add(span)


# Produce: NodeEndpoints are a tagged field of the whole response (KIP-951). Records are not read.


def acks_of(buf: Buffer, body_pos: int, api_version: int, end: int | None = None) -> int | None:
    """acks (0, 1 or -1) of a request whose body begins at `body_pos`; None: more bytes are needed.
    Raises `MalformedMessage` for a transactional id with an impossible length.
    """
    cursor = Cursor(buf, body_pos, end)
    try:
        if api_version >= _TRANSACTIONAL_ID_FROM:
            cursor.skip_string(is_flexible(ApiKey.PRODUCE, api_version))
        return cursor.int16()
    except Truncated:
        return None


def _behind_single_quiet_partition(buf: Buffer, pos: int, version: int) -> int:
    """A short cut for most Produce responses: one topic, one partition, no error. Else 0."""
    try:
        if buf[pos] != 2:
            return 0
        name = buf[pos + 1]
        partitions = pos + (17 if version >= 13 else 1 + name)
        if version < 13 and not 0 < name < 0x80:
            return 0
        ends = partitions + 31
        quiet = buf[partitions] == 2 and bytes(buf[ends : ends + 3]) in _QUIET_PARTITION
        # After the partition: the topic's tags (none) and the throttle time.
        return ends + 4 if quiet and buf[ends + 3] == 0 and len(buf) >= ends + 8 else 0
    except IndexError:
        return 0


def _in_produce(cursor: Cursor, version: int, located: LocatedAddresses) -> _Steps:
    located.tags_at = yield from _produce_tags(cursor, version)
    for span in tagged_node_endpoints(Cursor(cursor.buf, located.tags_at)):
        located.add(span)


def _produce_tags(cursor: Cursor, version: int) -> Generator[None, None, int]:
    buf = cursor.buf
    single = _behind_single_quiet_partition(buf, cursor.pos, version)
    if single:
        return single + 4
    passed = 0
    for _ in range(cursor.count(flexible=True) or 0):
        if version >= 13:
            cursor.skip(16, "topic id")
        else:
            cursor.skip_string(flexible=True)
        for _ in range(cursor.count(flexible=True) or 0):
            passed += 1
            if not passed % _ELEMENTS_PER_STEP:
                yield
            pos = cursor.skip(30, "partition result") + 30
            if bytes(buf[pos : pos + 3]) in _QUIET_PARTITION:
                cursor.pos = pos + 3
                continue
            for _ in range(cursor.count(flexible=True) or 0):
                passed += 1
                if not passed % _ELEMENTS_PER_STEP:
                    yield
                cursor.skip(4, "batch index")
                cursor.skip_string(flexible=True)
                cursor.skip_tags()
            cursor.skip_string(flexible=True)
            cursor.skip_tags()
        passed += 1
        if not passed % _ELEMENTS_PER_STEP:
            yield
        cursor.skip_tags()
    cursor.skip(4, "throttle time")
    return cursor.pos


_LOCATE: dict[int, Callable[[Cursor, int, LocatedAddresses], _Steps]] = {
    ApiKey.METADATA: _in_metadata,
    ApiKey.FIND_COORDINATOR: _in_find_coordinator,
    ApiKey.DESCRIBE_CLUSTER: _in_describe_cluster,
    ApiKey.PRODUCE: _in_produce,
    ApiKey.SHARE_FETCH: lambda cursor, v, located: _behind_share_topics(
        cursor, v >= 1, True, located
    ),
    ApiKey.SHARE_ACKNOWLEDGE: lambda cursor, v, located: _behind_share_topics(
        cursor, v >= 2, False, located
    ),
}
