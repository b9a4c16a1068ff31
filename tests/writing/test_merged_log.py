"""A merged segment equals the archiver's copy of the uncut log."""

from __future__ import annotations

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from struct import pack
from typing import Any

import pytest
from derivable_archive import GeneratedLog, archived, logs
from hypothesis import given, settings
from planted_archive import TP, PlantedArchive, batch, flip

from fetchproxy.errors import CorruptSegment
from fetchproxy.model import AbortedTxn, EpochStart
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.side_files import (
    decode_aborted,
    decode_epochs,
    joined_offset_index,
    joined_time_index,
    offset_index_fault,
    time_index_fault,
)
from fetchproxy.writing.merging import merged_log
from fetchproxy.writing.sources.segment_writer import SegmentWriter
from fetchproxy.writing.spool import Spool


async def merged(archive: PlantedArchive, chunk_bytes: int = 700) -> tuple[Any, Any, bytes]:
    """The merged segment, its lineage and its log."""
    with tempfile.TemporaryDirectory() as folder:
        async with Spool(Path(folder)) as spool:
            sources = archive.segments
            writer = SegmentWriter(TP, sources[0].start_offset, spool)
            segment, lineage = await merged_log(archive.storage.rsm, sources, writer, chunk_bytes)
            return segment, lineage, segment.log.read_bytes()


@settings(max_examples=30)
@given(logs())
def test_any_log_cut_anywhere(log: GeneratedLog) -> None:
    async def check() -> None:
        cut, whole = await archived(log), await archived(replace(log, cuts=()))
        (uncut,) = whole.segments
        segment, lineage, content = await merged(cut)
        assert content == b"".join(log.batches)
        assert segment.aborted == decode_aborted(
            await whole.storage.rsm.fetch_index(uncut, SegmentFile.TXN)
        )
        index = segment.index.encoded(whole.key(uncut, SegmentFile.LOG))
        assert index == await whole.storage.rsm.fetch_index(uncut, SegmentFile.INDEX)
        epochs = await whole.storage.rsm.fetch_index(uncut, SegmentFile.EPOCHS)
        assert lineage == decode_epochs(epochs)
        assert segment.leader_epochs == uncut.segment_leader_epochs
        assert (segment.start_offset, segment.end_offset, segment.max_timestamp_ms) == (
            uncut.start_offset,
            uncut.end_offset,
            uncut.max_timestamp_ms,
        )

    asyncio.run(check())


@pytest.fixture
async def archive() -> PlantedArchive:
    made = PlantedArchive()
    await made.add([batch(0), batch(10)])
    await made.add([batch(20), batch(30)])
    return made


async def test_a_broken_batch_is_not_copied_on(archive: PlantedArchive) -> None:
    await archive.change(archive.segments[1], SegmentFile.LOG, flip(100))
    with pytest.raises(CorruptSegment, match="CRC-32C of the batch at byte 0"):
        await merged(archive)


async def test_a_log_that_is_not_as_long_as_its_metadata_say(archive: PlantedArchive) -> None:
    await archive.change(archive.segments[0], SegmentFile.LOG, lambda log: log[: len(batch(0))])
    with pytest.raises(CorruptSegment, match="log ends at offset 9 after"):
        await merged(archive)


async def test_a_hole_that_compaction_has_left_stays(archive: PlantedArchive) -> None:
    await archive.add([batch(50)], start=40)
    segment, _, log = await merged(archive)
    assert (segment.start_offset, segment.end_offset) == (0, 59)
    assert log == b"".join([batch(0), batch(10), batch(20), batch(30), batch(50)])


async def test_a_transaction_index_that_the_log_contradicts(archive: PlantedArchive) -> None:
    await archive.add([batch(40, txn=7), batch(50, txn=7, control=0)])
    lost = AbortedTxn(45, 50, 7, 51)
    await archive.add([batch(51, txn=8)], aborted=(lost,))
    with pytest.raises(CorruptSegment, match="transaction indexes and log disagree"):
        await merged(archive)


async def test_epochs_that_the_log_contradicts(archive: PlantedArchive) -> None:
    stated = (EpochStart(4, 40),)
    await archive.add([batch(40, epoch=5)], epochs=stated)
    with pytest.raises(CorruptSegment, match=r"the log has .*epoch=5.*metadata have .*epoch=4"):
        await merged(archive)


async def test_a_lineage_that_the_metadata_contradict() -> None:
    archive = PlantedArchive()
    lineage = (EpochStart(0, 0), EpochStart(3, 5))
    await archive.add([batch(0)], lineage=lineage, epochs=(EpochStart(0, 0),))
    await archive.add([batch(10)])
    with pytest.raises(CorruptSegment, match=r"the lineage has .*epoch=3"):
        await merged(archive)


async def test_a_lineage_that_begins_with_the_segment_is_enough(archive: PlantedArchive) -> None:
    """The segments before it may have been lost."""
    await archive.add([batch(40, epoch=2)], lineage=(EpochStart(2, 40),))
    _, lineage, _ = await merged(archive)
    assert lineage == (EpochStart(0, 0), EpochStart(2, 40))


def test_kafkas_own_indexes_are_joined() -> None:
    offsets = [(pack(">iiii", 3, 100, 9, 300), 0, 0), (pack(">ii", 5, 200), 20, 1_000)]
    joined = joined_offset_index(offsets)
    assert joined == pack(">iiiiii", 3, 100, 9, 300, 25, 1_200)
    assert offset_index_fault(joined, 0, 30, 2_000) == ""
    times = [(pack(">qiqi", 50, 3, 70, 9), 0), (pack(">qiqi", 60, 2, 80, 4), 20)]
    joined = joined_time_index(times)
    assert joined == pack(">qiqiqi", 50, 3, 70, 9, 80, 24)
    assert time_index_fault(joined, 0, 30, 80) == ""


@pytest.mark.parametrize("lacking", [None, SegmentFile.TIME_INDEX])
async def test_a_brokers_own_files_go_along(
    archive: PlantedArchive, lacking: SegmentFile | None
) -> None:
    for s in archive.segments:
        await archive.store.put(archive.key(s, SegmentFile.OFFSET_INDEX), pack(">ii", 10, 9))
        await archive.store.put(
            archive.key(s, SegmentFile.TIME_INDEX), pack(">qi", s.end_offset, 10)
        )
        snapshot = f"snapshot at {s.end_offset}".encode()
        await archive.store.put(archive.key(s, SegmentFile.PRODUCER_SNAPSHOT), snapshot)
    if lacking is not None:
        await archive.store.delete(archive.key(archive.segments[0], lacking))
    segment, _, _ = await merged(archive)
    files = segment.kafka_files
    assert files.producer_snapshot == b"snapshot at 39"
    if lacking is None:
        first = archive.segments[0]
        assert files.offset_index == pack(">iiii", 10, 9, 30, first.segment_size_bytes + 9)
        assert files.time_index == pack(">qiqi", 19, 10, 39, 30)
    else:
        assert files.offset_index is None
        assert files.time_index is None
