"""A derived object is damaged: verification finds it, repair makes it again, byte for byte."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace

import pytest
from derivable_archive import GeneratedLog, archived, logs
from hypothesis import assume, given
from hypothesis import strategies as st
from planted_archive import ABORT, COMMIT, TP, PlantedArchive, batch, flip
from whole_archive import verify_archive

from fetchproxy.auditing.repair import repair_archive
from fetchproxy.auditing.reports import RepairReport, VerifyReport
from fetchproxy.config.schema import MetadataConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import AbortedTxn, EpochStart
from fetchproxy.segments.description import decode_segment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import INTERVAL_BYTES

LOG, INDEX, TXN = SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.TXN
EPOCHS, METADATA = SegmentFile.EPOCHS, SegmentFile.METADATA
DERIVED = (INDEX, TXN, EPOCHS, METADATA)
WALL_CLOCK_MS = 1_700_000_000_000


async def repair(
    archive: PlantedArchive, dry_run: bool = False
) -> tuple[VerifyReport, RepairReport]:
    """What was found, and what was done."""
    async with StoreBackedRemoteLogMetadataManager(archive.storage, MetadataConfig()) as rlmm:
        report_before = await verify_archive(archive.storage, rlmm, chunk_bytes=archive.chunk_bytes)
        outcome = await repair_archive(
            archive.storage,
            rlmm,
            report_before.faults,
            wall_clock_ms=lambda: WALL_CLOCK_MS,
            dry_run=dry_run,
            chunk_bytes=archive.chunk_bytes,
        )
        return report_before, outcome


async def contents(archive: PlantedArchive) -> dict[str, object]:
    """By key. When a segment's metadata were written nothing else says."""
    contents_by_key: dict[str, object] = {}
    async for stored in archive.store.list(""):
        raw = await archive.store.get(stored.key)
        is_metadata = stored.key.endswith(".metadata")
        contents_by_key[stored.key] = (
            replace(decode_segment(raw, stored.key), event_timestamp_ms=0) if is_metadata else raw
        )
    return contents_by_key


def damaged(content: bytes, how: str, at: int) -> bytes:
    if how == "cut":
        return content[: at % len(content)]
    if how == "longer":
        return content + b"0"
    if how == "emptied":
        return b""
    return flip(at, 1 + at % 255)(content)


@given(
    logs(),
    st.integers(0, 4),
    st.sampled_from(DERIVED),
    st.sampled_from(("missing", "flipped", "flipped", "cut", "longer", "emptied")),
    st.integers(0, 10_000),
)
def test_damage_to_one_derived_object_is_mended(
    log: GeneratedLog, segment: int, file: SegmentFile, how: str, at: int
) -> None:
    async def check() -> None:
        archive = await archived(log)
        assert (await archive.verify()).clean
        before = await contents(archive)
        metadata = archive.segments[segment % len(archive.segments)]
        key = archive.key(metadata, file)
        assume(key in before)  # not all segments have aborted transactions
        if how == "missing":
            await archive.store.delete(key)
        else:
            await archive.change(metadata, file, lambda content: damaged(content, how, at))
        report = await archive.verify()
        # Nothing else repeats the lineage before a segment, a last stable offset or an event's
        # time, so a single byte of them may change unseen.
        assert not report.clean or (how == "flipped" and file is not INDEX) or file is METADATA
        assume(not report.clean)
        _, outcome = await repair(archive)
        assert outcome.refusals == []
        assert [r.split(": ")[1] for r in outcome.repairs] == [key]
        assert (await archive.verify()).clean
        assert await contents(archive) == before

    asyncio.run(check())


@given(logs(), st.data())
def test_everything_but_the_logs_is_lost(log: GeneratedLog, data: st.DataObject) -> None:
    """Unreadable metadata, as without any nothing says that a segment was finished."""

    async def check() -> None:
        archive = await archived(log)
        before = await contents(archive)
        for metadata in archive.segments:
            await archive.store.put(archive.key(metadata, METADATA), b"damaged")
            for file in (INDEX, TXN, EPOCHS):
                if data.draw(st.booleans()):
                    await archive.store.delete(archive.key(metadata, file))
        _, outcome = await repair(archive)
        assert outcome.refusals == []
        assert (await archive.verify()).clean
        assert await contents(archive) == before
        assert await repair(archive) == (await archive.verify(), RepairReport())

    asyncio.run(check())


async def three_segments() -> PlantedArchive:
    archive = PlantedArchive()
    for start in (0, 30, 60):
        await archive.add(
            (batch(base) for base in range(start, start + 30, 10)),
            index_interval_bytes=INTERVAL_BYTES,
        )
    return archive


async def test_a_dry_run_changes_nothing() -> None:
    archive = await three_segments()
    await archive.change(archive.segments[1], INDEX, flip(9))
    before = {o.key: o.version async for o in archive.store.list("")}
    _, planned = await repair(archive, dry_run=True)
    assert [archive.key(archive.segments[1], INDEX) in r for r in planned.repairs] == [True]
    assert {o.key: o.version async for o in archive.store.list("")} == before
    _, outcome = await repair(archive)
    assert outcome == planned
    assert outcome.repairs[0].endswith(".index: derived from the log")


@pytest.mark.parametrize("field", ["segment_size_bytes", "end_offset", "max_timestamp_ms"])
async def test_wrong_numbers_in_metadata_are_put_right(field: str) -> None:
    archive = await three_segments()
    segment = archive.segments[1]
    before = await contents(archive)
    await archive.restate(replace(segment, **{field: getattr(segment, field) + 3}))
    assert not (await archive.verify()).clean
    await repair(archive)
    assert (await archive.verify()).clean
    assert await contents(archive) == before


async def test_wrong_epochs_and_flags_in_metadata_are_put_right() -> None:
    archive = await three_segments()
    segment = archive.segments[1]
    before = await contents(archive)
    wrong = replace(segment, segment_leader_epochs=(EpochStart(4, 30),), has_aborted_txns=True)
    await archive.restate(wrong)
    await repair(archive)
    assert (await archive.verify()).clean
    assert await contents(archive) == before


@pytest.mark.parametrize("cut", [1, 61 + 108])
async def test_a_log_that_lost_its_end_is_never_declared_whole(cut: int) -> None:
    """Neither in the middle of a batch nor between two, where what is left looks sound."""
    archive = await three_segments()
    segment = archive.segments[1]
    await archive.change(segment, LOG, lambda content: content[:-cut])
    report_before, outcome = await repair(archive)
    assert not report_before.clean
    assert outcome.repairs == []
    assert len(outcome.refusals) == 1
    assert "segment at offset 30" in outcome.refusals[0]
    assert (await archive.verify()).faults == report_before.faults


async def test_a_log_with_a_broken_batch_is_no_source() -> None:
    archive = await three_segments()
    await archive.change(archive.segments[1], LOG, flip(150))
    await archive.store.delete(archive.key(archive.segments[1], INDEX))
    _, outcome = await repair(archive)
    assert outcome.repairs == []
    assert "CRC-32C" in outcome.refusals[0]


async def test_a_lost_log_is_told() -> None:
    archive = await three_segments()
    await archive.store.delete(archive.key(archive.segments[1], LOG))
    report_before, outcome = await repair(archive)
    assert outcome.repairs == []
    assert "log is missing" in outcome.refusals[0]
    assert (await archive.verify()).faults == report_before.faults


async def test_objects_that_nothing_needs_are_told_and_left() -> None:
    """A second copy of offsets that another segment has, without metadata: no fault, no repair."""
    archive = await three_segments()
    twin = await archive.add(batch(base) for base in (30, 40, 50))
    await archive.store.delete(archive.key(twin, METADATA))
    report = await archive.verify()
    assert report.clean
    unnamed = {archive.key(twin, file) for file in (LOG, INDEX, EPOCHS)}
    assert unnamed <= (await contents(archive)).keys()
    report_before, outcome = await repair(archive)
    assert (report_before.clean, outcome.repairs, outcome.refusals) == (True, [], [])
    assert unnamed <= (await contents(archive)).keys()


async def test_a_twin_with_unreadable_metadata_does_not_come_back() -> None:
    archive = await three_segments()
    twin = await archive.add(batch(base) for base in (30, 40, 50))
    await archive.store.put(archive.key(twin, METADATA), b"damaged")
    _, outcome = await repair(archive)
    assert outcome.repairs == []
    assert "are in another segment, from 30" in outcome.refusals[0]


async def test_what_was_deleted_does_not_come_back() -> None:
    archive = await three_segments()
    await archive.store.delete(archive.key(archive.segments[0], METADATA))
    await archive.storage.objects.put_log_start_offset(TP, 30, b"30")
    report = await archive.verify()
    assert report.clean
    await archive.store.put(archive.key(archive.segments[0], METADATA), b"damaged")
    _, outcome = await repair(archive)
    assert outcome.repairs == []
    assert "were deleted" in outcome.refusals[0]


async def test_a_clipped_segment_stays_clipped() -> None:
    """Offsets 30-59 were cut at 39 when a newer leader's log began at 40."""
    archive = PlantedArchive()
    await archive.add(batch(base) for base in (0, 10, 20))
    long = await archive.add(
        (batch(base) for base in (30, 40, 50)), index_interval_bytes=INTERVAL_BYTES
    )
    clipped = replace(long.clipped(39), max_timestamp_ms=39)
    await archive.restate(clipped)
    await archive.add(
        (batch(base, epoch=2) for base in (40, 50)), lineage=(EpochStart(0, 0), EpochStart(2, 40))
    )
    assert (await archive.verify()).clean
    before = await contents(archive)
    for damage in (
        archive.store.put(archive.key(clipped, METADATA), b"damaged"),
        archive.store.delete(archive.key(clipped, METADATA)),
        archive.restate(replace(clipped, max_timestamp_ms=7)),
        archive.store.delete(archive.key(clipped, EPOCHS)),
    ):
        await damage
        assert not (await archive.verify()).clean
        _, outcome = await repair(archive)
        assert outcome.refusals == []
        assert (await archive.verify()).clean
        assert await contents(archive) == before


async def test_a_transaction_whose_end_is_not_archived_is_not_guessed() -> None:
    archive = PlantedArchive()
    segment = await archive.add([batch(0, txn=7), batch(10)], aborted=(AbortedTxn(0, 19, 7, 20),))
    await archive.store.delete(archive.key(segment, TXN))
    _, outcome = await repair(archive)
    assert outcome.repairs == []
    assert "producer 7 from offset 0 ended" in outcome.refusals[0]
    await archive.add([batch(20, txn=7, control=ABORT)], aborted=(AbortedTxn(0, 20, 7, 21),))
    _, outcome = await repair(archive)
    assert [r.split(": ")[1] for r in outcome.repairs] == [archive.key(segment, TXN)]
    assert (await archive.verify()).clean


async def test_a_brokers_own_files_are_checked_and_left() -> None:
    """Offset index entries are (relative offset, position); the segment has 30 offsets."""
    archive = await three_segments()
    key = archive.key(archive.segments[1], SegmentFile.OFFSET_INDEX)
    await archive.store.put(key, struct.pack(">ii", 10, 169))
    assert (await archive.verify()).clean
    await archive.store.put(key, struct.pack(">ii", 31, 169))
    report_before, outcome = await repair(archive)
    assert [fault.object_key for fault in report_before.faults] == [key]
    assert (outcome.repairs, outcome.refusals) == ([], [])
    assert (await archive.verify()).faults == report_before.faults


async def test_a_log_that_lost_a_marker_says_nothing_of_later_transactions() -> None:
    """Producer 7 commits 0-9 at 20 and aborts 21-30 at 31; the COMMIT is cut off."""
    archive = PlantedArchive()
    first = await archive.add([batch(0, txn=7), batch(10), batch(20, txn=7, control=COMMIT)])
    aborted = (AbortedTxn(21, 31, 7, 32),)
    second = await archive.add(
        [batch(21, txn=7), batch(31, txn=7, control=ABORT), batch(32)], aborted=aborted
    )
    before = await contents(archive)
    marker = len(batch(20, txn=7, control=COMMIT))
    await archive.change(first, LOG, lambda content: content[:-marker])
    await archive.store.delete(archive.key(first, EPOCHS))
    await archive.store.delete(archive.key(second, TXN))
    _, outcome = await repair(archive)
    after = await contents(archive)
    assert outcome.repairs == []
    assert "which transactions were open at offset 21" in " ".join(outcome.refusals)
    assert {key for key in after if after[key] != before[key]} == {archive.key(first, LOG)}


async def test_a_leader_epoch_that_was_flipped_in_the_log_is_no_news() -> None:
    """A batch's CRC does not cover it: metadata and epochs both say otherwise."""
    archive = await three_segments()
    before = await contents(archive)
    await archive.change(archive.segments[2], LOG, flip(2 * len(batch(0)) + 15, 2))
    _, outcome = await repair(archive)
    assert outcome.repairs == []
    assert "leader epochs" in outcome.refusals[0]
    await archive.store.delete(archive.key(archive.segments[2], INDEX))
    assert (await repair(archive))[1].repairs == []
    await archive.store.delete(archive.key(archive.segments[2], METADATA))
    assert (await repair(archive))[1].repairs == []
    assert (await contents(archive)).items() <= before.items() | {
        (archive.key(archive.segments[2], LOG), await logged(archive, 2))
    }


async def logged(archive: PlantedArchive, number: int) -> bytes:
    return await archive.store.get(archive.key(archive.segments[number], LOG))


async def test_metadata_and_index_that_are_both_short_do_not_prove_a_short_log() -> None:
    """The segment behind it begins where the whole one has ended."""
    archive = await three_segments()
    segment = archive.segments[1]
    await archive.change(segment, LOG, lambda content: content[: -len(batch(0))])
    short = await archived_alone(30, 40)
    await archive.store.put(archive.key(segment, INDEX), short)
    _, outcome = await repair(archive)
    assert outcome.repairs == []
    assert "nothing begins there" in outcome.refusals[0]


async def archived_alone(*bases: int) -> bytes:
    """The index of the second segment, had it only these batches."""
    archive = PlantedArchive()
    await archive.add([batch(0)])
    segment = await archive.add(
        (batch(base) for base in bases), index_interval_bytes=INTERVAL_BYTES
    )
    return await archive.store.get(archive.key(segment, INDEX))


async def test_a_log_that_goes_on_is_not_made_a_longer_segment() -> None:
    archive = await three_segments()
    segment = archive.segments[2]
    await archive.change(segment, LOG, lambda content: content + batch(90))
    _, outcome = await repair(archive)
    assert outcome.repairs == []
    await archive.store.delete(archive.key(segment, METADATA))
    await archive.store.delete(archive.key(segment, INDEX))
    _, outcome = await repair(archive)
    assert outcome.repairs == []


@pytest.mark.parametrize("metadata_lost", [False, True])
@pytest.mark.parametrize("flipped", [(12, 0x80), (12, 0xFF)])
async def test_a_log_that_lost_its_only_leader_epoch_makes_nothing_poorer(
    flipped: tuple[int, int], metadata_lost: bool
) -> None:
    """It looks as one that was written before there were epochs."""
    archive = PlantedArchive()
    await archive.add([batch(0)])
    alone = await archive.add([batch(10)])
    await archive.change(alone, LOG, flip(*flipped))
    if metadata_lost:
        await archive.store.delete(archive.key(alone, METADATA))
    before = await contents(archive)
    _, outcome = await repair(archive)
    assert await contents(archive) == before
    assert len(outcome.refusals) == 1


async def test_metadata_with_epochs_outweigh_a_log_without_them() -> None:
    archive = PlantedArchive()
    alone = await archive.add([batch(0, epoch=-1)])
    before = await contents(archive)
    report_before, outcome = await repair(archive)
    assert report_before.faults == []  # a log without epochs contradicts nobody
    await archive.restate(replace(alone, max_timestamp_ms=77))
    before = await contents(archive)
    _, outcome = await repair(archive)
    assert await contents(archive) == before
    assert "leader epochs" in outcome.refusals[0]


async def test_right_epochs_are_not_made_poorer_by_what_is_lost_before_them() -> None:
    """Epoch 1 was in a segment that is gone: only the epochs beside the last one still say it."""
    archive = PlantedArchive()
    await archive.add([batch(0)])
    gone = await archive.add([batch(10, epoch=1)], lineage=(EpochStart(0, 0), EpochStart(1, 10)))
    whole = (EpochStart(0, 0), EpochStart(1, 10), EpochStart(2, 20))
    last = await archive.add([batch(20, epoch=2)], lineage=whole)
    for file in SegmentFile:
        await archive.store.delete(archive.key(gone, file))
    before = await archive.store.get(archive.key(last, EPOCHS))
    await archive.restate(replace(last, segment_leader_epochs=(EpochStart(1, 20),)))
    await repair(archive)
    assert await archive.store.get(archive.key(last, EPOCHS)) == before
    await archive.store.delete(archive.key(last, EPOCHS))
    _, outcome = await repair(archive)
    assert outcome.repairs == []
    assert "it is not known which leader epochs" in outcome.refusals[0]


async def test_what_was_never_finished_does_not_come_back() -> None:
    """A copy of a dead log above the archive's end, of which the metadata are lost."""
    archive = await three_segments()
    archive.recorded = False
    above = await archive.add([batch(90), batch(100)])
    await archive.store.delete(archive.key(above, METADATA))
    _, outcome = await repair(archive)
    assert outcome.repairs == []
    assert "nothing says that it was finished" in outcome.refusals[0]
