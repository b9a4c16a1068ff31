"""The file of users: read at the start, and again when it has changed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NoReturn

import structlog

from fetchproxy.archive_only.access.users import Users, parse_users
from fetchproxy.errors import ConfigError

log = structlog.get_logger(__name__)

# A user who is taken out of the file reads on for so long.
LOOK_INTERVAL_S = 2.0

Stamp = tuple[int, int, int] | None


class UsersFile:
    """`load` first. A file that cannot be used later leaves its users in force, which is logged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: Stamp = None
        self._fault: str | None = None
        self.users = Users({})

    async def load(self) -> None:
        """Raises ConfigError."""
        self._seen, self.users = await asyncio.to_thread(self._read)

    async def run(self) -> NoReturn:
        """Follows the file."""
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            await self._look()

    async def _look(self) -> None:
        if self._fault is None and await asyncio.to_thread(self._stamp) == self._seen:
            return
        try:
            self._seen, self.users = await asyncio.to_thread(self._read)
        except ConfigError as error:
            if str(error) != self._fault:
                log.error("users_file_unusable", error=str(error), hint="its last users count on")
            self._fault = str(error)
            return
        self._fault = None
        log.info("users_file_read_again", users=len(self.users.by_name))

    def _read(self) -> tuple[Stamp, Users]:
        # The stamp from before: what changes meanwhile is seen at the next look.
        stamp = self._stamp()
        place = f"archive_only.users_file = {self._path}"
        try:
            return stamp, parse_users(self._path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"{place}: cannot be read: {error.strerror}") from None
        except ValueError as error:  # a UnicodeDecodeError is one
            raise ConfigError(f"{place}: {error}") from None

    def _stamp(self) -> Stamp:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino
