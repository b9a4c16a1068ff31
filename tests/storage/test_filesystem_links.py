"""A settled file becomes an object without a copy, if links are possible."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fetchproxy.errors import StorageUnavailable
from fetchproxy.storage.stores.filesystem import Abandoned, Commit, FilesystemObjectStore, FileTree


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    path = tmp_path / "spool.log"
    path.write_bytes(b"batches")
    return path


@pytest.fixture
async def store(root: Path) -> AsyncIterator[FilesystemObjectStore]:
    async with FilesystemObjectStore(root, create=True) as store:
        yield store


def files_of(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


async def test_it_is_the_file_itself(
    store: FilesystemObjectStore, root: Path, segment: Path
) -> None:
    for _ in range(2):  # the second time over a name of the same file
        await store.put_file("t/0/s.log", segment, settled=True)
        assert os.path.samefile(root / "t/0/s.log", segment)
        assert files_of(root) == ["t/0/s.log", "~fetchproxy-store"]


async def test_one_that_may_change_is_copied(
    store: FilesystemObjectStore, root: Path, segment: Path
) -> None:
    await store.put_file("t/0/s.log", segment)
    assert not os.path.samefile(root / "t/0/s.log", segment)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP])
async def test_where_no_link_can_be_made_it_is_copied(
    store: FilesystemObjectStore,
    root: Path,
    segment: Path,
    code: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_link(source: Path, target: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", no_link)
    await store.put_file("t/0/s.log", segment, settled=True)
    assert not os.path.samefile(root / "t/0/s.log", segment)
    assert await store.get("t/0/s.log") == b"batches"
    assert files_of(root) == ["t/0/s.log", "~fetchproxy-store"]


def test_who_has_gone_gets_no_object(root: Path, segment: Path) -> None:
    commit = Commit()
    commit.abandon()
    with pytest.raises(Abandoned):
        FileTree(root, create=True).link("t/0/s.log", segment, commit)
    assert files_of(root) == ["~fetchproxy-store"]
    assert segment.read_bytes() == b"batches"


async def test_a_store_that_is_away_is_not_made_by_it(
    store: FilesystemObjectStore, root: Path, segment: Path
) -> None:
    await store.put("k", b"")
    root.rename(root.with_name("elsewhere"))
    with pytest.raises(StorageUnavailable):
        await store.put_file("t/0/s.log", segment, settled=True)
    assert not root.exists()
