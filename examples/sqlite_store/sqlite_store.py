"""An archive in one SQLite file: `sqlite:///absolute/path/archive.db`. A template for a store.

Every call runs in a thread with a connection of its own, so a hanging disk does not block the event
loop.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from fetchproxy import errors
from fetchproxy.config.schema import StoreConfig
from fetchproxy.model import ByteRange
from fetchproxy.segments.object_keys import check_folder_prefix, check_key, check_prefix
from fetchproxy.storage.stores.object_store import OBJECT_BYTES_MAX, ObjectStore, StoredObject

T = TypeVar("T")
PAGE_OBJECTS = 1000
PART_BYTES = 8 * 1024 * 1024
BEHIND_ALL = "\x7f"  # sorts after every character of a key
# An id is never reused, so a new id shows that the content has changed.
TABLE = """CREATE TABLE IF NOT EXISTS objects
    (id INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT UNIQUE NOT NULL, content BLOB NOT NULL)"""
READ_SQL = "SELECT length(content), coalesce(substr(content, ?, ?), x'') FROM objects WHERE key = ?"
PUT = "INSERT OR {} INTO objects (key, content) VALUES (?, {})"
LIST = """SELECT key, length(content), id FROM objects
    WHERE key > ? AND key >= ? AND key < ? ORDER BY key LIMIT ?"""


def open_store(url: str, config: StoreConfig, *, create: bool) -> SqliteStore:
    """The function named by the entry point."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or parts.query or not path.startswith("/"):
        raise errors.ConfigError(f"store URL {url!r}: expected sqlite:///absolute/path")
    return SqliteStore(Path(path), config.timeout_ms / 1000, create=create)


class SqliteStore(ObjectStore):
    def __init__(self, path: Path, timeout_s: float = 20.0, *, create: bool = False) -> None:
        self._path, self._timeout_s, self._create = path, timeout_s, create
        self._closed = False

    async def put(self, key: str, content: bytes) -> None:
        check_key(key)
        put = PUT.format("REPLACE", "?")
        await self._run(lambda db: db.execute(put, (key, bytes(content))).rowcount)

    async def put_new(self, key: str, content: bytes) -> bool:
        check_key(key)
        put = PUT.format("IGNORE", "?")
        return await self._run(lambda db: db.execute(put, (key, bytes(content))).rowcount) == 1

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        check_key(key)

        def put(db: sqlite3.Connection) -> None:
            with _readable(path) as (size, parts):
                row = db.execute(PUT.format("REPLACE", "zeroblob(?)"), (key, size)).lastrowid
                with db.blobopen("objects", "content", row or 0) as blob:
                    for part in parts:
                        blob.write(part)

        await self._run(put)

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        size, content = await self._read(key, 0, bytes_max)
        if size > bytes_max:
            raise errors.too_large(key, size, bytes_max)
        return content

    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        size, content = await self._read(key, byte_range.start, byte_range.end - byte_range.start)
        if byte_range.start >= size:
            raise errors.RangeNotSatisfiable(f"{key} has {size} bytes, not {byte_range.start}")
        return content

    @property
    def page_objects(self) -> int:
        return PAGE_OBJECTS

    async def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        check_prefix(prefix)
        while page := await self._page(prefix, start_after, PAGE_OBJECTS):
            for stored_object in page:
                yield stored_object
            start_after = page[-1].key

    async def list_folders(self, prefix: str) -> AsyncIterator[str]:
        after = check_folder_prefix(prefix)
        while page := await self._page(prefix, after, 1):
            name, slash, _ = page[0].key[len(prefix) :].partition("/")
            after = f"{prefix}{name}{slash and '/' + BEHIND_ALL}"
            if slash:
                yield name

    async def delete(self, key: str) -> None:
        check_key(key)
        await self._run(lambda db: db.execute("DELETE FROM objects WHERE key = ?", (key,)).rowcount)

    async def close(self) -> None:
        self._closed = True

    async def _page(self, prefix: str, after: str, rows_max: int) -> Sequence[StoredObject]:
        arguments = (after, prefix, prefix + BEHIND_ALL, rows_max)
        rows = await self._run(lambda db: db.execute(LIST, arguments).fetchall())
        return [StoredObject(key, size, str(row)) for key, size, row in rows]

    async def _read(self, key: str, start: int, length: int) -> tuple[int, bytes]:
        arguments = (start + 1, length, check_key(key))
        row: tuple[int, bytes] | None
        if row := await self._run(lambda db: db.execute(READ_SQL, arguments).fetchone()):
            return row
        raise errors.ObjectNotFound(key)

    async def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Runs in one transaction, which completes even if the caller is cancelled."""
        if self._closed:
            raise errors.RemoteStorageError("the store is closed")
        return await asyncio.to_thread(self._blocking, work)

    def _blocking(self, work: Callable[[sqlite3.Connection], T]) -> T:
        mode = "rwc" if self._create else "rw"  # without c, a missing file is an error
        try:
            where = f"{self._path.as_uri()}?mode={mode}"
            with closing(sqlite3.connect(where, self._timeout_s, uri=True)) as db, db:
                db.execute(TABLE)
                return work(db)
        except sqlite3.Error as error:
            raise errors.StorageUnavailable(f"{self._path}: {error}") from error


@contextmanager
def _readable(path: Path) -> Iterator[tuple[int, Iterator[bytes]]]:
    try:
        with path.open("rb") as file:
            yield path.stat().st_size, iter(lambda: file.read(PART_BYTES), b"")
    except OSError as error:
        raise errors.RemoteStorageError(f"cannot read {path} to store it: {error}") from error
