"""The `.epochs` object has the text of Kafka's `leader-epoch-checkpoint`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import EpochStart
from fetchproxy.segments.log_end_check import agrees
from fetchproxy.segments.side_files import decode_epochs, encode_epochs


@st.composite
def epoch_lists(draw: st.DrawFn) -> tuple[EpochStart, ...]:
    count = draw(st.integers(0, 8))
    epochs = sorted(draw(st.sets(st.integers(0, 2**31 - 1), min_size=count, max_size=count)))
    offsets = sorted(draw(st.sets(st.integers(0, 2**63 - 1), min_size=count, max_size=count)))
    return tuple(EpochStart(e, o) for e, o in zip(epochs, offsets, strict=True))


def test_text_is_kafka_s() -> None:
    assert encode_epochs([EpochStart(0, 0), EpochStart(3, 17200)]) == b"0\n2\n0 0\n3 17200\n"


@given(epoch_lists())
def test_round_trip(epochs: tuple[EpochStart, ...]) -> None:
    assert decode_epochs(encode_epochs(epochs)) == epochs


@given(epoch_lists(), st.data())
def test_every_cut_is_corrupt(epochs: tuple[EpochStart, ...], data: st.DataObject) -> None:
    raw = encode_epochs(epochs)
    with pytest.raises(CorruptSegment):
        decode_epochs(raw[: data.draw(st.integers(0, len(raw) - 1))])


@given(st.one_of(st.binary(max_size=60), st.text("0123456789 -\n²", max_size=40).map(str.encode)))
def test_garbage_is_corrupt_or_reads_as_written(raw: bytes) -> None:
    try:
        epochs = decode_epochs(raw)
    except CorruptSegment:
        return
    assert decode_epochs(encode_epochs(epochs)) == epochs


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"1\n0\n", "line 1 has version 1"),
        (b"0\n2\n0 0\n", "line 2 says 2 entries, 1 follow"),
        (b"0\n2\n1 5\n1 9\n", "line 4 does not rise"),
        (b"0\n2\n1 5\n2 5\n", "line 4 does not rise"),
        (b"0\n1\n1  5\n", "line 3"),
        (b"0\n1\n-1 5\n", "line 3"),
        (b"0\n", "missing"),
        (b"0\n0", "line 2 has no end"),
        (b"\xff\n0\n", "ASCII"),
    ],
)
def test_faults_name_their_line(raw: bytes, what: str) -> None:
    with pytest.raises(CorruptSegment, match=what):
        decode_epochs(raw)


@pytest.mark.parametrize(
    ("beside", "own_epochs", "same"),
    [
        ([(8, 10), (9, 15)], [(8, 10), (9, 15)], True),
        ([(8, 10), (9, 15)], [(8, 12), (9, 15)], True),  # batches without an epoch, in epoch 8
        ([(7, 10), (9, 15)], [(9, 15)], True),  # in epoch 7
        ([(7, 10)], [], True),
        ([(8, 12)], [(8, 10)], False),
        ([(7, 10), (9, 15)], [], False),
        ([(7, 10), (9, 15)], [(7, 12), (9, 16)], False),
        ([(7, 10)], [(9, 15)], False),
        ([(7, 10), (8, 12), (9, 15)], [(9, 15)], False),
        ([], [(9, 15)], False),
    ],
)
def test_batches_without_an_epoch_continue_the_one_before(
    beside: list[tuple[int, int]], own_epochs: list[tuple[int, int]], same: bool
) -> None:
    epochs_beside, stated = (
        [EpochStart(*entry) for entry in entries] for entries in (beside, own_epochs)
    )
    assert agrees(epochs_beside, stated) == same
