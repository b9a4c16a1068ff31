"""The refresh on a store in memory: the local index follows the archive, and readers use it."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from uuid import UUID

import pytest
from planted_archive import TP, PlantedArchive, batch, flip
from test_timestamp_lookup import batch as timed_batch

from fetchproxy.config.schema import ArchiveConfig, MetadataConfig, RemoteFetchConfig
from fetchproxy.errors import ConfigError, RemoteStorageError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import IsolationLevel, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.metrics import LOCAL_INDEX_BYTES, LOCAL_INDEX_FILES, LOCAL_INDEX_READS
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.reading.segment_reader import RemoteReadRequest, RemoteReadResult
from fetchproxy.runtime.folders import LOCK
from fetchproxy.segments.object_keys import SegmentFile, partition_folder
from fetchproxy.storage.index_files import LOG_INDEX, LocalIndexes
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX
from fetchproxy.writing.index_refresh import FETCHES_MAX, LocalIndexRefresher, open_local_indexes
from fetchproxy.writing.limits import WritingLimits

# Each segment has several chunks: one of a single chunk needs no index.
ALONE = ReadingLimits(read_ahead_chunks_max=0, chunk_bytes=200)


class Scene:
    """An archive and a local index of it that can be closed and opened again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.archive = PlantedArchive()
        self.index_reads: list[str] = []
        self._get = self.archive.store.get
        self.archive.store.get = self._counted  # type: ignore[method-assign]

    async def _counted(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        if key.endswith(".index"):
            self.index_reads.append(key)
        return await self._get(key, bytes_max)

    @asynccontextmanager
    async def opened(self, file_bytes_max: int = 1024) -> AsyncIterator[LocalIndexRefresher]:
        config = ArchiveConfig(local_index_dir=self.folder)
        limits = WritingLimits(local_index_file_bytes_max=file_bytes_max)
        async with open_local_indexes(config, self.archive.storage.rsm, limits) as local:
            assert local is not None
            self.local: LocalIndexes = local
            yield LocalIndexRefresher(local, self.archive.storage.rsm)

    async def view(self) -> PartitionView:
        rlmm = StoreBackedRemoteLogMetadataManager(self.archive.storage, MetadataConfig())
        async with rlmm:
            return await rlmm.refresh(TP, asyncio.get_running_loop().time())

    async def bring_up(self, refresher: LocalIndexRefresher) -> int:
        """Refresh until nothing waits; return the number of turns."""
        view, turns = await self.view(), 1
        while await refresher.refresh(TP, view):
            turns += 1
        return turns

    async def add(self, count: int, **more: object) -> None:
        for _ in range(count):
            start = self.archive.segments[-1].end_offset + 1 if self.archive.segments else 0
            batches = [batch(start + 10 * i) for i in range(6)]
            await self.archive.add(batches, **more)  # type: ignore[arg-type]

    async def hits(self, segments: list[RemoteLogSegmentMetadata]) -> list[bool]:
        """Whether each segment is answered locally; a local answer must be right."""
        responses = []
        for metadata in segments:
            index = await self.local.read(metadata)
            responses.append(index is not None)
            if index is not None:
                raw = await self._get(self.archive.key(metadata, SegmentFile.INDEX))
                assert index.memory_bytes > 0
                assert list(index.spans()) == list(type(index).parse(raw).spans())
        return responses

    def files(self, tp: TopicIdPartition = TP) -> list[str]:
        folder = self.folder / partition_folder("", tp)
        return sorted(path.name for path in folder.glob(f"*.{LOG_INDEX}"))


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "index")


async def test_each_index_is_fetched_once_and_a_few_at_a_turn(scene: Scene) -> None:
    await scene.add(2 * FETCHES_MAX + 3)
    async with scene.opened() as refresher:
        assert await scene.bring_up(refresher) == 3
        assert len(scene.index_reads) == len(set(scene.index_reads)) == 2 * FETCHES_MAX + 3
        assert await scene.bring_up(refresher) == 1
        await scene.add(1)
        assert await scene.bring_up(refresher) == 1
        assert len(scene.index_reads) == 2 * FETCHES_MAX + 4
        assert all(await scene.hits(scene.archive.segments))
        assert len(scene.files()) > 2, "rolled"
    async with scene.opened() as refresher:
        assert await scene.bring_up(refresher) == 1
        assert len(scene.index_reads) == 2 * FETCHES_MAX + 4, "nothing is fetched after a restart"
        assert all(await scene.hits(scene.archive.segments))


async def test_what_the_log_start_has_passed_goes(scene: Scene) -> None:
    await scene.add(12)
    async with scene.opened() as refresher:
        await scene.bring_up(refresher)
        before = scene.files()
        rlmm = StoreBackedRemoteLogMetadataManager(scene.archive.storage, MetadataConfig())
        async with rlmm:
            await rlmm.raise_log_start_offset(TP, scene.archive.segments[8].start_offset)
        await scene.bring_up(refresher)
        names_kept = [name for name in before if int(name[:20]) >= 0]
        assert scene.files() == [
            name
            for name, after in zip(names_kept, [*names_kept[1:], None], strict=True)
            if after is None or int(after[:20]) > scene.archive.segments[8].start_offset
        ]
        assert len(scene.files()) < len(before)
        assert all(await scene.hits(scene.archive.segments[8:]))
        end = scene.archive.segments[-1].end_offset + 1
        async with rlmm:
            await rlmm.raise_log_start_offset(TP, end)
        await scene.bring_up(refresher)
        assert scene.files() == []
        assert list(scene.folder.iterdir()) == [scene.folder / LOCK]


async def test_a_dropped_lineage_is_cut_off_and_another_followed(scene: Scene) -> None:
    await scene.add(8)
    async with scene.opened() as refresher:
        await scene.bring_up(refresher)
        dead = scene.archive.segments[5:]
        for metadata in dead:
            await scene.archive.storage.rsm.delete_log_segment_data(metadata)
        last = scene.archive.segments[4]
        clipped = replace(last, end_offset=last.end_offset - 15, copied_end_offset=last.end_offset)
        await scene.archive.restate(clipped)
        start = clipped.end_offset + 1
        anew = await scene.archive.add([batch(start + 10 * i) for i in range(4)], start=start)
        await scene.bring_up(refresher)
        assert await scene.hits([*scene.archive.segments[:4], clipped, anew]) == [True] * 6
        assert await scene.hits(dead) == [False] * 3


async def test_a_segment_whose_index_is_damaged_is_left_out(scene: Scene) -> None:
    await scene.add(4)
    await scene.archive.change(scene.archive.segments[1], SegmentFile.INDEX, flip(40))
    async with scene.opened() as refresher:
        await scene.bring_up(refresher)
        assert await scene.hits(scene.archive.segments) == [True, False, True, True]
        await scene.add(1)
        reads = len(scene.index_reads)
        await scene.bring_up(refresher)
        assert len(scene.index_reads) == reads + 1, "the damaged one is not asked for again"


async def test_a_failing_store_is_said_and_gone_on_from(scene: Scene) -> None:
    await scene.add(3)
    lost = scene.archive.key(scene.archive.segments[2], SegmentFile.INDEX)
    content = await scene.archive.store.get(lost)
    async with scene.opened() as refresher:
        await scene.archive.store.delete(lost)
        with pytest.raises(RemoteStorageError):
            await scene.bring_up(refresher)
        await scene.archive.store.put(lost, content)
        await scene.bring_up(refresher)
        assert all(await scene.hits(scene.archive.segments))


async def test_damage_found_by_a_reader_is_fetched_again(scene: Scene) -> None:
    await scene.add(6)
    async with scene.opened(file_bytes_max=2**20) as refresher:
        await scene.bring_up(refresher)
        [name] = scene.files()
        path = scene.folder / partition_folder("", TP) / name
        content = path.read_bytes()
        key = scene.archive.key(scene.archive.segments[2], SegmentFile.LOG).encode()
        second_entry = content.index(key, content.index(key) + 1)
        path.write_bytes(flip(second_entry)(content))
        damaged = LOCAL_INDEX_READS.labels("damaged")._value.get()
        assert await scene.hits(scene.archive.segments) == [True] * 2 + [False] * 4
        assert LOCAL_INDEX_READS.labels("damaged")._value.get() == damaged + 1
        scene.index_reads.clear()
        await scene.bring_up(refresher)
        assert len(scene.index_reads) == 6, "the whole set"
        assert all(await scene.hits(scene.archive.segments))


async def test_other_partitions_are_removed(scene: Scene) -> None:
    other = TopicIdPartition(UUID(int=7), "gone", 3)
    files_at_first = LOCAL_INDEX_FILES._value.get()
    await scene.add(2)
    async with scene.opened() as refresher:
        await scene.bring_up(refresher)
        bytes_before = LOCAL_INDEX_BYTES._value.get()
        assert LOCAL_INDEX_FILES._value.get() == files_at_first + 3
        folder = scene.folder / partition_folder("", other)
        folder.mkdir(parents=True)
        for suffix in (LOG_INDEX, "remoteTimeIndex"):
            (folder / f"{5:020d}.{suffix}").write_bytes(b"left by a former process")
        await refresher.keep_only([TP])
        assert not folder.parent.exists()
        assert all(await scene.hits(scene.archive.segments))
        assert LOCAL_INDEX_BYTES._value.get() == bytes_before
        await refresher.keep_only([])
        assert list(scene.folder.iterdir()) == [scene.folder / LOCK]
        assert LOCAL_INDEX_FILES._value.get() == files_at_first


def _hold(folder: Path, holds: object, done: object) -> None:
    async def hold() -> None:
        async with open_local_indexes(
            ArchiveConfig(local_index_dir=folder), PlantedArchive().storage.rsm
        ):
            holds.set()  # type: ignore[attr-defined]
            await asyncio.to_thread(done.wait)  # type: ignore[attr-defined]

    asyncio.run(hold())


async def test_a_folder_is_one_process_s_alone(scene: Scene) -> None:
    context = multiprocessing.get_context("spawn")
    holds, done = context.Event(), context.Event()
    process = context.Process(target=_hold, args=(scene.folder, holds, done))
    process.start()
    try:
        assert await asyncio.to_thread(holds.wait, 60)
        with pytest.raises(ConfigError, match="another process uses it"):
            async with scene.opened():
                pytest.fail("two processes have the folder")
    finally:
        done.set()
        await asyncio.to_thread(process.join)
    async with scene.opened():
        pass


async def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"archive\.local_index_dir"):
        async with Scene(tmp_path / "file" / "below").opened():
            pytest.fail("there is no folder")


async def test_without_a_folder_there_is_no_local_index() -> None:
    async with open_local_indexes(ArchiveConfig(), PlantedArchive().storage.rsm) as local:
        assert local is None


async def read(scene: Scene, local: LocalIndexes | None, offset: int) -> RemoteReadResult:
    rlmm = StoreBackedRemoteLogMetadataManager(scene.archive.storage, MetadataConfig())
    async with (
        rlmm,
        RemoteFetchPurgatory(
            RemoteFetchConfig(), rlmm, scene.archive.storage, Random(1), local, limits=ALONE
        ) as purgatory,
    ):
        request = RemoteReadRequest(TP, offset, 100_000, IsolationLevel.READ_UNCOMMITTED)
        deadline = asyncio.get_running_loop().time() + 60
        fetch = purgatory.fetch({0: request}, bytes_max=100_000, deadline=deadline)
        await fetch.completed.wait()
        [result] = fetch.results().values()
        return result


async def test_a_cold_read_asks_the_store_for_no_index(scene: Scene) -> None:
    await scene.add(5)
    for offset in (0, 123, 299):
        expected = await read(scene, None, offset)
        assert expected.size_bytes > 0
        async with scene.opened() as refresher:
            await scene.bring_up(refresher)
            scene.index_reads.clear()
            hits = LOCAL_INDEX_READS.labels("hit")._value.get()
            result = await read(scene, scene.local, offset)
            assert [bytes(part) for part in result.records] == [bytes(p) for p in expected.records]
            assert scene.index_reads == []
            assert LOCAL_INDEX_READS.labels("hit")._value.get() > hits


async def test_a_cold_look_up_by_time_asks_the_store_for_no_index(scene: Scene) -> None:
    for base in range(0, 50, 10):
        stamps = [1_000 + base + n for n in range(10)]
        await scene.archive.add([timed_batch(base, stamps, 0).content])
    async with scene.opened() as refresher:
        await scene.bring_up(refresher)
        scene.index_reads.clear()
        rlmm = StoreBackedRemoteLogMetadataManager(scene.archive.storage, MetadataConfig())
        purgatory = RemoteFetchPurgatory(
            RemoteFetchConfig(), rlmm, scene.archive.storage, Random(1), scene.local, limits=ALONE
        )
        async with rlmm, purgatory:
            assert await purgatory.first_offset_at_or_after(TP, 1_033) == (33, 1_033, 0)
        assert scene.index_reads == []


async def test_a_read_beyond_the_local_index_asks_the_store(scene: Scene) -> None:
    await scene.add(2)
    async with scene.opened() as refresher:
        await scene.bring_up(refresher)
        await scene.add(1)
        scene.index_reads.clear()
        absent = LOCAL_INDEX_READS.labels("absent")._value.get()
        result = await read(scene, scene.local, scene.archive.segments[2].start_offset)
        assert result.size_bytes > 0
        assert len(scene.index_reads) == 1
        assert LOCAL_INDEX_READS.labels("absent")._value.get() == absent + 1


def torn(rng: Random) -> Callable[[bytes], bytes]:
    return lambda content: content[: rng.randrange(len(content) + 1)]


async def test_no_damage_of_a_local_file_changes_what_is_read(scene: Scene) -> None:
    """Damage to any byte of any file, before the files are opened or after."""
    await scene.add(4)
    rng = Random(1)
    responses: list[bool] = []
    for _ in range(20):
        async with scene.opened() as refresher:
            responses += await scene.hits(scene.archive.segments)
            await scene.bring_up(refresher)
            for _ in range(3):
                folder = scene.folder / partition_folder("", TP)
                path = rng.choice(sorted(folder.iterdir()))
                damage = rng.choice([flip(rng.randrange(1000)), torn(rng)])
                path.write_bytes(damage(path.read_bytes()))
                responses += await scene.hits(scene.archive.segments)  # local answers must be right
                await scene.bring_up(refresher)
                if len(scene.files()) < 2:
                    break
    assert 50 < responses.count(True) < len(responses) - 50
