"""The folder where segments are accumulated before they are copied. Its content is never trusted.

Each process has its own folder below `archive.spool_dir` and holds a lock in it, so that the next
start can tell leftovers of a killed process from the folder of a running archiver.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from typing import IO, Self

import structlog

from fetchproxy.storage.ciphers import KEY_BYTES

log = structlog.get_logger(__name__)

_PREFIX = "fetchproxy-spool-"
_LOCK_FILE = "lock"


class Spool:
    """The folder where this process accumulates segments. `async with`: creates the folder and
    removes leftovers; on exit it removes the folder with its files. `encrypted`: each file is
    encrypted with its own key, which never leaves the memory.
    """

    def __init__(self, spool_dir: Path | None, *, encrypted: bool = False) -> None:
        self._encrypted = encrypted
        self._spool_dir = spool_dir
        self._folder: Path | None = None
        self._lock: IO[bytes] | None = None
        self._has_folder = self._given_up = False
        self._files = 0
        self.size_bytes = 0  # of all segments being accumulated; their writers keep it

    async def __aenter__(self) -> Self:
        """Raises OSError if the folder cannot be created."""
        try:
            await asyncio.to_thread(self._open)
        except asyncio.CancelledError:
            # The thread goes on. Whichever of the two comes last removes the folder.
            self._given_up = True
            if self._has_folder:
                await asyncio.to_thread(self._remove)
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._remove)

    def new_file(self) -> Path:
        """A path in the folder that was never used before. The file is not created."""
        if self._folder is None:
            raise RuntimeError("the spool is not open")
        self._files += 1
        return self._folder / f"{self._files:08d}.log"

    def new_key(self) -> bytes | None:
        """The key of a new file. None: files are not encrypted."""
        return os.urandom(KEY_BYTES) if self._encrypted else None

    # --- in a thread: the disk may hang, and the loop may serve clients ---
    @property
    def _parent(self) -> Path:
        return self._spool_dir or Path(tempfile.gettempdir())

    def _open(self) -> None:
        self._remove_leftovers()
        self._take_folder()
        self._has_folder = True
        if self._given_up:
            self._remove()

    def _remove(self) -> None:
        """The deletion of some GiB takes a while. Idempotent."""
        if self._lock is not None and self._folder is not None:
            shutil.rmtree(self._folder, True)
            self._lock.close()

    def _take_folder(self) -> None:
        while True:
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._parent))
            self._lock = (self._folder / _LOCK_FILE).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self._folder / _LOCK_FILE).exists():
                return
            # Another starting process took it for a leftover before it was locked.
            self._lock.close()

    def _remove_leftovers(self) -> None:
        self._parent.mkdir(parents=True, exist_ok=True)
        for folder in self._parent.glob(f"{_PREFIX}*"):
            try:
                if os.lstat(folder).st_uid != os.geteuid():
                    continue  # in /tmp any user may create such a folder
                with (folder / _LOCK_FILE).open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            except FileNotFoundError:
                continue  # another archiver is just starting, or has just removed it
            except BlockingIOError:
                continue  # in use
            except OSError as error:
                # Perhaps another user's: it costs disk space but harms nothing.
                log.warning(
                    "spool_leftover_not_deleted",
                    path=os.fspath(folder),
                    error=str(error),
                    hint="delete the folder",
                )
