"""What a real broker says of its generated logs, before any is archived or deleted. Not a test.

The broker's responses have to agree with the description of each log as well: so a fault of the
generator is not taken for a fault of fetchproxy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

import asked
from asked import READ_COMMITTED, READ_UNCOMMITTED, Key, PartitionRead, key_of
from fetchproxy_protocol.record_batch import walk
from legal_logs import INT64_MAX, INT64_MIN, LegalLog
from oracle_wire import WireConnection
from planted_kafka import PlantedPartition

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
EARLIEST_LOCAL, LATEST_TIERED = -4, -5
_SPECIAL_TIMES = range(-6, 0)
_TIMES_MAX = 12


@dataclass(frozen=True)
class Oracle:
    planted: Sequence[PlantedPartition]
    reads: dict[int, dict[Key, PartitionRead]]  # by isolation, of the whole log
    offsets: dict[int, dict[tuple[Key, int], tuple[int, int, int, int]]]  # by isolation
    epochs: dict[tuple[Key, int], tuple[int, int, int]]


def ends_of(planted: Iterable[PlantedPartition], isolation: int) -> dict[Key, int]:
    """The offset after the last batch that such a reader gets; there may be a hole above it."""
    ends = {}
    for partition in planted:
        log = partition.log
        end = log.last_stable if isolation == READ_COMMITTED else log.end
        ends_below = [batch.last_offset + 1 for batch in log.batches if batch.last_offset < end]
        ends[key_of(partition)] = max([log.log_start, *ends_below])
    return ends


def starts_of(planted: Iterable[PlantedPartition]) -> dict[Key, int]:
    return {key_of(p): p.log.log_start for p in planted}


def ask_broker(wire: WireConnection, planted: Sequence[PlantedPartition]) -> Oracle:
    reads = {
        isolation: asked.read(
            wire, planted, isolation, starts_of(planted), ends_of(planted, isolation)
        )
        for isolation in (READ_UNCOMMITTED, READ_COMMITTED)
    }
    for partition in planted:
        _check_described(partition, reads)
    times = list(asked_times(planted))
    offsets = {
        isolation: asked.list_offsets(wire, times, isolation)
        for isolation in (READ_UNCOMMITTED, READ_COMMITTED)
    }
    return Oracle(
        planted,
        reads,
        {
            isolation: _without_guesses(planted, offsets_of_isolation)
            for isolation, offsets_of_isolation in offsets.items()
        },
        asked.epoch_ends(wire, asked_epochs(planted)),
    )


def _without_guesses(
    planted: Sequence[PlantedPartition],
    offsets: dict[tuple[Key, int], tuple[int, int, int, int]],
) -> dict[tuple[Key, int], tuple[int, int, int, int]]:
    """Without times for which Kafka looks into one segment, in vain, and not into those after it:
    it takes a segment without a time from 0 on to be as new as its file, and it believes a
    segment's newest time even if that record lies below the log start.
    """
    guessed = {
        key_of(p)
        for p in planted
        if not p.log.batches
        or p.log.log_start > p.log.batches[0].base_offset
        or _has_timeless_segment(p.log)
    }
    for place, response in offsets.items():
        assert response[0] == (35 if place[1] < min(_SPECIAL_TIMES) else 0), (place, response)
    return {
        (key, time): response
        for (key, time), response in offsets.items()
        if time in _SPECIAL_TIMES or key not in guessed
    }


def _has_timeless_segment(log: LegalLog) -> bool:
    newest = {start: -1 for start in log.segment_starts}
    for batch in log.batches:
        start = log.segment_of(batch)
        newest[start] = max(newest[start], batch.max_timestamp)
    return min(newest.values()) < 0


def _check_described(planted: PlantedPartition, reads: dict[int, dict[Key, PartitionRead]]) -> None:
    log = planted.log
    for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
        partition_read = reads[isolation][key_of(planted)]
        assert partition_read.error == 0, (planted, partition_read)
        assert partition_read.records == expected_records(log, log.log_start, isolation), (
            planted,
            partition_read,
        )
        marks = partition_read.high_watermark, partition_read.last_stable, partition_read.log_start
        assert marks == (log.end, log.last_stable, log.log_start), (planted, marks)
    assert reads[READ_COMMITTED][key_of(planted)].aborted == expected_aborted(log), planted


def expected_records(log: LegalLog, start: int, isolation: int) -> bytes:
    end = log.last_stable if isolation == READ_COMMITTED else log.end
    return b"".join(b.content for b in log.batches if start <= b.last_offset < end)


def expected_aborted(log: LegalLog) -> set[tuple[int, int]]:
    return {
        (txn.producer_id, txn.first_offset)
        for txn in log.aborted
        if txn.marker >= log.log_start and txn.first_offset < log.last_stable
    }


def asked_times(planted: Iterable[PlantedPartition]) -> Iterable[tuple[Key, int]]:
    """The special times, and times at and beside those of records."""
    for partition in planted:
        rng = Random(partition.log.log_start)
        times = {b.timestamp_of(r) for b in partition.log.batches for r in b.records}
        near = {time + delta for time in times for delta in (-1, 0, 1)} | {0, INT64_MAX}
        legal = sorted(time for time in near if 0 <= time <= INT64_MAX)
        chosen = rng.sample(legal, min(len(legal), _TIMES_MAX))
        for time in (LATEST, EARLIEST, MAX_TIMESTAMP, INT64_MIN, *chosen):
            yield key_of(partition), time


def asked_epochs(planted: Iterable[PlantedPartition]) -> Iterable[tuple[Key, int]]:
    for partition in planted:
        known = {batch.leader_epoch for batch in partition.log.batches if batch.leader_epoch >= 0}
        near = {epoch + delta for epoch in known for delta in (-1, 0, 1)} | {0}
        for epoch in sorted(e for e in near if 0 <= e <= partition.leader_epoch):
            yield key_of(partition), epoch


def offsets_of(records: bytes) -> list[tuple[int, int]]:
    return [(header.base_offset, header.last_offset) for header in walk(records)]
