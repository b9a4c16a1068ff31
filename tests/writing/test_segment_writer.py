"""A accumulated segment's summary, and the input that it refuses."""

from __future__ import annotations

import io
from errno import ENOSPC
from pathlib import Path
from uuid import UUID

import pytest
from fetchproxy_protocol.record_batch import walk
from planted_archive import ABORT, COMMIT, batch

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.brokers.messages import FetchedPartition
from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.lineage import extend_lineage
from fetchproxy.model import AbortedTxn, EpochStart, TopicIdPartition
from fetchproxy.segments.contents import AccumulatedSegment
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.sources import segment_writer
from fetchproxy.writing.sources.fetched_batches import BatchAccumulator
from fetchproxy.writing.sources.segment_writer import SegmentWriter, SpoolFull
from fetchproxy.writing.spool import Spool

TP = TopicIdPartition(UUID(int=1), "t", 0)


async def append(
    writer: SegmentWriter, *batches: bytes, aborted: tuple[tuple[int, int], ...] = ()
) -> None:
    records = memoryview(b"".join(batches))
    await writer.append(records, list(walk(records)), aborted)


async def test_a_segment_over_several_appends(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        writer = SegmentWriter(TP, 3, spool)
        parts = [batch(0, epoch=1), batch(10, epoch=1), batch(20, epoch=4, timestamp=5_000)]
        await append(writer, parts[0])
        await append(writer, *parts[1:])
        whole = b"".join(parts)
        assert (writer.position, writer.size_bytes) == (30, len(whole))
        assert spool.size_bytes == len(whole)
        segment = writer.close()
        assert segment.log.read_bytes() == whole
        assert (segment.start_offset, segment.end_offset) == (3, 29)
        assert segment.max_timestamp_ms == 5_009
        assert segment.leader_epochs == (EpochStart(1, 3), EpochStart(4, 20))
        assert segment.aborted == ()
        index = RemoteLogIndex.parse(segment.index.encoded("a/b.log"))
        assert index.object_key == "a/b.log"
        index.check_covers(29, len(whole))
        await writer.discard()
        await writer.discard()
        assert spool.size_bytes == 0
        assert not segment.log.exists()


async def test_only_the_named_part_of_the_records_is_taken(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        writer = SegmentWriter(TP, 10, spool)
        records = memoryview(batch(0) + batch(10) + batch(20))
        await writer.append(records, list(walk(records))[1:2], ())
        assert writer.close().log.read_bytes() == batch(10)


async def test_markers_end_aborted_transactions(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        writer = SegmentWriter(TP, 0, spool)
        await append(
            writer,
            batch(0, txn=7),
            batch(10, txn=8),
            batch(20, txn=7, control=ABORT),
            batch(21, txn=8, control=COMMIT),
            batch(22, txn=9),
            aborted=((7, 0), (9, 22)),
        )
        assert writer.close().aborted == (AbortedTxn(0, 20, 7, 21), AbortedTxn(22, 31, 9, 32))


async def test_a_log_that_goes_back_is_refused(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        for second in (batch(0), batch(5)):
            writer = SegmentWriter(TP, 0, spool)
            await append(writer, batch(0, epoch=3))
            with pytest.raises(CorruptSegment, match="t-0"):
                await append(writer, second)


async def test_epochs_that_fall_or_lie_above_the_leaders_do_not_count(tmp_path: Path) -> None:
    async with Spool(tmp_path) as spool:
        writer = SegmentWriter(TP, 0, spool)
        await append(writer, batch(0, epoch=3), batch(10, epoch=2), batch(20, epoch=3))
        fallen = tuple(EpochStart(*entry) for entry in ((3, 0), (-1, 10), (3, 20)))
        assert writer.close().leader_epochs == fallen
        writer = SegmentWriter(TP, 0, spool)
        content = b"".join((batch(0, epoch=0), batch(10, epoch=9), batch(20, epoch=1)))
        await writer.append(memoryview(content), list(walk(content)), (), leader_epoch=1)
        segment = writer.close()
        assert segment.leader_epochs == (EpochStart(0, 0), EpochStart(-1, 10))
        assert segment.leader_epoch == 1


def small_disk(monkeypatch: pytest.MonkeyPatch, folder: Path, room_bytes: int) -> None:
    """Simulate a disk of `room_bytes` for `folder` alone; like Linux, it first writes what fits."""

    def write_all(file: io.FileIO, chunk: memoryview) -> None:
        used = sum(path.stat().st_size for path in folder.rglob("*.log"))
        fits = chunk[: max(room_bytes - used, 0)]
        file.write(fits)
        if len(fits) < len(chunk):
            raise OSError(ENOSPC, "No space left on device")

    monkeypatch.setattr(segment_writer, "_write_all", write_all)


@pytest.mark.parametrize("short_by", [1, 40, 10_000])
async def test_what_a_full_disk_has_no_room_for_leaves_the_rest_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_by: int
) -> None:
    parts = [batch(0), batch(10), batch(20)]
    whole = b"".join(parts)
    small_disk(monkeypatch, tmp_path, max(len(whole) - short_by, len(parts[0])))
    async with Spool(tmp_path) as spool:
        writer = SegmentWriter(TP, 0, spool)
        await append(writer, parts[0])
        for _ in range(2):
            with pytest.raises(SpoolFull):
                await append(writer, *parts[1:])
        assert (writer.position, writer.size_bytes, spool.size_bytes) == (10, *[len(parts[0])] * 2)
        segment = writer.close()
        assert segment.log.read_bytes() == parts[0]
        assert (segment.start_offset, segment.end_offset) == (0, 9)
        await segment.check_log()


async def test_a_disk_without_any_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_disk(monkeypatch, tmp_path, 0)
    async with Spool(tmp_path) as spool:
        writer = SegmentWriter(TP, 0, spool)
        with pytest.raises(SpoolFull, match="no room in the spool"):
            await append(writer, batch(0))
        assert (writer.size_bytes, spool.size_bytes, writer.began_at) == (0, 0, None)


class Responses(Cluster):
    """Each answer has the whole log."""

    def __init__(self, records: bytes) -> None:
        self.records = records

    async def fetch(self, tp: TopicIdPartition, offset: int, **_: object) -> FetchedPartition:
        end = list(walk(self.records))[-1].last_offset + 1
        return FetchedPartition(0, end, end, 0, (), self.records)


@pytest.mark.parametrize("room", [1, 2, 3, 7])
async def test_a_disk_with_less_room_than_one_answer_makes_shorter_segments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    parts = [batch(10 * number) for number in range(12)]
    small_disk(monkeypatch, tmp_path, room * len(parts[0]) + 5)
    cluster, config = Responses(b"".join(parts)), ArchiveConfig(segment_bytes_max=10**6)
    copied, position = b"", 0
    async with Spool(tmp_path) as spool:
        accumulator = BatchAccumulator(
            TP, spool, cluster=cluster, pace=CopyPace(lambda: 0), config=config
        )
        while position < 120:
            segment = await accumulator.accumulate(position, close_short=True)
            assert isinstance(segment, AccumulatedSegment)
            copied += segment.log.read_bytes()
            position = segment.end_offset + 1
            await accumulator.discard()
    assert copied == b"".join(parts)


def test_lineage_keeps_each_epochs_first_offset() -> None:
    before = (EpochStart(1, 0), EpochStart(3, 50))
    assert extend_lineage((), before) == before
    assert extend_lineage(before, (EpochStart(3, 100),)) == before
    assert extend_lineage(before, (EpochStart(3, 100), EpochStart(4, 120))) == (
        *before,
        EpochStart(4, 120),
    )
