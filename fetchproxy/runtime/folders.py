"""One process and one user per folder.

One process, as Kafka locks its log.dirs, because two writers would undo each other's work. One
user, because the process trusts the folder's content when it reads it again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import structlog

from fetchproxy.errors import ConfigError

log = structlog.get_logger(__name__)

LOCK = ".lock"
OWNER_ONLY = 0o700
ROOT_UID = 0
# A file's state: ctime (ns), which changes with its mode and owner too, size, inode. None: the file
# does not exist.
Stamp = tuple[int, int, int] | None
# Seconds between two looks of a `WatchedFile`.
FILE_LOOK_INTERVAL_S = 1.0


def make_own_folder(folder: Path, config_key: str) -> None:
    """Make the folder if it is missing, with access for its owner only. Blocks for the disk.

    Raises OSError, or ConfigError with `config_key` if the folder belongs to another user. As with
    ssh, a folder of root is accepted, because volumes are often mounted so. If every user may write
    to the folder, a warning is logged.
    """
    folder.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
    status = folder.stat()
    if status.st_uid not in (ROOT_UID, os.geteuid()):
        raise ConfigError(
            f"{config_key} = {folder}: it belongs to user {status.st_uid}, who could change what "
            f"is kept there; give it to user {os.geteuid()} (chown), or name another folder"
        )
    if status.st_mode & stat.S_IWOTH:
        log.warning("folder_writable_by_everybody", key=config_key, path=str(folder))


def take_folder(folder: Path, config_key: str) -> IO[bytes]:
    """Make the folder if it is missing, and lock it until the returned file is closed. Blocks for
    the disk. Raises ConfigError with `config_key` if the folder cannot be used.
    """
    try:
        make_own_folder(folder, config_key)
        with ExitStack() as opened:
            lock = opened.enter_context((folder / LOCK).open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            opened.pop_all()
            return lock
    except BlockingIOError:
        raise ConfigError(f"{config_key} = {folder}: another process uses it") from None
    except OSError as error:
        raise ConfigError(f"{config_key} = {folder}: {error.strerror}") from error


def stamp_of(file: Path) -> Stamp:
    """Follows symbolic links, because Kubernetes swaps a secret by a link. Blocks for the disk."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_ctime_ns, found.st_size, found.st_ino


class WatchedFile:
    """Tells whether a file has changed since it was last told. None: there is no such file. Use it
    on one loop.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._seen = None if path is None else stamp_of(path)
        self._look_at = 0.0  # loop s

    def changed(self) -> bool:
        """Looks at most once in FILE_LOOK_INTERVAL_S. A file that is gone has not changed yet."""
        now = asyncio.get_running_loop().time()
        if self._path is None or now < self._look_at:
            return False
        self._look_at = now + FILE_LOOK_INTERVAL_S
        stamp = stamp_of(self._path)
        if stamp is None or stamp == self._seen:
            return False
        self._seen = stamp
        return True
