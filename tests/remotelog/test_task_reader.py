"""A folder's archive, planned and read as Spark's planner and tasks do, without Spark."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from made_batches import CODECS, READERS, Record, made_batch, marker, reseal, rows_read_by
from written_archive import TP, WrittenArchive

from fetchproxy.config.load import Setting, load_config
from fetchproxy.errors import (
    ConfigError,
    CorruptSegment,
    ObjectNotFound,
    ObjectNotReadable,
    RecordsTooLarge,
    StorageUnavailable,
)
from fetchproxy.jobs.runner import Here
from fetchproxy.jobs.verify import verify
from fetchproxy.metadata.flat_files import SegmentMetadataCache
from fetchproxy.model import AbortedTxn, RemoteLogSegmentState, TopicIdPartition
from fetchproxy.observability.health import Condition
from fetchproxy.remotelog import task_reader
from fetchproxy.remotelog.archive_reading import plan_input
from fetchproxy.remotelog.decoder.record_rows import RowLimits
from fetchproxy.remotelog.options import SourceOptions, parse_options
from fetchproxy.remotelog.planning import DataLoss, ReadTask, plan_tasks
from fetchproxy.remotelog.task_reader import SkippedRecords, read_task
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.segments.topic_description import TopicDescription, encode_topic_description
from fetchproxy.storage.key_rings import NO_KEYS, FileKeyRing, write_keys
from fetchproxy.storage.packed_logs import NO_ENCRYPTION, AtRest
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore


def batches_of(base: int, count: int = 10, each: int = 10, **more: Any) -> list[bytes]:
    """Consecutive ones; a record's timestamp is its offset."""
    return [
        made_batch(
            start,
            [Record(b"k", b"v%d" % (start + i), start + i) for i in range(each)],
            codec=CODECS[start // each % len(CODECS)],
            **more,
        )
        for start in range(base, base + count * each, each)
    ]


@pytest.fixture
def archive(tmp_path: Path) -> WrittenArchive:
    """Offsets 0 to 299 in three segments."""
    made = WrittenArchive(tmp_path / "archive")
    for base in (0, 100, 200):
        made.add(batches_of(base))
    return made


def options_of(archive: WrittenArchive, **options: str) -> SourceOptions:
    return parse_options({"store": archive.url, "topics": "orders", **options})


def tasks_of(options: SourceOptions) -> list[ReadTask]:
    return plan_tasks(
        plan_input(options),
        partition_bytes_max=options.partition_bytes_max,
        partitions_min=options.partitions_min,
    )


def offsets_read(
    archive: WrittenArchive, skipped_records: SkippedRecords | None = None, **options: str
) -> list[int]:
    chosen = options_of(archive, **options)
    return [
        offset
        for task in tasks_of(chosen)
        for batch in read_task(chosen, task, ["offset"], skipped_records=skipped_records)
        for offset in batch.column("offset").to_pylist()
    ]


@pytest.mark.parametrize("bytes_max", [400, 10**9])
def test_an_archive_that_is_packed_is_read_likewise(tmp_path: Path, bytes_max: int) -> None:
    """Compressed and encrypted; one segment of it as it is."""
    ring = tmp_path / "keys.json"
    write_keys(ring, NO_KEYS.with_new("k1", bytes(32)), new=True)
    made = WrittenArchive(tmp_path / "archive", AtRest(compress=True, keys=FileKeyRing(ring)))
    made.add(batches_of(0))
    made.at_rest = NO_ENCRYPTION
    made.add(batches_of(100))
    keys = {"store.encryption_keys": str(ring), "maxBytesPerPartition": str(bytes_max)}
    assert offsets_read(made, **keys) == list(range(200))
    assert offsets_read(made, startingOffsets='{"orders": {"0": 100}}') == list(range(100, 200))
    with pytest.raises(CorruptSegment, match=r"'k1', and store\.encryption_keys is not set"):
        offsets_read(made)


@pytest.mark.parametrize("bytes_max", [400, 1500, 10**9])
def test_what_is_read_is_what_was_written(archive: WrittenArchive, bytes_max: int) -> None:
    options = options_of(archive, maxBytesPerPartition=str(bytes_max))
    rows_read = [
        (row["offset"], row["value"])
        for task in tasks_of(options)
        for batch in read_task(options, task, ["offset", "value"])
        for row in batch.to_pylist()
    ]
    written = rows_read_by(READERS[0], [b for base in (0, 100, 200) for b in batches_of(base)])
    assert rows_read == [(row.offset, row.value) for row in written]


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [
        ({"startingOffsets": '{"orders": {"0": 55}}'}, 55, 299),
        ({"endingOffsets": '{"orders": {"0": 105}}'}, 0, 104),
        ({"startingTimestamp": "123"}, 123, 299),
        ({"startingTimestamp": "123", "endingTimestamp": "201"}, 123, 200),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": 99}}'}, 99, 299),
        ({"endingOffsetsByTimestamp": '{"orders": {"0": 100000}}'}, 0, 299),
    ],
)
def test_offsets_and_timestamps_say_where_reading_begins_and_ends(
    archive: WrittenArchive, options: Mapping[str, str], first: int, last: int
) -> None:
    offsets_found = offsets_read(archive, **options, maxBytesPerPartition="700")
    assert offsets_found == list(range(first, last + 1))


def test_a_timestamp_after_the_last_record(archive: WrittenArchive) -> None:
    with pytest.raises(ConfigError, match="no record of orders-0 has the starting timestamp"):
        offsets_read(archive, startingTimestamp="300")
    late = {"startingTimestamp": "300", "startingOffsetsByTimestampStrategy": "latest"}
    assert offsets_read(archive, **late) == []


def test_offsets_outside_of_the_archive_are_a_loss(archive: WrittenArchive) -> None:
    beyond = {"endingOffsets": '{"orders": {"0": 301}}'}
    with pytest.raises(DataLoss, match="offset 301 is not in the archive, which has 0 to 299"):
        offsets_read(archive, **beyond)
    assert offsets_read(archive, **beyond, failOnDataLoss="false") == list(range(300))
    archive.add(batches_of(400), start=320)
    with pytest.raises(DataLoss, match="orders-0: offsets 300 to 319 are in no segment, and"):
        offsets_read(archive)
    within = {"startingOffsets": '{"orders": {"0": 320}}'}
    assert offsets_read(archive, **within) == list(range(400, 500))
    both = [*range(300), *range(400, 500)]
    assert offsets_read(archive, failOnDataLoss="false") == both


def test_partitions_have_to_be_named_all_or_none(archive: WrittenArchive) -> None:
    archive.add(batches_of(0), tp=TopicIdPartition(UUID(int=1), "orders", 1))
    with pytest.raises(ConfigError, match="startingOffsets names partitions, but not"):
        offsets_read(archive, startingOffsets='{"orders": {"0": 5}}')
    with pytest.raises(ConfigError, match=r"names offset 5 of .*, which has no archived records"):
        offsets_read(archive, startingOffsets='{"orders": {"0": 5, "1": 5, "2": 5}}')
    assert len(offsets_read(archive, startingOffsets='{"orders": {"0": 5, "1": -2}}')) == 395


def test_partitions_and_topics_without_a_record_may_be_named(archive: WrittenArchive) -> None:
    async def describe(*topics: TopicDescription) -> None:
        async with RemoteStorage(FilesystemObjectStore(archive.folder)) as storage:
            for one in topics:
                await storage.objects.put_topic_description(
                    one.topic_id, encode_topic_description(one)
                )

    def assigned(*numbers: int) -> dict[str, str]:
        return {"topics": "", "assign": json.dumps({"orders": numbers})}

    with pytest.raises(ConfigError, match="assign names partition 2"):
        offsets_read(archive, **assigned(0, 2))
    described = TopicDescription(TP.topic_id, "orders", 3), TopicDescription(UUID(int=9), "new", 1)
    asyncio.run(describe(*described))
    assert offsets_read(archive, **assigned(0, 2)) == list(range(300))
    assert offsets_read(archive, topics="new") == []
    with pytest.raises(ConfigError, match="assign names partition 3"):
        offsets_read(archive, **assigned(0, 3))


def test_a_topics_last_incarnation_counts(archive: WrittenArchive) -> None:
    again = TopicIdPartition(UUID(int=2), "orders", 0)
    archive.add(batches_of(0, count=1), tp=again, event_timestamp_ms=1)
    assert offsets_read(archive) == list(range(10))


def test_read_committed(tmp_path: Path) -> None:
    archive = WrittenArchive(tmp_path)
    data: dict[str, Any] = {"producer_id": 7, "transactional": True}
    archive.add(
        [*batches_of(0, 2, **data), *batches_of(20, 1), marker(30, 7, 0), *batches_of(31, 1)],
        aborted=[AbortedTxn(0, 30, 7, 31)],
        interval_bytes=1,
    )
    every = [*range(30), *range(31, 41)]
    assert offsets_read(archive) == every
    for bytes_max in ("200", "100000"):
        offsets_found = offsets_read(
            archive, isolationLevel="read_committed", maxBytesPerPartition=bytes_max
        )
        assert offsets_found == every[20:]


def test_rows_are_filtered_by_timestamp(archive: WrittenArchive) -> None:
    options = options_of(archive)
    [task] = tasks_of(options)
    batches = read_task(options, task, ["offset"], RowLimits(timestamp_min=50, timestamp_max=61))
    assert [o for b in batches for o in b.column(0).to_pylist()] == list(range(50, 62))


def test_planning_from_an_archivers_cache_files(archive: WrittenArchive, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    with SegmentMetadataCache(folder) as cache:
        file = cache.file(TP)
        file.load()
        file.append(archive.segments, 3)
        # The archiver's, who still has the folder, and may be writing.
        assert offsets_read(archive, metadataCacheDir=str(folder)) == list(range(300))
    with pytest.raises(ConfigError, match="no such folder"):
        offsets_read(archive, metadataCacheDir=str(tmp_path / "none"))


# --- what goes wrong ---


def damage(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(bytes(content))


def test_a_corrupt_batch_is_named(archive: WrittenArchive) -> None:
    path = archive.path(archive.segments[1], SegmentFile.LOG)
    damage(path, len(batches_of(100)[0]) + 65)
    with pytest.raises(CorruptSegment) as raised:
        offsets_read(archive)
    place = len(batches_of(100)[0])
    assert f"orders-0, offset 110: {path.relative_to(archive.folder)}, byte {place}" in str(
        raised.value
    )


def test_corrupt_batches_are_skipped_and_counted(archive: WrittenArchive, tmp_path: Path) -> None:
    path = archive.path(archive.segments[1], SegmentFile.LOG)
    sizes = [len(batch) for batch in batches_of(100)]
    damage(path, sizes[0] + 65)  # a record of the second
    damage(path, sum(sizes[:4]) + 16)  # the magic of the fifth
    report = tmp_path / "report"
    offsets_found = offsets_read(archive, corruptBatches="skip", corruptReport=str(report))
    lost = set(range(300)) - set(offsets_found)
    assert set(range(110, 120)) | set(range(140, 150)) <= lost
    assert len(lost) <= 60  # behind a broken header up to the next index border
    lines = [json.loads(line) for f in report.iterdir() for line in f.read_text().splitlines()]
    assert [line["offset"] for line in lines] == [110, 140]
    assert all(line["topic"] == "orders" and line["partition"] == 0 for line in lines)
    assert {line["object"] for line in lines} == {str(path.relative_to(archive.folder))}


def test_a_base_offset_that_is_wrong_is_seen(archive: WrittenArchive) -> None:
    """It is not under the checksum."""
    path = archive.path(archive.segments[0], SegmentFile.LOG)
    damage(path, sum(len(batch) for batch in batches_of(0)[:3]) + 1)
    with pytest.raises(CorruptSegment, match="where others belong"):
        offsets_read(archive)
    offsets_found = offsets_read(archive, corruptBatches="skip")
    assert offsets_found == [*range(30), *range(40, 300)]


def test_a_log_that_ends_early(archive: WrittenArchive) -> None:
    path = archive.path(archive.segments[2], SegmentFile.LOG)
    path.write_bytes(path.read_bytes()[: -len(batches_of(200)[-1])])
    with pytest.raises(CorruptSegment, match="the log ends, its index goes on"):
        offsets_read(archive)
    assert offsets_read(archive, corruptBatches="skip") == list(range(290))


def test_what_is_passed_over_is_counted(archive: WrittenArchive) -> None:
    """A damaged record, a broken header, a log that ends early, a missing object."""

    def counted(**options: str) -> tuple[int, SkippedRecords]:
        skipped_records = SkippedRecords()
        offsets_found = offsets_read(archive, skipped_records=skipped_records, **options)
        return 300 - len(offsets_found), skipped_records

    assert counted(corruptBatches="skip") == (0, SkippedRecords())
    path = archive.path(archive.segments[1], SegmentFile.LOG)
    sizes = [len(batch) for batch in batches_of(100)]
    damage(path, sizes[0] + 65)
    lost, records_skipped = counted(corruptBatches="skip")
    assert (lost, records_skipped) == (10, SkippedRecords(faults=1, records=10))
    damage(path, sum(sizes[:4]) + 16)
    lost, records_skipped = counted(corruptBatches="skip")
    assert records_skipped == SkippedRecords(faults=2, records=lost)
    last = archive.path(archive.segments[2], SegmentFile.LOG)
    last.write_bytes(last.read_bytes()[: -len(batches_of(200)[-1])])
    lost, records_skipped = counted(corruptBatches="skip")
    assert records_skipped == SkippedRecords(faults=3, records=lost)
    archive.path(archive.segments[0], SegmentFile.LOG).unlink()
    lost, records_skipped = counted(corruptBatches="skip", failOnDataLoss="false")
    assert records_skipped == SkippedRecords(faults=4, records=lost)


@pytest.mark.parametrize("file", [SegmentFile.LOG, SegmentFile.INDEX])
def test_a_missing_object_is_named(archive: WrittenArchive, file: SegmentFile) -> None:
    path = archive.path(archive.segments[1], file)
    path.unlink()
    with pytest.raises(ObjectNotFound, match="orders-0, offsets 100 to 199: ") as raised:
        offsets_read(archive)
    assert str(path.relative_to(archive.folder)) in str(raised.value)
    offsets_found = offsets_read(archive, failOnDataLoss="false")
    assert offsets_found == [*range(100), *range(200, 300)]


@pytest.mark.parametrize("fails", ["true", "false"])
@pytest.mark.parametrize("deleted", [[SegmentFile.LOG], list(SegmentFile)])
def test_segments_that_were_merged_since_they_were_planned(
    archive: WrittenArchive, deleted: list[SegmentFile], fails: str
) -> None:
    """A task may begin long after its plan. By then the archiver may have deleted its segments; the
    first object goes before the last one.
    """
    chosen = options_of(archive, failOnDataLoss=fails)
    [planned] = tasks_of(chosen)
    merged(archive, deleted)
    skipped_records = SkippedRecords()
    offsets_found = [
        offset
        for batch in read_task(
            chosen, planned, ["offset", "value"], skipped_records=skipped_records
        )
        for offset in batch.column("offset").to_pylist()
    ]
    assert offsets_found == list(range(300))
    assert skipped_records == SkippedRecords()


def test_a_piece_of_a_segment_that_was_merged_is_not_passed_over(archive: WrittenArchive) -> None:
    """Which of its records are the piece's, only the deleted index says."""
    chosen = options_of(archive, failOnDataLoss="false", maxBytesPerPartition="600")
    planned = tasks_of(chosen)
    merged(archive, list(SegmentFile))
    with pytest.raises(ObjectNotFound, match="another segment has replaced it; run it again"):
        list(read_task(chosen, planned[1], ["offset"]))


def test_what_retention_has_deleted_since_it_was_planned(archive: WrittenArchive) -> None:
    chosen = options_of(archive, failOnDataLoss="false")
    [planned] = tasks_of(chosen)
    for file in SegmentFile:
        archive.path(archive.segments[0], file).unlink(missing_ok=True)
    skipped_records = SkippedRecords()
    batches_read = list(read_task(chosen, planned, ["offset"], skipped_records=skipped_records))
    assert [o for batch in batches_read for o in batch.column("offset").to_pylist()] == [
        *range(100, 300)
    ]
    assert skipped_records == SkippedRecords(faults=1, records=100)
    failing = options_of(archive)
    with pytest.raises(ObjectNotFound, match="orders-0, offsets 0 to 99: "):
        list(read_task(failing, planned, ["offset"]))


def merged(archive: WrittenArchive, deleted: list[SegmentFile]) -> None:
    """The archiver has deleted these objects of the first two segments, metadata last."""
    old = archive.segments[:2]
    archive.add([*batches_of(0), *batches_of(100)])
    for metadata in old:
        hidden = metadata.with_state(RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1)
        archive.path(metadata, SegmentFile.METADATA).write_bytes(encode_segment(hidden))
        for file in deleted:
            archive.path(metadata, file).unlink(missing_ok=True)


@pytest.mark.parametrize("file", [SegmentFile.INDEX, SegmentFile.TXN])
def test_a_damaged_index_is_named_with_what_helps(tmp_path: Path, file: SegmentFile) -> None:
    archive = WrittenArchive(tmp_path)
    data: dict[str, Any] = {"producer_id": 7, "transactional": True}
    archive.add([*batches_of(0, 1, **data), marker(10, 7, 0)], aborted=[AbortedTxn(0, 10, 7, 11)])
    archive.add(batches_of(11, 1))
    path = archive.path(archive.segments[0], file)
    path.write_bytes(path.read_bytes()[:-3])
    committed = {"isolationLevel": "read_committed"}
    with pytest.raises(CorruptSegment, match=r"verify --repair.*corruptBatches=skip") as raised:
        offsets_read(archive, **committed)
    assert f"orders-0, offsets 0 to 10: {path.relative_to(archive.folder)}: " in str(raised.value)
    skipped_records = SkippedRecords()
    options = {**committed, "corruptBatches": "skip"}
    assert offsets_read(archive, skipped_records=skipped_records, **options) == list(range(11, 21))
    assert skipped_records == SkippedRecords(faults=1, records=11)
    with pytest.raises(CorruptSegment):  # it is there, and damaged
        offsets_read(archive, **committed, failOnDataLoss="false")


def test_a_transaction_index_without_a_byte_is_damaged(tmp_path: Path) -> None:
    archive = WrittenArchive(tmp_path)
    data: dict[str, Any] = {"producer_id": 7, "transactional": True}
    archive.add([*batches_of(0, 1, **data), marker(10, 7, 0)], aborted=[AbortedTxn(0, 10, 7, 11)])
    path = archive.path(archive.segments[0], SegmentFile.TXN)
    path.write_bytes(b"")
    with pytest.raises(CorruptSegment, match=f"{path.name}: no entry"):
        offsets_read(archive, isolationLevel="read_committed")
    assert offsets_read(archive) == list(range(10))


@pytest.mark.parametrize("file", [SegmentFile.LOG, SegmentFile.INDEX])
def test_an_object_that_the_store_does_not_give_out_is_named_and_passed_over(
    archive: WrittenArchive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: SegmentFile
) -> None:
    """As one that was moved to a cold storage class."""
    key = str(archive.path(archive.segments[1], file).relative_to(archive.folder))
    withheld(monkeypatch, key)
    message = f"orders-0, offsets 100 to 199: {key}.*GLACIER: restore it.*corruptBatches=skip"
    with pytest.raises(ObjectNotReadable, match=message):
        offsets_read(archive)
    for number, option in enumerate(({"corruptBatches": "skip"}, {"failOnDataLoss": "false"})):
        skipped_records, report = SkippedRecords(), tmp_path / f"report-{number}"
        offsets_found = offsets_read(
            archive, skipped_records=skipped_records, corruptReport=str(report), **option
        )
        assert offsets_found == [*range(100), *range(200, 300)]
        assert skipped_records == SkippedRecords(faults=1, records=100)
        [line] = [json.loads(text) for f in report.iterdir() for text in f.read_text().splitlines()]
        assert (line["object"], line["offset"], line["byte"]) == (key, 100, None)


def withheld(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """Reads of one object fail as those of a store that does not give it out."""
    begin = task_reader._TaskReading._begin

    def begin_or_refuse(reading: Any, what: str, read_object: Any) -> Any:
        async def refused() -> bytes:
            raise ObjectNotReadable("GLACIER: restore it")

        return begin(reading, what, refused if key in what else read_object)

    monkeypatch.setattr(task_reader._TaskReading, "_begin", begin_or_refuse)


def test_what_skip_leaves_out_is_what_verify_calls_damaged(tmp_path: Path) -> None:
    """Each byte of a batch in turn. Records that nobody can read, below a right checksum, are none:
    the broker has them so."""
    size = len(batches_of(10, 1)[0])
    for byte in (0, 7, 9, 11, 16, 18, 22, 24, 30, 45, 58, 60, 70, size - 1):
        archive = WrittenArchive(tmp_path / str(byte))
        archive.add(batches_of(0, 3))
        path = archive.path(archive.segments[0], SegmentFile.LOG)
        damage(path, len(batches_of(0, 1)[0]) + byte)
        report = tmp_path / f"report-{byte}"
        offsets_read(archive, corruptBatches="skip", corruptReport=str(report))
        skipped = [
            json.loads(text) for f in report.iterdir() for text in f.read_text().splitlines()
        ]
        positions = {fault.byte_position for fault in faults_of(archive)}
        assert {line["byte"] for line in skipped} <= positions, byte


def faults_of(archive: WrittenArchive) -> list[Condition]:
    config = load_config(None, {}, [Setting("store.url", archive.url, "test")])
    return list(verify(Here(), config).report.faults)


def test_records_that_nobody_can_read_are_no_damage(tmp_path: Path) -> None:
    archive = WrittenArchive(tmp_path)
    unreadable = bytearray(made_batch(10, [Record(value=bytes(20))] * 10))
    unreadable[61] = 0xFE  # the first record's length
    archive.add([*batches_of(0, 1), reseal(unreadable), *batches_of(20, 1)])
    assert faults_of(archive) == []
    chosen = options_of(archive, corruptBatches="skip")
    [task] = tasks_of(chosen)
    with pytest.raises(CorruptSegment, match=r"orders-0, offset 10: .*no Kafka client can read"):
        list(read_task(chosen, task, ["offset", "value"]))
    assert offsets_read(archive) == list(range(30))  # nobody asks for the records
    lenient, skipped_records = options_of(archive, failOnDataLoss="false"), SkippedRecords()
    batches_read = list(
        read_task(lenient, task, ["offset", "value"], skipped_records=skipped_records)
    )
    assert [o for b in batches_read for o in b.column("offset").to_pylist()] == [
        *range(10),
        *range(20, 30),
    ]
    assert skipped_records == SkippedRecords(faults=1, records=10)


@pytest.mark.parametrize("codec", CODECS[1:])
def test_a_batch_that_is_too_large_to_unpack_is_no_damage(tmp_path: Path, codec: int) -> None:
    archive = WrittenArchive(tmp_path)
    size = len(batches_of(0, 1)[0])
    large = [Record(value=bytes(15_000))] * 10
    archive.add([*batches_of(0, 1), made_batch(10, large, codec=codec), *batches_of(20, 1)])
    assert faults_of(archive) == []
    limit = {"maxUnpackedBytes": "150000", "corruptBatches": "skip"}
    chosen = options_of(archive, **limit)
    [task] = tasks_of(chosen)
    with pytest.raises(
        RecordsTooLarge,
        match=f"^orders-0, offsets 10 to 19: .*, byte {size}: .*too large to unpack here.*"
        r"maxUnpackedBytes=150000 .*failOnDataLoss=false",
    ):
        list(read_task(chosen, task, ["offset", "value"]))
    assert offsets_read(archive, **limit) == list(range(30))  # nobody asks for the records
    report = tmp_path / "report"
    more = {"failOnDataLoss": "false", "corruptReport": str(report)}
    for options, left_out in (
        (options_of(archive, **limit, **more), SkippedRecords(1, 10)),
        (chosen, SkippedRecords(0, 10, [(10, 19)])),
    ):
        skipped_records = SkippedRecords(too_large=None if left_out.too_large is None else [])
        batches_read = list(
            read_task(options, task, ["offset", "value"], skipped_records=skipped_records)
        )
        offsets = [o for b in batches_read for o in b.column("offset").to_pylist()]
        assert offsets == [*range(10), *range(20, 30)]
        assert skipped_records == left_out
    [line] = [json.loads(text) for f in report.iterdir() for text in f.read_text().splitlines()]
    assert (line["offset"], line["byte"]) == (10, size)
    whole = options_of(archive, maxUnpackedBytes="160000")
    assert sum(b.num_rows for b in read_task(whole, task, ["value"])) == 30


def test_a_range_of_a_large_batch_is_alone_and_free_before_its_rows_are_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_reader, "TASK_RANGE_BYTES", 1_000)
    monkeypatch.setattr(task_reader, "LARGE_RANGE_BYTES", 10_000)
    archive = WrittenArchive(tmp_path)
    sizes = [10, 20_000, 20_001, 10, 10]
    archive.add(made_batch(n, [Record(value=bytes(size))]) for n, size in enumerate(sizes))
    chosen = options_of(archive)
    [task] = tasks_of(chosen)
    contents: list[weakref.ref[Any]] = []
    fetch = RemoteStorageManager.fetch_log_segment

    class TrackedBytes(bytearray):
        """Bytes have no weak references."""

    async def watched(*arguments: Any) -> bytearray:
        content = TrackedBytes(await fetch(*arguments))
        contents.append(weakref.ref(content))
        return content

    monkeypatch.setattr(RemoteStorageManager, "fetch_log_segment", watched)
    for batch in read_task(chosen, task, ["value"]):
        for value in batch.column("value").to_pylist():
            if len(value) > 10_000:
                assert [content() is None for content in contents] == [True] * len(contents)
                sizes.remove(len(value))
    assert sizes == [10, 10, 10]
    assert len(contents) > 2


def test_a_report_of_any_topic_has_a_name_that_files_may_have(tmp_path: Path) -> None:
    for number, topic in enumerate(("__audit", "." + "x" * 230, "y" * 231)):
        archive = WrittenArchive(tmp_path / str(number))
        archive.add(batches_of(0, 1), tp=TopicIdPartition(TP.topic_id, topic, 2**31 - 1))
        damage(archive.path(archive.segments[0], SegmentFile.LOG), 70)
        report = tmp_path / f"report-{number}"
        options = {"corruptBatches": "skip", "corruptReport": str(report), "topics": topic}
        assert offsets_read(archive, **options) == []
        [file] = report.iterdir()
        assert not file.name.startswith(("_", "."))


def test_a_store_that_fails_for_a_while_is_asked_again(
    archive: WrittenArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = FailingReads(monkeypatch, failures=3)
    assert offsets_read(archive) == list(range(300))
    assert failing.failures_left == 0


def test_a_store_that_goes_on_failing_ends_the_task_by_name(
    archive: WrittenArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    FailingReads(monkeypatch, failures=10**6)
    with pytest.raises(StorageUnavailable) as raised:
        offsets_read(archive, readMaxMs="400")
    assert "orders-0, offsets 0 to 99" in str(raised.value)
    assert "not read within 0.4 s; last: out of order" in str(raised.value)


class FailingReads:
    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
        self.failures_left = failures
        read_object = task_reader._TaskReading._begin

        def begin(reading: Any, what: str, ask: Any) -> Any:
            async def failing() -> bytes:
                if self.failures_left:
                    self.failures_left -= 1
                    raise StorageUnavailable("out of order")
                content: bytes = await ask()
                return content

            return read_object(reading, what, failing)

        monkeypatch.setattr(task_reader._TaskReading, "_begin", begin)


def test_reading_leaves_no_thread_behind_also_where_nobody_reads_on(
    archive: WrittenArchive,
) -> None:
    options = options_of(archive)
    for task in tasks_of(options):
        rows = read_task(options, task, ["offset"])
        next(rows)
        rows.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name == "store"]


def test_a_store_that_hangs_ends_the_task_by_name(
    archive: WrittenArchive, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that never returns, as of a dead NFS server."""

    async def hanging(*_: object) -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(RemoteStorageManager, "fetch_log_segment", hanging)
    with pytest.raises(StorageUnavailable, match=r"offsets 0 to 99.*not read within 0\.4 s"):
        offsets_read(archive, readMaxMs="400")
