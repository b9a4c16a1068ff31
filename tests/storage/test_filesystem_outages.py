"""Cases that only files have: a folder that goes away, a disk that hangs, killed writers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from errno import EACCES, EIO, EISDIR, ENAMETOOLONG, ENOENT, ENOSPC, ENOTDIR, EPERM
from functools import partial
from pathlib import Path
from threading import Event

import pytest

from fetchproxy.errors import (
    ObjectNotFound,
    RemoteStorageError,
    StorageDenied,
    StorageUnavailable,
)
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores import filesystem as file_tree
from fetchproxy.storage.stores.filesystem import (
    Abandoned,
    Commit,
    FilesystemObjectStore,
    FileTree,
    read_exactly,
    storage_error,
    sync,
)

LATER_MS = 2**52


def permissions_are_ignored() -> bool:
    """True for root, unless it has given up that right."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0)
        return os.access(folder, os.R_OK)


def all_ours(key: str) -> bool:
    return True


needs_permissions = pytest.mark.skipif(permissions_are_ignored(), reason="root reads everything")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[FilesystemObjectStore]:
    async with FilesystemObjectStore(root, create=True) as store:
        await store.put("t/0/k", b"content")
        yield store


async def everything_is_unavailable(store: FilesystemObjectStore) -> None:
    with pytest.raises(StorageUnavailable):
        await store.get("t/0/k")
    with pytest.raises(StorageUnavailable):
        await store.get("t/0/never-was")
    with pytest.raises(StorageUnavailable):
        await store.get_range("t/0/k", ByteRange(0, 1))
    with pytest.raises(StorageUnavailable):
        await store.put("t/0/l", b"")
    with pytest.raises(StorageUnavailable):
        await store.put_file("t/0/l", Path(__file__))
    with pytest.raises(StorageUnavailable):
        await store.delete("t/0/k")
    for prefix in ("", "t/", "absent/"):
        with pytest.raises(StorageUnavailable):
            [stored_object async for stored_object in store.list(prefix)]
        with pytest.raises(StorageUnavailable):
            [name async for name in store.list_folders(prefix)]
    with pytest.raises(StorageUnavailable):
        await store.abort_stale_uploads("", 0, all_ours)


async def test_a_renamed_folder_is_an_outage(store: FilesystemObjectStore, root: Path) -> None:
    away = root.rename(root.with_name("away"))
    await everything_is_unavailable(store)
    assert not root.exists()  # it was not made again
    away.rename(root)
    assert await store.get("t/0/k") == b"content"


async def test_an_empty_mount_point_is_an_outage(store: FilesystemObjectStore, root: Path) -> None:
    away = root.rename(root.with_name("away"))
    root.mkdir()
    await everything_is_unavailable(store)
    assert list(root.iterdir()) == []
    root.rmdir()
    away.rename(root)
    assert [stored_object.key async for stored_object in store.list("")] == ["t/0/k"]


async def test_a_file_in_the_folders_place_is_an_outage(
    store: FilesystemObjectStore, root: Path
) -> None:
    root.rename(root.with_name("away"))
    root.write_bytes(b"")
    await everything_is_unavailable(store)


async def test_an_outage_within_a_listing_is_one(store: FilesystemObjectStore, root: Path) -> None:
    for n in range(1500):
        (root / "t" / "0" / f"{n:04d}").touch()
    objects_listed = 0

    async def list_through_an_outage() -> None:
        nonlocal objects_listed
        async for _ in store.list(""):
            if objects_listed == 0:
                root.rename(root.with_name("away"))
            objects_listed += 1

    with pytest.raises(StorageUnavailable):
        await list_through_an_outage()
    assert 0 < objects_listed < 1500


async def test_a_folder_is_looked_for_again_by_a_reader(root: Path) -> None:
    """A reader gets an error for a missing folder until a writer has made it."""
    async with FilesystemObjectStore(root) as reader:
        await everything_is_unavailable(reader)
        async with FilesystemObjectStore(root, create=True) as writer:
            await writer.put("k", b"x")
        assert await reader.get("k") == b"x"
        root.rename(root.with_name("away"))
        root.mkdir()
        await everything_is_unavailable(reader)


async def test_any_folder_may_be_read(root: Path) -> None:
    """This includes a folder copied without the store's own marker."""
    root.mkdir()
    (root / "k").write_bytes(b"x")
    async with FilesystemObjectStore(root) as reader:
        assert await reader.get("k") == b"x"
        assert [stored_object.key async for stored_object in reader.list("")] == ["k"]


async def test_the_stores_own_files_are_no_objects(
    store: FilesystemObjectStore, root: Path
) -> None:
    (root / "t" / "0" / "~put-1-0").write_bytes(b"half")
    assert any(path.name.startswith("~") for path in root.iterdir())
    assert [stored_object.key async for stored_object in store.list("")] == ["t/0/k"]
    assert [name async for name in store.list_folders("t/")] == ["0"]


async def test_empty_folders_are_none(store: FilesystemObjectStore, root: Path) -> None:
    (root / "empty" / "0").mkdir(parents=True)
    (root / "half" / "0").mkdir(parents=True)
    (root / "half" / "0" / "~put-1-0").write_bytes(b"half")
    assert [name async for name in store.list_folders("")] == ["t"]
    await store.delete("t/0/k")
    assert not (root / "t").exists()
    assert root.is_dir()


async def test_puts_and_deletes_in_one_folder_do_not_disturb_each_other(
    store: FilesystemObjectStore,
) -> None:
    async def put_and_delete(name: str) -> None:
        for _ in range(100):
            await store.put(f"p/q/{name}", b"x")
            assert await store.get(f"p/q/{name}") == b"x"
            await store.delete(f"p/q/{name}")

    async with asyncio.TaskGroup() as group:
        for n in range(4):
            group.create_task(put_and_delete(str(n)))


async def test_a_folder_that_is_removed_before_it_is_synced_is_made_again(
    store: FilesystemObjectStore, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the delete of the last other object in it, on another thread or host."""
    removed: list[Path] = []

    def remove_then_sync(path: Path) -> None:
        if path == root / "p" and not removed:
            (path / "q").rmdir()
            path.rmdir()
            removed.append(path)
        sync(path)

    monkeypatch.setattr(file_tree, "sync", remove_then_sync)
    await store.put("p/q/k", b"x")
    assert removed
    assert await store.get("p/q/k") == b"x"


async def test_stale_temporaries_are_removed(store: FilesystemObjectStore, root: Path) -> None:
    stale, other = root / "t" / "0" / "~put-1-0", root / "~put-1-1"
    stale.write_bytes(b"half")
    other.write_bytes(b"half")
    assert await store.abort_stale_uploads("t/", 1000, all_ours) == 0
    assert await store.abort_stale_uploads("t/", LATER_MS, all_ours) == 1
    assert not stale.exists()
    assert other.exists()
    assert await store.abort_stale_uploads("", LATER_MS, all_ours) == 1
    assert await store.get("t/0/k") == b"content"
    await store.put("after", b"x")  # the marker is still there


async def test_a_name_too_long_for_the_file_system(store: FilesystemObjectStore) -> None:
    with pytest.raises(RemoteStorageError, match="too long") as error:
        await store.put("x" * 256 + "/0/k", b"")
    assert not error.value.retriable


async def test_a_hanging_disk_does_not_stop_the_loop(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read of one of its files hangs, as with a dead NFS server."""
    alive = Event()

    def hang(fd: int, start: int, end: int) -> bytes:
        if end == len(b"hang"):
            alive.wait()
        return read_exactly(fd, start, end)

    monkeypatch.setattr(file_tree, "read_exactly", hang)
    async with FilesystemObjectStore(root, create=True, threads_max=2) as store:
        await store.put("k", b"x")
        await store.put("hang", b"hang")
        turns = 0
        readers = [asyncio.create_task(store.get("hang")) for _ in range(5)]
        for _ in range(50):
            await asyncio.sleep(0.001)
            turns += 1
        assert turns == 50
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await store.get("k")  # every thread hangs; the caller's time-out works
        for reader in readers:
            reader.cancel()
        for reader in readers:
            with suppress(asyncio.CancelledError):
                await reader
        # Release the two hanging reads; the others never began.
        alive.set()
        assert await store.get("k") == b"x"


async def test_a_cancelled_put_is_not_committed_later(root: Path) -> None:
    release = Event()

    def slow_parts() -> Iterator[bytes]:
        yield b"x"
        release.wait()
        yield b"y"

    async with FilesystemObjectStore(root, create=True) as store:
        work = asyncio.create_task(store._put("k", partial(store._tree.put, "k", slow_parts())))
        for _ in range(1000):
            await asyncio.sleep(0.001)
            if list(root.glob("~put-*")):
                break
        work.cancel()
        with suppress(asyncio.CancelledError):
            await work
        release.set()
        for _ in range(1000):
            await asyncio.sleep(0.001)
            if not list(root.glob("~put-*")):
                break
        assert [stored_object async for stored_object in store.list("")] == []
        assert [path.name for path in root.iterdir()] == ["~fetchproxy-store"]


def test_a_commit_is_decided_once() -> None:
    commit = Commit()
    commit.check()
    commit.claim()
    commit.abandon()
    gone = Commit()
    gone.abandon()
    with pytest.raises(Abandoned):
        gone.check()
    with pytest.raises(Abandoned):
        gone.claim()


_WRITER = """
import sys
from pathlib import Path
from fetchproxy.storage.stores.filesystem import Commit, FileTree
tree = FileTree(Path(sys.argv[1]), create=True)
print("ready", flush=True)
n = 0
while True:
    content = bytes([n % 256]) * 300_000
    tree.put("a/k", [content[:100_000], content[100_000:]], Commit())
    n += 1
"""


async def test_a_killed_writer_leaves_whole_objects(root: Path) -> None:
    for delay_s in (0.0, 0.003, 0.011, 0.02):
        writer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _WRITER, str(root), stdout=asyncio.subprocess.PIPE
        )
        assert writer.stdout is not None
        assert await writer.stdout.readline() == b"ready\n"
        await asyncio.sleep(delay_s)
        writer.send_signal(signal.SIGKILL)
        await writer.wait()
        tree = FileTree(root, create=True)
        for file_node in tree.walk("", ""):
            content = tree.get(file_node.key, file_node.size_bytes)
            assert file_node.key == "a/k"
            assert len(content) == 300_000
            assert len(set(content)) == 1


@pytest.mark.parametrize(
    ("code", "expected", "retriable"),
    [
        (ENOENT, ObjectNotFound, False),
        (ENOTDIR, ObjectNotFound, False),
        (EACCES, StorageDenied, False),
        (EPERM, StorageDenied, False),
        (ENAMETOOLONG, RemoteStorageError, False),
        (EISDIR, RemoteStorageError, False),
        (ENOSPC, StorageUnavailable, True),
        (EIO, StorageUnavailable, True),
    ],
)
def test_errors_of_the_system(code: int, expected: type[Exception], retriable: bool) -> None:
    error = storage_error(OSError(code, os.strerror(code)), "t/0/k")
    assert type(error) is expected
    assert error.retriable is retriable
    assert "t/0/k" in str(error)


@needs_permissions
async def test_an_object_that_may_not_be_read(store: FilesystemObjectStore, root: Path) -> None:
    (root / "t" / "0" / "k").chmod(0)
    with pytest.raises(StorageDenied):
        await store.get("t/0/k")


@needs_permissions
async def test_a_folder_that_may_not_be_read(store: FilesystemObjectStore, root: Path) -> None:
    root.chmod(0)
    try:
        await everything_is_unavailable(store)
    finally:
        root.chmod(0o700)
