"""What a message may have of everything: at each limit, and one beyond it."""

from __future__ import annotations

import struct

import pytest
from fetchproxy_protocol.apis import MalformedMessage
from fetchproxy_protocol.fetch import PARTITIONS_MAX, parse_fetch_request, request_in_steps
from fetchproxy_protocol.headers import peek_request_header
from fetchproxy_protocol.primitives import TAGGED_FIELDS_MAX, Cursor, encode_uvarint

HEADER = struct.pack(">hhih", 1, 13, 7, -1) + b"\x00"
PARTITIONS_BETWEEN_STEPS_MAX = 500


def tags(count: int) -> bytes:
    return encode_uvarint(count) + bytes(2 * count)


def large_fetch(topics: int, partitions: int, forgotten: int = 0) -> bytes:
    """Of v13, by topic ids."""
    entry = struct.Struct(">iiqiqiB")
    body = bytearray(struct.pack(">iiiiBii", -1, 500, 1, 1 << 20, 0, 0, 0))
    body += encode_uvarint(topics + 1)
    for topic in range(topics):
        body += topic.to_bytes(16, "big") + encode_uvarint(partitions + 1)
        for partition in range(partitions):
            body += entry.pack(partition, -1, 10, -1, 0, 1 << 20, 0)
        body += b"\x00"
    body += encode_uvarint(2 if forgotten else 1)
    if forgotten:
        body += bytes(16) + encode_uvarint(forgotten + 1) + bytes(4 * forgotten) + b"\x00"
    return HEADER + bytes(body) + b"\x01\x00"


def test_tagged_fields_have_a_limit_before_any_is_read() -> None:
    assert len(Cursor(tags(TAGGED_FIELDS_MAX)).tags()) == TAGGED_FIELDS_MAX
    Cursor(tags(TAGGED_FIELDS_MAX)).skip_tags()
    for method in (Cursor.tags, Cursor.skip_tags):
        with pytest.raises(MalformedMessage, match=f"{TAGGED_FIELDS_MAX + 1} tagged fields"):
            method(Cursor(encode_uvarint(TAGGED_FIELDS_MAX + 1)))


def test_so_have_those_of_a_header() -> None:
    header = HEADER[:-1]
    at_limit = header + tags(TAGGED_FIELDS_MAX)
    assert peek_request_header(at_limit).body_position == len(at_limit)
    with pytest.raises(MalformedMessage):
        peek_request_header(header + encode_uvarint(TAGGED_FIELDS_MAX + 1))


@pytest.mark.parametrize(("topics", "each"), [(1, PARTITIONS_MAX), (PARTITIONS_MAX // 100, 100)])
def test_a_fetch_may_name_so_many_partitions_and_no_more(topics: int, each: int) -> None:
    request = parse_fetch_request(large_fetch(topics, each), len(HEADER))
    assert len(request.partitions) == PARTITIONS_MAX
    with pytest.raises(MalformedMessage, match=f"more than {PARTITIONS_MAX} partitions"):
        parse_fetch_request(large_fetch(topics, each + 1), len(HEADER))


def test_so_of_those_that_it_forgets() -> None:
    request = parse_fetch_request(large_fetch(0, 0, PARTITIONS_MAX), len(HEADER))
    assert len(request.forgotten) == PARTITIONS_MAX
    with pytest.raises(MalformedMessage, match="forgotten"):
        parse_fetch_request(large_fetch(0, 0, PARTITIONS_MAX + 1), len(HEADER))


@pytest.mark.parametrize(("topics", "each"), [(10_000, 1), (1, 10_000), (100, 100), (7, 1_431)])
def test_a_large_fetch_is_read_in_steps(topics: int, each: int) -> None:
    payload = large_fetch(topics, each)
    steps = request_in_steps(payload, len(HEADER))
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            request = finished.value
            break
        count += 1
    assert request == parse_fetch_request(payload, len(HEADER))
    assert count >= topics * each / PARTITIONS_BETWEEN_STEPS_MAX
