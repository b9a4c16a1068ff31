"""Checking, cutting and keeping chunks. The cut is compared with `record_batch.cut`."""

from __future__ import annotations

from array import array
from random import Random

import pytest
from fetchproxy_protocol.record_batch import cut
from generated_archive import make_batch
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import EpochStart
from fetchproxy.reading.chunk_cache import STEP_BYTES, Chunk, ChunkCache, check_chunk
from fetchproxy.runtime.cooperative import at_once


def checked(content: bytes, first: int, last: int, epochs: tuple[EpochStart, ...] = ()) -> Chunk:
    return at_once(check_chunk(content, first, last, epochs))


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, int, int]:
    """(content, first offset, last offset); the offsets may have holes."""
    offset = first = draw(st.integers(0, 100))
    content, last = b"", 0
    for _ in range(draw(st.integers(1, 8))):
        batch = make_batch(offset, draw(st.integers(1, 4)), bytes(draw(st.integers(0, 60))))
        content += batch.content
        last = batch.last_offset
        offset = last + 1 + draw(st.sampled_from([0, 0, 5]))
    return content, first, last


@given(logs(), st.integers(0, 200), st.integers(-1, 1200), st.booleans())
def test_cuts_as_a_walk_would(
    log: tuple[bytes, int, int], offset: int, bytes_max: int, min_one: bool
) -> None:
    chunk = checked(*log)
    start, end, last = chunk.cut(offset, bytes_max, min_one)
    expected = cut(log[0], offset, bytes_max, min_one)
    assert chunk.view[start:end] == log[0][slice(*expected)]
    if start < end:
        assert (start, end) == expected
        checked(log[0][start:end], chunk.base_offset_at(start), last)


def test_every_single_bit_counts_in_a_log_without_holes() -> None:
    rng = Random(1)
    made = [make_batch(40 + 5 * i, 5, rng.randbytes(9), leader_epoch=3) for i in range(3)]
    content = b"".join(batch.content for batch in made)
    epochs = (EpochStart(3, 42), EpochStart(5, 55))  # the first epoch begins inside the first batch
    checked(content, 40, 54, epochs)
    for bit in range(8 * len(content)):
        damaged = bytearray(content)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptSegment):
            checked(bytes(damaged), 40, 54, epochs)


@pytest.mark.parametrize("keep", [0, 1, 11, 12, 60, 69, 70, 139])
def test_a_cut_or_empty_chunk_is_corrupt(keep: int) -> None:
    content = make_batch(0, 1, bytes(9)).content + make_batch(1, 1, bytes(9)).content
    assert len(content) == 140
    with pytest.raises(CorruptSegment):
        checked(content[:keep], 0, 1)


def test_other_offsets_than_the_index_says_are_corrupt() -> None:
    content = make_batch(10, 5, b"x").content
    checked(content, 10, 14)
    for first, last in ((9, 14), (11, 14), (10, 13), (10, 15)):
        with pytest.raises(CorruptSegment):
            checked(content, first, last)


def test_leader_epochs_must_be_those_of_the_segment() -> None:
    content = b"".join(
        make_batch(10 * i, 10, b"x", leader_epoch=epoch).content
        for i, epoch in enumerate((-1, 2, 2, 7))
    )
    checked(content, 0, 39, (EpochStart(2, 0), EpochStart(7, 30)))
    checked(content, 0, 39)
    for wrong in (((2, 0), (7, 20)), ((2, 0),), ((1, 0), (7, 30)), ((2, 0), (7, 31))):
        with pytest.raises(CorruptSegment, match="leader epoch"):
            checked(content, 0, 39, tuple(EpochStart(*pair) for pair in wrong))


def test_a_large_chunk_lets_the_loop_breathe() -> None:
    noise = bytes(STEP_BYTES // 4)
    content = b"".join(make_batch(i, 1, noise).content for i in range(12))
    breaths = list(check_chunk(content, 0, 11))
    assert len(breaths) >= 2
    content = b"".join(make_batch(i, 1, b"").content for i in range(1000))
    breaths = list(check_chunk(content, 0, 999))
    assert len(breaths) >= 3


def chunk_of(memory_bytes: int) -> Chunk:
    empty = Chunk(b"", array("q"), array("q"))
    return Chunk(bytes(memory_bytes - empty.memory_bytes), array("q"), array("q"))


def test_the_least_recently_used_goes_first_and_bytes_are_bounded() -> None:
    cache = ChunkCache(3_000)
    for n in range(3):
        cache.keep((1, n), chunk_of(1_000), read_ahead=False)
    assert cache.find((1, 0)) is not None
    cache.keep((1, 3), chunk_of(1_000), read_ahead=False)
    assert [cache.holds((1, n)) for n in range(4)] == [True, False, True, True]
    assert cache.currsize == 3_000
    assert cache.find((1, 1)) is None


@pytest.mark.parametrize(("size", "cached"), [(3_000, True), (3_001, False)])
def test_a_chunk_above_the_limit_is_kept_alone_beside_the_cache(size: int, cached: bool) -> None:
    cache = ChunkCache(3_000)
    cache.keep((1, 0), chunk_of(700), read_ahead=False)
    cache.keep((1, 1), chunk_of(size), read_ahead=True)
    assert cache.holds((1, 1))
    assert cache.find((1, 1)) is not None
    assert cache.holds((1, 0)) is not cached
    cache.keep((1, 2), chunk_of(9_000), read_ahead=False)
    assert cache.holds((1, 1)) is cached
    assert cache.find((1, 2)) is not None


def test_what_was_read_ahead_is_counted_until_it_is_used_or_gone() -> None:
    cache = ChunkCache(3_000)
    for n in range(3):
        cache.keep((1, n), chunk_of(1_000), read_ahead=True)
    assert cache.read_ahead_bytes == 3_000
    cache.find((1, 0))
    cache.find((1, 0))
    assert cache.read_ahead_bytes == 2_000
    cache.keep((1, 3), chunk_of(1_000), read_ahead=False)  # evicts 1, which was never used
    assert cache.read_ahead_bytes == 1_000
    cache.keep((1, 2), chunk_of(1_000), read_ahead=False)  # read again
    assert cache.read_ahead_bytes == 0
