"""The journal: records that are in no segment yet outlive brokers and archiver."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from archive_harness import (
    Archive,
    archived_up_to,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
    until_true,
    wall_clock_ms,
)
from confluent_kafka import Producer
from memory_object_store import MemoryObjectStore

from fetchproxy.auditing.journal_recovery import JournalRecovery, RecoveredLog
from fetchproxy.cli.keys import rewrap_archive
from fetchproxy.config.schema import MiB
from fetchproxy.errors import DamagedObject, ObjectNotFound, StorageUnavailable
from fetchproxy.model import ByteRange, TopicIdPartition
from fetchproxy.observability.health import Kind
from fetchproxy.segments.journal import JournalEntry, JournalPlace, JournalTable, PlacedEntry
from fetchproxy.segments.packing import NONCE_BYTES
from fetchproxy.storage.archive_identity import ArchiveIdentity, HandedOver
from fetchproxy.storage.key_rings import NO_KEYS, FileKeyRing, write_keys
from fetchproxy.storage.packed_logs import NO_ENCRYPTION, AtRest
from fetchproxy.storage.stores.object_store import Content
from fetchproxy.writing import copy_pace
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.deletion.old_journals import OldJournals
from fetchproxy.writing.journal import OBJECT_GAIN_BYTES_MAX, Journal, oldest_and_mean
from fetchproxy.writing.remote_log_manager import RemoteLogManager
from fetchproxy.writing.spool import Spool
from lab.mock_cluster import MockCluster

TOPIC = "orders"
PARTITIONS = 4
# No segment is closed while a test runs.
OPEN = {"recovery_point_ms": 50, "segment_age_max_ms": 600_000}


def produce(mock: MockCluster, count: int) -> None:
    producer = Producer({"bootstrap.servers": mock.bootstrap, "linger.ms": 5, "batch.size": 2_000})
    for i in range(count):
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, value=b"v" * 100, key=str(i).encode(), partition=partition)
    assert producer.flush(180) == 0


def produce_one(mock: MockCluster, partition: int, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": mock.bootstrap})
    producer.produce(TOPIC, value=value, partition=partition)
    assert producer.flush(180) == 0


def read_up_to(manager: RemoteLogManager) -> list[int]:
    return [status.accumulated_end or status.archive_end or 0 for status in manager.status()]


async def all_turns_end(manager: RemoteLogManager) -> None:
    """Until each partition has ended a turn that began after this call, or just before."""
    since_ms = wall_clock_ms() + 1
    await until_true(
        lambda: all((status.last_success_ms or 0) > since_ms for status in manager.status())
    )


def journal_of(manager: RemoteLogManager) -> Journal:
    assert manager.journal is not None
    return manager.journal


async def until_safe(manager: RemoteLogManager, end: int) -> None:
    """Until the journal has each partition up to `end`."""

    def safe() -> bool:
        ends = read_up_to(manager)
        point = journal_of(manager).recovery_point()
        return len(ends) == PARTITIONS and min(ends) >= end and point.records == 0

    await until_true(safe)


async def tables_in(archive: Archive) -> list[JournalTable]:
    async with recovery(archive) as one:
        tables, faults = await one.tables()
    assert faults == []
    return tables


@asynccontextmanager
async def recovery(
    archive: Archive, segment_bytes_max: int = MiB
) -> AsyncIterator[JournalRecovery]:
    copier = SegmentCopier(
        archive.storage.rsm,
        archive.rlmm,
        copy_max_ms=60_000,
        wall_clock_ms=wall_clock_ms,
        uuid_factory=uuid.uuid4,
    )
    async with Spool(None, encrypted=archive.storage.packed.encrypts) as spool:
        yield JournalRecovery(
            archive.storage.objects,
            archive.storage.identity,
            archive.storage.at_rest,
            archive.rlmm,
            copier,
            spool,
            segment_bytes_max=segment_bytes_max,
        )


async def recover(archive: Archive, segment_bytes_max: int = MiB) -> list[RecoveredLog]:
    async with recovery(archive, segment_bytes_max) as one:
        tables, faults = await one.tables()
        assert faults == []
        return await one.recover(tables)


@pytest.fixture(params=[False, True], ids=["plain", "encrypted"])
def at_rest(request: pytest.FixtureRequest, tmp_path: Path) -> AtRest:
    if not request.param:
        return NO_ENCRYPTION
    ring = tmp_path / "keys.json"
    write_keys(ring, NO_KEYS.with_new("k1", bytes(range(32))), new=True)
    return AtRest(compress=False, keys=FileKeyRing(ring))


async def test_all_records_are_there_when_brokers_and_archiver_are_gone(
    mock_cluster: MockCluster, tmp_path: Path, at_rest: AtRest
) -> None:
    expected: dict[TopicIdPartition, bytes] = {}
    async with open_archive(tmp_path / "store", at_rest) as archive:
        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC, **OPEN) as (
            manager,
            cluster,
        ):
            for end in (300, 600, 900):
                await asyncio.to_thread(produce, mock_cluster, 300)
                await until_safe(manager, end)
            for tp in await tps(cluster, TOPIC):
                expected[tp] = await broker_batches(cluster, tp, 0, 900)
                assert not (await archive.view(tp)).segments
        journals = (await rewrap_archive(archive.storage, dry_run=True)).journals
        count = len(await tables_in(archive))
        assert journals == ({"k1": count} if archive.storage.packed.encrypts else {})
        recovered = await recover(archive, segment_bytes_max=20_000)
        assert [(one.end_before, one.end) for one in recovered] == [(None, 900)] * PARTITIONS
        for tp, batches in expected.items():
            assert len((await archive.view(tp)).segments) > 1
            assert await archive.batches(tp) == batches
        assert await tables_in(archive) == []


async def test_a_partition_that_may_not_be_read_now_is_not_safe(
    mock_cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within `archive.copy_bytes_per_s_max`, turns end without a read."""
    monkeypatch.setattr(copy_pace, "_ACCUMULATE_MAX_S", 0.05)
    clock = asyncio.get_running_loop().time
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(mock_cluster.bootstrap, archive, TOPIC, **OPEN) as (manager, _),
    ):
        await asyncio.to_thread(produce, mock_cluster, 1)
        await until_safe(manager, 1)
        object.__setattr__(manager.config, "copy_bytes_per_s_max", 1)  # as `reloading.take`
        await asyncio.to_thread(produce_one, mock_cluster, 0, bytes(100_000))
        await until_true(lambda: max(read_up_to(manager)) == 2)
        await asyncio.to_thread(produce_one, mock_cluster, 1, b"not read")
        produced_at = clock()
        await all_turns_end(manager)
        await all_turns_end(manager)
        began_at = clock()
        await until_true(lambda: journal_of(manager)._paces[-1][0] > began_at)  # a write
        assert sorted(read_up_to(manager)) == [1, 1, 1, 2]
        unsafe_s = clock() - produced_at
        age_ms = journal_of(manager).recovery_point().age_ms
        assert age_ms is not None
        assert age_ms >= int(1000 * unsafe_s)


def test_one_partition_that_is_behind_does_not_count_for_all() -> None:
    assert oldest_and_mean([90.0, *[99.0] * 9]) == (90.0, pytest.approx(98.1))
    assert oldest_and_mean([5.0, float("-inf")])[0] is None


async def test_a_partition_that_is_not_read_makes_the_shown_records_few(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    """One of four partitions is read no more: a quarter of the pace counts for its time."""
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(mock_cluster.bootstrap, archive, TOPIC, **OPEN) as (manager, _),
    ):
        await asyncio.to_thread(produce, mock_cluster, 200)
        await until_safe(manager, 200)
        journal = journal_of(manager)
        journal._safe_until = asyncio.get_running_loop().time() - 1_000
        journal._safe_until_mean = journal._safe_until + 750
        journal._paces.clear()
        journal._paces.extend([(0.0, 0), (100.0, 1_000)])
        point = journal.recovery_point()
        assert point.age_ms is not None
        assert point.age_ms >= 1_000_000
        assert point.records == pytest.approx(10 * 250, rel=0.05)


async def test_what_a_cluster_wrote_before_it_lost_the_archive_stays_out(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    """Its offsets may be those of the new cluster's records by now."""
    async with open_archive(tmp_path / "store") as archive:
        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC, **OPEN) as (
            manager,
            _,
        ):
            await asyncio.to_thread(produce, mock_cluster, 300)
            await until_safe(manager, 300)
        handed = HandedOver("old", 1_700_000_000_000)
        await archive.storage.identity.state(
            ArchiveIdentity(uuid.uuid4(), "new", handed_over=handed)
        )
        async with recovery(archive) as one:
            tables, faults = await one.tables()
    assert tables == []
    assert faults
    assert all("belonged to the cluster new since 2023" in fault for fault in faults)


async def test_it_continues_what_is_archived(mock_cluster: MockCluster, tmp_path: Path) -> None:
    """Two archivers in turn; each ends without a copy of its last records."""
    async with open_archive(tmp_path / "store") as archive:
        for end, age_ms in ((200, 100), (400, 600_000), (600, 600_000)):
            await asyncio.to_thread(produce, mock_cluster, 200)
            changes = OPEN | {"segment_age_max_ms": age_ms}
            async with running_archiver(mock_cluster.bootstrap, archive, TOPIC, **changes) as (
                manager,
                cluster,
            ):
                if end == 200:
                    ends = dict.fromkeys(range(PARTITIONS), 200)
                    await until(manager, archived_up_to(TOPIC, ends))
                await until_safe(manager, end)
                partitions = await tps(cluster, TOPIC)
                expected = {tp: await broker_batches(cluster, tp, 0, end) for tp in partitions}
        recovered = await recover(archive)
        assert [(one.end_before, one.end) for one in recovered] == [(200, 600)] * PARTITIONS
        assert all(one.unreachable is None for one in recovered)
        for tp in partitions:
            assert await archive.batches(tp) == expected[tp]
        assert await recover(archive) == []


async def test_objects_go_when_segments_have_their_records(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    async with open_archive(tmp_path / "store") as archive:
        changes = OPEN | {"segment_age_max_ms": 300}
        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC, **changes) as (
            manager,
            _,
        ):
            await asyncio.to_thread(produce, mock_cluster, 300)
            await until(manager, archived_up_to(TOPIC, dict.fromkeys(range(PARTITIONS), 300)))
            while await tables_in(archive):  # noqa: ASYNC110 - the store has no events
                await asyncio.sleep(0.02)
            point = journal_of(manager).recovery_point()
            assert point.records == 0
            assert point.age_ms is not None


async def test_while_records_come_it_is_cut_behind_finished_segments(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    """Each partition always has records that are in no finished segment."""
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(
            mock_cluster.bootstrap, archive, TOPIC, **OPEN, segment_bytes_max=10_000
        ) as (manager, _),
    ):
        for end in range(100, 1_000, 100):
            await asyncio.to_thread(produce, mock_cluster, 100)
            await until_safe(manager, end)
        ends = {status.tp: status.archive_end or 0 for status in manager.status()}
        assert all(600 < end < 900 for end in ends.values())

        async def begins_with_what_is_needed() -> bool:
            first = min(await tables_in(archive), key=lambda table: table.place.number)
            return any(entry.next_offset > ends[entry.tp] for entry in first.entries)

        async with asyncio.timeout(60):
            while not await begins_with_what_is_needed():  # noqa: ASYNC110 - no events
                await asyncio.sleep(0.02)


class RefusingStore(MemoryObjectStore):
    """Takes no journal while `refuses`."""

    refuses = False
    refusals = 0

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        if self.refuses and key.startswith("journals/"):
            self.refusals += 1
            raise StorageUnavailable("the store is away")
        await super().put_file(key, path, settled=settled)


@pytest.mark.remedy("journal_not_written")
async def test_what_a_store_did_not_take_is_written_later(mock_cluster: MockCluster) -> None:
    store = RefusingStore()
    store.refuses = True
    async with (
        open_archive(store) as archive,
        running_archiver(mock_cluster.bootstrap, archive, TOPIC, **OPEN) as (manager, _),
    ):
        await asyncio.to_thread(produce, mock_cluster, 100)
        await until_true(lambda: store.refusals > 2)
        point = journal_of(manager).recovery_point()
        assert point.records == 100 * PARTITIONS
        health = manager.published_conditions.health
        condition = health.reported(Kind.JOURNAL_NOT_WRITTEN)
        assert condition is not None
        assert "the store is away" in condition.what
        store.refuses = False
        await until_safe(manager, 100)
        assert {e.next_offset for t in await tables_in(archive) for e in t.entries} == {100}
        assert health.reported(Kind.JOURNAL_NOT_WRITTEN) is None


class SeenStore(RefusingStore):
    """Keeps the nonce of the first part of each object that is sent, also of those that it refuses:
    a store with versions has both.
    """

    refuses = True

    def __init__(self) -> None:
        super().__init__()
        self.nonces: list[bytes] = []

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        if key.startswith("journals/"):
            self.nonces.append(path.read_bytes()[4 : 4 + NONCE_BYTES])
        await super().put_file(key, path, settled=settled)


async def test_no_nonce_is_used_again_for_an_object_that_is_built_again(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    ring = tmp_path / "keys.json"
    write_keys(ring, NO_KEYS.with_new("k1", bytes(range(32))), new=True)
    store = SeenStore()
    async with (
        open_archive(store, AtRest(compress=False, keys=FileKeyRing(ring))) as archive,
        running_archiver(mock_cluster.bootstrap, archive, TOPIC, **OPEN) as (manager, _),
    ):
        await asyncio.to_thread(produce, mock_cluster, 100)
        await until_true(lambda: store.refusals > 2)
        await asyncio.to_thread(produce, mock_cluster, 100)
        before = store.refusals
        await until_true(lambda: store.refusals > before + 1)
        store.refuses = False
        await until_safe(manager, 200)
        assert {table.key.key_id for table in await tables_in(archive) if table.key} == {"k1"}
    assert len(store.nonces) > store.refusals
    assert len(set(store.nonces)) == len(store.nonces)


class DamagingStore(MemoryObjectStore):
    """Changes one byte of the first entry of each object of a journal but the first."""

    damages = True

    async def get_range(self, key: str, byte_range: ByteRange) -> Content:
        content = bytearray(await super().get_range(key, byte_range))
        is_first = key.endswith("/" + "0" * 20)
        if self.damages and key.startswith("journals/") and not is_first and byte_range.start == 0:
            content[10] ^= 1
        return content


async def test_a_damaged_entry_ends_its_log_and_no_other(mock_cluster: MockCluster) -> None:
    store = DamagingStore()
    async with open_archive(store) as archive:
        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC, **OPEN) as (
            manager,
            _,
        ):
            for end in (100, 200):
                await asyncio.to_thread(produce, mock_cluster, 100)
                await until_safe(manager, end)
        recovered = await recover(archive)
        damaged = [one for one in recovered if one.fault is not None]
        assert damaged
        assert all("CRC" in (one.fault or "") for one in damaged)
        assert all(one.end != 200 and one.unreachable for one in damaged)
        assert all(one.end == 200 for one in recovered if one.fault is None)
        store.damages = False
        assert [one.end for one in await recover(archive) if one.fault] == []
        ends = [(await archive.view(one.tp)).log_end_offset for one in recovered]
        assert ends == [200] * PARTITIONS


async def test_journals_of_archivers_that_are_gone(
    mock_cluster: MockCluster, tmp_path: Path
) -> None:
    """They stay until another archiver has copied the records, and no longer."""
    async with open_archive(tmp_path / "store") as archive:
        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC, **OPEN) as (
            manager,
            _,
        ):
            await asyncio.to_thread(produce, mock_cluster, 100)
            await until_safe(manager, 100)
        old = OldJournals(
            archive.storage.objects,
            archive.rlmm,
            uuid.uuid4(),
            wall_clock_ms=wall_clock_ms,
            interval_s=0,
        )
        count = len(await tables_in(archive))
        assert count > 0
        assert await old.delete_covered() == 0
        async with running_archiver(mock_cluster.bootstrap, archive, TOPIC) as (manager, _):
            await until(manager, archived_up_to(TOPIC, dict.fromkeys(range(PARTITIONS), 100)))
        assert await old.delete_covered() == count
        assert await tables_in(archive) == []


async def test_an_entry_larger_than_any_gain_is_not_read() -> None:
    """Its reader has it whole in memory."""
    async with open_archive(MemoryObjectStore()) as archive, recovery(archive) as one:
        most = 2 * max(one.segment_bytes_max, OBJECT_GAIN_BYTES_MAX)
        tp = TopicIdPartition(uuid.UUID(int=1), TOPIC, 0)
        place = JournalPlace(uuid.UUID(int=2), 3)
        for size, error in ((most, ObjectNotFound), (most + 1, DamagedObject)):
            entry = JournalEntry(tp, 0, 1, -1, (), ByteRange(0, size))
            with pytest.raises(error) as raised:
                await one.records(PlacedEntry(place, entry), None)
            assert (f"it can have {most} at most" in str(raised.value)) is (size > most)
