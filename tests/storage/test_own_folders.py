"""Folders with content that is trusted when read again belong to one user."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fetchproxy.errors import ConfigError
from fetchproxy.metadata.flat_files import SegmentMetadataCache
from fetchproxy.runtime.folders import take_folder
from fetchproxy.serving.archive_only.committed_offsets import write_offsets
from fetchproxy.writing.spool import Spool

KEY = "remote_fetch.disk_cache_dir"


def take(folder: Path) -> None:
    take_folder(folder, KEY).close()


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_one_that_is_made_is_for_its_owner(tmp_path: Path) -> None:
    take(tmp_path / "disk")
    with SegmentMetadataCache(tmp_path / "metadata"):
        pass
    assert (mode_of(tmp_path / "disk"), mode_of(tmp_path / "metadata")) == (0o700, 0o700)
    write_offsets(tmp_path / "offsets", {})
    assert mode_of(tmp_path / "offsets") == 0o600


def test_one_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(tmp_path, 12_345, -1)
        owner = 12_345
    else:
        owner = os.geteuid()
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(ConfigError, match=rf"{KEY} = .*: it belongs to user {owner}.*\(chown\)"):
        take(tmp_path)
    with pytest.raises(ConfigError, match=r"^metadata\.cache_dir = "):
        SegmentMetadataCache(tmp_path).__enter__()


@pytest.mark.parametrize(("mode", "is_told"), [(0o777, True), (0o775, False), (0o755, False)])
def test_one_where_everybody_may_write_is_told(tmp_path: Path, mode: int, is_told: bool) -> None:
    tmp_path.chmod(mode)
    with capture_logs() as logs:
        take(tmp_path)
    events = [line["event"] for line in logs]
    assert events == ["folder_writable_by_everybody"] * is_told


async def test_a_spool_folder_of_another_user_holds_up_no_start(tmp_path: Path) -> None:
    """In /tmp any user can make such a folder, with a FIFO as its lock."""
    if os.geteuid() != 0:
        pytest.skip("only root makes another user's folder")
    async with Spool(tmp_path) as spool:
        planted_folder = spool.new_file().parent.with_name(
            spool.new_file().parent.name + "-planted"
        )
    planted_folder.mkdir()
    os.mkfifo(planted_folder / ".lock")
    os.mkfifo(planted_folder / "lock")
    os.chown(planted_folder, 12_345, -1)
    async with Spool(tmp_path):
        assert planted_folder.is_dir()
