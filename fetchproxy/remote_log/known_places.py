"""At which places this machine's archivers have seen an archive: one small file each, by the spool.

It tells a mount that is missing, or a bucket that was emptied, from a place where an archive is yet
to begin. A machine that forgets loses that warning and nothing else.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)

_NAME_START = "fetchproxy-archive-seen-"


class KnownPlaces:
    """`spool_dir`: as of the archiver. `cluster_id`: the same place may serve another cluster."""

    def __init__(self, spool_dir: Path | None, cluster_id: str | None) -> None:
        self._folder = spool_dir or Path(tempfile.gettempdir())
        self._cluster_id = cluster_id or ""

    def knows(self, url: str) -> bool:
        """Whether an archiver of this user has seen an archive there."""
        with suppress(OSError):
            status = os.lstat(self._path(url))
            return status.st_uid == os.geteuid()
        return False

    def remember(self, url: str) -> None:
        """May fail: then the log says so, and a missing mount is not noticed."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            os.close(os.open(self._path(url), flags, 0o600))
        except OSError as error:
            log.warning("archive_place_not_remembered", error=str(error))

    def _path(self, url: str) -> Path:
        name = hashlib.sha256(f"{self._cluster_id}\n{url}".encode()).hexdigest()[:32]
        return self._folder / f"{_NAME_START}{name}"
