"""A state of a cluster in bytes: every legal state, and no other bytes."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fetchproxy.cluster_state import document
from fetchproxy.cluster_state.document import (
    decode_state,
    decode_without_groups,
    encode_state,
    without_time,
)
from fetchproxy.cluster_state.state import (
    AclState,
    ClusterState,
    GroupKind,
    GroupWithOffsets,
    MissingPart,
    OffsetOfGroup,
    PartitionState,
    QuotaState,
    TopicState,
)
from fetchproxy.errors import CorruptSegment
from fetchproxy.segments.json_fields import NewerMetadataVersion

TURN_MAX_S = 0.05
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
offsets = st.integers(0, 2**63 - 1)
epochs = st.integers(-1, 2**31 - 1)
named_values = st.dictionaries(texts, texts, max_size=3).map(lambda d: tuple(sorted(d.items())))
topic_names = st.from_regex(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,20}", fullmatch=True)


@st.composite
def partition_states(draw: st.DrawFn, partition: int) -> PartitionState:
    start, end = sorted((draw(offsets), draw(offsets)))
    return PartitionState(partition, start, end, draw(epochs))


@st.composite
def topic_states(draw: st.DrawFn, name: str) -> TopicState:
    count = draw(st.integers(0, 4))
    numbers = sorted(draw(st.sets(st.integers(0, max(count - 1, 0)), max_size=count)))
    return TopicState(
        name,
        draw(st.uuids()),
        draw(st.integers(-1, 2**15 - 1)),
        count,
        draw(named_values),
        draw(named_values),
        tuple(draw(partition_states(number)) for number in numbers),
    )


@st.composite
def groups_with_offsets(draw: st.DrawFn, group_id: str) -> GroupWithOffsets:
    places = draw(st.dictionaries(topic_names, st.sets(st.integers(0, 2**31 - 1), max_size=2)))
    return GroupWithOffsets(
        group_id,
        draw(st.sampled_from(GroupKind)),
        tuple(
            OffsetOfGroup(topic, number, draw(offsets), draw(epochs), draw(texts))
            for topic, numbers in places.items()
            for number in numbers
        ),
    )


@st.composite
def cluster_states(draw: st.DrawFn) -> ClusterState:
    entities = st.dictionaries(texts, st.none() | texts, max_size=2)
    quotas = st.builds(
        QuotaState,
        entities.map(lambda entity: tuple(sorted(entity.items()))),
        texts,
        st.floats(allow_nan=False, allow_infinity=False),
    )
    return ClusterState(
        draw(texts),
        draw(st.integers(0, 2**63 - 1)),
        tuple(draw(topic_states(name)) for name in draw(st.sets(topic_names, max_size=3))),
        tuple(draw(groups_with_offsets(name)) for name in draw(st.sets(texts, max_size=3))),
        tuple(draw(st.lists(st.builds(AclState, *[texts] * 7), max_size=2))),
        tuple(draw(st.lists(quotas, max_size=2))),
        tuple(draw(st.lists(texts, max_size=2))),
        draw(named_values),
        draw(st.integers(-1, 2**63 - 1)),
        tuple(draw(st.lists(st.builds(MissingPart, texts, texts, texts), max_size=2))),
    )


STATE = ClusterState(
    "cluster",
    1700000000000,
    (
        TopicState(
            "orders", UUID(int=1), 3, 2, (("retention.ms", "1"),), (), (PartitionState(1, 5, 9, 4),)
        ),
    ),
    (GroupWithOffsets("g", GroupKind.CLASSIC, (OffsetOfGroup("orders", 1, 7, 4, "m"),)),),
    (AclState("TOPIC", "orders", "LITERAL", "User:a", "*", "READ", "ALLOW"),),
    (QuotaState((("user", None),), "producer_byte_rate", 1024.0),),
    ("alice",),
    (("log.retention.ms", "1000"),),
    4001,
    (MissingPart("the quotas", "refused", "DESCRIBE_CONFIGS on the cluster"),),
)


@settings(deadline=None)
@given(cluster_states())
def test_what_is_written_is_read(state: ClusterState) -> None:
    assert decode_state(encode_state(state), "key") == state


def test_a_line_of_its_own_has_the_time_that_differs_in_each_reading() -> None:
    later = encode_state(replace(STATE, read_at_ms=STATE.read_at_ms + 1))
    assert later != encode_state(STATE)
    assert without_time(later) == without_time(encode_state(STATE))
    assert without_time(b"something else") == b"something else"
    assert without_time(encode_state(replace(STATE, cluster_id='x\n"read_at_ms"'))) != without_time(
        encode_state(STATE)
    )


def test_a_topic_a_group_and_a_right_are_a_line_each() -> None:
    lines = encode_state(STATE).decode().splitlines()
    [topic] = [line for line in lines if '"orders"' in line and "partitions" in line]
    assert json.loads(topic.rstrip(","))["partitions"] == [[1, 5, 9, 4]]
    [group] = [line for line in lines if '"group_id"' in line]
    assert json.loads(group.rstrip(","))["offsets"] == {"orders": [[1, 7, 4, "m"]]}


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ('"partition_count":2', '"partition_count":1', "orders-1 from 5 to 9 is not a partition"),
        ("[1,5,9,4]", "[1,10,9,4]", "from 10 to 9"),
        ("[1,5,9,4]", "[1,5,9,4],[1,5,9,4]", "twice"),
        ("[1,5,9,4]", "[1,5,9]", r"topics\[0\]: field partitions has \[1, 5, 9\]"),
        ("[1,5,9,4]", "[1,5,9,true]", "not a partition, two offsets and a leader epoch"),
        ("[1,5,9,4]", "[1,5,9223372036854775808,4]", "two offsets"),
        ('[1,7,4,"m"]', '[1,7,4,"m",5]', r"groups\[0\]: field orders"),
        ('[1,7,4,"m"]', "[1,7,4,5]", "field metadata is not text"),
        ('[1,7,4,"m"]', '[1,7,4,"\\ud800"]', "half a character"),
        ('"orders":[[1', '"a/b":[[1', "'a/b' is not a topic name"),
        ('"kind":"classic"', '"kind":"other"', "'other' is no kind of group"),
        ('"value":1024.0', '"value":1e999', "finite"),
        ('"value":1024.0', '"value":"1"', "field value is not a number"),
        ('"value":1024.0', f'"value":1{"0" * 400}', "too large"),
        ('"ALLOW"]', '"ALLOW","x"]', "seven texts"),
        ('"cluster_id": "cluster"', '"cluster_id": 5', "field cluster_id is not text"),
        ('"retention.ms":"1"', '"retention.ms":1', "field configs is not text"),
        ('"producer_id_max": 4001', '"producer_id_max": -2', "field producer_id_max"),
        ('"version": 1', '"version": 0', "field version"),
    ],
)
def test_anything_else_is_refused(before: str, after: str, what: str) -> None:
    raw = encode_state(STATE)
    assert before.encode() in raw
    with pytest.raises(CorruptSegment, match=f"key: .*{what}"):
        decode_state(raw.replace(before.encode(), after.encode()), "key")


def test_a_state_of_a_newer_program_is_named_as_such() -> None:
    raw = encode_state(STATE).replace(b'"version": 1', b'"version": 2')
    with pytest.raises(NewerMetadataVersion, match="version 2 was written by a newer fetchproxy"):
        decode_state(raw, "key")


@pytest.mark.parametrize("raw", [b"", b"[" * 100_000, b"[]", b"\xff", encode_state(STATE)[:-9]])
def test_what_is_no_document_is_refused(raw: bytes) -> None:
    with pytest.raises(CorruptSegment, match="key: "):
        decode_state(raw, "key")


@given(st.binary(max_size=60), st.integers(0, len(encode_state(STATE))))
def test_damaged_bytes_are_read_or_refused_and_raise_nothing_else(noise: bytes, at: int) -> None:
    raw = encode_state(STATE)
    with suppress(CorruptSegment):
        decode_state(raw[:at] + noise + raw[at + len(noise) :], "key")


@pytest.mark.parametrize(
    ("limit", "what"),
    [
        ("STATE_TOPICS_MAX", "topics"),
        ("STATE_PARTITIONS_MAX", "partition"),
        ("STATE_GROUPS_MAX", "groups"),
        ("STATE_GROUP_OFFSETS_MAX", "offsets"),
        ("STATE_ENTRIES_MAX", "broker_configs|acls|scram_users|quotas|missing|configs"),
    ],
)
def test_more_than_a_cluster_can_have_is_refused(
    monkeypatch: pytest.MonkeyPatch, limit: str, what: str
) -> None:
    """Also when it is written: nobody could read it when it is needed."""
    raw = encode_state(STATE)
    monkeypatch.setattr(document, limit, 0)
    with pytest.raises(CorruptSegment, match=what):
        decode_state(raw, "key")
    with pytest.raises(CorruptSegment, match=what):
        encode_state(STATE)


def test_a_group_that_two_coordinators_have_told_is_not_written() -> None:
    with pytest.raises(CorruptSegment, match="groups names one of its entries twice"):
        encode_state(replace(STATE, groups=STATE.groups * 2))


@given(cluster_states())
def test_all_but_the_groups_is_read_without_them(state: ClusterState) -> None:
    raw = encode_state(state)
    assert decode_without_groups(raw, "key") == replace(state, groups=())


def test_a_state_without_its_groups_costs_nothing_for_them() -> None:
    """They may be a million offsets, and an archive-only node reads a state each minute."""
    offsets = tuple(OffsetOfGroup("orders", n, 5, 3) for n in range(300_000))
    group = GroupWithOffsets("g", GroupKind.CLASSIC, offsets)
    raw = encode_state(replace(STATE, groups=(group,)))
    began_s = time.thread_time()
    assert decode_without_groups(raw, "key") == replace(STATE, groups=())
    assert time.thread_time() - began_s < TURN_MAX_S


_WHOLE = {
    "version": 1, "cluster_id": "c", "read_at_ms": 1, "producer_id_max": 5,
    "broker_configs": {"a": "b"}, "scram_users": ["u"],
    "missing": [{"what": "a", "why": "b", "right": "c"}],
    "acls": [["a", "b", "c", "d", "e", "f", "g"]],
    "quotas": [{"entity": {"user": "x", "client-id": None}, "key": "k", "value": 1.5}],
    "topics": [{"name": "t", "topic_id": "A" * 21 + "Q", "replication_factor": 1,
                "partition_count": 2, "configs": {"a": "b"}, "inherited": {},
                "partitions": [[0, 1, 2, 3]]}],
    "groups": [{"group_id": "g", "kind": "classic",
                "offsets": {"t": [[0, 1, 2], [1, 2, 3, "m"]]}}],
}  # fmt: skip
_ODD = (
    None, True, -1, 10**400, -(10**400), 1.5, float("inf"), float("nan"), "", "\ud800",
    "x" * 40_000, [], {}, [[]], [{}], {"": None}, {"a": 1}, [1], [None], [[1, 2, 3]], 2**63,
    2**63 - 1, 2**31, "..", "1" * 5_000,
)  # fmt: skip


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    keys = range(len(value)) if isinstance(value, list) else value
    for key in list(keys) if isinstance(value, dict | list) else ():
        yield from _places(value[key], (*place, key))


def _changed(place: tuple[Any, ...], value: object) -> bytes:
    document = json.loads(json.dumps(_WHOLE))
    around = document
    for key in place[:-1]:
        around = around[key]
    around[place[-1]] = value
    return json.dumps(document).encode()


def test_odd_values_in_each_place_are_read_or_refused_and_raise_nothing_else() -> None:
    assert decode_state(json.dumps(_WHOLE).encode(), "key").topics
    for place in list(_places(_WHOLE))[1:]:
        for value in _ODD:
            with suppress(CorruptSegment):
                decode_state(_changed(place, value), "key")
