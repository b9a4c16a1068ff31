"""acks out of the first bytes of a Produce request."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from fetchproxy_protocol.addresses import acks_of
from fetchproxy_protocol.apis import MalformedMessage, WireError
from hypothesis import given, settings
from hypothesis import strategies as st
from message_schema import encode_body, values

NAME = "ProduceRequest"


@pytest.mark.parametrize("version", range(14))
def test_acks_are_read_at_the_head_of_a_produce_request(version: int) -> None:
    @settings(max_examples=40)
    @given(values(NAME, version), st.binary(max_size=5))
    def check(value: dict[str, Any], lead: bytes) -> None:
        body = encode_body(NAME, version, value)
        assert acks_of(lead + body, len(lead), version) == value["Acks"]
        before_topics = [size for size in range(len(body)) if size <= _acks_end(version, value)]
        for size in before_topics:
            acks = acks_of(lead + body[:size], len(lead), version)
            assert acks == (value["Acks"] if size == _acks_end(version, value) else None)
            assert acks_of(lead + body, len(lead), version, len(lead) + size) == acks

    check()


def _acks_end(version: int, value: dict[str, Any]) -> int:
    if version < 3:
        return 2
    name = len((value["TransactionalId"] or "").encode())
    return name + 2 + (1 if version >= 9 else 2)


def test_impossible_transactional_id() -> None:
    with pytest.raises(MalformedMessage):
        acks_of(struct.pack(">h", -2), 0, 8)


@given(st.binary(max_size=12), st.integers(0, 13))
def test_garbage_raises_only_wire_errors(junk: bytes, version: int) -> None:
    with contextlib.suppress(WireError):
        acks_of(junk, 0, version)
