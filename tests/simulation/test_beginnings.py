"""What the beginning of a partition's archive asks of the store, and who may come in between."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import replace
from hashlib import md5
from pathlib import Path
from typing import Any

import pytest
from archiving_world import BATCH_BYTES, BATCH_OFFSETS, World, run_world
from memory_object_store import MemoryObjectStore

from benchmarks.archive_beginnings import WRITTEN_TWICE
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.errors import ClusterError
from fetchproxy.metadata.remote_log_metadata_manager import PARTITIONS_ALONE_MAX
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, StoredObject
from fetchproxy.writing import archive_pass
from fetchproxy.writing.archive_pass import PARTITIONS_FAILED_IN_A_ROW_MAX as FIRST
from fetchproxy.writing.archive_pass import SHORT_A_WORKER
from fetchproxy.writing.sources.fetched_batches import CHECKED_INLINE_BYTES_MAX

PARTITIONS = PARTITIONS_ALONE_MAX + 1


class LikeS3(MemoryObjectStore):
    """A version is the MD5 of the content. `requests`: by method and kind of object, of those that
    lie in a partition's folder.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests: Counter[tuple[str, str]] = Counter()

    def note(self, method: str, key: str) -> None:
        if key.count("/") == 2:
            name = key.rpartition("/")[2]
            self.requests[method, name[name.rfind(".") :] if "." in name else name] += 1

    async def put(self, key: str, content: bytes) -> str:
        self.note("put", key)
        await super().put(key, content)
        return md5(content, usedforsecurity=False).hexdigest()

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        self.note("get", key)
        return await super().get(key, bytes_max)

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        self.note("list", prefix)
        await asyncio.sleep(0.01)  # two looks are not one moment
        async for stored in super().list(prefix, start_after):
            content = self._content(stored.key)
            yield replace(stored, version=md5(content, usedforsecurity=False).hexdigest())


def test_a_beginning_takes_one_look() -> None:
    store = LikeS3()

    async def main(world: World) -> None:
        for partition in range(PARTITIONS):
            world.write(partition, 2)
        assert await world.once() == []
        ends = [await world.archive_end(partition) for partition in range(PARTITIONS)]
        assert ends == [20] * PARTITIONS

    async def counted(world: World) -> None:
        for partition in range(PARTITIONS):
            world.write(partition, 2)
        assert await world.once() == []
        once = {".log", ".index", ".epochs"}
        twice = {name.removeprefix("/") for name in WRITTEN_TWICE}
        assert store.requests == {
            ("list", ""): PARTITIONS,
            **{("put", name): PARTITIONS for name in once},
            **{("put", name): 2 * PARTITIONS for name in twice},
        }

    run_world(main, partitions=PARTITIONS, store=MemoryObjectStore())
    run_world(counted, partitions=PARTITIONS, store=store)


class Busy(MemoryObjectStore):
    """`at_once`: the most uploads of logs that ran together, by the number of a log's batches."""

    def __init__(self) -> None:
        super().__init__()
        self.running: Counter[int] = Counter()
        self.at_once: Counter[int] = Counter()

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        batches = path.stat().st_size // BATCH_BYTES
        self.running[batches] += 1
        self.at_once[batches] = max(self.at_once[batches], sum(self.running.values()))
        await asyncio.sleep(0.1)
        await super().put_file(key, path, settled=settled)
        self.running[batches] -= 1


def test_partitions_with_few_offsets_are_many_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archive_pass, "SHORT_OFFSETS_MAX", 2 * BATCH_OFFSETS)
    store, partitions, calls = Busy(), 2 * FIRST, list[int]()
    ask = Cluster.fetch_log_offsets

    async def counted(
        self: Cluster, tps: Collection[TopicIdPartition], *, not_older_than: float
    ) -> dict[TopicIdPartition, LogOffsets | ClusterError]:
        calls.append(len(tps))
        return await ask(self, tps, not_older_than=not_older_than)

    monkeypatch.setattr(Cluster, "fetch_log_offsets", counted)

    async def main(world: World) -> None:
        for partition in range(partitions):
            world.write(partition, 3 if partition % 2 else 2)
        assert await world.once(workers_max=2) == []
        assert store.at_once == {2: 2 * SHORT_A_WORKER, 3: 2}
        for partition in range(partitions):
            assert await world.archive_end(partition) == (30 if partition % 2 else 20)
        assert calls[:2] == [FIRST, FIRST], "one question for many"

    run_world(main, partitions=partitions, store=store)


def test_few_batches_are_checked_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    in_threads: list[str] = []
    in_thread = asyncio.to_thread

    async def noted(work: Callable[..., Any], *args: Any, **more: Any) -> Any:
        in_threads.append(work.__name__)
        return await in_thread(work, *args, **more)

    monkeypatch.setattr(asyncio, "to_thread", noted)

    async def main(world: World) -> None:
        for batches, checks in ((2, 0), (CHECKED_INLINE_BYTES_MAX // BATCH_BYTES + 1, 1)):
            in_threads.clear()
            world.write(0, batches)
            assert await world.once() == []
            assert in_threads.count("_check_batches") == checks
            assert "_append_file" in in_threads

    run_world(main, batches=100)


def test_of_two_passes_that_begin_at_once_each_record_is_archived_once() -> None:
    async def main(world: World) -> None:
        for partition in range(PARTITIONS):
            world.write(partition, 2)
        passes = [world.archive_pass(workers_max=workers) for workers in (1, 3)]
        async with asyncio.TaskGroup() as tasks:
            runs = [tasks.create_task(each.run()) for each in passes]
        assert [run.result()[1] for run in runs] == [[], []]
        for partition in range(PARTITIONS):
            assert await world.archive_end(partition) == 20
            view = world.rlmm.view(world.logs[partition].tp)
            assert view is not None
            assert [(s.start_offset, s.end_offset) for s in view.segments] == [(0, 19)]

    run_world(main, partitions=PARTITIONS)


def test_what_was_there_before_is_looked_at_and_expired_as_ever() -> None:
    store = LikeS3()

    async def main(world: World) -> None:
        for partition in range(PARTITIONS):
            world.write(partition, 1)
        assert await world.once() == []
        world.write(0, 1)
        store.requests.clear()
        assert await world.once() == []
        assert await world.archive_end(0) == 20
        assert store.requests["get", "finished-offsets"] == PARTITIONS
        assert store.requests["list", ""] > 2 * PARTITIONS

    run_world(main, partitions=PARTITIONS, store=store)
