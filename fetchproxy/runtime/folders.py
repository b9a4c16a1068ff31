"""One process and one user per folder.

One process, as Kafka locks its log.dirs, because two writers would undo each other's work. One
user, because the process trusts the folder's content when it reads it again.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import stat
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, TypeVar, cast

import structlog

from fetchproxy.errors import ConfigError

log = structlog.get_logger(__name__)

LOCK = ".lock"
OWNER_ONLY = 0o700
ROOT_UID = 0
# A file's state: ctime (ns), which changes with its mode and owner too, size, inode. None: the file
# does not exist.
Stamp = tuple[int, int, int] | None
T = TypeVar("T")
# Seconds between two looks of a `WatchedFile`.
FILE_LOOK_INTERVAL_S = 1.0
# A caller waits this long (s) for a look; then its disk hangs, and what was read last stays in use.
FILE_LOOK_WAIT_MAX_S = 1.0


def make_own_folder(folder: Path, config_key: str) -> None:
    """Make the folder if it is missing, with access for its owner only. Blocks for the disk.

    Raises OSError, or ConfigError with `config_key` if the folder belongs to another user. As with
    ssh, a folder of root is accepted, because volumes are often mounted so. If every user may write
    to the folder, a warning is logged.
    """
    folder.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
    status = folder.stat()
    check_own_folder(folder, config_key, status)
    if status.st_mode & stat.S_IWOTH:
        log.warning(
            "folder_writable_by_everybody",
            key=config_key,
            path=str(folder),
            hint="chmod o-w",
        )


def check_own_folder(folder: Path, config_key: str, status: os.stat_result) -> None:
    """Raises ConfigError with `config_key` if the folder belongs to another user."""
    if status.st_uid not in (ROOT_UID, os.geteuid()):
        raise ConfigError(
            f"{config_key} = {folder}: it belongs to user {status.st_uid}, who could change what "
            f"is kept there; make it belong to user {os.geteuid()} (chown), or use another folder"
        )


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
        stat = file.stat()
    except OSError:
        return None
    return stat.st_ctime_ns, stat.st_size, stat.st_ino


class WatchedFile:
    """Tells whether a file has changed since the last call. `path` None: there is no such file.
    `seen`: its stamp from before it was read. Use it on one loop.

    A thread looks, because the file's disk may hang. A disk that hangs holds up only this thread.
    """

    def __init__(self, path: Path | None, stamp: Stamp) -> None:
        self._path = path
        self._stamp = stamp
        self._look: asyncio.Future[tuple[Stamp, Any]] | None = None
        self._look_at = 0.0  # loop s

    @property
    def is_due(self) -> bool:
        """Whether the next call of `changed` looks."""
        return self._path is not None and asyncio.get_running_loop().time() >= self._look_at

    async def changed(self) -> bool:
        """Looks at most once in FILE_LOOK_INTERVAL_S. A file that is gone has not changed yet."""
        return await self.when_changed(lambda: True) or False

    async def when_changed(self, read: Callable[[], T]) -> T | None:
        """The result of `read`, which the thread that finds a change calls. None: no change."""
        if not self.is_due:
            return None
        loop = asyncio.get_running_loop()
        assert self._path is not None
        self._look_at = loop.time() + FILE_LOOK_INTERVAL_S
        look = self._look
        if look is None:
            self._look = look = loop.run_in_executor(None, self._read_if_changed, self._path, read)
            await asyncio.wait([look], timeout=FILE_LOOK_WAIT_MAX_S)
        if not look.done():
            return None
        self._look = None
        self._stamp, newest_stamp = look.result()
        return cast("T | None", newest_stamp)

    def _read_if_changed(self, path: Path, read: Callable[[], T]) -> tuple[Stamp, T | None]:
        stamp = stamp_of(path)
        if stamp is None or stamp == self._stamp:
            return self._stamp, None
        return stamp, read()


NO_FILE = WatchedFile(None, None)
