"""Taking data from a broker's rolled segment file, and refusing bad files."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest
from kafka.record import MemoryRecords
from kafka.record.legacy_records import LegacyRecordBatchBuilder
from planted_archive import ABORT, COMMIT, TP, batch
from planted_log_dir import (
    plant_kafka_files,
    plant_log_dir,
    plant_partition,
    plant_segment,
    rolled,
)

from fetchproxy.errors import CorruptSegment, LogDamaged, LogDirUnusable
from fetchproxy.model import AbortedTxn, EpochStart
from fetchproxy.segments.contents import AccumulatedSegment, KafkaFiles
from fetchproxy.segments.remote_log_index import RemoteLogIndex
from fetchproxy.storage.ciphers import stream_at
from fetchproxy.writing.sources import log_dirs as rolled_segment
from fetchproxy.writing.sources.log_dirs import SegmentGone, Stopped, rolled_at, take_segment

FIRST = [batch(0), batch(10), batch(20, epoch=2)]
SECOND = [batch(30, epoch=2), batch(40, epoch=2)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = plant_partition(
        plant_log_dir(tmp_path / "logs"), epochs=(EpochStart(0, 0), EpochStart(2, 20))
    )
    plant_segment(folder, 0, FIRST)
    plant_segment(folder, 30, SECOND)
    plant_segment(folder, 50, [batch(50, epoch=2)])
    return folder


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    (tmp_path / "spool").mkdir()
    return tmp_path / "spool" / "1.log"


def take(folder: Path, position: int, spool: Path) -> AccumulatedSegment:
    return take_segment(rolled(folder, position), spool, lambda: True)[0]


def refused(folder: Path, position: int, spool: Path, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        take(folder, position, spool)
    assert not spool.exists()


def test_a_whole_segment_is_a_link_to_the_brokers_file(folder: Path, spool: Path) -> None:
    files = plant_kafka_files(folder, 0, 29)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    segment = take(folder, 0, spool)
    assert not segment.log_settled
    assert not segment.log_settled  # the broker may still truncate it
    assert os.path.samefile(segment.log, folder / f"{0:020d}.log")
    assert (segment.tp, segment.start_offset, segment.end_offset) == (TP, 0, 29)
    assert segment.size_bytes == sum(map(len, FIRST))
    assert segment.leader_epochs == (EpochStart(0, 0), EpochStart(2, 20))
    assert segment.max_timestamp_ms == 29
    assert segment.aborted == ()
    RemoteLogIndex.parse(segment.index.encoded("k")).check_covers(29, segment.size_bytes)
    assert segment.kafka_files == KafkaFiles(*files)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


@pytest.mark.parametrize("position", [10, 14])
def test_from_a_position_inside_only_what_is_wanted_is_copied(
    folder: Path, spool: Path, position: int
) -> None:
    """A log start may be inside a batch: that batch comes whole."""
    _, _, snapshot = plant_kafka_files(folder, 0, 29)
    taken = take(folder, position, spool)
    content = b"".join(FIRST[1:])
    assert (taken.log_settled, taken.size_bytes) == (True, len(content))
    assert taken.log.read_bytes() == content
    assert (taken.start_offset, taken.end_offset) == (position, 29)
    assert taken.leader_epochs == (EpochStart(0, position), EpochStart(2, 20))
    RemoteLogIndex.parse(taken.index.encoded("k")).check_covers(29, len(content))
    assert taken.kafka_files == KafkaFiles(producer_snapshot=snapshot)


async def test_the_crc_is_that_of_the_held_file(folder: Path, spool: Path) -> None:
    segment = take(folder, 0, spool)
    await segment.check_log()
    with (folder / f"{0:020d}.log").open("r+b") as file:
        file.truncate(len(FIRST[0]))  # as a broker that follows another leader's log
    with pytest.raises(CorruptSegment, match="has changed"):
        await segment.check_log()


async def test_a_held_file_outlives_the_brokers(folder: Path, spool: Path) -> None:
    segment = take(folder, 0, spool)
    (folder / f"{0:020d}.log").unlink()
    await segment.check_log()


def test_without_links_it_is_copied(
    folder: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_link(source: Path, target: Path) -> None:
        raise PermissionError("fs.protected_hardlinks")

    monkeypatch.setattr(os, "link", no_link)
    taken = take(folder, 30, spool)
    assert (taken.log_settled, taken.size_bytes) == (True, sum(map(len, SECOND)))
    assert spool.read_bytes() == b"".join(SECOND)
    assert not os.path.samefile(spool, folder / f"{30:020d}.log")


def test_deleted_while_it_is_read_it_is_copied(
    folder: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rolled_segment, "_BLOCK_BYTES", 1)  # check the file after each batch
    looks: list[int] = []

    def delete_soon() -> bool:
        looks.append(1)
        if len(looks) == 2:
            (folder / f"{0:020d}.log").unlink()
        return True

    taken, _ = take_segment(rolled(folder, 0), spool, delete_soon)
    assert spool.read_bytes() == b"".join(FIRST)
    assert (taken.log_settled, taken.size_bytes) == (True, len(spool.read_bytes()))
    assert taken.end_offset == 29


@pytest.mark.parametrize("position", [0, 10], ids=["another file system", "a part of the file"])
def test_a_copy_in_the_spool_is_encrypted(
    folder: Path, spool: Path, monkeypatch: pytest.MonkeyPatch, position: int
) -> None:
    """Only where segments are encrypted: the spool may be on another disk than the broker's."""

    def other_file_system(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", other_file_system)
    key, content = bytes(range(32)), b"".join(FIRST[position // 10 :])
    segment, _ = take_segment(rolled(folder, position), spool, lambda: True, key)
    stored = spool.read_bytes()
    assert segment.stream_key == key
    assert stored != content
    assert stream_at(key, 0).update(stored) == content
    asyncio.run(segment.check_log())


def test_changed_between_the_check_and_the_copy(
    folder: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(*_: object) -> None:
        plant_segment(folder, 0, [batch(0), batch(10, txn=3), batch(20, epoch=2)])
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", change)
    refused(folder, 0, spool, CorruptSegment, "has changed while it was copied")


def test_deleted_before_it_is_opened(folder: Path, spool: Path) -> None:
    segment = rolled(folder, 0)
    segment.file.unlink()
    with pytest.raises(SegmentGone):
        take_segment(segment, spool, lambda: True)


def test_a_transaction_index_that_goes_is_not_an_empty_one(tmp_path: Path, spool: Path) -> None:
    """Without it, transactions that abort later would be archived as not aborted."""
    folder = plant_partition(plant_log_dir(tmp_path / "logs"))
    plant_segment(folder, 0, [batch(0, txn=7)])
    marker = [batch(10, txn=7, control=ABORT)]
    later = plant_segment(folder, 10, marker, [AbortedTxn(0, 10, 7, 11)])
    plant_segment(folder, 11, [batch(11)])
    segment = rolled(folder, 0)
    later.with_suffix(".txnindex").unlink()
    with pytest.raises(SegmentGone):
        take_segment(segment, spool, lambda: True)


def test_a_lost_spool_folder_is_an_error_of_the_disk(folder: Path, spool: Path) -> None:
    spool.parent.rmdir()
    with pytest.raises(FileNotFoundError):
        take(folder, 0, spool)


def test_truncated_while_it_is_read(
    folder: Path, spool: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also inside the next batch: the reader must not wait for bytes that never come."""
    monkeypatch.setattr(rolled_segment, "_BLOCK_BYTES", 1)
    for bytes_left in (len(FIRST[0]), len(FIRST[0]) + 5, len(FIRST[0]) + 80):
        plant_segment(folder, 0, FIRST)

        def cut(bytes_left: int = bytes_left) -> bool:
            os.truncate(folder / f"{0:020d}.log", bytes_left)
            return True

        with pytest.raises(LogDirUnusable, match=f"has {bytes_left} bytes now"):
            take_segment(rolled(folder, 0), spool, cut)
        assert not spool.exists()


def test_it_stops_when_told(folder: Path, spool: Path) -> None:
    with pytest.raises(Stopped):
        take_segment(rolled(folder, 0), spool, lambda: False)
    assert not spool.exists()


def test_aborted_transactions_reach_over_segments(tmp_path: Path, spool: Path) -> None:
    folder = plant_partition(plant_log_dir(tmp_path / "logs"))
    ended_here = AbortedTxn(0, 20, 7, 10)
    ended_later = AbortedTxn(10, 40, 8, 41)
    first_log = [batch(0, txn=7), batch(10, txn=8), batch(20, txn=7, control=ABORT)]
    plant_segment(folder, 0, first_log, [ended_here])
    plant_segment(folder, 21, [batch(21, txn=9)])
    plant_segment(
        folder,
        31,
        [batch(31, records=9), batch(40, txn=8, control=ABORT), batch(41, txn=9, control=COMMIT)],
        [ended_later],
    )
    plant_segment(folder, 42, [batch(42)])
    first = take(folder, 0, spool)
    assert first.aborted == (AbortedTxn(0, 20, 7, 10), AbortedTxn(10, 20, 8, 21))
    # No record of it is here, and still it overlaps.
    assert take(folder, 21, spool.with_name("2")).aborted == (AbortedTxn(10, 30, 8, 31),)
    assert take(folder, 31, spool.with_name("3")).aborted == (AbortedTxn(10, 40, 8, 41),)


def test_an_entry_that_is_being_appended_is_left_for_later(tmp_path: Path, spool: Path) -> None:
    folder = plant_partition(plant_log_dir(tmp_path / "logs"))
    plant_segment(folder, 0, [batch(0, txn=7)])
    active = plant_segment(folder, 10, [batch(10)], [AbortedTxn(0, 20, 7, 21)])
    index = active.with_suffix(".txnindex")
    index.write_bytes(index.read_bytes() + b"\x00\x00\x00")
    assert take(folder, 0, spool).aborted == (AbortedTxn(0, 9, 7, 10),)


@pytest.mark.parametrize(
    "entries", [[], [AbortedTxn(0, 10, 7, 2), AbortedTxn(2, 10, 8, 11)]], ids=["lacks", "invents"]
)
def test_a_transaction_index_that_contradicts_the_markers_is_refused(
    tmp_path: Path, spool: Path, entries: list[AbortedTxn]
) -> None:
    folder = plant_partition(plant_log_dir(tmp_path / "logs"))
    plant_segment(folder, 0, [batch(0, txn=7), batch(10, txn=7, control=ABORT)], entries)
    plant_segment(folder, 11, [batch(11)])
    refused(folder, 0, spool, CorruptSegment, "transaction index")


def test_a_wrong_byte_is_found(folder: Path, spool: Path) -> None:
    log = folder / f"{0:020d}.log"
    content = bytearray(log.read_bytes())
    content[len(FIRST[0]) + 80] ^= 1
    log.write_bytes(content)
    refused(folder, 0, spool, CorruptSegment, f"offset 10, byte {len(FIRST[0])}, fails its CRC")


def old(magic: int, first: int, count: int, codec: int = 0) -> bytes:
    """One compressed message, or a message for each offset."""
    if not codec and count > 1:
        return b"".join(old(magic, offset, 1) for offset in range(first, first + count))
    builder = LegacyRecordBatchBuilder(magic, codec, 1 << 20)
    for inside in range(count):
        at = inside if codec and magic else first + inside
        builder.append(at, 1_000 + first + inside, b"key", b"%d" % (first + inside))
    message = bytearray(builder.build())
    message[:8] = (first + count - 1).to_bytes(8, "big")
    return bytes(message)


def found_rows(records: bytes) -> list[tuple[int, int | None, bytes | None]]:
    batches: Any = MemoryRecords(records)
    found_records = []
    while (one := batches.next_batch()) is not None:
        found_records += [(record.offset, record.timestamp, record.value) for record in one]
    return found_records


OLD = [old(0, 0, 5), old(0, 5, 5, codec=1), old(1, 10, 5), old(1, 15, 5, codec=1)]


@pytest.mark.parametrize("position", [0, 3, 17, 22])
@pytest.mark.parametrize("block_bytes", [1, 200, 1 << 22])
def test_old_message_formats_become_batches(
    folder: Path,
    spool: Path,
    monkeypatch: pytest.MonkeyPatch,
    block_bytes: int,
    position: int,
) -> None:
    """As the source that fetches does; batches of v2 in the same file stay as they are."""
    monkeypatch.setattr(rolled_segment, "_BLOCK_BYTES", block_bytes)
    plant_segment(folder, 0, [*OLD, batch(20, epoch=2)])
    plant_kafka_files(folder, 0, 29)
    key = bytes(range(32))
    segment, _ = take_segment(rolled(folder, position), spool, lambda: True, key)
    assert (segment.start_offset, segment.end_offset) == (position, 29)
    assert segment.log_settled
    taken = stream_at(key, 0).update(spool.read_bytes())
    assert len(taken) == segment.size_bytes
    messages = found_rows(taken.removesuffix(batch(20, epoch=2)))
    assert [row for row in messages if position <= row[0]] == [
        (offset, -1 if offset < 10 else 1_000 + offset, b"%d" % offset)
        for offset in range(position, 20)
    ]
    assert taken.endswith(batch(20, epoch=2))
    assert (segment.kafka_files.offset_index, segment.kafka_files.time_index) == (None, None)
    RemoteLogIndex.parse(segment.index.encoded("k")).check_covers(29, segment.size_bytes)
    asyncio.run(segment.check_log())


def test_before_and_after_a_damaged_message_of_an_old_format(folder: Path, spool: Path) -> None:
    """`log_damaged`, as from the source that fetches; its remedy, a later log start, helps."""
    damaged = bytearray(b"".join(OLD))
    damaged[len(OLD[0]) + 30] ^= 1
    plant_segment(folder, 0, [bytes(damaged), batch(20, epoch=2)])
    plant_kafka_files(folder, 0, 29)
    before = take(folder, 0, spool)
    assert (before.start_offset, before.end_offset) == (0, 4)
    assert found_rows(spool.read_bytes()) == [(n, -1, b"%d" % n) for n in range(5)]
    assert before.kafka_files == KafkaFiles()
    spool.unlink()
    refused(folder, 5, spool, LogDamaged, "at or after offset 5: the message at offset 9 fails its")
    assert (take(folder, 10, spool).start_offset, spool.stat().st_size > 0) == (10, True)


@pytest.mark.parametrize(
    ("batches", "error", "match"),
    [
        ([batch(0), batch(5), batch(15), batch(20, epoch=2)], CorruptSegment, "begins at offset 5"),
        ([batch(0), batch(10)], LogDirUnusable, "ends before offset 20"),
        ([*FIRST, bytes(30)], CorruptSegment, "magic 0"),
        ([*FIRST, batch(30)[:70]], LogDirUnusable, "ends inside the batch"),
        ([*FIRST, batch(30)[:30]], LogDirUnusable, "30 bytes that are not a batch"),
        ([], LogDirUnusable, "ends before offset 0"),
    ],
)
def test_a_file_that_is_not_the_segment_is_refused(
    folder: Path, spool: Path, batches: list[bytes], error: type[Exception], match: str
) -> None:
    plant_segment(folder, 0, batches)
    refused(folder, 0, spool, error, match)


def test_epochs_that_are_not_in_the_checkpoint_do_not_count(folder: Path, spool: Path) -> None:
    """Kafka serves such batches too: a cluster that was set up anew around its logs."""
    plant_segment(folder, 0, [batch(0), batch(10), batch(20, epoch=1)])
    segment = take(folder, 0, spool)
    assert segment.leader_epochs == (EpochStart(-1, 0),)
    assert segment.end_offset == 29


def test_holes_that_compaction_has_left_are_taken_as_they_are(folder: Path, spool: Path) -> None:
    batches = [batch(0), batch(20, epoch=2)]
    plant_segment(folder, 0, batches)
    assert take(folder, 0, spool).log.read_bytes() == b"".join(batches)


def test_indexes_that_do_not_fit_are_left_out(folder: Path, spool: Path) -> None:
    _, times, _ = plant_kafka_files(folder, 0, 29)
    (folder / f"{0:020d}.index").write_bytes(bytes(16))
    (folder / f"{30:020d}.snapshot").write_bytes(bytes(40))
    assert take(folder, 0, spool).kafka_files == KafkaFiles(time_index=times)


def test_a_segment_that_begins_inside_the_first_batch_has_no_indexes(
    folder: Path, spool: Path
) -> None:
    """DeleteRecords may cut there. Indexes count from the file's base offset."""
    _, _, snapshot = plant_kafka_files(folder, 0, 29)
    segment = take(folder, 5, spool)
    assert (segment.start_offset, segment.log.read_bytes()) == (5, b"".join(FIRST))
    assert segment.kafka_files == KafkaFiles(producer_snapshot=snapshot)


def test_only_inactive_segments_are_found() -> None:
    assert rolled_at((0, 30, 50), 0) == (0, 30)
    assert rolled_at((0, 30, 50), 49) == (30, 50)
    assert rolled_at((0, 30, 50), 50) is None
    assert rolled_at((30, 50), 10) is None
    assert rolled_at((), 0) is None
