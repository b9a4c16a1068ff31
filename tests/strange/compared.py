"""What fetchproxy says of the generated logs, compared with what the broker said. Not a test.

Each function returns the differences in words; there may be none.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise

import asked
from asked import READ_COMMITTED, READ_UNCOMMITTED, Key, PartitionRead, key_of
from legal_logs import LegalLog
from oracle import (
    EARLIEST_LOCAL,
    LATEST,
    LATEST_TIERED,
    MAX_TIMESTAMP,
    Oracle,
    asked_epochs,
    asked_times,
    ends_of,
    expected_aborted,
    expected_records,
    offsets_of,
    starts_of,
)
from oracle_wire import WireConnection

_NAMES = {READ_UNCOMMITTED: "read_uncommitted", READ_COMMITTED: "read_committed"}


def cluster_differences(
    wire: WireConnection, broker: WireConnection, oracle: Oracle
) -> Iterator[str]:
    """Of a proxy before the cluster, whatever the archive has of the logs."""
    yield from _tier_differences(wire, broker, oracle)
    for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
        ends = ends_of(oracle.planted, isolation)
        reads = asked.read(wire, oracle.planted, isolation, starts_of(oracle.planted), ends)
        yield from _read_differences(oracle, isolation, reads)
        offsets = asked.list_offsets(wire, asked_times(oracle.planted), isolation)
        for place, expected in oracle.offsets[isolation].items():
            without_epoch = (*expected[:3], -1)
            may_lack = {without_epoch} if _counts_anew(oracle, place[0]) else set()
            if offsets[place] not in {expected} | may_lack:
                yield f"ListOffsets {_NAMES[isolation]} {place}: {offsets[place]}, not {expected}"
    epochs = asked.epoch_ends(wire, asked_epochs(oracle.planted))
    for place, end in oracle.epochs.items():
        if epochs[place] != end:
            yield f"OffsetForLeaderEpoch {place}: {epochs[place]}, not {end}"


def _counts_anew(oracle: Oracle, key: Key) -> bool:
    """Whether leaders of a former cluster wrote epochs that are, or will be, this cluster's too.
    Then the archive may know no epoch of a record.
    """
    planted = next(p for p in oracle.planted if key_of(p) == key)
    epochs = [batch.leader_epoch for batch in planted.log.batches if batch.leader_epoch >= 0]
    return epochs != sorted(epochs) or max(epochs, default=-1) > planted.leader_epoch


def _tier_differences(
    wire: WireConnection, broker: WireConnection, oracle: Oracle
) -> Iterator[str]:
    """Where the tiers meet: the broker says where its log begins, the archive where it ends."""
    places = [(key_of(p), time) for p in oracle.planted for time in (EARLIEST_LOCAL, LATEST_TIERED)]
    offsets, brokers = asked.list_offsets(wire, places), asked.list_offsets(broker, places)
    ends = ends_with_archive(oracle)
    for (key, time), right in brokers.items():
        offset_shown = offsets[key, time][:3]
        archived = time == LATEST_TIERED and key in ends
        expected = (0, ends[key] - 1, -1) if archived else right[:3]
        if offset_shown != expected:
            yield f"ListOffsets {key, time}: {offset_shown}, not {expected}"


def end_by_log_dirs(log: LegalLog) -> int:
    """How far an archiver copies the broker's own files, rolled and below the last stable offset:
    to the last record in them, as compaction may have taken others.
    """
    end = log.log_start
    for start, border in pairwise(log.segment_starts):
        if border > log.last_stable:
            break
        inside = [batch for batch in log.batches if log.segment_of(batch) == start]
        end = inside[-1].last_offset + 1
    return end


def console_differences(status: str, oracle: Oracle) -> Iterator[str]:
    """`status`: the JSON that the page shows; names are shown as they are, never as HTML."""
    rows_by_key = {
        (row["topic"], row["partition"]): row for row in json.loads(status)["partitions"]
    }
    for key, end in ends_with_archive(oracle).items():
        start = next(p.log.log_start for p in oracle.planted if key_of(p) == key)
        row = rows_by_key.get(key, {})
        if row.get("archived") != [{"first": start, "last": end - 1}] or row.get("gaps"):
            yield f"console {key}: {row}, not {start} to {end - 1}"


def _read_differences(
    oracle: Oracle, isolation: int, reads: Mapping[Key, PartitionRead]
) -> Iterator[str]:
    for planted in oracle.planted:
        key = key_of(planted)
        part, expected = reads[key], oracle.reads[isolation][key]
        where = f"Fetch {_NAMES[isolation]} of {key}"
        if part.error:
            yield f"{where}: error {part.error} at offset {part.next_offset}"
        if part.records != expected.records:
            yield f"{where}: {offsets_of(part.records)}, not {offsets_of(expected.records)}"
        if part.aborted != expected.aborted:
            yield f"{where}: aborted {part.aborted}, not {expected.aborted}"
        marks = part.high_watermark, part.last_stable, part.log_start
        right = expected.high_watermark, expected.last_stable, expected.log_start
        # -1: just after the proxy's start, it does not know how far back the archive goes.
        if marks != right and marks != (*right[:2], -1):
            yield f"{where}: marks {marks}, not {right}"


def archived_ends(oracle: Oracle) -> dict[Key, int]:
    """What has to be archived in the end: all below the last stable offset."""
    return ends_of(oracle.planted, READ_COMMITTED)


def ends_with_archive(oracle: Oracle) -> dict[Key, int]:
    """The same of the partitions that have a record to archive."""
    return {key: end for key, end in archived_ends(oracle).items() if _has_archive(oracle, key)}


def _has_archive(oracle: Oracle, key: Key) -> bool:
    return bool(oracle.reads[READ_COMMITTED][key].records)


def archive_differences(wire: WireConnection, oracle: Oracle) -> Iterator[str]:
    """Of archive-only, which knows what is archived and no more."""
    archived = [p for p in oracle.planted if _has_archive(oracle, key_of(p))]
    starts, ends = starts_of(archived), ends_of(archived, READ_COMMITTED)
    for isolation in (READ_UNCOMMITTED, READ_COMMITTED):
        reads = asked.read(wire, archived, isolation, starts, ends)
        for planted in archived:
            key, log = key_of(planted), planted.log
            where = f"Fetch {_NAMES[isolation]} of {key}"
            part = reads[key]
            expected = expected_records(log, log.log_start, READ_COMMITTED)
            if part.error or part.records != expected:
                offsets_read, right = offsets_of(part.records), offsets_of(expected)
                yield f"{where}: error {part.error}, {offsets_read}, not {right}"
            aborted = expected_aborted(log) if isolation == READ_COMMITTED else set()
            if part.aborted != aborted:
                yield f"{where}: aborted {part.aborted}, not {aborted}"
            marks = (
                part.high_watermark,
                part.last_stable,
                part.log_start,
            )
            if marks != (ends[key], ends[key], log.log_start):
                yield f"{where}: marks {marks}, not {(ends[key], ends[key], log.log_start)}"
    edges = [(key_of(p), time) for p in archived for time in (EARLIEST_LOCAL, LATEST_TIERED)]
    for (key, time), (error, offset, at, _) in asked.list_offsets(wire, edges).items():
        right_edge = ends[key] - (time == LATEST_TIERED)  # no record is on a broker's disk
        if (error, offset, at) != (0, right_edge, -1):
            yield f"ListOffsets {key, time}: {(error, offset, at)}, not {right_edge}"
    asks = list(asked_times(archived))
    found_offsets = asked.list_offsets(wire, asks)
    for (key, time), (error, offset, at, _) in found_offsets.items():
        broker = oracle.offsets[READ_UNCOMMITTED].get((key, time))
        # It knows fewer records than the broker, so others may be the newest.
        if broker is None or time == MAX_TIMESTAMP or (time != LATEST and broker[1] >= ends[key]):
            continue
        right = (0, ends[key], -1, 0) if time == LATEST else broker
        if (error, offset, at) != right[:3]:
            yield f"ListOffsets {key, time}: {(error, offset, at)}, not {right}"
