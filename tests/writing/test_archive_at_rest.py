"""Compressed and encrypted archives by the real archiver.

The archive serves the broker's records, and verify, repair, merge and deletion work as usual.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import pytest
from archive_harness import (
    Archive,
    archived_up_to,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
    wall_clock_ms,
)
from failing_store import FailingStore
from fetchproxy_protocol.record_batch import walk
from planted_archive import ABORT, TP, batch
from structlog.testing import capture_logs
from test_archiver_kafka import produce
from whole_archive import verify_archive

from fetchproxy.auditing.repair import repair_archive
from fetchproxy.config.schema import MetadataConfig, RemoteFetchConfig
from fetchproxy.errors import MetadataChanged, StorageUnavailable
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import (
    ByteRange,
    IsolationLevel,
    RemoteLogSegmentMetadata,
    TopicIdPartition,
)
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import RemoteReadRequest
from fetchproxy.segments.object_keys import SegmentFile
from fetchproxy.storage.attached_topics import AttachedObjectStore, AttachedTopic
from fetchproxy.storage.key_rings import NO_KEYS, FileKeyRing, read_keys, write_keys
from fetchproxy.storage.packed_logs import NO_ENCRYPTION, AtRest
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.deletion.orphans import find_orphans
from fetchproxy.writing.merging import PartitionMerger
from fetchproxy.writing.sources.segment_writer import SegmentWriter
from fetchproxy.writing.spool import Spool
from lab.kafka import KafkaServer

CODECS = ["none", "zstd"]


@pytest.fixture
def ring(tmp_path: Path) -> Path:
    path = tmp_path / "keys.json"
    write_keys(path, NO_KEYS.with_new("k1", bytes(range(32))), new=True)
    return path


def copier_of(archive: Archive) -> SegmentCopier:
    return SegmentCopier(
        archive.storage.rsm,
        archive.rlmm,
        copy_max_ms=10_000,
        wall_clock_ms=wall_clock_ms,
        uuid_factory=uuid4,
    )


@pytest.mark.kafka
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("encrypted", [True, False], ids=["encrypted", "compressed"])
async def test_what_is_archived_is_what_the_broker_has(
    kafka_server: KafkaServer, topic: str, codec: str, encrypted: bool, ring: Path, tmp_path: Path
) -> None:
    produce(kafka_server, topic, 1_500, codec)
    at_rest = AtRest(compress=True, keys=FileKeyRing(ring) if encrypted else None)
    async with (
        open_archive(tmp_path / "store", at_rest) as archive,
        running_archiver(
            kafka_server.bootstrap, archive, topic, segment_bytes_max=6_000,
            spool_dir=tmp_path / "spool",
        ) as (manager, cluster),
    ):  # fmt: skip
        await until(manager, archived_up_to(topic, {0: 1_500}))
        (tp,) = await tps(cluster, topic)
        segments = (await archive.view(tp)).segments
        assert len(segments) > 1
        assert {s.packed for s in segments} == {encrypted or codec == "none"}
        expected = await broker_batches(cluster, tp, 0, 1_500)
        assert await archive.batches(tp) == expected
        report = await verify_archive(archive.storage, archive.rlmm)
        assert (report.faults, report.segments) == ([], len(segments))
        assert not await find_orphans(archive.storage.objects, archive.rlmm, tp)
    lying = [path for path in (tmp_path / "store").rglob("*") if path.is_file()]
    stored = b"".join(path.read_bytes() for path in lying)
    if encrypted:
        assert expected[:200] not in stored
        assert b"1 1 1 1 1" not in stored
    if codec == "none":
        assert sum(p.stat().st_size for p in lying if p.suffix == ".log") < len(expected) / 2
    # A process without a key gets only this error.
    if encrypted:
        async with open_archive(tmp_path / "store") as archive:
            report = await verify_archive(archive.storage, archive.rlmm)
            assert {"'k1'" in fault.what for fault in report.faults} == {True}
            repaired = await repair_archive(
                archive.storage, archive.rlmm, report.faults, wall_clock_ms=wall_clock_ms
            )
            assert repaired.repairs == []
    assert stored == b"".join(path.read_bytes() for path in lying)


class Written:
    """Segments copied one after another by the product's copier."""

    def __init__(self, archive: Archive, spool: Spool) -> None:
        self.archive = archive
        self.spool = spool
        self.copier = copier_of(archive)

    async def add(self, base: int) -> RemoteLogSegmentMetadata:
        content = batch(base) + batch(base + 10)
        writer = SegmentWriter(TP, base, self.spool)
        await writer.append(memoryview(content), list(walk(content)), [])
        try:
            return await self.copier.copy(writer.close(), (), _agreed)
        finally:
            await writer.discard()

    async def read(self) -> bytes:
        return await self.archive.batches(TP)


async def _agreed() -> None:
    pass


async def test_a_spool_has_nothing_in_the_clear(ring: Path, tmp_path: Path) -> None:
    at_rest = AtRest(keys=FileKeyRing(ring))
    content = b"".join(map(batch, range(0, 200, 10)))
    async with (
        open_archive(tmp_path / "store", at_rest) as archive,
        Spool(tmp_path / "spool", encrypted=archive.storage.packed.encrypts) as spool,
    ):
        writer = SegmentWriter(TP, 0, spool)
        for header in walk(content):
            one = content[header.position : header.end]
            await writer.append(memoryview(one), list(walk(one)), [])
        accumulated = writer.close()
        spooled = accumulated.log.read_bytes()
        assert len(spooled) == len(content)
        assert bytes(range(50)) in content
        assert bytes(range(50)) not in spooled
        assert accumulated.stream_key is not None
        assert str(accumulated.stream_key) not in repr(accumulated)
        await accumulated.check_log()
        await copier_of(archive).copy(accumulated, (), _agreed)
        assert await archive.batches(TP) == content
        assert [path.name for path in spool.new_file().parent.glob("*.packed")] == []


async def test_mixed_archives_are_merged_rewrapped_and_verified(ring: Path, tmp_path: Path) -> None:
    """Segments that are plain, compressed, encrypted with an old key, and with a new one."""
    store = tmp_path / "store"
    write_old = FileKeyRing(ring)
    for base, at_rest in (
        (0, NO_ENCRYPTION),
        (20, AtRest(compress=True)),
        (40, AtRest(keys=write_old)),
    ):
        async with (
            open_archive(store, at_rest) as archive,
            Spool(tmp_path / "spool", encrypted=archive.storage.packed.encrypts) as spool,
        ):
            await Written(archive, spool).add(base)
    write_keys(ring, read_keys(ring).with_new("k2", bytes(32)), new=False)
    async with (
        open_archive(store, AtRest(compress=True, keys=FileKeyRing(ring))) as archive,
        Spool(tmp_path / "spool", encrypted=True) as spool,
    ):
        await Written(archive, spool).add(60)
        expected = b"".join(batch(base) for base in range(0, 80, 10))
        assert await archive.batches(TP) == expected
        report = await verify_archive(archive.storage, archive.rlmm)
        assert report.faults == []
        offsets = [int(Path(key).name[:20]) for key in report.not_encrypted]
        assert offsets == [0, 20]
        merger = PartitionMerger(
            archive.storage.rsm, archive.rlmm, copier_of(archive), spool, bytes_max=10_000
        )
        # Anybody may have put the first two there, so only the others are merged and proven.
        planned = await merger.dry_run(TP)
        assert (planned.merged, planned.replaced) == (1, 2)
        assert [
            f"offset {base}: it is not encrypted" in why
            for base, why in zip((0, 20), planned.refused, strict=True)
        ] == [True, True]
        merger.encrypt_plain = True
        assert (await merger.dry_run(TP)).refused == []
        merged = await merger.merge(TP)
        assert (merged.merged, merged.replaced, merged.refused) == (1, 4, [])
        whole = (await archive.view(TP)).segments[-1]
        assert (whole.packed, whole.end_offset) == (True, 79)
        assert await archive.object(whole, SegmentFile.LOG) == expected
        report = await verify_archive(archive.storage, archive.rlmm)
        assert (report.faults, len(report.not_encrypted)) == ([], 2)  # the replaced ones stay
    # A reader that refuses what is not encrypted reads the merged segment in their place.
    required = AtRest(keys=FileKeyRing(ring), required=True)
    async with open_archive(store, required) as archive:
        for offset in (0, 25, 55):
            assert await records_at(archive, offset) == expected[offset // 10 * len(batch(0)) :]


async def records_at(archive: Archive, offset: int) -> bytes:
    """As a reader gets them who waits for long."""
    rlmm, storage = archive.rlmm, archive.storage
    await rlmm.refresh(TP, asyncio.get_running_loop().time())
    async with RemoteFetchPurgatory(RemoteFetchConfig(), rlmm, storage, Random(1)) as purgatory:
        request = RemoteReadRequest(TP, offset, 1 << 20, IsolationLevel.READ_COMMITTED)
        deadline = asyncio.get_running_loop().time() + 60
        fetch = purgatory.fetch({0: request}, bytes_max=1 << 20, deadline=deadline)
        await fetch.completed.wait()
        return b"".join(fetch.results()[0].records)


async def test_nothing_takes_over_a_segment_that_anybody_may_have_put_there(
    ring: Path, tmp_path: Path
) -> None:
    """Also where no other segment of the partition is encrypted."""
    store, at_rest = tmp_path / "store", AtRest(keys=FileKeyRing(ring))
    async with (
        open_archive(store, NO_ENCRYPTION) as archive,
        Spool(tmp_path / "spool", encrypted=False) as spool,
    ):
        forged = [await Written(archive, spool).add(base) for base in (0, 20)]
    keys = [archive.storage.rsm.object_key(each, SegmentFile.LOG) for each in forged]
    bytes_before = [(store / key).read_bytes() for key in keys]
    async with (
        open_archive(store, at_rest) as archive,
        Spool(tmp_path / "spool", encrypted=True) as spool,
    ):
        with capture_logs() as logged:
            await archive.batches(TP)  # as a reader
        named = [one["object_key"] for one in logged if one["event"] == "segment_not_encrypted"]
        assert named == keys
        report = await verify_archive(archive.storage, archive.rlmm)
        assert (report.faults, report.not_encrypted) == ([], keys)
        merger = PartitionMerger(
            archive.storage.rsm, archive.rlmm, copier_of(archive), spool, bytes_max=10_000
        )
        merged = await merger.merge(TP)
        assert (merged.merged, len(merged.refused)) == (0, 2)
        # What is derived for it does not make it one that a holder of the key has written.
        lost(SegmentFile.INDEX)(archive.storage, forged[0], store)
    async with open_archive(store, at_rest) as archive:
        report = await verify_archive(archive.storage, archive.rlmm)
        repaired = await repair_archive(
            archive.storage, archive.rlmm, report.faults, wall_clock_ms=wall_clock_ms
        )
        assert repaired.repairs
    async with open_archive(store, at_rest) as archive:
        report = await verify_archive(archive.storage, archive.rlmm)
        assert (report.faults, report.not_encrypted) == ([], keys)
    assert [(store / key).read_bytes() for key in keys] == bytes_before


Damage = Callable[[RemoteStorage, RemoteLogSegmentMetadata, Path], None]


def lost(*files: SegmentFile) -> Damage:
    def damage(storage: RemoteStorage, segment: RemoteLogSegmentMetadata, store: Path) -> None:
        for file in files:
            (store / storage.rsm.object_key(segment, file)).unlink()

    return damage


def other_bytes(file: SegmentFile) -> Damage:
    def damage(storage: RemoteStorage, segment: RemoteLogSegmentMetadata, store: Path) -> None:
        path = store / storage.rsm.object_key(segment, file)
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(bytes(content))

    return damage


async def test_a_missing_packing_is_named_and_nothing_else(ring: Path, tmp_path: Path) -> None:
    store, at_rest = tmp_path / "store", AtRest(compress=True, keys=FileKeyRing(ring))
    async with (
        open_archive(store, at_rest) as archive,
        Spool(tmp_path / "spool", encrypted=True) as spool,
    ):
        written = Written(archive, spool)
        segments = [await written.add(base) for base in (0, 20, 40)]
        lost(SegmentFile.PACKING)(archive.storage, segments[1], store)
    async with open_archive(store, at_rest) as archive:
        report = await verify_archive(archive.storage, archive.rlmm)
        [fault] = report.faults
        assert fault.object_key == archive.storage.rsm.object_key(segments[1], SegmentFile.PACKING)
        assert fault.what == "object is missing"
        repaired = await repair_archive(
            archive.storage, archive.rlmm, report.faults, wall_clock_ms=wall_clock_ms
        )
        assert repaired.repairs == []
        [refusal] = repaired.refusals
        assert "its .packing is missing" in refusal


@asynccontextmanager
async def three_written(
    tmp_path: Path, at_rest: AtRest
) -> AsyncIterator[tuple[Archive, list[RemoteLogSegmentMetadata], bytes]]:
    """An archive of three segments from offsets 0, 20 and 40 on, and what is read of it."""
    async with (
        open_archive(tmp_path / "store", at_rest) as archive,
        Spool(tmp_path / "spool", encrypted=True) as spool,
    ):
        written = Written(archive, spool)
        segments = [await written.add(base) for base in (0, 20, 40)]
        yield archive, segments, await written.read()


@pytest.mark.parametrize(
    ("damage", "named", "mended"),
    [
        (lost(SegmentFile.INDEX), SegmentFile.INDEX, True),
        (lost(SegmentFile.EPOCHS), SegmentFile.EPOCHS, True),
        (lost(SegmentFile.METADATA), SegmentFile.METADATA, True),
        (other_bytes(SegmentFile.INDEX), SegmentFile.INDEX, True),
        (other_bytes(SegmentFile.EPOCHS), SegmentFile.EPOCHS, True),
        (other_bytes(SegmentFile.LOG), SegmentFile.LOG, False),
        (lost(SegmentFile.LOG), SegmentFile.LOG, False),
        (lost(SegmentFile.PACKING), SegmentFile.PACKING, False),
    ],
)
async def test_verify_finds_damage_and_repair_mends_what_can_be_derived(
    damage: Damage, named: SegmentFile, mended: bool, ring: Path, tmp_path: Path
) -> None:
    store, at_rest = tmp_path / "store", AtRest(compress=True, keys=FileKeyRing(ring))
    async with three_written(tmp_path, at_rest) as (archive, segments, expected):
        damage(archive.storage, segments[1], store)
    async with open_archive(store, at_rest) as archive:
        report = await verify_archive(archive.storage, archive.rlmm)
        keys = {fault.object_key for fault in report.faults}
        assert archive.storage.rsm.object_key(segments[1], named) in keys
        await repair_archive(
            archive.storage, archive.rlmm, report.faults, wall_clock_ms=wall_clock_ms
        )
        after = await verify_archive(archive.storage, archive.rlmm)
        assert (after.faults == []) is mended
        if mended:
            assert await archive.batches(TP) == expected


@pytest.mark.parametrize(
    "forged",
    [
        {"end_offset": 29},
        {"end_offset": 49},
        {"segment_size_bytes": 5},
        {"max_timestamp_ms": 1},
        {"leader_epochs": [{"epoch": 9, "start_offset": 20}]},
    ],
    ids=lambda forged: next(iter(forged)),
)
async def test_verify_finds_metadata_that_somebody_has_changed_and_repair_puts_them_right(
    forged: dict[str, Any], ring: Path, tmp_path: Path
) -> None:
    store, at_rest = tmp_path / "store", AtRest(compress=True, keys=FileKeyRing(ring))
    async with three_written(tmp_path, at_rest) as (archive, segments, expected):
        key = archive.storage.rsm.object_key(segments[1], SegmentFile.METADATA)
    as_it_was = (store / key).read_bytes()
    (store / key).write_text(json.dumps(json.loads(as_it_was) | forged))
    async with open_archive(store, at_rest) as archive:
        report = await verify_archive(archive.storage, archive.rlmm)
        (fault,) = [f for f in report.faults if f.object_key == key]
        assert f"{next(iter(forged)).removesuffix('s')}" in fault.what
        assert "differs from what the segment was encrypted with" in fault.what
        await repair_archive(
            archive.storage, archive.rlmm, report.faults, wall_clock_ms=wall_clock_ms
        )
        assert (store / key).read_bytes() == as_it_was
        assert (await verify_archive(archive.storage, archive.rlmm)).faults == []
        assert await archive.batches(TP) == expected


async def test_aborted_records_cannot_be_made_committed_ones(ring: Path, tmp_path: Path) -> None:
    """Changed metadata claim that there are no aborted transactions; readers look only there."""
    store, at_rest = tmp_path / "store", AtRest(keys=FileKeyRing(ring))
    log = batch(0, txn=7) + batch(10, txn=7, control=ABORT)
    async with (
        open_archive(store, at_rest) as archive,
        Spool(tmp_path / "spool", encrypted=True) as spool,
    ):
        writer = SegmentWriter(TP, 0, spool)
        await writer.append(memoryview(log), list(walk(log)), [(7, 0)])
        segment = await copier_of(archive).copy(writer.close(), (), _agreed)
        assert segment.has_aborted_txns
        key = archive.storage.rsm.object_key(segment, SegmentFile.METADATA)
    as_it_was = (store / key).read_bytes()
    (store / key).write_text(json.dumps(json.loads(as_it_was) | {"has_aborted_txns": False}))
    async with open_archive(store, at_rest) as archive:
        (shown_segment,) = (await archive.view(TP)).segments
        with pytest.raises(MetadataChanged, match="has_aborted_txns is False, not True"):
            await archive.storage.rsm.fetch_log_segment(shown_segment, ByteRange(0, 1))
        report = await verify_archive(archive.storage, archive.rlmm)
        assert [fault.object_key for fault in report.faults] == [key]
        await repair_archive(
            archive.storage, archive.rlmm, report.faults, wall_clock_ms=wall_clock_ms
        )
        assert (store / key).read_bytes() == as_it_was
        assert (await verify_archive(archive.storage, archive.rlmm)).faults == []


async def test_a_copy_that_ends_at_any_write_leaves_nothing_that_counts(
    ring: Path, tmp_path: Path
) -> None:
    """As after a kill there: the partial copy is not shown, and is found and removed."""
    at_rest, number = AtRest(compress=True, keys=FileKeyRing(ring)), 0
    while True:
        store = FailingStore()
        async with AsyncExitStack() as opened:
            archive = await opened.enter_async_context(open_archive(store, at_rest))
            spool = await opened.enter_async_context(Spool(tmp_path / "spool", encrypted=True))
            written = Written(archive, spool)
            await written.add(0)
            store.fail(number)
            with suppress(StorageUnavailable):
                await written.add(20)
            assert await written.read() in (b"".join(map(batch, (0, 10))), _four())
            if store.failed:
                await written.add(20)
            assert await written.read() == _four()
            report = await verify_archive(archive.storage, archive.rlmm)
            assert report.faults == []
            if not store.failed:
                break
        number += 1
    assert number >= 5


def _four() -> bytes:
    return b"".join(map(batch, (0, 10, 20, 30)))


async def test_a_segment_of_an_attached_topic_is_opened_by_the_key_it_was_written_with(
    ring: Path, tmp_path: Path
) -> None:
    """It is encrypted for its old name and id, and has another name and id here."""
    at_rest = AtRest(compress=True, keys=FileKeyRing(ring))
    async with (
        open_archive(tmp_path / "there", at_rest) as archive,
        Spool(tmp_path / "spool", encrypted=True) as spool,
    ):
        await Written(archive, spool).add(0)
    attached = AttachedTopic("history", FilesystemObjectStore(tmp_path / "there"), "", TP.topic)
    own_store = FilesystemObjectStore(tmp_path / "here", create=True)
    store = AttachedObjectStore(own_store, "", [attached])
    async with (
        RemoteStorage(store, at_rest=at_rest) as storage,
        StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
    ):
        ((name, topic_id),) = await storage.objects.list_topics()
        assert name == "history"
        here = TopicIdPartition(topic_id, "history", 0)
        view = await rlmm.refresh(here, asyncio.get_running_loop().time())
        log = await Archive(storage, rlmm).object(view.segments[0], SegmentFile.LOG)
        assert log == batch(0) + batch(10)
