"""Files of credentials and certificates whose disk hangs hold no turn of the loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import botocore.configloader
import pytest
from aiobotocore.session import AioSession

from fetchproxy.runtime import folders
from fetchproxy.runtime.folders import NO_FILE, WatchedFile, stamp_of
from fetchproxy.storage.stores.aws_credentials import trusted_file


class HangingDisk:
    """`threads`: those that look at the files below `folder`, which hang until `mend`."""

    def __init__(self, folder: Path) -> None:
        self.threads: list[threading.Thread] = []
        self._folder = folder
        self._mended = threading.Event()

    def hanging(self, look: Callable[..., Any]) -> Callable[..., Any]:
        def hang(path: Any, *args: Any, **named: Any) -> Any:
            if Path(path).is_relative_to(self._folder):
                self.threads.append(threading.current_thread())
                self._mended.wait(60)
            return look(path, *args, **named)

        return hang

    def mend(self) -> None:
        self._mended.set()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingDisk]:
    disk = HangingDisk(tmp_path)
    monkeypatch.setattr(os, "stat", disk.hanging(os.stat))
    monkeypatch.setattr(folders, "FILE_LOOK_WAIT_MAX_S", 0.05)
    yield disk
    disk.mend()


def at_once(file: WatchedFile) -> WatchedFile:
    """Without the pause between two looks."""
    file._look_at = 0.0
    return file


async def until_changed(file: WatchedFile) -> None:
    while not await at_once(file).changed():  # noqa: ASYNC110 - a thread tells no event
        await asyncio.sleep(0.01)


async def test_a_change_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "FILE_LOOK_WAIT_MAX_S", 60)
    path = tmp_path / "file"
    path.write_text("1")
    file = WatchedFile(path, stamp_of(path))
    assert not await file.changed()
    path.write_text("two")
    assert not await file.changed(), "it has just looked"
    assert await at_once(file).changed()
    assert not await at_once(file).changed()
    path.unlink()
    assert not await at_once(file).changed(), "it may be about to be replaced"
    assert not await NO_FILE.changed()


async def test_a_disk_that_hangs_takes_one_thread_and_a_short_wait(
    tmp_path: Path, disk: HangingDisk
) -> None:
    file = WatchedFile(tmp_path / "file", None)
    (tmp_path / "file").write_text("1")
    for _ in range(5):
        assert not await at_once(file).changed()
    assert len(disk.threads) == 1
    assert disk.threads != [threading.current_thread()]
    disk.mend()
    await until_changed(file)


async def test_what_a_caller_found_that_was_cancelled_is_not_lost(
    tmp_path: Path, disk: HangingDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "FILE_LOOK_WAIT_MAX_S", 60)
    (tmp_path / "file").write_text("1")
    file = WatchedFile(tmp_path / "file", None)
    async with asyncio.TaskGroup() as tasks:
        looking = tasks.create_task(file.changed())
        while not disk.threads:  # noqa: ASYNC110 - a thread tells no event
            await asyncio.sleep(0.01)
        looking.cancel()
    disk.mend()
    await until_changed(file)
    assert len(disk.threads) == 1


async def test_botos_files_are_read_on_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text("[default]\nca_bundle = /no/bundle.pem\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)
    threads = []
    load = botocore.configloader.raw_config_parse

    def noted(path: str, *args: Any) -> Any:
        threads.append(threading.current_thread())
        return load(path, *args)

    monkeypatch.setattr(botocore.configloader, "raw_config_parse", noted)
    session = await trusted_file(AioSession())
    assert session._path == Path("/no/bundle.pem")
    assert threads
    assert threading.current_thread() not in threads
