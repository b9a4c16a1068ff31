"""The disk cache on a real folder: reads return written chunks, and never other bytes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from faulty_store import HANG
from read_side import BATCH_BYTES, QUICK, batches, changed, fetched, read_side

from fetchproxy.config.schema import KiB, MiB, RemoteFetchConfig
from fetchproxy.errors import ConfigError
from fetchproxy.model import ByteRange
from fetchproxy.observability.metrics import (
    DISK_CACHE_ERRORS,
    DISK_CACHE_EVICTIONS,
    DISK_CACHE_HITS,
    DISK_CACHE_MISSES,
    DISK_CACHE_NOT_WRITTEN,
)
from fetchproxy.reading.disk_cache import (
    HEAD_BYTES,
    CachedChunk,
    DiskCache,
    DiskCacheFiles,
    NoRoom,
    parse_name,
)
from fetchproxy.reading.limits import ReadingLimits

SIZE = 64 * KiB
FILES_MAX = MiB // (SIZE + HEAD_BYTES)  # as many as fit into the smallest cache


def chunk(number: int, segment: int = 7, size: int = SIZE) -> CachedChunk:
    return CachedChunk(segment, ByteRange(number * size, (number + 1) * size))


def content(of: CachedChunk) -> bytes:
    return Random(str(of)).randbytes(of.byte_range.length)


def count(counter: object, *labels: str) -> float:
    child = counter.labels(*labels) if labels else counter  # type: ignore[attr-defined]
    return child._value.get()  # type: ignore[no-any-return]


def config(folder: Path, **options: object) -> RemoteFetchConfig:
    return RemoteFetchConfig.model_validate(
        {
            "disk_cache_dir": folder,
            "disk_cache_bytes_max": MiB,
            **options,
        }
    )


ROOMY = replace(QUICK, disk_cache_free_bytes_min=0, disk_cache_writes_max=100)


@asynccontextmanager
async def cache(
    folder: Path, limits: ReadingLimits = ROOMY, **options: object
) -> AsyncIterator[DiskCache]:
    async with DiskCache(config(folder, **options), limits) as opened:
        yield opened
        await settled(opened)


async def settled(cache: DiskCache) -> None:
    await until(lambda: not cache._writing)


async def store(cache: DiskCache, *chunks: CachedChunk) -> None:
    for one in chunks:
        cache.offer(one, memoryview(content(one)))
        await settled(cache)


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name != ".lock"}


async def test_what_was_offered_is_read_again(tmp_path: Path) -> None:
    async with cache(tmp_path / "deep" / "folder") as disk:
        hits, misses = count(DISK_CACHE_HITS), count(DISK_CACHE_MISSES)
        assert await disk.read(chunk(0)) is None
        await store(disk, chunk(0), chunk(1))
        assert await disk.read(chunk(0)) == content(chunk(0))
        assert await disk.read(chunk(1)) == content(chunk(1))
        assert (count(DISK_CACHE_HITS) - hits, count(DISK_CACHE_MISSES) - misses) == (2, 1)
        assert disk._bytes == 2 * (SIZE + HEAD_BYTES)
    modes = {(p.name[-6:], p.stat().st_mode & 0o077) for p in (tmp_path / "deep/folder").iterdir()}
    assert (".chunk", 0) in modes


async def test_other_segments_and_ranges_are_other_chunks(tmp_path: Path) -> None:
    """A recreated topic has other segment ids, and so has a retried segment."""
    async with cache(tmp_path) as disk:
        await store(disk, chunk(0))
        assert await disk.read(chunk(0, segment=8)) is None
        assert await disk.read(chunk(1)) is None
        assert await disk.read(chunk(0, size=SIZE // 2)) is None
        assert await disk.read(chunk(0)) is not None


async def test_a_file_that_stands_in_for_another_is_not_served(tmp_path: Path) -> None:
    async with cache(tmp_path) as disk:
        await store(disk, chunk(0), chunk(0, segment=8))
        (tmp_path / chunk(0).file_name).replace(tmp_path / chunk(0, segment=8).file_name)
        assert await disk.read(chunk(0, segment=8)) is None


async def test_it_survives_a_restart_with_its_ages(tmp_path: Path) -> None:
    chunks = [chunk(n) for n in range(FILES_MAX)]
    async with cache(tmp_path) as disk:
        await store(disk, *chunks)
    for age, one in enumerate(chunks):
        os.utime(tmp_path / one.file_name, (1_000 + age, 1_000 + age))
    async with cache(tmp_path) as disk:
        assert disk._bytes == FILES_MAX * (SIZE + HEAD_BYTES)
        assert await disk.read(chunks[0]) == content(chunks[0])  # now it is the newest
    async with cache(tmp_path) as disk:
        await store(disk, chunk(100))
        assert await disk.read(chunks[0]) == content(chunks[0])
        assert await disk.read(chunks[1]) is None
        assert await disk.read(chunks[2]) == content(chunks[2])


async def test_what_was_half_written_or_is_not_whole_is_removed_at_the_start(
    tmp_path: Path,
) -> None:
    async with cache(tmp_path) as disk:
        await store(disk, chunk(0), chunk(1))
    (tmp_path / "whatever.writing").write_bytes(b"x")
    torn = tmp_path / chunk(1).file_name
    torn.write_bytes(torn.read_bytes()[:-1])
    (tmp_path / "notes.txt").write_text("somebody else's")
    async with cache(tmp_path) as disk:
        assert await disk.read(chunk(1)) is None
        assert await disk.read(chunk(0)) is not None
    assert files(tmp_path) == {chunk(0).file_name, "notes.txt"}


async def test_a_smaller_limit_holds_from_the_start(tmp_path: Path) -> None:
    async with cache(tmp_path, disk_cache_bytes_max=2 * MiB) as disk:
        await store(disk, *(chunk(n) for n in range(2 * FILES_MAX)))
    async with cache(tmp_path) as disk:
        assert disk._bytes <= MiB
        await until(lambda: len(files(tmp_path)) == FILES_MAX)


def last_byte(path: Path) -> bytes | None:
    """None: the file is removed and not yet written again."""
    try:
        return path.read_bytes()[-1:]
    except FileNotFoundError:
        return None


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not true():  # noqa: ASYNC110 - what threads do to files tells nobody
            await asyncio.sleep(0.001)


DAMAGES = {
    "a flipped bit in the head": lambda b: bytes([b[0] ^ 1]) + b[1:],
    "a flipped bit in the sum": lambda b: b[: HEAD_BYTES - 1] + bytes([b[-1] ^ 1]) + b[HEAD_BYTES:],
    "a flipped bit in the bytes": lambda b: b[:-1] + bytes([b[-1] ^ 128]),
    "torn": lambda b: b[: len(b) // 2],
    "torn in the head": lambda b: b[:10],
    "empty": lambda b: b"",
    "zeroes, as after a crash": lambda b: bytes(len(b)),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
async def test_a_damaged_file_is_dropped_and_never_served(
    damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    async with cache(tmp_path) as disk:
        await store(disk, chunk(0))
        path = tmp_path / chunk(0).file_name
        path.write_bytes(damage(path.read_bytes()))
        errors = count(DISK_CACHE_ERRORS, "damaged")
        assert await disk.read(chunk(0)) is None
        assert count(DISK_CACHE_ERRORS, "damaged") == errors + 1
        assert disk._bytes == 0
        await until(lambda: not path.exists())
        await store(disk, chunk(0))
        assert await disk.read(chunk(0)) == content(chunk(0))


async def test_a_file_that_somebody_removed_is_absent(tmp_path: Path) -> None:
    async with cache(tmp_path) as disk:
        await store(disk, chunk(0))
        (tmp_path / chunk(0).file_name).unlink()
        assert await disk.read(chunk(0)) is None
        assert disk._bytes == 0


async def test_the_longest_unused_goes_before_the_limit_is_passed(tmp_path: Path) -> None:
    async with cache(tmp_path) as disk:
        evictions = count(DISK_CACHE_EVICTIONS)
        for n in range(FILES_MAX):
            await store(disk, chunk(n))
        assert count(DISK_CACHE_EVICTIONS) == evictions
        await disk.read(chunk(0))
        for n in range(FILES_MAX, FILES_MAX + 3):
            await store(disk, chunk(n))
            assert sum(p.stat().st_size for p in tmp_path.iterdir()) <= MiB
        assert count(DISK_CACHE_EVICTIONS) == evictions + 3
        assert await disk.read(chunk(0)) is not None
        assert [await disk.read(chunk(n)) for n in (1, 2, 3)] == [None] * 3


@pytest.mark.parametrize(("over", "is_kept"), [(0, True), (1, False)])
async def test_a_chunk_larger_than_the_cache_is_left_out(
    over: int, is_kept: bool, tmp_path: Path
) -> None:
    whole = CachedChunk(7, ByteRange(0, MiB - HEAD_BYTES + over))
    async with cache(tmp_path) as disk:
        await store(disk, chunk(0), whole)
        assert (await disk.read(whole) is not None) is is_kept
        assert (await disk.read(chunk(0)) is None) is is_kept  # evicted, to make room


async def test_writes_that_wait_are_bounded_and_nobody_waits_for_them(tmp_path: Path) -> None:
    async with cache(tmp_path, replace(ROOMY, disk_cache_writes_max=3)) as disk:
        busy = count(DISK_CACHE_NOT_WRITTEN, "busy")
        for n in range(10):  # within one step of the loop
            disk.offer(chunk(n), memoryview(content(chunk(n))))
        assert len(disk._writing) == 3
        assert count(DISK_CACHE_NOT_WRITTEN, "busy") == busy + 7
        await settled(disk)
        hits = [await disk.read(chunk(n)) is not None for n in range(10)]
        assert hits == [True] * 3 + [False] * 7


async def test_the_same_chunk_is_written_once(tmp_path: Path) -> None:
    async with cache(tmp_path) as disk:
        for _ in range(5):
            disk.offer(chunk(0), memoryview(content(chunk(0))))
        assert len(disk._writing) == 1
        await settled(disk)
        disk.offer(chunk(0), memoryview(content(chunk(0))))
        assert len(disk._writing) == 0
        assert disk._bytes == SIZE + HEAD_BYTES


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def test_a_file_system_that_would_have_too_little_left_is_not_written_to(tmp_path: Path) -> None:
    margin = 64 * MiB  # other processes write to the same file system
    roomy = DiskCacheFiles(tmp_path, free_bytes(tmp_path) - margin)
    roomy.write(chunk(0), memoryview(content(chunk(0))), [])
    full = DiskCacheFiles(tmp_path, free_bytes(tmp_path) + margin)
    with pytest.raises(NoRoom) as error:
        full.write(chunk(1), memoryview(content(chunk(1))), [])
    assert 0 < error.value.lacking_bytes <= 2 * margin + SIZE + HEAD_BYTES
    assert files(tmp_path) == {chunk(0).file_name}


async def test_the_cache_shrinks_where_the_file_system_is_nearly_full(tmp_path: Path) -> None:
    async with cache(tmp_path) as disk:
        await store(disk, *(chunk(n) for n in range(4)))
    too_much = free_bytes(tmp_path) * 2
    async with cache(tmp_path, replace(ROOMY, disk_cache_free_bytes_min=too_much)) as disk:
        full = count(DISK_CACHE_NOT_WRITTEN, "full")
        assert await disk.read(chunk(0)) is not None
        await store(disk, chunk(9))
        assert count(DISK_CACHE_NOT_WRITTEN, "full") == full + 1
        assert disk._bytes == 0
        await until(lambda: not files(tmp_path))
        assert await disk.read(chunk(0)) is None


async def test_a_disk_that_fails_is_left_alone_for_a_while(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    async with cache(folder) as disk:
        await store(disk, chunk(0))
        path = folder / chunk(0).file_name
        path.unlink()
        path.mkdir()  # reading it raises an OSError
        failed = count(DISK_CACHE_ERRORS, "failed")
        assert await disk.read(chunk(0)) is None
        assert count(DISK_CACHE_ERRORS, "failed") == failed + 1
        busy = count(DISK_CACHE_NOT_WRITTEN, "busy")
        disk.offer(chunk(1), memoryview(content(chunk(1))))
        assert len(disk._writing) == 0
        assert count(DISK_CACHE_NOT_WRITTEN, "busy") == busy + 1


async def test_a_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    async with cache(folder) as disk:
        (folder / chunk(0).file_name).mkdir()  # cannot be replaced by a file
        failed = count(DISK_CACHE_NOT_WRITTEN, "failed")
        await store(disk, chunk(0))
        assert count(DISK_CACHE_NOT_WRITTEN, "failed") == failed + 1
        assert disk._bytes == 0
        assert files(folder) == {chunk(0).file_name}


async def test_one_process_to_a_folder(tmp_path: Path) -> None:
    async with cache(tmp_path):
        with pytest.raises(ConfigError, match=r"disk_cache_dir.*another process"):
            async with cache(tmp_path):
                pass
    async with cache(tmp_path):
        pass


async def test_a_folder_that_cannot_be_made_is_a_wrong_configuration(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="disk_cache_dir"):
        async with cache(tmp_path / "file" / "below"):
            pass


@pytest.mark.parametrize(
    "name",
    ["", ".lock", "7-0-1.chunk", f"{7:032x}-5-5.chunk", f"{7:032x}-0-1.chunk.writing", "../x"],
)
def test_other_names_are_none_of_its_own(name: str) -> None:
    assert parse_name(name) is None
    assert parse_name(chunk(3).file_name) == chunk(3)


# --- with the whole read side --------------------------------------------------------------------


async def test_a_replay_after_a_restart_costs_the_store_nothing_but_indexes(tmp_path: Path) -> None:
    options = config(tmp_path).model_dump(include={*config(tmp_path).model_fields_set})
    async with read_side(changed(**options, chunk_cache_bytes_max=0), limits=ROOMY) as side:
        stored = batches(side.rng, 0, 40)
        metadata = await side.segment(stored)
        for n in range(10):
            await fetched(side, 40 * n, wait_s=30)
        assert side.log_reads() == 10
        inner, tp = side.store.inner, side.tp
        await until(lambda: len(files(tmp_path)) == 10)
    async with read_side(changed(**options), limits=ROOMY) as side:
        side.store.inner, side.tp = inner, tp
        served = b""
        for n in range(10):
            fetch = await fetched(side, 40 * n, wait_s=30)
            served += bytes(fetch.results()[0].records[0][: 4 * BATCH_BYTES])
        assert served == b"".join(batch.content for batch in stored)
        assert side.log_reads() == 0
        assert metadata.segment_id.id.int


async def test_while_the_store_is_away_the_disk_still_serves(tmp_path: Path) -> None:
    options = config(tmp_path).model_dump(include={*config(tmp_path).model_fields_set})
    limits = replace(ROOMY, fetcher_tasks_max=1)
    async with read_side(changed(**options, chunk_cache_bytes_max=0), limits=limits) as side:
        await side.segment(batches(side.rng, 0, 40))
        await fetched(side, 0, wait_s=30)
        await until(lambda: len(files(tmp_path)) == 1)

        side.store.faults = HANG
        stuck = side.watch(side.request(80), wait_s=30)  # takes the only place
        await asyncio.sleep(0.05)
        fetch = await fetched(side, 0, wait_s=30)
        assert fetch.results()[0].size_bytes > 0
        stuck.cancel()


async def test_a_damaged_file_is_read_again_from_the_store(tmp_path: Path) -> None:
    options = config(tmp_path).model_dump(include={*config(tmp_path).model_fields_set})
    async with read_side(changed(**options, chunk_cache_bytes_max=0), limits=ROOMY) as side:
        stored = batches(side.rng, 0, 8)
        metadata = await side.segment(stored)
        for offset in (0, 40):  # the second evicts the first from memory
            await fetched(side, offset, wait_s=30)
        await until(lambda: len(files(tmp_path)) == 2)
        path = tmp_path / CachedChunk(metadata.segment_id.id.int, ByteRange(0, 4_000)).file_name
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        fetch = await fetched(side, 10, wait_s=30)
        assert fetch.results()[0].records[0] == b"".join(b.content for b in stored[1:4])
        assert side.log_reads() == 3
        await until(lambda: last_byte(path) not in (None, b"!"))


async def test_a_sound_file_that_the_index_does_not_know_is_refused(tmp_path: Path) -> None:
    """A fault may have written another chunk's bytes and checksum under this chunk's name."""
    options = config(tmp_path).model_dump(include={*config(tmp_path).model_fields_set})
    async with read_side(changed(**options), limits=ROOMY) as side:
        stored = batches(side.rng, 0, 8)
        metadata = await side.segment(stored)
        first = CachedChunk(metadata.segment_id.id.int, ByteRange(0, 4_000))
        wrong = b"".join(b.content for b in stored[4:8])
        DiskCacheFiles(tmp_path, 0).write(first, memoryview(wrong), [])
        inner, tp = side.store.inner, side.tp
    async with read_side(changed(**options), limits=ROOMY) as side:
        side.store.inner, side.tp = inner, tp
        hits = count(DISK_CACHE_HITS)
        fetch = await fetched(side, 0, wait_s=30)
        assert fetch.results()[0].records[0] == b"".join(b.content for b in stored[:4])
        assert count(DISK_CACHE_HITS) == hits + 1
        assert side.log_reads() == 1
