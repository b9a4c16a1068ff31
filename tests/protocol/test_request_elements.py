"""A request of very many tiny parts is refused from its counts, before they are read."""

from __future__ import annotations

import struct
import time

import pytest
from fetchproxy_protocol.apis import ApiKey, MalformedMessage
from fetchproxy_protocol.messages import ELEMENTS_MAX, MessageFields, read_request

from fetchproxy.runtime.cooperative import at_once
from fetchproxy.serving.archive_only.schemas import request_of


def names(count: int) -> bytes:
    return struct.pack(">i", count) + b"\x00\x01g" * count


def commits(topics: int, partitions: int) -> bytes:
    """OffsetCommit version 2."""
    part = struct.pack(">iqh", 0, 5, -1)
    topic = struct.pack(">h1si", 1, b"t", partitions) + part * partitions
    head = struct.pack(">h1sih", 1, b"g", -1, 0) + struct.pack(">q", -1)
    return head + struct.pack(">i", topics) + topic * topics


def read(key: ApiKey, version: int, body: bytes) -> MessageFields:
    return at_once(read_request(request_of(key), body, 0, key, version))


def test_the_limit_itself_is_read() -> None:
    fields_read = read(ApiKey.DELETE_GROUPS, 0, names(ELEMENTS_MAX))
    assert len(fields_read["groups_names"]) == ELEMENTS_MAX


def test_one_more_is_refused_at_once() -> None:
    with pytest.raises(MalformedMessage, match=rf"{ELEMENTS_MAX + 1} elements.*{ELEMENTS_MAX}"):
        read(ApiKey.DELETE_GROUPS, 0, names(ELEMENTS_MAX + 1))


def test_arrays_within_arrays_count_together() -> None:
    read(ApiKey.OFFSET_COMMIT, 2, commits(2, 5_000))
    with pytest.raises(MalformedMessage, match="elements"):
        read(ApiKey.OFFSET_COMMIT, 2, commits(3, 10_000))


def test_a_mebibyte_of_empty_parts_costs_next_to_nothing() -> None:
    """150,000 protocols of no name: it took 0.3 s of everybody's time."""
    body = struct.pack(">h1sih", 1, b"g", 30_000, 0) + struct.pack(">h1si", 1, b"c", 149_000)
    table = request_of(ApiKey.JOIN_GROUP)
    began = time.thread_time()
    with pytest.raises(MalformedMessage):
        at_once(read_request(table, body + bytes(6) * 149_000, 0, ApiKey.JOIN_GROUP, 0))
    assert time.thread_time() - began < 0.05
