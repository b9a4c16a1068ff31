"""What is asked for and not there: a gap only where one is on record, as `verify` has it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from made_batches import Record, made_batch
from written_archive import TP, WrittenArchive

from fetchproxy.observability.health import Offsets
from fetchproxy.remotelog.archive_reading import ArchiveReading, plan_input
from fetchproxy.remotelog.options import parse_options
from fetchproxy.remotelog.planning import ALL_OFFSETS, DataLoss, OffsetSpan, holes_of
from fetchproxy.segments.description import (
    FinishedOffsets,
    encode_archive_gap,
    encode_finished_offsets,
)
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    """Offsets 0 to 99, 200 to 299, 300 to 399; nothing is on record yet."""
    made = WrittenArchive(tmp_path / "archive")
    for base in (0, 200, 300):
        made.add([made_batch(base, [Record()] * 100)])
    return made


async def state(archive: WrittenArchive, end: int, gap: Offsets | None = None) -> None:
    async with RemoteStorage(FilesystemObjectStore(archive.folder)) as storage:
        stated = FinishedOffsets(TP, 0, end, 0)
        await storage.objects.put_finished_offsets(TP, encode_finished_offsets(stated))
        if gap is not None:
            await storage.objects.put_archive_gap(TP, *gap, encode_archive_gap(TP, *gap))


async def holes(
    archive: WrittenArchive, span_bounds: tuple[int, int] = ALL_OFFSETS, *, of_store: bool = True
) -> str | None:
    options = parse_options({"store": archive.url, "topics": "orders"})
    async with ArchiveReading(options) as reading:
        asked_of = [(v, OffsetSpan(*span_bounds)) for v in (await reading.views()).values()]
        return (await holes_of(reading.storage, asked_of, views_of_store=of_store)).get(TP)


def fault(first: int, last: int) -> str:
    return (
        f"offsets {first} to {last} were archived and are in no segment, which is a fault: "
        "run `fetchproxy verify` for details"
    )


async def test_without_a_record_nobody_knows(archive: WrittenArchive) -> None:
    assert await holes(archive) == (
        "offsets 100 to 199 are in no segment, and it is not known if they ever were"
    )


async def test_a_hole_is_a_gap_where_it_is_on_record_and_else_a_fault(
    archive: WrittenArchive,
) -> None:
    await state(archive, 399)
    assert await holes(archive) == fault(100, 199)
    await state(archive, 399, (100, 199))
    assert await holes(archive) == "offsets 100 to 199 were lost before they could be archived"


@pytest.mark.parametrize("of_store", [True, False])
async def test_what_vanished_at_the_start_and_at_the_end_is_missing(
    archive: WrittenArchive, of_store: bool
) -> None:
    await state(archive, 399, (100, 199))
    for segment in (archive.segments[0], archive.segments[2]):
        for file in (SegmentFile.METADATA, SegmentFile.LOG, SegmentFile.INDEX):
            archive.path(segment, file).unlink()
    assert await holes(archive, of_store=of_store) == fault(0, 99)
    # Cache files may be older than the store: what is behind their end is not missing yet.
    behind = await holes(archive, (200, ALL_OFFSETS.end), of_store=of_store)
    assert behind == (fault(300, 399) if of_store else None)
    gap = await holes(archive, (100, 251), of_store=of_store)
    assert gap == "offsets 100 to 199 were lost before they could be archived"


async def test_only_what_is_asked_for_counts(archive: WrittenArchive) -> None:
    await state(archive, 399)
    assert await holes(archive, (0, 100)) is None
    assert await holes(archive, (150, 251)) == fault(150, 199)


async def test_metadata_that_cannot_be_read_are_a_hole_of_their_own(
    archive: WrittenArchive,
) -> None:
    await state(archive, 399, (100, 199))
    archive.path(archive.segments[1], SegmentFile.METADATA).write_bytes(b"{")
    assert await holes(archive, (200, 400)) == (
        "the metadata of the segment at offset 200 cannot be read: "
        "`fetchproxy verify --repair` may repair them"
    )


def planned(archive: WrittenArchive, **options: str) -> dict[int, tuple[int, int]]:
    input_spans = plan_input(parse_options({"store": archive.url, "topics": "orders", **options}))
    return {view.tp.partition: tuple(span) for view, span in input_spans}


async def test_a_batch_asks_as_verify_does(archive: WrittenArchive) -> None:
    await state(archive, 399)
    for given_options, message in (
        ({}, "orders-0: offsets 100 to 199 were archived and are in no segment"),
        ({"startingOffsets": '{"orders": {"0": 5}}'}, "offsets 100 to 199 were archived"),
        ({"startingTimestamp": "0"}, "offsets 100 to 199 were archived"),
    ):
        with pytest.raises(DataLoss, match=message):
            await asyncio.to_thread(planned, archive, **given_options)
    await state(archive, 399, (100, 199))
    with pytest.raises(DataLoss, match="offsets 100 to 199 were lost before they could be"):
        await asyncio.to_thread(planned, archive)
    lenient = await asyncio.to_thread(planned, archive, failOnDataLoss="false")
    assert lenient == {0: (0, 400)}
    within = {"endingOffsets": '{"orders": {"0": 100}}'}
    assert await asyncio.to_thread(planned, archive, **within) == {0: (0, 100)}


@pytest.mark.parametrize("gone", [0, 2])
async def test_a_batch_up_to_the_ends_misses_what_vanished_there(
    archive: WrittenArchive, gone: int
) -> None:
    await state(archive, 399, (100, 199))
    segment = archive.segments[gone]
    archive.path(segment, SegmentFile.METADATA).unlink()
    offset = '{"orders": {"0": %d}}'
    message = f"offsets {segment.start_offset} to {segment.end_offset} were archived"
    with pytest.raises(DataLoss, match=message):
        await asyncio.to_thread(planned, archive)
    named = {"startingOffsets": offset % 200, "endingOffsets": offset % 300}
    assert await asyncio.to_thread(planned, archive, **named) == {0: (200, 300)}


async def test_an_archive_that_grows_meanwhile_has_no_hole(archive: WrittenArchive) -> None:
    """Its end is stated behind the view that is held against it."""
    options = parse_options({"store": archive.url, "topics": "orders"})
    await state(archive, 399, (100, 199))
    async with ArchiveReading(options) as reading:
        [view] = (await reading.views()).values()
        await asyncio.to_thread(archive.add, [made_batch(400, [Record()] * 100)])
        await state(archive, 499)
        holes_found = await holes_of(reading.storage, [(view, OffsetSpan(200, ALL_OFFSETS.end))])
    assert holes_found == {}
