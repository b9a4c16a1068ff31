"""A file store opens only regular files, below its own folder, and writes for its owner."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from fetchproxy.errors import DamagedObject, ObjectNotFound, RemoteStorageError
from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore

PROMPTLY_S = 5.0


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def store(root: Path) -> AsyncIterator[FilesystemObjectStore]:
    async with FilesystemObjectStore(root, create=True) as store:
        await store.put("t/0/k", b"content")
        yield store


def a_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        os.chdir(path.parent)  # a socket's path may have about 100 bytes
        made.bind(path.name)


def a_device(path: Path) -> None:
    try:
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
    except PermissionError:
        pytest.skip("only root makes devices")


def a_link(path: Path) -> None:
    outside = path.parent.parent.parent.parent / "outside"
    outside.write_bytes(b"secret")
    path.symlink_to(outside)


ODD: dict[str, Callable[[Path], None]] = {
    "FIFO": os.mkfifo,
    "socket": a_socket,
    "device": a_device,
    "symbolic link": a_link,
}


@pytest.mark.parametrize("kind", ODD)
async def test_what_is_no_file_is_damage_at_once(
    store: FilesystemObjectStore, root: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    ODD[kind](root / "t/0/odd")
    async with asyncio.timeout(PROMPTLY_S):
        with pytest.raises(DamagedObject, match=f"^t/0/odd is a {kind}"):
            await store.get("t/0/odd")
        with pytest.raises(DamagedObject, match=f"^t/0/odd is a {kind}"):
            await store.get_range("t/0/odd", ByteRange(0, 1))
        # It is listed, so it does not seem to be missing.
        assert [stored_object.key async for stored_object in store.list("t/")] == [
            "t/0/k",
            "t/0/odd",
        ]
        await store.put("t/0/odd", b"mended")
        assert await store.get("t/0/odd") == b"mended"


async def test_no_folder_that_is_a_link(
    store: FilesystemObjectStore, root: Path, tmp_path: Path
) -> None:
    """Not even a dangling link: a topic on an unmounted disk is not empty."""
    outside = tmp_path / "outside"
    (outside / "0").mkdir(parents=True)
    (outside / "0/k").write_bytes(b"secret")
    (root / "moved").symlink_to(outside)
    (root / "unmounted").symlink_to(tmp_path / "nowhere")
    assert [name async for name in store.list_folders("")] == ["moved", "t", "unmounted"]
    for topic in ("moved", "unmounted"):
        for call in (
            store.get(f"{topic}/0/k"),
            store.get_range(f"{topic}/0/k", ByteRange(0, 1)),
            store.put(f"{topic}/0/k", b"x"),
            store.put_file(f"{topic}/0/l", outside / "0/k", settled=True),
            store.delete(f"{topic}/0/k"),
            anext(store.list(f"{topic}/")),
            anext(store.list_folders(f"{topic}/")),
        ):
            with pytest.raises(RemoteStorageError, match=f"{topic} is a symbolic link"):
                await call
    assert (outside / "0/k").read_bytes() == b"secret"
    assert sorted(path.name for path in tmp_path.rglob("*")).count("k") == 2
    assert await store.get("t/0/k") == b"content"


async def test_the_root_may_be_a_link(root: Path, tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    root.symlink_to(real)
    async with FilesystemObjectStore(root, create=True) as store:
        await store.put("t/0/k", b"x")
        assert await store.get("t/0/k") == b"x"
        with pytest.raises(ObjectNotFound):
            await store.get("t/0/l")


def modes_of(root: Path) -> dict[str, int]:
    modes = {str(p.relative_to(root)): stat.S_IMODE(p.stat().st_mode) for p in root.rglob("*")}
    return {name: mode for name, mode in modes.items() if "~" not in name}


@pytest.mark.parametrize("linked", [True, False])
async def test_what_is_written_is_for_its_owner(
    store: FilesystemObjectStore, root: Path, tmp_path: Path, linked: bool
) -> None:
    spooled = tmp_path / "segment.log"
    spooled.write_bytes(b"batches")
    spooled.chmod(0o644)
    await store.put_file("t/0/l", spooled, settled=linked)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    assert modes_of(root) == {"t": 0o700, "t/0": 0o700, "t/0/k": 0o600, "t/0/l": 0o600}


async def test_whom_the_root_lets_in_may_read_what_is_new(
    store: FilesystemObjectStore, root: Path
) -> None:
    root.chmod(0o750)
    await store.put("u/0/k", b"x")
    modes = modes_of(root)
    assert (modes["u"], modes["u/0"], modes["u/0/k"]) == (0o750, 0o750, 0o640)
    assert modes["t/0/k"] == 0o600


async def test_a_brokers_own_file_keeps_its_mode(
    store: FilesystemObjectStore, root: Path, tmp_path: Path
) -> None:
    brokers, spooled = tmp_path / "00000000000000000000.log", tmp_path / "spool.log"
    brokers.write_bytes(b"batches")
    brokers.chmod(0o644)
    os.link(brokers, spooled)
    await store.put_file("t/0/l", spooled, settled=True)
    assert os.path.samefile(root / "t/0/l", brokers)
    assert stat.S_IMODE(brokers.stat().st_mode) == 0o644
