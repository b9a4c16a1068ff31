"""The `.txn` object has the bytes of Kafka's `.txnindex`."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn
from fetchproxy.segments.aborted_index import AbortedIndex
from fetchproxy.segments.side_files import (
    ENTRY_BYTES,
    aborted_in,
    decode_aborted,
    encode_aborted,
)


@st.composite
def entry_lists(draw: st.DrawFn) -> list[AbortedTxn]:
    """In the order of their markers, which lie at different offsets."""
    lasts = sorted(draw(st.sets(st.integers(0, 200), max_size=12)))
    return [
        AbortedTxn(
            first_offset=draw(st.integers(0, last)),
            last_offset=last,
            producer_id=draw(st.integers(0, 2**63 - 1)),
            last_stable_offset=draw(st.integers(0, 300)),
        )
        for last in lasts
    ]


def test_entry_has_kafka_s_bytes() -> None:
    entry = AbortedTxn(first_offset=5, last_offset=9, producer_id=7, last_stable_offset=10)
    assert encode_aborted([entry]) == struct.pack(">hqqqq", 0, 7, 5, 9, 10)
    assert ENTRY_BYTES == 34


@given(entry_lists(), st.randoms(use_true_random=False))
def test_round_trip_in_marker_order(entries: list[AbortedTxn], random: object) -> None:
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert decode_aborted(encode_aborted(shuffled)) == tuple(entries)


@given(entry_lists(), st.integers(0, 210), st.integers(0, 60))
def test_aborted_in_is_overlap(entries: list[AbortedTxn], first: int, more: int) -> None:
    offsets_asked = set(range(first, first + more + 1))
    expected = [e for e in entries if offsets_asked & set(range(e.first_offset, e.last_offset + 1))]
    aborted_found = aborted_in(entries, first, first + more)
    assert sorted(expected) == list(aborted_found)
    index = AbortedIndex(encode_aborted(entries))
    starts = [(e.first_offset, e.producer_id) for e in aborted_found]
    assert index.starts(first, first + more) == sorted(starts)
    assert index.count(first, first + more) == len(starts)


@given(entry_lists().filter(bool), st.data())
def test_a_cut_inside_an_entry_is_corrupt(entries: list[AbortedTxn], data: st.DataObject) -> None:
    raw = encode_aborted(entries)
    at = data.draw(st.integers(1, len(raw) - 1).filter(lambda n: n % ENTRY_BYTES))
    with pytest.raises(CorruptSegment, match=f"entry {at // ENTRY_BYTES} is cut"):
        decode_aborted(raw[:at])


@given(st.binary(max_size=ENTRY_BYTES * 3))
def test_garbage_is_corrupt_or_plausible_entries(raw: bytes) -> None:
    try:
        entries = decode_aborted(raw)
    except CorruptSegment:
        return
    assert encode_aborted(entries) == raw


def test_entries_may_share_the_segment_s_last_offset() -> None:
    entries = (AbortedTxn(5, 99, 7, 100), AbortedTxn(6, 99, 8, 100))
    assert decode_aborted(encode_aborted(entries)) == entries


@pytest.mark.parametrize(
    "raw",
    [
        struct.pack(">hqqqq", 1, 7, 5, 9, 10),
        struct.pack(">hqqqq", 0, -1, 5, 9, 10),
        struct.pack(">hqqqq", 0, 7, 9, 5, 10),
        struct.pack(">hqqqq", 0, 7, 5, 9, 10) + struct.pack(">hqqqq", 0, 7, 5, 8, 10),
    ],
)
def test_whole_entries_that_cannot_be(raw: bytes) -> None:
    with pytest.raises(CorruptSegment, match="entry"):
        decode_aborted(raw)
