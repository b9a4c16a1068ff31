"""The read-ahead decision alone: how a window grows, the cost of a seek, and the limit of waste."""

from __future__ import annotations

from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.model import TopicIdPartition
from fetchproxy.reading.read_ahead import CREDIT_WINDOWS, ReadAhead, Stream, advance

TP = TopicIdPartition(UUID(int=1), "t", 0)
OTHER = TopicIdPartition(UUID(int=1), "t", 1)


def windows(
    ahead: ReadAhead,
    begin: int,
    chunks: list[str],
    tp: TopicIdPartition = TP,
    waited: bool = False,
) -> list[int]:
    """Read on from `begin`, ten offsets at a time; each read is served out of the next chunk."""
    return [
        ahead.served(tp, (begin + 10 * i, begin + 10 * i + 10), chunk, 1, waited)
        for i, chunk in enumerate(chunks)
    ]


def test_the_window_doubles_each_time_the_reader_waits_for_a_chunk() -> None:
    assert windows(ReadAhead(8), 0, list("aaabbcdefgh"), waited=True) == [
        *[0, 1, 0, 2, 0, 4, 8, 8, 8, 8, 8],
    ]


def test_who_never_waits_has_one_chunk_read_ahead() -> None:
    assert windows(ReadAhead(8), 0, list("aabbcdef")) == [0, 1, 1, 0, 1, 1, 1, 1]


def test_a_single_read_costs_nothing() -> None:
    ahead = ReadAhead(4)
    assert [windows(ahead, begin, ["a"]) for begin in (0, 500, 100, 0)] == [[0]] * 4


def test_a_seek_begins_anew() -> None:
    ahead = ReadAhead(4)
    assert windows(ahead, 0, ["a", "b", "c"], waited=True) == [0, 1, 2]
    assert windows(ahead, 1_000, ["x", "x", "y"], waited=True) == [0, 1, 2]


def test_a_read_of_several_chunks_counts_them_all() -> None:
    stream = Stream("d", window=4, planned=4, read=4)
    step = advance(stream, "g", 3, False, 10.0, 8)
    assert step.stream == Stream("g", 4, 4, 7)
    assert step.chunks_ahead == 4
    assert step.credit == 10 + 3 + 0.75 - 3


def test_partitions_and_readers_do_not_disturb_each_other() -> None:
    ahead = ReadAhead(4)
    assert windows(ahead, 0, ["a", "b"]) == [0, 1]
    assert windows(ahead, 500, ["k"]) == [0]
    assert windows(ahead, 20, ["q"], OTHER) == [0]
    assert ahead.served(TP, (20, 30), "c", waited=True) == 2
    assert ahead.served(TP, (510, 520), "l", waited=True) == 1


def test_two_readers_in_step_plan_the_same() -> None:
    ahead = ReadAhead(4)
    for _ in range(2):
        ahead.served(TP, (0, 10), "a")
    assert [ahead.served(TP, (10, 20), "b", 1, True) for _ in range(2)] == [1, 1]
    assert [ahead.served(TP, (20, 30), "c", 1, True) for _ in range(2)] == [2, 2]


def test_zero_switches_it_off() -> None:
    assert windows(ReadAhead(0), 0, ["a", "b", "c"], waited=True) == [0, 0, 0]


def test_streams_are_bounded_the_oldest_is_forgotten() -> None:
    ahead = ReadAhead(4, streams_max=2)
    windows(ahead, 0, ["a"])
    windows(ahead, 100, ["b"])
    windows(ahead, 200, ["c"])
    assert ahead.served(TP, (10, 20), "b") == 0
    assert ahead.served(TP, (210, 220), "d") == 1


def read_in_vain(runs: list[tuple[int, bool]], chunks_max: int) -> tuple[int, int]:
    """(chunks read in vain, all chunks read) for runs of such lengths, each begun by a seek."""
    ahead, vain, bytes_read = ReadAhead(chunks_max), 0, 0
    for number, (length, waited) in enumerate(runs):
        base, planned_to = 1_000_000 * number, 0
        for i in range(length):
            window = ahead.served(TP, (base + i, base + i + 1), (number, i), 1, waited)
            planned_to = max(planned_to, i + window if window else 0)
        bytes_read += length
        vain += max(planned_to - (length - 1), 0)
    return vain, bytes_read


@given(
    st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=60),
    st.integers(1, 32),
)
def test_what_is_read_in_vain_is_a_bounded_share(
    runs: list[tuple[int, bool]], chunks_max: int
) -> None:
    vain, bytes_read = read_in_vain(runs, chunks_max)
    assert vain <= CREDIT_WINDOWS * chunks_max + 0.75 * bytes_read


@pytest.mark.parametrize(("length", "share_max"), [(1, 0.0), (2, 0.5), (4, 0.5), (7, 0.5)])
def test_a_reader_that_jumps_about_soon_has_little_read_in_vain(
    length: int, share_max: float
) -> None:
    vain, bytes_read = read_in_vain([(length, True)] * 2_000, 16)
    assert vain <= 2 * 16 + share_max * bytes_read
    at_first, of = read_in_vain([(length, True)] * 5, 16)
    assert length < 4 or at_first > share_max * of  # until then the reader uses up its credit


def test_a_sequential_reader_gets_its_window_back_among_those_that_jump() -> None:
    ahead, rng = ReadAhead(16), Random(1)
    for number in range(500):
        base = 10_000 * number
        for i in range(rng.randint(2, 6)):
            ahead.served(TP, (base + i, base + i + 1), (number, i), 1, True)
    chunks = [f"c{i}" for i in range(60)]
    assert max(windows(ahead, 99_000_000, chunks, waited=True)[:12]) < 16
    assert windows(ahead, 98_000_000, chunks, waited=True)[-1] == 16
