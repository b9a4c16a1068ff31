"""Verification knows what should be there: a lost segment is a fault, a recorded gap is none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_archive import TP, PlantedArchive, batch, gaps_of

from fetchproxy.auditing.reports import VerifyReport
from fetchproxy.model import EpochStart, RemoteLogSegmentState
from fetchproxy.segments.description import (
    NOT_STATED,
    FinishedOffsets,
    decode_finished_offsets,
    encode_finished_offsets,
)
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.writing.archive_health import Coverage, NotHeld, missing_offsets


async def four_segments(*, recorded: bool = True) -> PlantedArchive:
    """0-29, 30-59, 60-89, 90-119."""
    archive = PlantedArchive(recorded=recorded)
    for start in range(0, 120, 30):
        await archive.add(batch(base) for base in range(start, start + 30, 10))
    return archive


async def lose(archive: PlantedArchive, numbers: Iterable[int]) -> None:
    for number in numbers:
        for file in SegmentFile:
            await archive.store.delete(archive.key(archive.segments[number], file))


def fault_rows(report: VerifyReport) -> list[tuple[str, int | None, str]]:
    return [(fault.object_key, fault.first_offset, fault.what) for fault in report.faults]


@pytest.mark.parametrize(
    ("numbers", "first", "last"),
    [([0], 0, 29), ([1], 30, 59), ([1, 2], 30, 89), ([3], 90, 119), ([2, 3], 60, 119),
     ([0, 1, 2, 3], 0, 119)],
)  # fmt: skip
async def test_segments_that_are_gone_are_a_fault(
    numbers: list[int], first: int, last: int
) -> None:
    archive = await four_segments()
    assert (await archive.verify()).not_known == []
    await lose(archive, numbers)
    report = await archive.verify()
    folder = archive.storage.objects.folder(TP)
    what = f"offsets {first} to {last} were archived and are in no segment"
    assert fault_rows(report) == [(folder, first, what)]
    assert gaps_of(report) == []


async def test_a_gap_is_one_only_where_it_is_on_record() -> None:
    archive = PlantedArchive()
    for start in (0, 50, 90):
        await archive.add([batch(start), batch(start + 10)])
    await archive.record_gap(20, 49)
    report = await archive.verify()
    assert gaps_of(report) == [(20, 49)]
    assert [offset for _, offset, _ in fault_rows(report)] == [70]
    await archive.record_gap(70, 89)
    assert (await archive.verify()).clean


async def test_a_gap_that_another_archiver_has_filled_is_none() -> None:
    archive = await four_segments()
    await archive.record_gap(30, 59)
    report = await archive.verify()
    assert (report.clean, gaps_of(report)) == (True, [])


async def test_what_was_deleted_is_not_missed() -> None:
    archive = await four_segments()
    await lose(archive, [0, 1])
    await archive.storage.objects.put_log_start_offset(TP, 45, b"{}")
    assert [offset for _, offset, _ in fault_rows(await archive.verify())] == [45]
    await archive.storage.objects.put_log_start_offset(TP, 60, b"{}")
    assert (await archive.verify()).clean
    await lose(archive, [2, 3])
    await archive.storage.objects.put_log_start_offset(TP, 120, b"{}")
    assert (await archive.verify()).clean


async def test_of_an_archive_from_before_there_were_records_nothing_is_made_up() -> None:
    archive = await four_segments(recorded=False)
    await lose(archive, [0, 2])
    report = await archive.verify()
    assert (report.clean, gaps_of(report)) == (True, [])
    assert [one.where_and_what for one in report.not_known] == [
        "orders-0: at which offsets the archive began and ended",
        "orders-0: whether offsets 60 to 89, which are in no segment, were archived",
    ]
    # An archiver that keeps records has gone on from 60.
    await archive.state(TP, recorded_from=60, end_offset=119)
    report = await archive.verify()
    assert [offset for _, offset, _ in fault_rows(report)] == [60]
    assert [one.where_and_what for one in report.not_known] == [
        "orders-0: whether the archive began below offset 30"
    ]


async def test_a_segment_that_lost_its_metadata_alone_is_named_once() -> None:
    archive = await four_segments()
    key = archive.key(archive.segments[1], SegmentFile.METADATA)
    await archive.store.delete(key)
    assert [row[0] for row in fault_rows(await archive.verify())] == [key]
    await archive.store.put(key, b"damaged")
    assert [row[0] for row in fault_rows(await archive.verify())] == [key]


async def test_a_copy_that_is_begun_again_is_not_there() -> None:
    """Stale metadata: the segment counts as begun, and nobody is served from it."""
    archive = await four_segments()
    state = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    await archive.restate(replace(archive.segments[3], state=state))
    assert [offset for _, offset, _ in fault_rows(await archive.verify())] == [90]


async def test_an_end_of_a_log_that_is_no_more_is_not_missed() -> None:
    """An archiver of a dead leader has stated its end after the archive was truncated."""
    archive = PlantedArchive()
    await archive.add([batch(0), batch(10)])
    await archive.add([batch(20, epoch=2)], lineage=(EpochStart(0, 0), EpochStart(2, 20)))
    await archive.state(TP, end_offset=99, leader_epoch=1)
    assert (await archive.verify()).clean
    await archive.state(TP, end_offset=99, leader_epoch=2)
    assert not (await archive.verify()).clean


async def test_a_statement_that_cannot_be_read_is_a_fault() -> None:
    archive = await four_segments()
    key = archive.storage.objects.finished_offsets_key(TP)
    await archive.store.put(key, b"damaged")
    [fault_row] = fault_rows(await archive.verify())
    assert fault_row[0] == key
    assert "writes it again with its next segment" in fault_row[2]
    other = TP._replace(partition=1)
    await archive.store.put(key, encode_finished_offsets(FinishedOffsets(other, 0, 9)))
    assert "it is of orders-1" in fault_rows(await archive.verify())[0][2]


async def test_a_partition_that_is_forgotten_leaves_no_record() -> None:
    archive = await four_segments()
    await archive.record_gap(500, 509)
    await lose(archive, range(4))
    await archive.storage.objects.forget_partition(TP)
    folder = archive.storage.objects.folder(TP)
    assert [stored_object.key async for stored_object in archive.store.list(folder)] == []


spans = st.tuples(st.integers(0, 40), st.integers(0, 9)).map(lambda p: (p[0], p[0] + p[1]))


@given(
    st.lists(spans, max_size=6),
    st.lists(spans, max_size=4),
    st.integers(0, 30),
    st.none() | st.tuples(st.integers(0, 40), st.integers(NOT_STATED, 50)),
)
def test_each_offset_is_judged_by_itself(
    segments: list[tuple[int, int]],
    gaps: list[tuple[int, int]],
    log_start: int,
    stated_range: tuple[int, int] | None,
) -> None:
    stated = (
        None if stated_range is None else FinishedOffsets(TP, stated_range[0], stated_range[1], 0)
    )
    result = missing_offsets(Coverage(segments, (), log_start, 0), stated, gaps)
    every = range(60)
    offsets_held = _offsets(segments)
    first = min([*offsets_held, *([] if stated_range is None else [stated_range[0]])], default=60)
    last = max([*offsets_held, *([] if stated_range is None else [stated_range[1]])], default=-1)
    for start, end in sorted(gaps):  # one at the end of the log: nothing was archived after it
        last = max(last, end) if start <= last + 1 else last
    expected = [o for o in every if first <= o <= last and o >= log_start and o not in offsets_held]
    from_ = 60 if stated_range is None else stated_range[0]
    recorded = _offsets(gaps)
    assert _rising(result.gaps) == [o for o in expected if o in recorded]
    assert _rising(result.missing) == [o for o in expected if o not in recorded and o >= from_]
    assert _rising(result.not_known) == [o for o in expected if o not in recorded and o < from_]


def test_what_an_unreadable_segment_may_hold_is_not_judged() -> None:
    stated = FinishedOffsets(TP, 0, 99, 0)
    coverage = Coverage([(0, 9), (50, 59)], (30, 80), 0, 0)
    assert missing_offsets(coverage, stated, ()) == NotHeld(missing=((10, 29), (60, 79)))


def test_a_statement_is_read_as_it_was_written() -> None:
    for stated in (FinishedOffsets(TP, 7), FinishedOffsets(TP, 0, 2**63 - 1, 2**31 - 1)):
        assert decode_finished_offsets(encode_finished_offsets(stated), "key", TP) == stated


def _offsets(ranges: Iterable[tuple[int, int]]) -> set[int]:
    return {offset for first, last in ranges for offset in range(first, last + 1)}


def _rising(ranges: Iterable[tuple[int, int]]) -> list[int]:
    every = [offset for first, last in ranges for offset in range(first, last + 1)]
    assert every == sorted(set(every))
    return every
