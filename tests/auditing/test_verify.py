"""Each kind of fault, planted alone in a sound archive: verification finds it, and nothing else."""

from __future__ import annotations

import asyncio
import re
import struct
from collections.abc import Awaitable, Callable
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planted_archive import ABORT, COMMIT, TP, PlantedArchive, batch, flip, gaps_of
from test_repair import repair
from whole_archive import verify_archive

from fetchproxy.config.schema import MetadataConfig
from fetchproxy.errors import StorageUnavailable
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    AbortedTxn,
    EpochStart,
    LogHistory,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.segments.description import decode_segment, encode_segment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.remote_log_index import RemoteLogIndex, encode_index_entry
from fetchproxy.segments.side_files import encode_aborted, encode_epochs
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX

LOG, INDEX = SegmentFile.LOG, SegmentFile.INDEX
TXN, EPOCHS, METADATA = SegmentFile.TXN, SegmentFile.EPOCHS, SegmentFile.METADATA
SIZE = len(batch(0))  # of every batch that is no marker
GAP = (120, 149)
OTHER = TopicIdPartition(UUID(int=2), "payments", 3)


async def sound() -> PlantedArchive:
    """Segments 0-59, 60-119, then a recorded gap, 150-209; the second changes its leader epoch."""
    archive = PlantedArchive()
    await archive.add(batch(base) for base in range(0, 60, 10))
    await archive.add(
        (batch(base, epoch=0 if base < 90 else 1) for base in range(60, 120, 10)),
        lineage=(EpochStart(0, 0), EpochStart(1, 90)),
        epochs=(EpochStart(0, 60), EpochStart(1, 90)),
    )
    await archive.add(
        (batch(base, epoch=1) for base in range(150, 210, 10)),
        lineage=(EpochStart(0, 0), EpochStart(1, 90)),
    )
    await archive.record_gap(*GAP)
    return archive


async def transactional() -> PlantedArchive:
    """Producer 7 aborts 0-9 at 10; 8 aborts 11-20 at 51, in the next segment; 9 commits."""
    archive = PlantedArchive()
    eighth = AbortedTxn(11, 40, 8, 11)
    await archive.add(
        [
            batch(0, txn=7),
            batch(10, txn=7, control=ABORT),
            batch(11, txn=8),
            batch(21, txn=9),
            batch(31),
        ],
        aborted=(AbortedTxn(0, 10, 7, 11), eighth),
    )
    await archive.add(
        [batch(41), batch(51, txn=8, control=ABORT), batch(52, txn=9, control=COMMIT), batch(53)],
        aborted=(AbortedTxn(11, 51, 8, 52),),
    )
    return archive


async def test_a_sound_archive_is_clean_and_its_gap_is_told() -> None:
    archive = await sound()
    await archive.add((batch(base) for base in range(5, 45, 10)), tp=OTHER)
    report = await archive.verify()
    assert report.clean, report.faults
    assert (report.partitions, report.segments, report.segments_unfinished) == (2, 4, 0)
    assert gaps_of(report) == [GAP]
    assert report.size_bytes == 22 * SIZE


async def test_a_sound_transactional_archive_is_clean() -> None:
    report = await (await transactional()).verify()
    assert report.clean, report.faults


async def test_an_empty_archive_is_clean() -> None:
    assert (await PlantedArchive().verify()).clean


Plant = Callable[[PlantedArchive, RemoteLogSegmentMetadata], Awaitable[None]]


def edit(file: SegmentFile, change: Callable[[bytes], bytes]) -> Plant:
    async def plant(archive: PlantedArchive, segment: RemoteLogSegmentMetadata) -> None:
        await archive.change(segment, file, change)

    return plant


def missing(file: SegmentFile) -> Plant:
    async def plant(archive: PlantedArchive, segment: RemoteLogSegmentMetadata) -> None:
        await archive.store.delete(archive.key(segment, file))

    return plant


def restated(**changes: object) -> Plant:
    async def plant(archive: PlantedArchive, segment: RemoteLogSegmentMetadata) -> None:
        await archive.restate(replace(segment, **changes))  # type: ignore[arg-type]

    return plant


def resized(change: Callable[[bytes], bytes], **changes: object) -> Plant:
    """The log changed by whole batches, with metadata and index made to agree."""

    async def plant(archive: PlantedArchive, segment: RemoteLogSegmentMetadata) -> None:
        await archive.change(segment, LOG, change)
        size = len(await archive.store.get(archive.key(segment, LOG)))
        await archive.restate(
            replace(segment, segment_size_bytes=size, **changes)  # type: ignore[arg-type]
        )
        whole = RemoteLogIndex.parse(await archive.store.get(archive.key(segment, INDEX)))[0]
        end = changes.get("end_offset", segment.end_offset)
        entry = replace(
            whole, length=size, last_offset=end, max_timestamp_ms=segment.max_timestamp_ms
        )
        await archive.store.put(
            archive.key(segment, INDEX), encode_index_entry(archive.key(segment, LOG), entry)
        )

    return plant


def reindexed(number: int, **changes: object) -> Plant:
    """An index with right checksums that says something else of one entry."""

    async def plant(archive: PlantedArchive, segment: RemoteLogSegmentMetadata) -> None:
        key = archive.key(segment, INDEX)
        index = RemoteLogIndex.parse(await archive.store.get(key))
        log_key = str(changes.get("key", index.object_key))
        fields = {name: value for name, value in changes.items() if name != "key"}
        entries = list(index.spans())
        entries[number] = replace(entries[number], **fields)  # type: ignore[arg-type]
        await archive.store.put(
            key, b"".join(encode_index_entry(log_key, entry) for entry in entries)
        )

    return plant


def moved_border(by: int) -> Plant:
    """The second entry begins `by` bytes later, inside a batch."""

    async def plant(archive: PlantedArchive, segment: RemoteLogSegmentMetadata) -> None:
        key = archive.key(segment, INDEX)
        index = RemoteLogIndex.parse(await archive.store.get(key))
        entries = list(index.spans())
        entries[0] = replace(entries[0], length=entries[0].length + by)
        entries[1] = replace(
            entries[1], position=entries[1].position + by, length=entries[1].length - by
        )
        await archive.store.put(
            key, b"".join(encode_index_entry(index.object_key, entry) for entry in entries)
        )

    return plant


def overlapping() -> Plant:
    async def plant(archive: PlantedArchive, segment: RemoteLogSegmentMetadata) -> None:
        await archive.add(batch(base) for base in range(20, 60, 10))
        archive.segments.append(archive.segments[1])  # the fault is of the new one

    return plant


def drop(first: int, last: int) -> Callable[[bytes], bytes]:
    """Without the batches numbered `first` … `last`."""
    return lambda log: log[: first * SIZE] + log[(last + 1) * SIZE :]


def put_at(position: int, value: bytes) -> Callable[[bytes], bytes]:
    return lambda log: log[:position] + value + log[position + len(value) :]


# Faults of the second segment, 60-119: name, plant, object, byte, offset, words.
FAULTS: list[tuple[str, Plant, SegmentFile, int | None, int | None, str]] = [
    ("payload", edit(LOG, flip(2 * SIZE + 100)), LOG, 2 * SIZE, 80, "CRC-32C"),
    ("crc", edit(LOG, flip(17)), LOG, 0, 60, "CRC-32C"),
    ("last payload", edit(LOG, flip(-1)), LOG, 5 * SIZE, 110, "CRC-32C"),
    ("delta", edit(LOG, flip(2 * SIZE + 26, 3)), LOG, 2 * SIZE, 80, "CRC-32C"),
    ("last delta", edit(LOG, flip(5 * SIZE + 26, 3)), LOG, 5 * SIZE, 110, "CRC-32C"),
    ("size a little", edit(LOG, flip(SIZE + 11, 1)), LOG, SIZE, 70, "CRC-32C"),
    ("size tiny", edit(LOG, put_at(SIZE + 8, bytes(4))), LOG, SIZE, 70, "length 0"),
    ("size huge", edit(LOG, flip(SIZE + 8, 0x7F)), LOG, SIZE, 70, "claims"),
    ("size negative", edit(LOG, flip(SIZE + 8, 0x80)), LOG, SIZE, 70, "length -"),
    ("magic", edit(LOG, flip(3 * SIZE + 16, 3)), LOG, 3 * SIZE, 90, "batch has magic 1"),
    ("hole", edit(LOG, flip(SIZE + 6, 1)), LOG, SIZE, 326, "hole: .* 326, expected 70"),
    ("overlap", edit(LOG, flip(2 * SIZE + 7, 0x40)), LOG, 2 * SIZE, 16, "overlap: .* expected 80"),
    ("epoch", edit(LOG, flip(4 * SIZE + 15, 2)), LOG, 4 * SIZE, 100, "epoch 3, metadata say 1"),
    ("no log", missing(LOG), LOG, None, None, "missing"),
    ("cut in a batch", edit(LOG, lambda log: log[:-5]), LOG, 6 * SIZE - 5, None, "object ends"),
    ("cut at a batch", edit(LOG, lambda log: log[:-SIZE]), LOG, 5 * SIZE, None, "object ends"),
    ("cut in a header", edit(LOG, lambda log: log[: SIZE + 9]), LOG, SIZE + 9, None, "ends here"),
    ("empty log", edit(LOG, lambda log: b""), LOG, 0, None, "object ends"),
    ("longer", edit(LOG, lambda log: log + b"\0"), LOG, 6 * SIZE, None, "is longer than"),
    ("lost first", resized(drop(0, 0)), INDEX, None, 60, "firstOffset"),
    ("twice", resized(lambda log: log[: 2 * SIZE] + log[SIZE:]), LOG, 2 * SIZE, 70, "overlap"),
    ("no index", missing(INDEX), INDEX, None, None, "missing"),
    ("index byte", edit(INDEX, flip(-1)), INDEX, None, None, "entry 2 .*checksum"),
    ("index cut", edit(INDEX, lambda raw: raw[: raw[3]]), INDEX, None, None, "ends with"),
    ("index first", reindexed(1, first_offset=81), INDEX, None, 81, "firstOffset is 81"),
    ("index last", reindexed(1, last_offset=98), INDEX, None, 80, "lastOffset is 98"),
    ("index time", reindexed(1, first_timestamp_ms=5), INDEX, None, 80, "firstTimestamp is 5"),
    ("index max", reindexed(1, max_timestamp_ms=5), INDEX, None, 80, "lastTimestamp is 5"),
    ("index key", reindexed(1, key="a/0/b.log"), INDEX, None, None, "rdi names 'a/0/b.log'"),
    ("index border", moved_border(7), INDEX, None, 60, "inside the batch"),
    ("no epochs", missing(EPOCHS), EPOCHS, None, None, "missing"),
    ("epochs text", edit(EPOCHS, lambda raw: raw[:-1]), EPOCHS, None, None, "line 4"),
    (
        "other epochs",
        edit(EPOCHS, lambda raw: encode_epochs([EpochStart(0, 0)])),
        EPOCHS,
        None,
        None,
        "metadata have",
    ),
    ("max time", restated(max_timestamp_ms=5), METADATA, None, None, "max_timestamp_ms is 5"),
    ("metadata", edit(METADATA, lambda raw: raw[:-3]), METADATA, None, 60, "not JSON"),
]


@pytest.mark.parametrize(
    ("plant", "file", "position", "offset", "words"),
    [fault[1:] for fault in FAULTS],
    ids=[fault[0] for fault in FAULTS],
)
@pytest.mark.parametrize("chunk_bytes", [70, 1_000, 1_000_000])
async def test_a_planted_fault_is_found_alone(
    plant: Plant,
    file: SegmentFile,
    position: int | None,
    offset: int | None,
    words: str,
    chunk_bytes: int,
) -> None:
    archive = await sound()
    archive.chunk_bytes = chunk_bytes
    segment = archive.segments[1]
    await plant(archive, segment)
    report = await archive.verify()
    (fault,) = report.faults
    assert (fault.topic, fault.partition) == ("orders", 0)
    assert fault.object_key == archive.key(segment, file)
    assert (fault.byte_position, fault.first_offset) == (position, offset)
    assert re.search(words, fault.what)
    # Where a segment's metadata cannot be read, nobody knows where the gap behind it begins.
    assert gaps_of(report) == ([] if file is METADATA and offset else [GAP])
    assert not report.clean


async def test_a_hole_that_everything_agrees_with_is_one_that_compaction_has_left() -> None:
    archive = await sound()
    await resized(drop(2, 2))(archive, archive.segments[1])
    assert (await archive.verify()).faults == []


async def test_foreign_metadata() -> None:
    archive = await sound()
    other = archive.segments[0]
    await archive.change(archive.segments[1], METADATA, lambda raw: encode_segment(other))
    (fault,) = (await archive.verify()).faults
    assert fault.object_key == archive.key(archive.segments[1], METADATA)
    assert "holds the metadata of segment" in fault.what


async def test_overlapping_segments() -> None:
    archive = await sound()
    await archive.add(batch(base) for base in range(20, 60, 10))
    report = await archive.verify()
    assert report.clean, report.faults  # another archiver's copy of the same log
    assert report.segments_overlapping == 1


async def test_overlapping_segments_of_two_lineages() -> None:
    archive = await sound()
    lineage = (EpochStart(0, 0), EpochStart(7, 20))
    await archive.add((batch(base, epoch=7) for base in range(20, 60, 10)), lineage=lineage)
    whats = [fault.what for fault in (await archive.verify()).faults]
    assert "overlaps the segment from 20, whose leader epoch is newer from 20 on" in whats


async def test_a_later_segment_tells_where_an_older_leaders_log_was_cut() -> None:
    """Of the one that took its place there the metadata are lost."""
    archive = PlantedArchive()
    lineage = (EpochStart(0, 0), EpochStart(1, 20))
    stale = await archive.add([batch(0), batch(10), batch(20)])
    await archive.restate(replace(stale.clipped(19), max_timestamp_ms=19))
    await archive.add([batch(20, epoch=1)], lineage=lineage)
    await archive.add([batch(30, epoch=1)], lineage=lineage)
    assert (await archive.verify()).faults == []
    await archive.restate(stale)
    lost = archive.key(archive.segments[1], METADATA)
    await archive.store.put(lost, b"{}")
    faults = {fault.object_key: fault for fault in (await archive.verify()).faults}
    log_fault = faults.pop(archive.key(stale, METADATA))
    assert log_fault.first_offset == 20
    assert "older than in the leader epochs of the segment from 30" in log_fault.what
    assert set(faults) == {lost}
    async with StoreBackedRemoteLogMetadataManager(archive.storage, MetadataConfig()) as rlmm:
        await rlmm.put_log_history(TP, LogHistory(-1, kept_below=30, kept_epoch=0))
    assert archive.key(stale, METADATA) not in {
        fault.object_key for fault in (await archive.verify()).faults
    }


@pytest.mark.parametrize(
    ("start", "file", "what"),
    [(5, LOG, "leader epoch 0, metadata say from 5 on"), (40, METADATA, "above its end offset 19")],
)
async def test_a_leader_epoch_that_begins_above_its_first_batch(
    start: int, file: SegmentFile, what: str
) -> None:
    archive = PlantedArchive()
    segment = await archive.add([batch(0), batch(10)])
    await archive.restate(replace(segment, segment_leader_epochs=(EpochStart(0, start),)))
    faults = (await archive.verify()).faults
    assert any(f.object_key == archive.key(segment, file) and what in f.what for f in faults), (
        faults
    )
    await repair(archive)
    assert (await archive.verify()).clean
    key = archive.key(segment, METADATA)
    repaired = decode_segment(await archive.store.get(key), key)
    assert repaired.segment_leader_epochs == (EpochStart(0, 0),)


async def test_a_first_batch_below_the_start_is_right_only_after_a_trim() -> None:
    trimmed = PlantedArchive()
    await trimmed.add([batch(0), batch(10)], start=4)
    assert (await trimmed.verify()).clean
    follows = PlantedArchive()
    await follows.add([batch(0)])
    await follows.add([batch(5), batch(15)], start=10)
    (fault,) = (await follows.verify()).faults
    assert (fault.byte_position, fault.first_offset) == (0, 5)
    assert "overlap" in fault.what


async def test_where_a_kept_archive_ends_the_new_logs_batch_may_reach_over_it() -> None:
    """`resolve --keep`: up to 20 the old log counts, from there on one that began again."""
    archive = PlantedArchive(chunk_bytes=250)
    await archive.add([batch(0), batch(10)])
    await archive.add(
        [batch(13, epoch=1), batch(23, epoch=1)],
        start=20,
        lineage=(EpochStart(0, 0), EpochStart(1, 20)),
    )
    assert [fault.what for fault in (await archive.verify()).faults] == [
        "overlap: batch begins at offset 13, expected 20"
    ]
    async with StoreBackedRemoteLogMetadataManager(archive.storage, MetadataConfig()) as rlmm:
        await rlmm.put_log_history(TP, LogHistory(-1, kept_below=20, kept_epoch=0))
    assert (await archive.verify()).faults == []


async def test_a_lost_last_batch_also_makes_the_index_wrong() -> None:
    archive = await sound()
    segment = archive.segments[1]
    await resized(drop(5, 5))(archive, segment)
    index, log = (await archive.verify()).faults
    assert (index.object_key, index.first_offset) == (archive.key(segment, INDEX), 60)
    assert "lastOffset is 119, in the log 109" in index.what
    assert (log.object_key, log.byte_position) == (archive.key(segment, LOG), 5 * SIZE)
    assert "ends at offset 109" in log.what


async def test_two_faults_side_by_side_are_two() -> None:
    archive = await sound()
    for number in (1, 2, 4):
        await archive.change(archive.segments[1], LOG, flip(number * SIZE + 80))
    faults = (await archive.verify()).faults
    assert [fault.first_offset for fault in faults] == [70, 80, 100]


FIRST, SECOND = 0, 1
SEVENTH = AbortedTxn(0, 10, 7, 11)
EIGHTH = AbortedTxn(11, 40, 8, 11)
EIGHTH_END = AbortedTxn(11, 51, 8, 52)

TXN_FAULTS: list[tuple[str, int, tuple[AbortedTxn, ...], int | None, int, str]] = [
    ("unlisted", FIRST, (EIGHTH,), None, 0, "producer 7, aborted at 10, is not listed"),
    ("unlisted early", FIRST, (SEVENTH,), None, 11, "producer 8, aborted at 51, is not listed"),
    ("wrong end", FIRST, (AbortedTxn(0, 9, 7, 11), EIGHTH), None, 0, "aborted at 10, is not"),
    ("invented", FIRST, (SEVENTH, AbortedTxn(2, 40, 6, 1), EIGHTH), 34, 2, "6 has no ABORT"),
    ("committed", FIRST, (SEVENTH, EIGHTH, AbortedTxn(21, 40, 9, 1)), None, 21, "committed at 52"),
    ("of a later one", FIRST, (SEVENTH, EIGHTH, AbortedTxn(41, 51, 5, 0)), 68, 41, "above the seg"),
    ("committed late", SECOND, (EIGHTH_END, AbortedTxn(21, 52, 9, 1)), 34, 21, "committed at 52"),
]


@pytest.mark.parametrize(
    ("number", "entries", "position", "offset", "words"),
    [fault[1:] for fault in TXN_FAULTS],
    ids=[fault[0] for fault in TXN_FAULTS],
)
async def test_transaction_index_against_the_markers(
    number: int, entries: tuple[AbortedTxn, ...], position: int | None, offset: int, words: str
) -> None:
    archive = await transactional()
    segment = archive.segments[number]
    await archive.change(segment, TXN, lambda raw: encode_aborted(entries))
    faults = (await archive.verify()).faults
    fault = faults[0]
    assert fault.object_key == archive.key(segment, TXN)
    assert (fault.byte_position, fault.first_offset) == (position, offset)
    assert words in fault.what
    # A listed end that is wrong is two things: an entry without a marker, a marker without entry.
    assert len(faults) == (2 if "wrong" in words or entries[0].last_offset == 9 else 1)


@pytest.mark.parametrize(
    ("plant", "words"),
    [
        (missing(TXN), "missing"),
        (edit(TXN, lambda raw: raw[:-1]), "is cut"),
        (edit(TXN, lambda raw: b""), "no entry"),
    ],
)
async def test_broken_transaction_index(plant: Plant, words: str) -> None:
    archive = await transactional()
    await plant(archive, archive.segments[1])
    faults = (await archive.verify()).faults
    assert words in faults[0].what
    assert {fault.object_key for fault in faults} == {archive.key(archive.segments[1], TXN)}


async def test_aborted_data_that_metadata_deny() -> None:
    archive = await transactional()
    await restated(has_aborted_txns=False)(archive, archive.segments[1])
    (fault,) = (await archive.verify()).faults
    assert fault.object_key == archive.key(archive.segments[1], TXN)
    assert "is not listed" in fault.what


async def test_transactions_that_began_below_the_archive_are_believed() -> None:
    archive = PlantedArchive()
    await archive.add(
        [batch(100), batch(110, txn=7, control=ABORT), batch(111, txn=8), batch(121)],
        aborted=(AbortedTxn(50, 110, 7, 0), AbortedTxn(60, 130, 8, 0), AbortedTxn(70, 130, 9, 0)),
    )
    report = await archive.verify()
    assert report.clean, report.faults


async def test_only_finished_segments_of_the_partitions_asked_for() -> None:
    archive = await sound()
    archive.recorded = False
    payments = await archive.add([batch(0)], tp=OTHER)
    started = replace(payments, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
    await archive.change(archive.segments[0], LOG, flip(100))
    await archive.restate(started)
    await archive.store.delete(archive.key(payments, LOG))
    report = await archive.verify(partitions=[OTHER])
    assert report.clean
    assert (report.partitions, report.segments, report.segments_unfinished) == (1, 0, 1)
    assert not (await archive.verify(partitions=[TP])).clean
    assert (await archive.verify(partitions=[])).partitions == 0


async def test_progress_counts_every_byte_once() -> None:
    archive = await sound()
    await archive.change(archive.segments[0], LOG, lambda log: log[: 3 * SIZE])
    progress: list[tuple[int, int]] = []
    report = await archive.verify(on_progress=lambda done, total: progress.append((done, total)))
    assert not report.clean
    assert progress[0] == (0, 18 * SIZE)
    assert progress[-1] == (18 * SIZE, 18 * SIZE)
    assert progress == sorted(progress)


async def test_what_is_deleted_meanwhile_is_no_fault() -> None:
    archive = await sound()

    elsewhere = PlantedArchive()
    await elsewhere.storage.objects.put_log_start_offset(TP, 120, b"{}")
    raised = {k: v for k, v in elsewhere.store._objects.items() if k.endswith(".log-start-offset")}

    def delete_soon(done: int, total: int) -> None:
        """As retention does: the log start is raised before."""
        if done == 0:
            archive.store._objects |= raised
            for file in SegmentFile:
                archive.store._objects.pop(archive.key(archive.segments[1], file), None)

    report = await archive.verify(on_progress=delete_soon)
    assert report.clean, report.faults
    assert report.segments == 2


async def test_an_outage_is_no_verdict() -> None:
    archive = await sound()

    class Away(type(archive.store)):  # type: ignore[misc]
        async def get_range(self, key: str, byte_range: object) -> bytes:
            await asyncio.sleep(0)
            raise StorageUnavailable("away")

    archive.store.__class__ = Away
    with pytest.raises(StorageUnavailable, match="away"):
        await archive.verify()


@pytest.mark.parametrize(("raised", "gaps"), [(60, (GAP,)), (130, ((130, 149),)), (150, ())])
async def test_what_was_deleted_is_no_gap(raised: int, gaps: tuple[tuple[int, int], ...]) -> None:
    archive = await sound()
    await archive.storage.objects.put_log_start_offset(
        archive.segments[0].topic_id_partition, raised, b"{}"
    )
    report = await archive.verify()
    assert report.clean, report.faults
    assert tuple(gaps_of(report)) == gaps


async def test_many_metadata_objects_take_several_reads() -> None:
    archive = await sound()

    class Slow(type(archive.store)):  # type: ignore[misc]
        gets = 0

        async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
            content: bytes = await super().get(key, bytes_max)
            if key.endswith(".metadata"):
                Slow.gets += 1
                if Slow.gets % 2 == 0:  # every second one hangs
                    await asyncio.Event().wait()
            return content

    archive.store.__class__ = Slow
    async with StoreBackedRemoteLogMetadataManager(
        archive.storage, MetadataConfig(), reads_max=1, read_max_ms=2_000
    ) as rlmm:
        report = await verify_archive(archive.storage, rlmm)
    assert report.clean
    assert report.segments == 3


async def test_an_archive_copied_below_another_prefix_is_sound() -> None:
    archive = await sound()
    moved = PlantedArchive()
    async for stored_object in archive.store.list(""):
        content = await archive.store.get(stored_object.key)
        await moved.store.put(stored_object.key.replace("archive/", "elsewhere/", 1), content)
    moved.storage = type(moved.storage)(moved.store, "elsewhere")
    report = await moved.verify()
    assert report.clean, report.faults
    assert report.segments == 3


@given(st.integers(0, 6 * SIZE * 8 - 1), st.integers(0, 2), st.sampled_from([64, 333, 10_000]))
def test_any_flipped_bit_of_a_log_is_one_fault(bit: int, number: int, chunk_bytes: int) -> None:
    async def run() -> None:
        archive = await sound()
        archive.chunk_bytes = chunk_bytes
        segment = archive.segments[number]
        await archive.change(segment, LOG, flip(bit // 8, 1 << bit % 8))
        (fault,) = (await archive.verify()).faults
        assert fault.object_key == archive.key(segment, LOG)
        batch_at = bit // 8 // SIZE * SIZE
        # A base offset that is too low can look like a trimmed first batch: then the next is odd.
        assert fault.byte_position in (batch_at, SIZE if batch_at == 0 else batch_at)

    asyncio.run(run())


@given(st.binary(min_size=1, max_size=400), st.integers(0, 6 * SIZE), st.booleans())
def test_junk_in_a_log_ends_and_is_a_fault_of_that_log(
    junk: bytes, position: int, insert: bool
) -> None:
    async def run() -> None:
        archive = await sound()
        segment = archive.segments[1]
        log = await archive.store.get(archive.key(segment, LOG))
        changed = log[:position] + junk + log[position + (0 if insert else len(junk)) :]
        await archive.store.put(archive.key(segment, LOG), changed)
        report = await archive.verify()
        assert {fault.object_key for fault in report.faults} <= {archive.key(segment, LOG)}
        assert report.clean == (changed == log)

    asyncio.run(run())


async def test_batches_without_an_epoch_need_none() -> None:
    archive = PlantedArchive()
    await archive.add([batch(0, epoch=-1), batch(10, epoch=-1)], epochs=())
    report = await archive.verify()
    assert report.clean, report.faults


def test_the_planted_batches_are_the_size_they_say() -> None:
    assert struct.unpack_from(">i", batch(0), 8)[0] == SIZE - 12


async def test_a_clipped_segment_is_checked_to_its_end_and_counts_to_its_clip() -> None:
    """A transaction that was open at the cut has ended otherwise since; above it are two epochs."""
    archive = PlantedArchive()
    old = (EpochStart(0, 0), EpochStart(1, 30))
    entry = AbortedTxn(10, 45, 7, 46)  # its marker was above the cut
    copied = await archive.add(
        [batch(0), batch(10, txn=7), batch(20), batch(30, epoch=1), batch(40, 5, epoch=1),
         batch(45, txn=7, control=ABORT, epoch=1)],
        lineage=old, epochs=old, aborted=(entry,),
    )  # fmt: skip
    clipped = replace(copied.clipped(29), max_timestamp_ms=29)
    assert clipped.segment_leader_epochs == (EpochStart(0, 0),)
    await archive.restate(clipped)
    archive.segments[0] = clipped
    new = (EpochStart(0, 0), EpochStart(2, 30))
    await archive.add(
        [batch(30, epoch=2), batch(40, txn=7, control=ABORT, epoch=2)],
        lineage=new,
        aborted=(AbortedTxn(10, 40, 7, 41),),
    )
    report = await archive.verify()
    assert not report.faults, report.faults
    assert gaps_of(report) == []
    await archive.restate(replace(clipped, end_offset=25, max_timestamp_ms=19))
    (_, inside, *_) = (await archive.verify()).faults  # the first one: 26 to 29 are missing
    assert "clipped at offset 25, inside a batch to 29" in inside.what
    await archive.restate(clipped)
    await archive.change(copied, SegmentFile.LOG, flip(-100))
    (broken,) = (await archive.verify()).faults
    assert broken.first_offset is not None
    assert broken.first_offset > 29, "what is read with the rest must be whole"
