"""OffsetForLeaderEpoch over two tiers against a model of Kafka's cache over the whole log.

The model is a list with the epoch of every record. The tests derive three things from it: the
cache of a Kafka with tiered storage (whole log), the cache of the broker without it (local log),
and the archive's segments.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from hypothesis import assume, given
from hypothesis import strategies as st
from segment_values import segment_of

from fetchproxy.metadata.catalogue import build_view
from fetchproxy.metadata.lineage import (
    EpochEnd,
    end_offset_for,
    epoch_of,
    extend_lineage,
    lineage_of,
    merged_end_offset,
)
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import EpochStart, RemoteLogSegmentMetadata, TopicIdPartition

TP = TopicIdPartition(UUID(int=1), "orders", 0)


@dataclass
class Log:
    """`epochs[offset]`: each record's epoch; also the log start and the broker's own log start."""

    epochs: list[int]
    start: int
    local_start: int
    borders: list[int]  # starts of the archived segments, and the archive's end

    @property
    def end(self) -> int:
        return len(self.epochs)

    def cache(self, start: int) -> list[tuple[int, int]]:
        """(epoch, first offset) as LeaderEpochFileCache has them for a log that starts at `start`.

        An empty log keeps its current epoch.
        """
        epoch_starts: list[tuple[int, int]] = []
        for offset in range(start, self.end):
            if not epoch_starts or epoch_starts[-1][0] != self.epochs[offset]:
                epoch_starts.append((self.epochs[offset], offset))
        return epoch_starts or [(self.epochs[-1], self.end)]

    def view(self) -> PartitionView:
        segments = []
        for number, (begin, end) in enumerate(zip(self.borders, self.borders[1:], strict=False)):
            epochs: list[EpochStart] = []
            for offset in range(begin, end):
                if not epochs or epochs[-1].epoch != self.epochs[offset]:
                    epochs.append(EpochStart(self.epochs[offset], offset))
            segments.append(segment(number + 1, begin, end - 1, *epochs))
        return build_view(TP, segments, 0.0, (), self.start)


def segment(number: int, start: int, end: int, *epochs: EpochStart) -> RemoteLogSegmentMetadata:
    return segment_of(TP, number, start, end, segment_leader_epochs=epochs)


def kafka_response(cache: list[tuple[int, int]], requested: int, log_end: int) -> tuple[int, int]:
    """LeaderEpochFileCache.endOffsetFor, written in another way than in the product."""
    epochs = dict(cache)
    if requested == -1:
        return -1, -1
    if requested == max(epochs):
        return requested, log_end
    higher = [epoch for epoch in epochs if epoch > requested]
    if not higher:
        return -1, -1
    lower = [epoch for epoch in epochs if epoch <= requested]
    return (max(lower) if lower else requested), epochs[min(higher)]


@st.composite
def logs(draw: st.DrawFn, tiers_meet: bool = True) -> Log:
    runs = draw(st.lists(st.integers(1, 6), min_size=1, max_size=7))
    epoch = draw(st.integers(0, 2))
    epochs: list[int] = []
    for run in runs:
        epochs += [epoch] * run
        epoch += draw(st.integers(1, 3))
    end = len(epochs)
    first = draw(st.integers(0, end - 1))
    archive_end = draw(st.integers(first + 1, end))
    inner = (
        draw(st.sets(st.integers(first + 1, archive_end - 1))) if archive_end > first + 1 else ()
    )
    local_start = draw(st.integers(first, archive_end if tiers_meet else end))
    start = draw(st.integers(first, local_start))
    return Log(epochs, start, local_start, [first, *sorted(inner), archive_end])


@given(logs(), st.integers(-1, 30), st.booleans())
def test_the_merged_answer_is_that_of_a_kafka_with_tiered_storage(
    log: Log, requested: int, local_epoch_known: bool
) -> None:
    broker_cache = log.cache(log.local_start)
    broker = EpochEnd(*kafka_response(broker_cache, requested, log.end))
    local_epoch = broker_cache[0][0] if local_epoch_known else None
    expected = kafka_response(log.cache(log.start), requested, log.end)
    merged = merged_end_offset(lineage_of(log.view()), requested, broker, local_epoch)
    assert merged.end_offset == expected[1]
    if local_epoch_known and log.start < log.borders[-1]:
        assert merged == expected


@given(logs(tiers_meet=False), st.data())
def test_no_consumer_is_told_that_its_log_was_truncated(log: Log, data: st.DataObject) -> None:
    """This holds with gaps between the tiers, and with an outdated view."""
    assume(log.start < log.end)
    stale = data.draw(st.integers(1, len(log.borders)))
    stale_log = Log(log.epochs, log.start, log.local_start, log.borders[:stale])
    position = data.draw(st.integers(log.start + 1, log.end))
    epoch = log.epochs[position - 1]  # of the consumer's last record
    broker_cache = log.cache(log.local_start)
    broker = EpochEnd(*kafka_response(broker_cache, epoch, log.end))
    local_epoch = data.draw(st.sampled_from([None, broker_cache[0][0]]))
    merged = merged_end_offset(lineage_of(stale_log.view()), epoch, broker, local_epoch)
    assert merged.epoch >= 0
    assert merged.end_offset >= position


@given(logs(), st.integers(-1, 30))
def test_the_archives_own_answer_is_kafkas(log: Log, requested: int) -> None:
    archive_end = log.borders[-1]
    if log.start >= archive_end:
        assert lineage_of(log.view()) == ()
        return
    archive = Log(log.epochs[:archive_end], log.start, 0, [])
    expected = kafka_response(archive.cache(log.start), requested, archive_end)
    lineage = lineage_of(log.view())
    assert [(e.epoch, e.start_offset) for e in lineage] == archive.cache(log.start)
    assert end_offset_for(lineage, requested, archive_end) == expected
    for offset in range(log.start, archive_end):
        assert epoch_of(log.view(), offset) == log.epochs[offset]
    assert epoch_of(log.view(), log.start - 1) == -1


def test_another_lineage_than_the_brokers_is_not_believed() -> None:
    archived = (EpochStart(1, 0), EpochStart(4, 500))
    broker = EpochEnd(2, 300)
    assert merged_end_offset(archived, 2, broker, 5) == broker


def test_errors_and_unknown_epochs_stay_the_brokers() -> None:
    archived = (EpochStart(1, 0), EpochStart(4, 50))
    assert merged_end_offset(archived, 9, EpochEnd(-1, -1), 5) == (-1, -1)
    assert merged_end_offset(archived, 3, EpochEnd(2, 40), 1) == (2, 40)
    assert merged_end_offset((), 3, EpochEnd(3, 40), None) == (3, 40)


def test_an_overlap_does_not_turn_the_lineage_back() -> None:
    older = segment(1, 0, 9, EpochStart(0, 0), EpochStart(2, 5))
    newer = segment(2, 7, 19, EpochStart(2, 7), EpochStart(3, 15))
    view = build_view(TP, [older, newer], 0.0)
    assert lineage_of(view) == (EpochStart(0, 0), EpochStart(2, 5), EpochStart(3, 15))


def test_a_segment_repeats_the_epoch_that_it_begins_in() -> None:
    before = (EpochStart(0, 0), EpochStart(3, 40))
    assert extend_lineage(before, (EpochStart(3, 100), EpochStart(4, 120))) == (
        *before,
        EpochStart(4, 120),
    )


def test_of_a_log_that_began_again_the_archive_knows_its_own_epochs() -> None:
    archived = (EpochStart(1, 0), EpochStart(2, 40))
    for epoch, known in ((1, (1, 40)), (2, (2, 90))):
        assert merged_end_offset(archived, epoch, EpochEnd(epoch, 0), None, 90) == known
    assert merged_end_offset(archived, 7, EpochEnd(7, 12), 7, 90) == (7, 12)
    assert merged_end_offset(archived, 2, EpochEnd(2, 95), 2, 90) == (2, 95)
