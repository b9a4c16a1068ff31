"""What the archive says of a topic: every legal description, and no other bytes."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.errors import CorruptSegment
from fetchproxy.segments.topic_description import (
    TopicDescription,
    decode_topic,
    encode_topic_description,
)

names = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,248}", fullmatch=True)


@given(st.uuids(), names, st.integers(1, 2**31 - 1), st.text(max_size=30), st.data())
def test_what_is_written_is_read(
    topic_id: UUID, name: str, count: int, cluster: str, data: st.DataObject
) -> None:
    numbers = st.integers(0, count - 1)
    empty = data.draw(st.dictionaries(numbers, st.integers(0, 2**63 - 1), max_size=5))
    description = TopicDescription(topic_id, name, count, cluster, empty, 7)
    assert decode_topic(encode_topic_description(description), "key") == description


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ('"partitions": 3', '"partitions": 0', "partitions"),
        ('"2": 5', '"3": 5', "'3' is not one of 3 partitions"),
        ('"2": 5', '"2": -1', "field 2"),
        ('"topic": "t"', '"topic": "a/b"', "invalid topic name"),
    ],
)
def test_anything_else_is_refused(before: str, after: str, what: str) -> None:
    raw = encode_topic_description(TopicDescription(UUID(int=1), "t", 3, empty={2: 5}))
    assert before.encode() in raw
    with pytest.raises(CorruptSegment, match=f"key: .*{what}"):
        decode_topic(raw.replace(before.encode(), after.encode()), "key")
