"""An archive in another store: what is copied, what is not, and which of two places it is at."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest
from kills_between_writes import Writes, is_killed
from mirrors import deleted, filled, layout, mirrored, more, objects, partition, url_of
from planted_archive import TP, PlantedArchive, batch, flip
from stored_archives import PREFIX, config_of
from written_archive import WrittenArchive

from fetchproxy.archive import for_executors, wall_clock_ms
from fetchproxy.auditing import moving
from fetchproxy.auditing.mirroring import MirrorOptions, PartitionMirror, open_side
from fetchproxy.cli.segments import read_archive
from fetchproxy.config.schema import Config
from fetchproxy.errors import ArchiveMismatch, ArchiveMissing, ConfigError, DamagedObject
from fetchproxy.jobs.merge import MergeOptions, merge
from fetchproxy.jobs.mirror import MirrorStores, mirror, mirror_work
from fetchproxy.jobs.runner import Here
from fetchproxy.jobs.verify import verify
from fetchproxy.model import RemoteLogSegmentState, TopicIdPartition
from fetchproxy.segments.description import decode_segment, encode_segment
from fetchproxy.segments.object_keys import (
    LAYOUT_OBJECT,
    SegmentFile,
    continued_topic_key,
    is_key,
)
from fetchproxy.storage.archive_identity import ArchiveIdentity, HandedOver, encode_identity
from fetchproxy.storage.key_rings import NO_KEYS, FileKeyRing, write_keys
from fetchproxy.storage.packed_logs import AtRest
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.writing.copy_pace import CopyPace
from fetchproxy.writing.spool import Spool

SEGMENT_SUFFIXES = (".log", ".index", ".epochs", ".metadata")
DELETION = RemoteLogSegmentState.DELETE_SEGMENT_STARTED


@pytest.fixture
def a(tmp_path: Path) -> Path:
    return tmp_path / "a"


@pytest.fixture
def b(tmp_path: Path) -> Path:
    return tmp_path / "b"


@pytest.fixture
async def archive(a: Path) -> PlantedArchive:
    return await filled(a)


@pytest.fixture(autouse=True)
def soon_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Archivers of these tests beat faster."""
    monkeypatch.setattr(moving, "HEARD_WITHIN_S", 0.2)


async def delete(archive: PlantedArchive, number: int) -> None:
    """As an archiver does after retention: the log start is raised first."""
    metadata = archive.segments[number]
    tp = metadata.topic_id_partition
    await archive.storage.objects.put_log_start_offset(tp, metadata.end_offset + 1, b"")
    await archive.restate(replace(metadata, state=DELETION))
    await archive.storage.rsm.delete_log_segment_data(metadata)


# What is copied.


async def test_a_mirror_has_the_same_objects_and_a_second_run_copies_what_is_new(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    await archive.storage.objects.put_topic_cluster(TP.topic, TP.topic_id, "one")
    await archive.storage.objects.put_cluster_topics("one", b"topics")
    await archive.storage.objects.put_conditions(TP, "partition_stopped", b"{}")
    await archive.add([batch(0)], tp=partition(TP, 1))
    first = mirrored(a, b)
    assert [p.copied for p in first.partitions] == [3, 1]
    assert objects(b) == objects(a)
    again = mirrored(a, b)
    assert [(p.copied, p.bytes_copied) for p in again.partitions] == [(0, 0), (0, 0)]
    await archive.add([batch(60)])
    await archive.storage.objects.delete_conditions(TP, "partition_stopped")
    assert [p.copied for p in mirrored(a, b).partitions] == [1, 0]
    assert objects(b) == objects(a)


async def test_a_topic_that_the_copys_store_cannot_hold_is_named_before_a_record_is_copied(
    archive: PlantedArchive, a: Path, b: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long_name = TopicIdPartition(UUID(int=77), TP.topic + "x" * 50, 0)
    await archive.add([batch(0)], tp=long_name)
    room = len(TP.topic) + 25  # of a folder's name: the topic, a separator and its id
    monkeypatch.setattr(FilesystemObjectStore, "part_bytes_max", room)
    outcome = mirrored(a, b)
    [failed] = outcome.failures
    assert (failed.name, failed.retriable) == (str(long_name), False)
    assert "--to cannot hold this topic: its name has" in failed.error
    assert [one.tp for one in outcome.partitions] == [TP], "the others are copied"
    assert not list((b / PREFIX).glob(f"{long_name.topic}*"))
    assert mirrored(a, b, cut_over=True).refused == "not everything was copied"


async def test_what_is_of_the_place_stays_there(archive: PlantedArchive, a: Path, b: Path) -> None:
    await archive.storage.objects.put_archiver_positions(TP.topic_id, b"{}")
    await archive.storage.objects.put_collected_metadata(TP.topic_id, b"{}")
    (a / PREFIX / "strangers").mkdir()
    (a / PREFIX / "strangers" / "file").write_bytes(b"x")
    mirrored(a, b)
    keys_left = objects(a).keys() - objects(b).keys()
    assert {name.partition("/")[0] for name in keys_left} == {
        "archivers",
        "collected-metadata",
        "strangers",
    }


async def test_changed_metadata_are_copied_without_the_log(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    mirrored(a, b)
    cut = archive.segments[2]
    await archive.restate(replace(cut, end_offset=49, copied_end_offset=cut.end_offset))
    await archive.state(end_offset=49)
    [outcome] = mirrored(a, b).partitions
    assert outcome.copied == 1
    assert outcome.bytes_copied < 2_000
    assert objects(b) == objects(a)


async def test_unfinished_copies_are_not_taken(archive: PlantedArchive, a: Path, b: Path) -> None:
    await archive.restate(
        replace(archive.segments[2], state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)
    )
    await archive.state(end_offset=39)
    mirrored(a, b)
    assert sum(name.endswith(".log") for name in objects(b)) == 2
    await archive.restate(archive.segments[2])
    mirrored(a, b)
    assert sum(name.endswith(".log") for name in objects(b)) == 3


async def test_what_retention_deletes_goes_in_two_steps(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    """A reader of the mirror may be at the objects: first they are only hidden."""
    mirrored(a, b)
    gone = archive.key(archive.segments[0], SegmentFile.LOG)
    await delete(archive, 0)
    assert [p.removed for p in mirrored(a, b).partitions] == [1]
    assert (b / gone).exists()
    assert not (b / archive.key(archive.segments[0], SegmentFile.METADATA)).exists()
    assert [p.removed for p in mirrored(a, b).partitions] == [3]
    assert objects(b) == objects(a)


async def test_what_the_archive_has_lost_stays_in_the_mirror(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    mirrored(a, b)
    before = objects(b)
    await archive.storage.rsm.delete_log_segment_data(archive.segments[1])  # nothing was said of it
    outcome = mirrored(a, b)
    [result] = outcome.partitions
    assert any("20 to 39" in fault.what for fault in result.faults)
    assert len(result.source_lost) == 1
    assert objects(b) == before
    assert mirrored(a, b, cut_over=True).refused == "not everything was copied"


async def test_a_partition_that_is_gone_stays_in_the_mirror(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    other = partition(TP, 1)
    segment = await archive.add([batch(0)], tp=other)
    mirrored(a, b)
    before = objects(b)
    await archive.storage.rsm.delete_log_segment_data(segment)
    await archive.storage.objects.forget_partition(other)
    assert mirrored(a, b).not_at_source == (other,)
    assert objects(b) == before


async def test_foreign_objects_at_the_target_are_left_alone(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    for name in ("stranger.txt", "photos/cat.jpg"):
        (b / PREFIX / name).parent.mkdir(parents=True, exist_ok=True)
        (b / PREFIX / name).write_bytes(b"x")
    mirrored(a, b)
    await delete(archive, 0)
    mirrored(a, b)
    assert objects(b).keys() - objects(a).keys() >= {"stranger.txt", "photos/cat.jpg"}


async def test_foreign_objects_in_the_archive_are_left_there(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    """As a file manager or another program leaves them, under names that no archive has."""
    folder = archive.storage.objects.folder(TP)
    for name in ("topics/ü", "clusters/a b", f"{folder}~lock", f"{folder}x (1).log"):
        path = a / PREFIX / name.removeprefix(f"{PREFIX}/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    outcome = mirrored(a, b)
    assert not outcome.failures
    assert [partition.faults for partition in outcome.partitions] == [[]]
    assert outcome.partitions[0].copied == 3
    assert all(is_key(name) for name in objects(b))


def test_a_limit_on_bytes_a_second_is_kept(archive: PlantedArchive, a: Path, b: Path) -> None:
    async def timed() -> float:
        clock = asyncio.get_running_loop().time
        pace, began_at = CopyPace(lambda: 10_000), clock()
        for _ in range(8):
            pace.spend(2_000)
            await pace.turn(None)
        return clock() - began_at

    assert asyncio.run(timed()) >= 0.5  # a second's worth is free
    assert mirrored(a, b, bytes_per_s=100_000).partitions[0].copied == 3
    assert objects(b) == objects(a)


# Damage.


@pytest.mark.parametrize("file", [SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS])
async def test_a_damaged_segment_is_named_and_not_copied(
    archive: PlantedArchive, a: Path, b: Path, file: SegmentFile
) -> None:
    damaged = archive.segments[1]
    await archive.change(damaged, file, flip(-3))
    outcome = mirrored(a, b)
    [result] = outcome.partitions
    assert {f"{PREFIX}/{fault.object_key}" for fault in result.faults} == {
        archive.key(damaged, file)
    }
    assert result.copied == 2
    stem = archive.key(damaged, SegmentFile.LOG).removeprefix(f"{PREFIX}/")[:-4]
    assert objects(b) == {k: v for k, v in objects(a).items() if not k.startswith(stem)}
    refused = mirrored(a, b, cut_over=True)
    assert not refused.cut_over
    assert "faults" in (refused.refused or "")
    assert "moved" not in layout(a)
    as_it_is = mirrored(a, b, cut_over=True, with_damaged=True)
    assert as_it_is.cut_over
    assert as_it_is.has_faults
    assert objects(b) == objects(a)


async def test_a_missing_log_is_named(archive: PlantedArchive, a: Path, b: Path) -> None:
    await archive.store.delete(archive.key(archive.segments[1], SegmentFile.LOG))
    [result] = mirrored(a, b).partitions
    assert any("missing" in fault.what for fault in result.faults)
    assert result.copied == 2


async def test_metadata_that_are_lost_are_named(archive: PlantedArchive, a: Path, b: Path) -> None:
    await archive.store.delete(archive.key(archive.segments[1], SegmentFile.METADATA))
    [result] = mirrored(a, b).partitions
    assert any("offsets 20 to 39" in fault.what for fault in result.faults)
    assert result.copied == 2


async def test_compare_finds_what_has_changed_in_the_mirror(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    mirrored(a, b)
    path = b / archive.key(archive.segments[1], SegmentFile.LOG)
    path.write_bytes(flip(100)(path.read_bytes()))
    assert [p.copied for p in mirrored(a, b).partitions] == [0]
    assert [p.copied for p in mirrored(a, b, compare=True).partitions] == [1]
    assert objects(b) == objects(a)


async def test_a_mirror_that_lost_an_object_gets_it_again(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    mirrored(a, b)
    (b / archive.key(archive.segments[1], SegmentFile.INDEX)).unlink()
    assert [p.copied for p in mirrored(a, b).partitions] == [1]
    assert objects(b) == objects(a)


class Shortening(FilesystemObjectStore):
    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        copy = path.with_suffix(".copy")
        copy.write_bytes(path.read_bytes()[:-1])
        await super().put_file(key, copy)


async def test_what_is_read_back_otherwise_is_not_given_metadata(
    archive: PlantedArchive, a: Path, b: Path, tmp_path: Path
) -> None:
    """The file that is compared is the one that was checked, so a store may not change it."""
    mirrored(a, b)
    await more(archive)
    async with (
        open_side(url_of(a), Config()) as source,
        open_side(url_of(b), Config()) as target,
        Spool(tmp_path / "spool") as spool,
    ):
        wrong = replace(target, store=Shortening(b / PREFIX))
        mirror = PartitionMirror(
            source, wrong, TP, spool, CopyPace(lambda: 0), MirrorOptions(), lambda done, total: None
        )
        with pytest.raises(DamagedObject, match="read back"):
            await mirror.run()
        await wrong.store.close()
    assert not (b / archive.key(archive.segments[3], SegmentFile.METADATA)).exists()
    assert [p.copied for p in mirrored(a, b).partitions] == [1]
    assert objects(b) == objects(a)


# A mirror under way.


class FirstIsSlow(FilesystemObjectStore):
    """The first segment's log arrives after the second one's. `names`: the objects put."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.names: list[str] = []
        self._second = asyncio.Event()

    async def put(self, key: str, content: bytes) -> None:
        self.names.append(key.rpartition("/")[2])
        await super().put(key, content)

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        name = key.rpartition("/")[2]
        if name.startswith("0" * 20) and name.endswith(".log"):
            await self._second.wait()
        await super().put_file(key, path, settled=settled)
        if name.startswith(f"{20:020}") and name.endswith(".log"):
            self._second.set()


async def test_notes_come_first_and_segments_in_the_order_of_offsets(
    archive: PlantedArchive, a: Path, b: Path, tmp_path: Path
) -> None:
    await archive.record_gap(100, 120)
    async with (
        open_side(url_of(a), Config()) as source,
        open_side(url_of(b), Config(), create=True) as target,
        Spool(tmp_path / "spool") as spool,
    ):
        (b / PREFIX).mkdir(parents=True)
        store = FirstIsSlow(b / PREFIX)
        mirror = PartitionMirror(
            source,
            replace(target, store=store),
            TP,
            spool,
            CopyPace(lambda: 0),
            MirrorOptions(),
            lambda done, total: None,
        )
        async with asyncio.timeout(60):
            assert (await mirror.run()).copied == 3
        notes, metadata_names = store.names[:2], store.names[2:]
        assert sorted(notes) == [f"{100:020}-{120:020}.archive-gap", "finished-offsets"]
        assert [int(name[:20]) for name in metadata_names] == [0, 20, 40]
        await store.close()
    assert objects(b) == objects(a)


async def test_verify_and_segments_say_that_a_mirror_is_one(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    mirrored(a, b)
    assert not verify(Here(), config_of(a)).report.published_conditions
    whole = verify(Here(), config_of(b))
    assert whole.report.clean
    assert whole.other_manager is None
    assert [one.kind for one in whole.report.published_conditions] == ["mirror_read"]
    _, listed = await read_archive(config_of(b), None)
    assert [one.kind for one in listed] == ["mirror_read"]
    (b / archive.key(archive.segments[1], SegmentFile.METADATA)).unlink()
    (b / archive.key(archive.segments[2], SegmentFile.METADATA)).unlink()
    (b / archive.key(archive.segments[2], SegmentFile.LOG)).unlink()
    half = verify(Here(), config_of(b)).report
    assert any("offsets 40 to 59" in fault.what for fault in half.faults)


# Which place is the archive.


async def test_one_place_is_refused(archive: PlantedArchive, a: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="same place"):
        mirrored(a, a)
    (tmp_path / "link").symlink_to(a)
    with pytest.raises(ArchiveMismatch, match="--to is not a mirror"):
        mirrored(a, tmp_path / "link")
    assert layout(a) == "remote-log-layout 1\n"


async def test_a_place_inside_the_other_is_refused(
    archive: PlantedArchive, a: Path, tmp_path: Path
) -> None:
    """What looks through one of them, or deletes all of it, meets the other."""
    source = a / PREFIX
    (tmp_path / "link").symlink_to(source)
    for to, why in (
        (source / "mirror", "--to is inside --from"),
        (source / "deep" / "mirror", "--to is inside --from"),
        (tmp_path / "link" / "mirror", "--to is inside --from"),
        (source.parent, "--from is inside --to"),
    ):
        with pytest.raises(ConfigError, match=why):
            mirror(Here(), config_of(a), to.as_uri(), MirrorOptions())
    assert not (source / "mirror").exists()
    beside = source.with_name(source.name + "-mirror")
    assert mirror(Here(), config_of(a), beside.as_uri(), MirrorOptions()).is_complete


async def test_another_archive_is_never_written_to(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    await filled(b, 1)
    before = objects(b)
    with pytest.raises(ArchiveMismatch, match="--to is not a mirror"):
        mirrored(a, b)
    (b / PREFIX / LAYOUT_OBJECT).unlink()
    with pytest.raises(ArchiveMismatch, match="has objects of an archive"):
        mirrored(a, b)
    assert objects(b) == before


async def test_a_mirror_of_another_archive_is_not_written_to(
    archive: PlantedArchive, a: Path, b: Path, tmp_path: Path
) -> None:
    for folder, number in ((a, 1), (tmp_path / "other", 2)):
        if folder != a:
            await filled(folder, 1)
        identity = ArchiveIdentity(UUID(int=number), "c", "store")
        (folder / PREFIX / LAYOUT_OBJECT).write_bytes(encode_identity(identity))
    mirrored(a, b)
    with pytest.raises(ArchiveMismatch, match="a mirror of another one"):
        mirrored(tmp_path / "other", b)
    with pytest.raises(ArchiveMismatch, match="is itself a mirror"):
        mirrored(b, tmp_path / "third")


def test_no_archive_is_no_empty_one(a: Path, b: Path) -> None:
    (a / PREFIX).mkdir(parents=True)
    with pytest.raises(ArchiveMissing):
        mirrored(a, b)
    assert not b.exists()


@pytest.mark.parametrize("manager", ["store", "topic __remote_log_metadata"])
async def test_nobody_archives_into_a_mirror(
    archive: PlantedArchive, a: Path, b: Path, manager: str
) -> None:
    mirrored(a, b)
    remote_storage = RemoteStorage(FilesystemObjectStore(b), PREFIX, manager=manager)
    async with remote_storage:
        with pytest.raises(ArchiveMismatch, match="there is a mirror at that place"):
            await remote_storage.objects.list_partitions()
        with pytest.raises(ArchiveMismatch, match="there is a mirror at that place"):
            await remote_storage.objects.put_segment_metadata(archive.segments[0], b"{}")
    async with RemoteStorage(FilesystemObjectStore(b), PREFIX, must_exist=True) as reader:
        assert await reader.objects.list_partitions() == [TP]


async def test_after_a_cut_over_the_archive_is_at_the_other_place(
    archive: PlantedArchive, a: Path, b: Path, tmp_path: Path
) -> None:
    whose = encode_identity(ArchiveIdentity(TP.topic_id, "cluster-1", "topic events"))
    (a / PREFIX / LAYOUT_OBJECT).write_bytes(whose)
    assert mirrored(a, b, cut_over=True).cut_over
    assert (b / PREFIX / LAYOUT_OBJECT).read_bytes() == whose
    running = RemoteStorage(FilesystemObjectStore(a), PREFIX, manager="topic events")
    async with running:
        with pytest.raises(ArchiveMismatch, match=f"has moved to {url_of(b)}"):
            await running.objects.list_partitions()
    assert mirrored(a, b, cut_over=True).cut_over  # nothing is left to do
    with pytest.raises(ArchiveMismatch, match="has already moved to --to"):
        mirrored(a, b)
    with pytest.raises(ArchiveMismatch, match="has moved to"):
        mirrored(a, tmp_path / "third")


async def test_a_mirror_follows_an_archive_that_was_handed_over(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    whose = ArchiveIdentity(TP.topic_id, "lost", "store")
    (a / PREFIX / LAYOUT_OBJECT).write_bytes(encode_identity(whose))
    mirrored(a, b)
    handed = replace(whose, cluster_id="new", handed_over=HandedOver("lost", 1))
    (a / PREFIX / LAYOUT_OBJECT).write_bytes(encode_identity(handed))
    record = continued_topic_key(PREFIX + "/", TP.topic, UUID(int=9), TP.topic_id)
    (a / record).parent.mkdir(parents=True)
    (a / record).write_bytes(b"{}")

    mirrored(a, b)

    assert b"cluster-id new\n" in (b / PREFIX / LAYOUT_OBJECT).read_bytes()
    assert (b / record).read_bytes() == b"{}"
    assert mirrored(a, b, cut_over=True).cut_over
    assert (b / PREFIX / LAYOUT_OBJECT).read_bytes() == encode_identity(handed)


async def test_an_archiver_that_is_heard_refuses_the_cut_over(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    path = a / archive.storage.objects.archiver_positions_key(TP.topic_id)
    path.parent.mkdir()
    ended = threading.Event()

    def beat() -> None:
        number = 0
        while not ended.wait(0.02):
            number += 1
            path.write_text(f"{number:08d}")

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(ArchiveMismatch, match="an archiver is still running"):
            mirrored(a, b, cut_over=True)
    finally:
        ended.set()
        beating.join()
    assert layout(a) == "remote-log-layout 1\n"
    assert mirrored(a, b, cut_over=True).cut_over  # the object of one that was killed is silent


# What is deleted at the old place.


async def test_the_old_place_is_emptied_after_the_grace(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    (a / PREFIX / "stranger.txt").write_bytes(b"x")
    await archive.storage.objects.put_topic_cluster(TP.topic, TP.topic_id, "one")
    with pytest.raises(ArchiveMismatch, match="has not moved"):
        deleted(a, b)
    before = objects(a)
    mirrored(a, b, cut_over=True)
    waits = deleted(a, b, grace_ms=60_000)
    assert 50_000 < waits.wait_ms <= 60_000
    assert objects(a) == before
    outcome = deleted(a, b)
    assert outcome.is_complete
    assert objects(a) == {"stranger.txt": b"x"}
    assert not (a / PREFIX / LAYOUT_OBJECT).exists()
    assert objects(b).keys() | {"stranger.txt"} == before.keys()


@pytest.mark.parametrize("file", [SegmentFile.LOG, SegmentFile.EPOCHS])
async def test_nothing_is_deleted_of_what_the_new_place_has_otherwise(
    archive: PlantedArchive, a: Path, b: Path, file: SegmentFile
) -> None:
    mirrored(a, b, cut_over=True)
    path = b / archive.key(archive.segments[1], file)
    path.write_bytes(flip(-2)(path.read_bytes()))
    outcome = deleted(a, b)
    assert not outcome.is_complete
    stem = archive.key(archive.segments[1], SegmentFile.LOG)[:-4].removeprefix(f"{PREFIX}/")
    assert {name for name in objects(a) if name.endswith(SEGMENT_SUFFIXES)} == {
        f"{stem}{suffix}" for suffix in SEGMENT_SUFFIXES
    }
    assert "moved" in layout(a)


async def test_nothing_is_deleted_where_the_new_place_has_lost_something(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    mirrored(a, b, cut_over=True)
    before = objects(a)
    (b / archive.key(archive.segments[1], SegmentFile.METADATA)).unlink()
    outcome = deleted(a, b)
    assert not outcome.is_complete
    assert outcome.partitions[0].faults
    assert objects(a) == before


async def test_what_the_new_place_has_deleted_goes_from_the_old_one_too(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    mirrored(a, b, cut_over=True)
    there = PlantedArchive(FilesystemObjectStore(b))  # type: ignore[arg-type]
    there.segments = archive.segments
    await delete(there, 0)
    assert deleted(a, b).is_complete
    assert objects(a) == {}


# Kills.


async def test_a_mirror_killed_before_any_write_goes_on(
    archive: PlantedArchive, a: Path, tmp_path: Path
) -> None:
    """Metadata never stand there without the objects, and nothing whole is written again."""
    await asyncio.to_thread(_kill_before_each_write, a, tmp_path)


def _kill_before_each_write(a: Path, tmp_path: Path) -> None:
    number = 0
    while True:
        number += 1
        b = tmp_path / f"b{number}"
        if not is_killed(number, [b], Writes.watch_files, lambda b=b: mirrored(a, b)):
            break
        root = b / PREFIX
        for metadata in root.rglob("*.metadata"):
            beside = {path.suffix for path in metadata.parent.glob(f"{metadata.stem}.*")}
            assert beside == set(SEGMENT_SUFFIXES)
        there = {p: p.stat().st_ino for p in root.rglob("*.*") if "~" not in p.name}
        mirrored(a, b)
        assert objects(b) == objects(a)
        assert all(path.stat().st_ino == inode for path, inode in there.items())
    assert number > 12
    assert objects(tmp_path / f"b{number}") == objects(a)


async def test_a_cut_over_killed_before_any_write_leaves_one_archive(
    archive: PlantedArchive, a: Path, tmp_path: Path
) -> None:
    await asyncio.to_thread(_kill_cut_overs, tmp_path)


def _kill_cut_overs(tmp_path: Path) -> None:
    number = 0
    while True:
        number += 1
        a, b = tmp_path / f"a{number}", tmp_path / f"b{number}"
        shutil.copytree(tmp_path / "a", a)
        mirrored(a, b)
        cut_over = lambda a=a, b=b: mirrored(a, b, cut_over=True)  # noqa: E731
        is_open = lambda at: layout(at) == "remote-log-layout 1\n"  # noqa: E731
        if not is_killed(number, [a, b], Writes.watch_files, cut_over):
            break
        assert [is_open(a), is_open(b)].count(True) <= 1
        assert mirrored(a, b, cut_over=True).cut_over
        assert [is_open(a), is_open(b)] == [False, True]
    assert number == 3
    assert [is_open(a), is_open(b)] == [False, True]


async def test_a_deletion_killed_before_any_write_goes_on(
    archive: PlantedArchive, a: Path, b: Path, tmp_path: Path
) -> None:
    mirrored(a, b, cut_over=True)
    await asyncio.to_thread(_kill_deletions, tmp_path, b)


def _kill_deletions(tmp_path: Path, b: Path) -> None:
    whole = objects(b)
    for number in range(1, 100):
        a = tmp_path / f"a{number}"
        shutil.copytree(tmp_path / "a", a)
        if not is_killed(number, [a], Writes.watch_files, lambda a=a: deleted(a, b)):
            break
        for metadata in (a / PREFIX).rglob("*.metadata"):
            assert metadata.with_suffix(".log").exists()
        if (a / PREFIX / LAYOUT_OBJECT).exists():
            assert deleted(a, b).is_complete
        assert objects(a) == {}
    assert number > 12
    assert objects(b) == whole


# Meanwhile.


class TwoPhases(FilesystemObjectStore):
    """Says that a copy has begun before its objects are put, as archivers do."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self._delayed: list[tuple[str, bytes]] = []

    async def put(self, key: str, content: bytes) -> None:
        if key.endswith(SEGMENT_SUFFIXES[:-1]):
            self._delayed.append((key, content))
            return
        if key.endswith(".metadata") and self._delayed:
            metadata = replace(
                decode_segment(content, key), state=RemoteLogSegmentState.COPY_SEGMENT_STARTED
            )
            await super().put(key, encode_segment(metadata))
            while self._delayed:
                await super().put(*self._delayed.pop())
        await super().put(key, content)


async def test_the_archive_changes_while_it_is_mirrored(
    archive: PlantedArchive, a: Path, b: Path
) -> None:
    """Segments come and are deleted; a last run without that has all of it."""
    done = asyncio.Event()
    segments, archive = archive.segments, PlantedArchive(TwoPhases(a))  # type: ignore[arg-type]
    archive.segments = segments

    async def change() -> None:
        for number in range(25):
            await more(archive)
            if number % 2:
                await delete(archive, number // 2)
            await archive.storage.objects.put_conditions(TP, "partition_stopped", b"%d" % number)
        done.set()

    async def mirror() -> None:
        while not done.is_set():
            result = await asyncio.to_thread(mirrored, a, b)
            assert result.is_complete
            assert not result.has_faults, result.partitions[0].faults
            for metadata in (b / PREFIX).rglob("*.metadata"):
                assert metadata.with_suffix(".log").exists()

    async with asyncio.TaskGroup() as group:
        group.create_task(change())
        group.create_task(mirror())
    for _ in range(2):
        mirrored(a, b)
    assert objects(b) == objects(a)
    assert mirrored(a, b, cut_over=True).cut_over


async def test_segments_are_merged_between_two_runs(
    archive: PlantedArchive, a: Path, b: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merged segment comes before the replaced ones go."""
    mirrored(a, b)
    for day in range(3):
        clock = partial(later, day)
        monkeypatch.setattr("fetchproxy.jobs.merge.wall_clock_ms", clock)
        options = MergeOptions(bytes_max=10_000)
        await asyncio.to_thread(merge, Here(), config_of(a), options=options)
        assert mirrored(a, b).is_complete
    mirrored(a, b)
    assert objects(b) == {
        name: content for name, content in objects(a).items() if "collected" not in name
    }
    assert sum(name.endswith(".log") for name in objects(b)) == 1


def later(days: int) -> int:
    return wall_clock_ms() + days * 86_400_000


def test_an_executor_does_the_same(archive: PlantedArchive, a: Path, b: Path) -> None:
    """It opens what it needs by itself."""
    mirrored(a, b)
    os.unlink(b / archive.key(archive.segments[0], SegmentFile.METADATA))
    places = MirrorStores(for_executors(config_of(a)), url_of(b))
    assert mirror_work(places, MirrorOptions())(TP).copied == 1
    assert objects(b) == objects(a)


def test_encrypted_segments_are_checked_with_their_keys_and_copied_as_they_are(
    a: Path, b: Path, tmp_path: Path
) -> None:
    ring = tmp_path / "keys.json"
    write_keys(ring, NO_KEYS.with_new("k1", bytes(range(32))), new=True)
    written = WrittenArchive(a / PREFIX, AtRest(compress=True, keys=FileKeyRing(ring)))
    for base in (0, 20):
        written.add([batch(base), batch(base + 10)])
    [locked] = mirrored(a, b).partitions
    assert {"'k1'" in fault.what for fault in locked.faults} == {True}
    assert not any(name.endswith(".metadata") for name in objects(b))
    config = config_of(a, store__encryption_keys=str(ring))
    [whole] = mirror(Here(), config, url_of(b), MirrorOptions(), cut_over=False).partitions
    assert not whole.faults
    assert objects(b) == objects(a)
    assert any(name.endswith(".packing") for name in objects(b))
