"""A look into a list of aborted transactions costs by what it returns, whatever the list has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from random import Random

import pytest

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn
from fetchproxy.reading.segment_loads import TXN_BYTES_MAX
from fetchproxy.runtime.cooperative import at_once
from fetchproxy.segments.aborted_index import AbortedIndex, AbortedSpan, cut_spans, txn_starts
from fetchproxy.segments.side_files import (
    ENTRY_BYTES,
    OPEN_TXNS_MAX,
    decode_aborted,
    encode_aborted,
)

# Of CPU, for a look that returns nothing; a turn of the event loop has 50 ms for all it does.
LOOK_CPU_S_MAX = 0.005


def txn(first: int, last: int, producer: int) -> AbortedTxn:
    return AbortedTxn(first, last, producer, last + 1)


def shape(rng: Random, count: int) -> list[AbortedTxn]:
    """Long ones, short ones, nested ones, and many that end or begin together."""
    entries = []
    for producer in range(count):
        first = rng.choice((rng.randrange(500), rng.randrange(10), 250))
        last = first + rng.choice((0, 1, rng.randrange(500), 600 - first if first < 600 else 0))
        entries.append(txn(first, last, producer))
    return entries


@pytest.mark.parametrize("seed", range(40))
def test_looks_are_those_of_a_plain_search(seed: int) -> None:
    rng = Random(seed)
    entries = shape(rng, rng.choice((0, 1, 70, 400, 1_500)))
    index = AbortedIndex(encode_aborted(entries))
    for _ in range(60):
        first = rng.randrange(620)
        last = first + rng.choice((0, 1, rng.randrange(620)))
        plain = sorted(
            (e.first_offset, e.producer_id)
            for e in entries
            if e.first_offset <= last and e.last_offset >= first
        )
        assert index.starts(first, last) == plain
        assert index.count(first, last) == len(plain)
        count_max = rng.randrange(30)
        listed_to = index.up_to(first, count_max)
        if listed_to is None:
            assert index.count(first, 10_000) <= count_max
        else:
            assert listed_to < first or index.count(first, listed_to) <= count_max
            assert index.count(first, listed_to + 1) > count_max


def test_spans_of_several_segments_list_each_transaction_once() -> None:
    first, second = [txn(3, 9, 7), txn(5, 9, 8)], [txn(5, 14, 8), txn(12, 13, 9)]
    spans = (
        AbortedSpan(AbortedIndex(encode_aborted(first)), 0, 9),
        AbortedSpan(AbortedIndex(encode_aborted(second)), 10, 19),
    )
    assert at_once(txn_starts(spans)) == [(3, 7), (5, 8), (12, 9)]
    assert at_once(txn_starts(cut_spans(spans, 11))) == [(3, 7), (5, 8)]
    assert at_once(txn_starts(cut_spans(spans, 4))) == [(3, 7)]
    assert at_once(txn_starts(())) == []


def open_at_once(count: int) -> bytes:
    return encode_aborted(txn(number, count + number, number) for number in range(count))


def test_so_many_transactions_may_be_open_at_once() -> None:
    raw = open_at_once(OPEN_TXNS_MAX)
    assert AbortedIndex(raw).count(OPEN_TXNS_MAX - 1, OPEN_TXNS_MAX - 1) == OPEN_TXNS_MAX
    assert len(decode_aborted(raw)) == OPEN_TXNS_MAX


@pytest.mark.parametrize("read", [AbortedIndex, decode_aborted])
def test_more_are_corrupt(read: type[AbortedIndex]) -> None:
    with pytest.raises(CorruptSegment, match=f"more than {OPEN_TXNS_MAX} .* at offset"):
        read(open_at_once(OPEN_TXNS_MAX + 1))


def longest_lists() -> Iterator[tuple[str, list[AbortedTxn]]]:
    count = TXN_BYTES_MAX // ENTRY_BYTES
    yield "one after the other", [txn(10 * n, 10 * n + 5, n) for n in range(count)]
    around = [txn(0, 10 * count, count), *(txn(10 * n, 10 * n + 5, n) for n in range(1, count))]
    yield "one around all", around
    burst = OPEN_TXNS_MAX - 1
    yield (
        "bursts that end together",
        [txn(n // burst * 10 * burst + n % burst, (n // burst * 10 + 5) * burst, n)
         for n in range(count)],
    )  # fmt: skip


@pytest.mark.parametrize(("what", "entries"), list(longest_lists()), ids=lambda one: str(one)[:30])
def test_a_look_into_the_longest_list_takes_no_time(what: str, entries: list[AbortedTxn]) -> None:
    index = AbortedIndex(encode_aborted(entries))
    assert index.memory_bytes < 4 * TXN_BYTES_MAX
    end = max(entry.last_offset for entry in entries)
    rng = Random(what)
    quickest = []
    for first in sorted(rng.randrange(end) for _ in range(30)):
        returned = index.count(first, first)
        began = time.thread_time()
        assert len(index.starts(first, first)) == returned
        quickest.append(time.thread_time() - began - returned * 1e-6)
    assert sorted(quickest)[len(quickest) // 2] < LOOK_CPU_S_MAX, what
