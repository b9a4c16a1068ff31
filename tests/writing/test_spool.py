"""The spool folder: leftovers of killed processes go, folders in use stay."""

from __future__ import annotations

import asyncio
import fcntl
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

import pytest

from fetchproxy.writing.spool import Spool


async def test_each_has_its_own_folder_and_removes_it(tmp_path: Path) -> None:
    async with Spool(tmp_path / "new") as first, Spool(tmp_path / "new") as second:
        paths = {first.new_file(), first.new_file(), second.new_file()}
        assert len(paths) == 3
        for path in paths:
            path.write_bytes(b"x")
        async with Spool(tmp_path / "new"):
            assert all(path.exists() for path in paths)  # in use: left alone
    assert list((tmp_path / "new").iterdir()) == []


async def test_leftovers_without_an_owner_go(tmp_path: Path) -> None:
    leftover = tmp_path / "fetchproxy-spool-dead"
    leftover.mkdir()
    (leftover / "lock").touch()
    (leftover / "00000001.log").write_bytes(b"x")
    (tmp_path / "other").mkdir()
    async with Spool(tmp_path):
        assert not leftover.exists()
        assert (tmp_path / "other").exists()


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        async with Spool(tmp_path / "file"):
            pass


def test_a_spool_that_is_not_open_gives_no_file() -> None:
    with pytest.raises(RuntimeError):
        Spool(None).new_file()


async def test_a_folder_that_another_start_takes_for_a_leftover_is_not_worked_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other start looks between the creation of the lock file and the lock."""
    lock, looks = fcntl.flock, []

    def after_another_has_looked(file: IO[bytes], operation: int) -> None:
        if not looks:
            looks.append(operation)
            Spool(tmp_path)._remove_leftovers()
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", after_another_has_looked)
    async with Spool(tmp_path) as spool:
        assert looks
        spool.new_file().write_bytes(b"there is a folder for it")
        Spool(tmp_path)._remove_leftovers()
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


async def test_a_start_that_is_cancelled_leaves_no_folder(tmp_path: Path) -> None:
    starting = asyncio.create_task(Spool(tmp_path).__aenter__())
    await asyncio.sleep(0)  # its thread is running
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await asyncio.get_running_loop().shutdown_default_executor()
    assert list(tmp_path.iterdir()) == []


async def test_a_start_that_is_cancelled_when_its_thread_has_ended_leaves_no_folder(
    tmp_path: Path,
) -> None:
    spool = Spool(tmp_path)
    starting = asyncio.create_task(spool.__aenter__())
    await asyncio.sleep(0)
    while not spool._has_folder:
        time.sleep(0.001)  # noqa: ASYNC251 - the loop does not know it yet
    assert len(list(tmp_path.iterdir())) == 1
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert list(tmp_path.iterdir()) == []


async def test_a_disk_that_hangs_holds_no_turn_of_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, hangs, mended = tempfile.mkdtemp, threading.Event(), threading.Event()

    def hang(**named: str) -> str:
        hangs.set()
        mended.wait(60)
        return make(**named)

    monkeypatch.setattr(tempfile, "mkdtemp", hang)
    starting = asyncio.create_task(Spool(tmp_path).__aenter__())
    while not hangs.is_set():  # noqa: ASYNC110 - a thread tells no event
        await asyncio.sleep(0.01)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    mended.set()
    await asyncio.get_running_loop().shutdown_default_executor()
    assert list(tmp_path.iterdir()) == []


async def test_its_files_are_deleted_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    remove = shutil.rmtree

    def noted(folder: Path, ignore_errors: bool) -> None:
        threads.append(threading.current_thread())
        remove(folder, ignore_errors)

    monkeypatch.setattr(shutil, "rmtree", noted)
    async with Spool(tmp_path) as spool:
        spool.new_file().write_bytes(b"x")
    assert threads != [threading.main_thread()]
    assert not list(tmp_path.iterdir())
