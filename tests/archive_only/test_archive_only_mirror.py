"""A node on a mirror: what is not copied yet is waited for, never skipped, never out of range."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from kafka.protocol.consumer import ListOffsetsResponse
from made_batches import Record, made_batch
from planted_archive import PlantedArchive
from served_archive import Client, serve_archive
from test_archive_only_apis import ORDERS, fetch, offsets_request, one

from fetchproxy.archive import metadata_manager
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import Config
from fetchproxy.observability.health import Health, Kind
from fetchproxy.segments.object_keys import LAYOUT_OBJECT, SegmentFile
from fetchproxy.storage.archive_identity import MIRROR, ArchiveIdentity, encode_identity
from fetchproxy.storage.attached_topics import open_archive
from fetchproxy.writing import own_archive
from fetchproxy.writing.own_archive import OwnArchive

STORAGE_ERROR = 56
OUT_OF_RANGE = 1


def batch(base: int) -> bytes:
    """Ten records, each with its offset as its time."""
    return made_batch(base, [Record(timestamp=base + number) for number in range(10)])


class Mirror:
    """A mirror under way of segments of 20 offsets, from 0 on: `without` are not copied yet."""

    def __init__(self) -> None:
        self.planted = PlantedArchive()
        self.metadata: dict[int, bytes] = {}

    async def fill(self, *, without: set[int], count: int = 4) -> None:
        for number in range(count):
            base = 20 * number
            await self.planted.add([batch(base), batch(base + 10)])
        for number in without:
            key = self.key(number)
            self.metadata[number] = await self.planted.store.get(key)
            await self.planted.store.delete(key)
        await self.mark(ArchiveIdentity(manager=MIRROR))

    def key(self, number: int) -> str:
        return self.planted.key(self.planted.segments[number], SegmentFile.METADATA)

    async def copy(self, number: int) -> None:
        await self.planted.store.put(self.key(number), self.metadata.pop(number))

    async def mark(self, identity: ArchiveIdentity) -> None:
        await self.planted.store.put(f"archive/{LAYOUT_OBJECT}", encode_identity(identity))
        await self.planted.storage.identity.look()


@pytest.fixture
def mirror() -> Mirror:
    return Mirror()


async def offset_of(client: Client, timestamp: int) -> tuple[int, int]:
    response = await client.ask(offsets_request(timestamp), ListOffsetsResponse, 7)
    partition = response.topics[0].partitions[0]
    return partition.error_code, partition.offset


async def read(client: Client, offset: int, wait_ms: int = 10) -> tuple[int, bytes]:
    part = one(await fetch(client, 11, {ORDERS: offset}, wait_ms=wait_ms))
    return part.error_code, bytes(part.records or b"")


async def read_when_there(client: Client, offset: int) -> bytes:
    async with asyncio.timeout(30):
        while True:
            error, records = await read(client, offset)
            if error != STORAGE_ERROR:
                assert error == 0
                return records
            await asyncio.sleep(0.05)


def base_offset(records: bytes) -> int:
    return int.from_bytes(records[:8], "big")


async def test_a_reader_waits_at_a_hole_until_it_is_copied(mirror: Mirror) -> None:
    await mirror.fill(without={1})
    async with serve_archive(mirror.planted) as served:
        client = await served.client()
        error, records = await read(client, 0)
        assert (error, len(records)) == (0, len(batch(0) + batch(10)))
        for offset in (20, 39):
            assert await read(client, offset) == (STORAGE_ERROR, b"")
        error, records = await read(client, 40)  # this segment is copied
        assert (error, base_offset(records)) == (0, 40)
        await mirror.copy(1)
        assert base_offset(await read_when_there(client, 20)) == 20


async def test_a_reader_ahead_of_the_mirror_waits_for_it(mirror: Mirror) -> None:
    await mirror.fill(without={2, 3})
    async with serve_archive(mirror.planted) as served:
        client = await served.client()
        assert await read(client, 75) == (0, b"")
        waiting = asyncio.create_task(read(await served.client(), 75, wait_ms=20_000))
        await mirror.copy(2)
        await mirror.copy(3)
        error, records = await waiting
        assert (error, base_offset(records)) == (0, 70)


async def test_the_beginning_is_waited_for_too(mirror: Mirror) -> None:
    """The archivers' record tells it from offsets that were never archived."""
    await mirror.fill(without={0})
    await mirror.planted.state(recorded_from=5, end_offset=79)
    async with serve_archive(mirror.planted) as served:
        client = await served.client()
        assert await read(client, 10) == (STORAGE_ERROR, b"")
        assert await read(client, 4) == (OUT_OF_RANGE, b"")
        assert await offset_of(client, -2) == (0, 5)


async def test_a_recorded_gap_is_passed_and_a_hole_behind_it_is_not(mirror: Mirror) -> None:
    await mirror.fill(without={1, 2})
    await mirror.planted.record_gap(20, 39)
    async with serve_archive(mirror.planted) as served:
        client = await served.client()
        for offset in (20, 30, 40):
            assert await read(client, offset) == (STORAGE_ERROR, b"")
        await mirror.copy(2)
        assert base_offset(await read_when_there(client, 30)) == 40


async def test_a_search_by_time_does_not_pass_a_hole(mirror: Mirror) -> None:
    await mirror.fill(without={1})
    async with serve_archive(mirror.planted) as served:
        client = await served.client()
        assert await offset_of(client, 5) == (0, 5)
        assert await offset_of(client, 41) == (STORAGE_ERROR, -1)


async def test_the_same_place_as_the_archive_passes_what_it_has_lost(mirror: Mirror) -> None:
    await mirror.fill(without={1})
    await mirror.mark(ArchiveIdentity(manager="store"))
    async with serve_archive(mirror.planted) as served:
        client = await served.client()
        error, records = await read(client, 20)
        assert (error, base_offset(records)) == (0, 40)
        assert await read(client, 85) == (OUT_OF_RANGE, b"")


async def test_a_lost_gap_before_unreadable_metadata_ends_there(mirror: Mirror) -> None:
    """In every archive: records behind such a gap are not passed with it."""
    await mirror.fill(without={1})
    await mirror.mark(ArchiveIdentity(manager="store"))
    unreadable = mirror.planted.segments[2]
    await mirror.planted.store.put(mirror.planted.key(unreadable, SegmentFile.METADATA), b"?")
    async with serve_archive(mirror.planted) as served:
        client = await served.client()
        assert await read(client, 20) == (STORAGE_ERROR, b"")


async def test_a_node_says_that_it_reads_a_mirror_until_it_is_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_archive, "ARCHIVE_LOOK_INTERVAL_S", 0.02)
    layout = tmp_path / LAYOUT_OBJECT
    layout.write_bytes(encode_identity(ArchiveIdentity(manager=MIRROR)))
    config = Config.model_validate(
        {"store": {"url": tmp_path.as_uri()}, "archive_only": {"enabled": True}}
    )
    async with (
        open_archive(config) as storage,
        Cluster(config.cluster) as cluster,
        metadata_manager(config, storage, cluster, lambda: 0) as rlmm,
        asyncio.timeout(30),
    ):
        health = Health()
        archive_of_node = OwnArchive(
            config, storage, rlmm, cluster, uuid4, archives=False, health=health
        )
        await archive_of_node.at_start()
        assert rlmm.of_mirror
        condition = health.reported(Kind.MIRROR_READ)
        assert condition is not None
        assert tmp_path.as_uri() in condition.what
        looking = asyncio.create_task(archive_of_node.run())
        layout.write_bytes(encode_identity(ArchiveIdentity(manager="store")))
        while True:
            if health.reported(Kind.MIRROR_READ) is None:
                break
            await asyncio.sleep(0.01)
        assert not rlmm.of_mirror
        looking.cancel()
