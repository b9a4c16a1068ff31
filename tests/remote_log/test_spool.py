"""The spool folder: leftovers of the killed go, what others use stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from fetchproxy.remote_log.sources.spool import Spool


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
    left = tmp_path / "fetchproxy-spool-dead"
    left.mkdir()
    (left / "lock").touch()
    (left / "00000001.log").write_bytes(b"x")
    (tmp_path / "other").mkdir()
    async with Spool(tmp_path):
        assert not left.exists()
        assert (tmp_path / "other").exists()


async def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        async with Spool(tmp_path / "file"):
            pass


def test_not_open() -> None:
    with pytest.raises(RuntimeError):
        Spool(None).new_file()
