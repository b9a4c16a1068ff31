"""Scenarios written by hand: one for every behaviour that issue and checklists name.

Each runs the same steps against a Kafka with tiered storage and through fetchproxy, and fails on
any difference that the compatibility page does not list.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from oracle_asks import DescribeAsk, EpochAsk, ListOffsetsAsk, MetadataAsk, Place
from oracle_drain import DrainAsk, SessionErrorAsk
from oracle_fetch import FetchAsk
from oracle_sides import until
from oracle_steps import (
    Archive,
    DeleteRecords,
    EndTxn,
    Produce,
    Reconnect,
    Restart,
    Roll,
    Scene,
    Shape,
    Step,
    Trim,
)

pytestmark = pytest.mark.kafka
FETCH = range(4, 19)
LIST_OFFSETS = range(1, 11)
BOTH = (0, 1)

Play = Callable[..., Scene]


def segments(count: int, topic: int = 0, codec: int = 0) -> list[Step]:
    """So many closed segments of two batches, and one batch in the active segment."""
    steps: list[Step] = []
    for number in range(count):
        steps += [
            Produce(topic, (100, 200), codec, seed=number),
            Produce(topic, (300,) * 5, codec, seed=100 + number),
            Roll(topic),
        ]
    return [*steps, Produce(topic, (50,) * 3, codec, seed=999)]


def around(*anchors: str) -> list[Place]:
    return [Place(anchor, delta) for anchor in anchors for delta in (-1, 0, 1)]


@pytest.mark.parametrize("isolation", BOTH)
def test_every_fetch_version_on_both_sides_of_every_border(play: Play, isolation: int) -> None:
    play(*segments(3), Trim(0), *segments(2), Archive(0))
    for version in FETCH:
        for place in [
            Place("zero"),
            Place("share", share=0.2),
            *around("local", "archived", "end"),
        ]:
            play(FetchAsk(version, ((0, place),), isolation))


@pytest.mark.parametrize("codec", range(5))
def test_the_bytes_of_every_compression(play: Play, codec: int) -> None:
    play(*segments(2, codec=codec), Trim(0))
    for isolation in BOTH:
        play(DrainAsk(13, ((0, Place("zero")),), isolation, session=isolation == 0))


@pytest.mark.parametrize("limit", [1, 61, 250, 400, 1_000, 2_500])
def test_the_first_batch_comes_whole_and_the_rest_fits(play: Play, limit: int) -> None:
    play(*segments(3), Trim(0))
    for place in (Place("zero"), Place("zero", 3), Place("local", -1), Place("local")):
        play(
            FetchAsk(12, ((0, place),), partition_bytes=limit),
            FetchAsk(12, ((0, place),), max_bytes=limit),
        )
    play(DrainAsk(12, ((0, Place("zero")),), partition_bytes=limit))


def test_the_tails_answers_show_where_the_archive_begins(play: Play) -> None:
    """Soon, and from then on always, by topic name and by topic id."""
    scene = play(*segments(2), Trim(0))
    late = "fetch-tail-log-start-late"

    def is_shown(version: int) -> bool:
        before = scene.findings.counted[late]
        play(FetchAsk(version, ((0, Place("end", -1)),)))
        return scene.findings.counted[late] == before

    for versions in (range(5, 13), range(13, 19)):
        until(f"log start in v{versions[0]}", lambda versions=versions: is_shown(versions[0]))
        assert all(is_shown(version) for version in versions)
        play(*segments(1), Trim(0))
        assert all(is_shown(version) for version in versions)


def test_min_bytes_and_max_wait_at_the_end_and_in_the_archive(play: Play) -> None:
    play(*segments(2), Trim(0))
    for minimum in (0, 1, 100_000):
        for wait in (0, 1, 40):
            for place in (Place("end"), Place("end", -1), Place("zero")):
                play(FetchAsk(16, ((0, place),), min_bytes=minimum, wait_ms=wait))


def test_offsets_that_nobody_has(play: Play) -> None:
    play(*segments(2), Trim(0))
    for version in FETCH:
        play(
            FetchAsk(version, ((0, Place("end", 1)),)), FetchAsk(version, ((0, Place("end", 900)),))
        )


@pytest.mark.parametrize("isolation", BOTH)
@pytest.mark.parametrize("shape", [(1, 1, 1), (2, 1)], ids=str)
def test_several_partitions_over_both_tiers_in_one_fetch(
    play: Play, isolation: int, shape: Shape
) -> None:
    for topic in range(3):
        play(*segments(3, topic), shape=shape)
    play(Trim(0), Trim(1))
    for version in (4, 11, 12, 13, 18):
        places = ((0, Place("zero")), (1, Place("zero", 3)), (2, Place("zero")))
        play(
            FetchAsk(version, places, isolation),
            FetchAsk(version, places, isolation, partition_bytes=200),
            FetchAsk(version, places, isolation, max_bytes=300),
            FetchAsk(version, (*places[:2], (2, Place("end", 5))), isolation),
            DrainAsk(version, places, isolation, partition_bytes=400, hop=True, seed=version),
            DrainAsk(version, places, isolation, max_bytes=700, session=False),
        )


@pytest.mark.parametrize("version", [7, 11, 12, 13, 16, 18])
def test_a_session_crosses_the_tiers_in_both_directions(play: Play, version: int) -> None:
    play(*segments(3, 0), *segments(2, 1), Trim(0), shape=(1, 1))
    both = ((0, Place("zero")), (1, Place("zero")))
    play(DrainAsk(version, both, partition_bytes=400))
    play(DrainAsk(version, both, partition_bytes=400, hop=True, seed=5))
    play(FetchAsk(version, ((0, Place("end", -1)),)), FetchAsk(version, ((0, Place("zero")),)))
    play(Reconnect(), DrainAsk(version, both, isolation=1))


@pytest.mark.parametrize("kind", ["unknown", "epoch", "ids"])
def test_what_goes_wrong_with_sessions(play: Play, kind: str) -> None:
    play(*segments(2), Trim(0))
    for version in (12, 13, 17) if kind == "ids" else (7, 11, 12, 13, 18):
        for place in (Place("zero"), Place("end", -1)):
            play(SessionErrorAsk(kind, version, 0, place))


def test_a_transaction_in_one_archived_segment(play: Play) -> None:
    for number, commit in enumerate((True, False, True, False)):
        play(Produce(0, (80, 80), producer=0, seed=number), Produce(0, (10,)), EndTxn(0, commit))
    play(Roll(0), Produce(0, (10,)), Trim(0))
    read_committed_everywhere(play)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_over_archived_segments(play: Play, commit: bool) -> None:
    """It begins in an earlier segment, covers one whole, and ends in a later one."""
    for _ in range(3):
        play(Produce(0, (100,) * 3, producer=0), Produce(0, (40,), producer=1), Roll(0))
    play(EndTxn(0, commit), EndTxn(1, not commit), Roll(0), Produce(0, (9,)), Trim(0))
    read_committed_everywhere(play)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_that_is_open_at_the_archives_end(play: Play, commit: bool) -> None:
    """Nothing from its first offset on is archived until it has been decided."""
    play(*segments(2), Produce(0, (60,) * 2, producer=0), Roll(0), Produce(0, (10,)), Roll(0))
    scene = play(Produce(0, (10,), producer=1), Trim(0))
    log = scene.topics[0].log
    assert 0 < log.archived <= log.last_stable < log.end
    read_committed_everywhere(play)
    play(EndTxn(0, commit), EndTxn(1, commit), Roll(0), Produce(0, (10,)), Trim(0))
    assert log.archived == log.end - 1
    read_committed_everywhere(play)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_across_the_crossing(play: Play, commit: bool) -> None:
    """Its beginning is in the archive, its marker only in the broker's log."""
    play(Produce(0, (100,) * 3, producer=0), Roll(0), Produce(0, (50,), producer=0))
    play(EndTxn(0, commit), Produce(0, (7,)))
    scene = play(Trim(0))
    assert scene.topics[0].log.archived == 3
    read_committed_everywhere(play)


def test_aborted_transactions_of_producers_that_take_turns(play: Play) -> None:
    for number in range(9):
        play(Produce(0, (30, 30), producer=number % 3), Produce(0, (5,)))
        if number % 2:
            play(EndTxn(number % 3, number % 4 == 1))
        if number % 3 == 2:
            play(Roll(0))
    for producer in range(3):
        play(EndTxn(producer, commit=False))
    play(Roll(0), Produce(0, (5,)), Trim(0))
    read_committed_everywhere(play)


def read_committed_everywhere(play: Play) -> None:
    scene = play()
    end = scene.topics[0].log.end
    for offset in range(end + 1):
        for limit in (1, 300, 1 << 20):
            play(FetchAsk(4 + offset % 15, ((0, Place("zero", offset)),), 1, partition_bytes=limit))
    for isolation in BOTH:
        play(DrainAsk(11, ((0, Place("zero")),), isolation, partition_bytes=300))
        play(DrainAsk(17, ((0, Place("zero")),), isolation))


@pytest.mark.parametrize("isolation", BOTH)
def test_list_offsets_of_every_version(play: Play, isolation: int) -> None:
    play(*segments(3), Produce(0, (20,), producer=0), Trim(0), *segments(2))
    for version in LIST_OFFSETS:
        for special in (-1, -2, -3, -4, -5, -6, -7):
            play(ListOffsetsAsk(version, 0, special, isolation))
        for share in (0.0, 0.2, 0.5, 0.8, 0.99):
            for delta in (-1, 0, 1, 400):
                play(ListOffsetsAsk(version, 0, (share, delta), isolation))
        for epoch in (0, 1, -1):
            play(ListOffsetsAsk(version, 0, -2, isolation, epoch))
    play(ListOffsetsAsk(7, 0, 0), ListOffsetsAsk(7, 0, (0.99, 10**12)))


@pytest.mark.parametrize("isolation", BOTH)
def test_what_is_next_to_be_archived(play_newest: Play, isolation: int) -> None:
    """EARLIEST_PENDING_UPLOAD of ListOffsets v11 (KIP-1023), and the rest of that version."""

    def ask_all() -> None:
        for special in (-1, -2, -3, -4, -5, -6, -7, 0, (0.3, 0), (0.8, 1)):
            play_newest(ListOffsetsAsk(11, 0, special, isolation))

    ask_all()
    for steps in (
        segments(2),
        [Archive(0)],
        [Trim(0), *segments(2)],
        [Produce(0, (20,), producer=0), Trim(0), *segments(1), Trim(0)],
        [EndTxn(0, False), Roll(0), Produce(0, (10,)), Trim(0)],
        [DeleteRecords(2, 0, Place("share", share=0.3))],
        [DeleteRecords(2, 0, Place("end", -1))],
    ):
        play_newest(*steps)
        ask_all()


def test_an_empty_topic_and_one_that_nothing_was_archived_of(play: Play) -> None:
    for special in (-1, -2, -3, -4, -5, 0):
        play(ListOffsetsAsk(9, 0, special))
    play(FetchAsk(13, ((0, Place("zero")),)), FetchAsk(13, ((0, Place("zero", 1)),)))
    play(*segments(2))
    for special in (-1, -2, -3, -4, -5, 0):
        play(ListOffsetsAsk(9, 0, special))
    play(EpochAsk(4, 0, 0), EpochAsk(4, 0, 1), MetadataAsk(12, 0), DescribeAsk(0))


@pytest.mark.slow  # two restarts of two brokers
def test_leader_epochs_in_the_archive_and_above_it(play: Play) -> None:
    play(*segments(2), Trim(0))
    for _ in range(2):
        play(Restart(), *segments(1), Trim(0))
    for version, epoch, current in itertools.product((2, 3, 4), range(-1, 5), (None, 0, -1, 1)):
        play(EpochAsk(version, 0, epoch, current))
    for version in (9, 11, 12, 13, 18):
        for place in (Place("zero"), Place("share", share=0.5), Place("local", -1), Place("local")):
            for epoch in (0, -1, 1, None):
                play(FetchAsk(version, ((0, place),), epoch=epoch))
    times = (-1, -2, -4, -5, (0.3, 0), (0.6, 0), (0.99, 0))
    for version, time, epoch in itertools.product((4, 9), times, (0, -1, 1)):
        play(ListOffsetsAsk(version, 0, time, 0, epoch))
    for isolation in BOTH:
        play(DrainAsk(12, ((0, Place("zero")),), isolation))
    for version in range(1, 14):
        play(MetadataAsk(version, 0))


@pytest.mark.parametrize("version", [0, 1, 2])
def test_delete_records_in_the_archive(play: Play, version: int) -> None:
    play(*segments(3), Trim(0), *segments(1))
    for place in (Place("zero"), Place("zero", 4), Place("archived", -1), Place("end", 5)):
        play(DeleteRecords(version, 0, place))
        after_a_deletion(play)


def test_delete_records_above_the_archive(play: Play) -> None:
    play(*segments(3), Trim(0), *segments(1), DeleteRecords(2, 0, Place("local", 1)))
    after_a_deletion(play)
    play(Roll(0), Produce(0, (10,)), Trim(0), *segments(1), Trim(0))
    after_a_deletion(play)


def after_a_deletion(play: Play) -> None:
    for place in [*around("start"), Place("zero"), Place("end", -1)]:
        play(FetchAsk(13, ((0, place),)))
    for special in (-1, -2, -4, -5, 0):
        play(ListOffsetsAsk(9, 0, special))
    play(DrainAsk(12, ((0, Place("start")),)))
