"""The folder where segments are gathered before they are copied. Nothing in it is ever trusted.

Each process has a folder of its own below `archive.spool_dir` and holds a lock in it, so that the
next start can tell what a killed process left from what another archiver still uses.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import structlog

log = structlog.get_logger(__name__)

_PREFIX = "fetchproxy-spool-"
_LOCK = "lock"


class Spool:
    """`async with`: creates the folder, removes leftovers; on exit the folder and all in it go."""

    def __init__(self, spool_dir: Path | None) -> None:
        self._parent = spool_dir or Path(tempfile.gettempdir())
        self._folder: Path | None = None
        self._lock: IO[bytes] | None = None
        self._files = 0
        self.size_bytes = 0  # of all segments being gathered; kept by their writers

    async def __aenter__(self) -> Self:
        """Raises OSError where the folder cannot be made."""
        await asyncio.to_thread(self._make_way)
        # Not in the thread, which goes on after a cancelled start: nobody would remove its folder.
        self._take_folder()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._lock is not None and self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._lock.close()

    def new_file(self) -> Path:
        """A path in the folder that was never used before. The file is not created."""
        if self._folder is None:
            raise RuntimeError("the spool is not open")
        self._files += 1
        return self._folder / f"{self._files:08d}.log"

    def _make_way(self) -> None:
        self._parent.mkdir(parents=True, exist_ok=True)
        self._remove_leftovers()

    def _take_folder(self) -> None:
        while True:
            self._folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=self._parent))
            self._lock = (self._folder / _LOCK).open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            if (self._folder / _LOCK).exists():
                return
            # Another process that was starting has taken it for a leftover before it was locked.
            self._lock.close()

    def _remove_leftovers(self) -> None:
        for folder in self._parent.glob(f"{_PREFIX}*"):
            try:
                if os.lstat(folder).st_uid != os.geteuid():
                    continue  # in /tmp anybody may make one, with anything in it
                with (folder / _LOCK).open("rb") as lock:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(folder)
            except FileNotFoundError:
                continue  # another archiver that is just starting, or has just removed it
            except BlockingIOError:
                continue  # in use
            except OSError as error:
                # Another user's, perhaps: it costs disk space but harms nothing.
                log.warning("spool_leftover_kept", path=os.fspath(folder), error=str(error))
