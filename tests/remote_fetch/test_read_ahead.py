from __future__ import annotations

from uuid import UUID

from fetchproxy.model import TopicIdPartition
from fetchproxy.remote_fetch.read_ahead import ReadAhead

TIP = TopicIdPartition(UUID(int=1), "t", 0)
OTHER = TopicIdPartition(UUID(int=1), "t", 1)


def windows(ahead: ReadAhead, begin: int, chunks: list[str], tip: TopicIdPartition = TIP) -> list:
    """Read on from `begin`, ten offsets at a time, each read served out of the next chunk."""
    return [
        ahead.served(tip, begin + 10 * i, begin + 10 * i + 10, chunk)
        for i, chunk in enumerate(chunks)
    ]


def test_the_window_grows_with_each_chunk_that_a_stream_enters() -> None:
    assert windows(ReadAhead(8), 0, ["a", "a", "a", "b", "b", "c", "d", "e", "f"]) == [
        *[0, 1, 0, 2, 0, 4, 8, 8, 8],
    ]


def test_a_single_read_costs_nothing() -> None:
    ahead = ReadAhead(4)
    assert [windows(ahead, begin, ["a"]) for begin in (0, 500, 100, 0)] == [[0]] * 4


def test_a_seek_begins_anew() -> None:
    ahead = ReadAhead(4)
    windows(ahead, 0, ["a", "b", "c"])
    assert windows(ahead, 1_000, ["x", "x", "y"]) == [0, 1, 2]


def test_partitions_and_readers_do_not_disturb_each_other() -> None:
    ahead = ReadAhead(4)
    assert windows(ahead, 0, ["a", "b"]) == [0, 1]
    assert windows(ahead, 500, ["k"]) == [0]
    assert windows(ahead, 20, ["q"], OTHER) == [0]
    assert ahead.served(TIP, 20, 30, "c") == 2
    assert ahead.served(TIP, 510, 520, "l") == 1


def test_two_readers_in_step_plan_once_each_chunk() -> None:
    ahead = ReadAhead(4)
    for _ in range(2):
        ahead.served(TIP, 0, 10, "a")
    assert [ahead.served(TIP, 10, 20, "b") for _ in range(2)] == [1, 1]
    assert [ahead.served(TIP, 20, 30, "c") for _ in range(2)] == [2, 2]


def test_zero_switches_it_off() -> None:
    assert windows(ReadAhead(0), 0, ["a", "b", "c"]) == [0, 0, 0]


def test_streams_are_bounded_the_oldest_is_forgotten() -> None:
    ahead = ReadAhead(4, streams_max=2)
    windows(ahead, 0, ["a"])
    windows(ahead, 100, ["b"])
    windows(ahead, 200, ["c"])
    assert ahead.served(TIP, 10, 20, "a") == 0
    assert ahead.served(TIP, 210, 220, "c") == 1
