"""The archiver's records of a partition and their order: no crash makes them wrong."""

from __future__ import annotations

import pytest
from planted_archive import TP, PlantedArchive, batch, gaps_of

from fetchproxy.errors import StorageUnavailable
from fetchproxy.metadata.catalogue import build_view
from fetchproxy.segments.description import NOT_STATED, FinishedOffsets
from fetchproxy.writing.completeness_records import (
    CompletenessRecords,
    gap_before,
    read_finished_offsets,
)


async def stated(archive: PlantedArchive) -> FinishedOffsets | None:
    return await read_finished_offsets(archive.storage.objects, TP)


async def gaps(archive: PlantedArchive) -> list[tuple[int, int]]:
    return [gap async for gap in archive.storage.objects.list_archive_gaps(TP)]


async def copy(archive: PlantedArchive, records: CompletenessRecords, start: int) -> None:
    """Copy as the archiver does: record the start, add the segment, record the end."""
    await records.begin(build_view(TP, archive.segments, 0.0), start)
    await records.finished(await archive.add([batch(start, epoch=3)]))


async def test_a_new_partition_is_on_record_from_its_first_offset() -> None:
    archive = PlantedArchive(recorded=False)
    records = CompletenessRecords(archive.storage.objects, TP)
    await records.read()
    await copy(archive, records, 40)
    assert await stated(archive) == FinishedOffsets(TP, 40, 49, 0)
    await copy(archive, records, 70)
    assert await gaps(archive) == [(50, 69)]
    report = await archive.verify()
    assert not [f for f in report.faults if f.object_key.endswith("/0/")]
    assert gaps_of(report) == [(50, 69)]
    assert report.not_known == []


async def test_an_archive_of_before_is_on_record_from_its_end() -> None:
    archive = PlantedArchive(recorded=False)
    await archive.add([batch(0), batch(10)])
    await archive.add([batch(30)])
    records = CompletenessRecords(archive.storage.objects, TP)
    await records.read()
    await copy(archive, records, 45)
    assert await stated(archive) == FinishedOffsets(TP, 40, 54, 0)
    assert await gaps(archive) == [(40, 44)]


async def test_what_was_finished_and_is_gone_is_not_put_on_record_as_lost() -> None:
    archive = PlantedArchive()
    await archive.add([batch(0), batch(10)])
    await archive.state(end_offset=59)
    archive.recorded = False
    records = CompletenessRecords(archive.storage.objects, TP)
    await records.read()
    await copy(archive, records, 80)
    assert await gaps(archive) == [(60, 79)]
    faults = (await archive.verify()).faults
    of_folder = [fault for fault in faults if str(fault.object_key).endswith("/0/")]
    assert [fault.first_offset for fault in of_folder] == [20]


async def test_the_end_is_withdrawn_before_a_truncation() -> None:
    archive = PlantedArchive()
    await archive.add([batch(0), batch(10)])
    await CompletenessRecords(archive.storage.objects, TP).withdraw_end()
    offsets_stated = await stated(archive)
    assert offsets_stated is not None
    assert (offsets_stated.recorded_from, offsets_stated.end_offset) == (0, NOT_STATED)
    archive.segments.clear()
    assert (await archive.verify()).clean


async def test_an_end_that_cannot_be_stated_does_not_fail_the_copy() -> None:
    archive = PlantedArchive(recorded=False)
    records = CompletenessRecords(archive.storage.objects, TP)
    await records.read()
    await copy(archive, records, 0)

    class Away(type(archive.store)):  # type: ignore[misc]
        async def put(self, key: str, content: bytes) -> None:
            if key.endswith("finished-offsets"):
                raise StorageUnavailable("away")
            await super().put(key, content)

    archive.store.__class__ = Away
    await copy(archive, records, 10)
    assert await stated(archive) == FinishedOffsets(TP, 0, 9, 0)
    assert not [f for f in (await archive.verify()).faults if f.object_key.endswith("/0/")]


async def test_a_statement_that_cannot_be_read_is_made_anew() -> None:
    archive = PlantedArchive()
    await archive.add([batch(0)])
    await archive.storage.objects.put_finished_offsets(TP, b"damaged")
    archive.recorded = False
    records = CompletenessRecords(archive.storage.objects, TP)
    await records.read()
    await copy(archive, records, 10)
    assert await stated(archive) == FinishedOffsets(TP, 10, 19, 0)


@pytest.mark.parametrize(
    ("start", "end", "log_start", "finished", "gap"),
    [
        (100, 100, 0, 99, None),
        (150, 100, 0, 99, (100, 149)),
        (150, 100, 120, 99, (120, 149)),
        (150, 100, 150, 99, None),
        (150, 50, 0, 99, (100, 149)),
        (80, 50, 0, 99, None),
        (150, None, 120, 99, (120, 149)),
        (150, None, 0, NOT_STATED, (10, 149)),
    ],
)
def test_what_is_a_gap(
    start: int, end: int | None, log_start: int, finished: int, gap: tuple[int, int] | None
) -> None:
    assert gap_before(start, end, log_start, FinishedOffsets(TP, 10, finished)) == gap
