"""Each segment's aborted transactions, against a model of a log with several producers."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.model import AbortedTxn
from fetchproxy.segments.contents import AbortedTxnCollector
from fetchproxy.segments.side_files import decode_aborted, encode_aborted


@dataclass
class ModelLog:
    """One offset per event: ("data" | "commit" | "abort", producer)."""

    events: list[tuple[str, int]]
    aborted: list[tuple[int, int, int]] = field(default_factory=list)  # producer, first, marker
    abort_markers: dict[int, int] = field(default_factory=dict)  # offset -> producer
    stable: int = 0

    def __post_init__(self) -> None:
        open_since: dict[int, int] = {}
        for offset, (kind, producer) in enumerate(self.events):
            if kind == "data":
                open_since.setdefault(producer, offset)
                continue
            first = open_since.pop(producer, None)
            if kind == "abort":
                self.abort_markers[offset] = producer
                if first is not None:
                    self.aborted.append((producer, first, offset))
        self.stable = min(open_since.values(), default=len(self.events))

    def reported(self, first: int, upper: int) -> list[tuple[int, int]]:
        """What a broker lists for a read_committed fetch: it knows markers above the LSO too."""
        return [(p, f) for p, f, marker in self.aborted if marker >= first and f < upper]


events = st.lists(
    st.tuples(st.sampled_from(["data", "data", "data", "commit", "abort"]), st.integers(0, 3)),
    max_size=60,
)


@given(events, st.data())
def test_every_segment_lists_what_overlaps_it(
    kinds: list[tuple[str, int]], data: st.DataObject
) -> None:
    log = ModelLog(kinds)
    start = 0
    while start < log.stable:
        end = data.draw(st.integers(start + 1, log.stable))  # exclusive
        aborted = collect(log, start, end, data)
        check_segment(log, start, end - 1, aborted)
        start = end


def collect(log: ModelLog, start: int, end: int, data: st.DataObject) -> tuple[AbortedTxn, ...]:
    """Read the segment with fetches of arbitrary size, some of which reach beyond its end."""
    collector = AbortedTxnCollector()
    position = start
    while position < end:
        fetched_end = data.draw(st.integers(position + 1, log.stable))
        taken_end = min(fetched_end, end)
        collector.report(log.reported(position, fetched_end))
        for offset in range(position, taken_end):
            if offset in log.abort_markers:
                collector.abort_marker(log.abort_markers[offset], offset)
        position = taken_end
    return collector.up_to(end - 1)


def check_segment(log: ModelLog, first: int, last: int, aborted: tuple[AbortedTxn, ...]) -> None:
    expected = {
        (p, f, min(marker, last)) for p, f, marker in log.aborted if f <= last and marker >= first
    }
    assert {(e.producer_id, e.first_offset, e.last_offset) for e in aborted} == expected
    assert len(aborted) == len(expected)
    assert decode_aborted(encode_aborted(aborted)) == aborted
    for low in range(first, last + 1):
        for high in range(low, last + 1):
            assert kafka_search(aborted, low, high) == {
                (p, f) for p, f, marker in log.aborted if f <= high and marker >= low
            }


def kafka_search(entries: tuple[AbortedTxn, ...], first: int, last: int) -> set[tuple[int, int]]:
    """TransactionIndex.collectAbortedTxns: it stops at an entry whose LSO the range has reached."""
    aborted_found = set()
    for entry in entries:
        if entry.last_offset >= first and entry.first_offset <= last:
            aborted_found.add((entry.producer_id, entry.first_offset))
        if entry.last_stable_offset > last:
            break
    return aborted_found


def test_a_transaction_whose_marker_is_above_the_stable_offset() -> None:
    collector = AbortedTxnCollector()
    collector.report([(7, 10)])  # aborted at 50, but another producer's data at 20 is undecided
    assert collector.up_to(19) == (AbortedTxn(10, 19, 7, 20),)


def test_a_marker_without_data_is_no_transaction() -> None:
    collector = AbortedTxnCollector()
    collector.abort_marker(7, 5)
    assert collector.up_to(10) == ()


def test_the_producers_next_transaction_stays_open() -> None:
    collector = AbortedTxnCollector()
    collector.report([(7, 2), (7, 8)])
    collector.abort_marker(7, 5)
    assert collector.up_to(9) == (AbortedTxn(2, 5, 7, 6), AbortedTxn(8, 9, 7, 10))
    collector.abort_marker(7, 11)
    assert collector.up_to(20) == (AbortedTxn(2, 5, 7, 6), AbortedTxn(8, 11, 7, 12))
