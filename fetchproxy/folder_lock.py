"""One process to a folder, as Kafka locks its log.dirs: two writers would undo each other's."""

from __future__ import annotations

import fcntl
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from fetchproxy.errors import ConfigError

LOCK = ".lock"


def take_folder(folder: Path, config_key: str, mode: int = 0o777) -> IO[bytes]:
    """Make the folder if need be, and lock it until the file is closed. Blocks for the disk.

    Raises ConfigError, naming `config_key`, where the folder cannot be had.
    """
    try:
        folder.mkdir(mode=mode, parents=True, exist_ok=True)
        with ExitStack() as opened:
            lock = opened.enter_context((folder / LOCK).open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            opened.pop_all()
            return lock
    except BlockingIOError:
        raise ConfigError(f"{config_key} = {folder}: another process uses it") from None
    except OSError as error:
        raise ConfigError(f"{config_key} = {folder}: {error.strerror}") from error
