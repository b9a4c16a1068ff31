"""One process to a folder, as Kafka locks its log.dirs: two writers would undo each other's.

And one user: what is kept in it is believed when it is read again.
"""

from __future__ import annotations

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


def make_own_folder(folder: Path, config_key: str) -> None:
    """For its owner alone where it is made here. Blocks for the disk.

    Raises OSError; ConfigError, naming `config_key`, where it is another user's. As for ssh, root's
    will do: volumes are often mounted so. Where everybody may write, a warning is logged.
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
    """Make the folder if need be, and lock it until the file is closed. Blocks for the disk. Raises
    ConfigError, naming `config_key`, where the folder cannot be had.
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


# A file as it was when last looked at: mtime (ns), size, inode. None: it is not there.
Stamp = tuple[int, int, int] | None


def stamp_of(file: Path) -> Stamp:
    """Follows symbolic links, which is how Kubernetes swaps a secret. Blocks for the disk."""
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
