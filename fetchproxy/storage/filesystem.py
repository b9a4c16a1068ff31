"""Objects as files below one folder, local or mounted.

Every call runs on threads of the store's own: a disk or NFS server that hangs may stop all of
them, never the event loop. What happens on those threads is `file_tree`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from fetchproxy.config.sections import StoreConfig
from fetchproxy.errors import RemoteStorageError
from fetchproxy.model import ByteRange
from fetchproxy.storage.api import ObjectStore, StoredObject
from fetchproxy.storage.file_tree import Commit, FileTree
from fetchproxy.storage.keys import check_folder_prefix, check_key, check_prefix
from fetchproxy.storage.object_sizes import OBJECT_BYTES_MAX
from fetchproxy.storage.plain_files import read_parts
from fetchproxy.storage.unfinished_uploads import UnfinishedUploads

T = TypeVar("T")

_LIST_PAGE_OBJECTS = 1000


class FilesystemObjectStore(ObjectStore, UnfinishedUploads):
    """`create`: the first put makes `root`; without it a missing root is StorageUnavailable.

    In either case a root that goes missing later is StorageUnavailable, never an empty store.
    Names longer than the file system takes (255 bytes; a topic of more than 232 characters)
    are refused with RemoteStorageError.
    """

    def __init__(
        self, root: Path, *, create: bool = False, config: StoreConfig | None = None
    ) -> None:
        config = config or StoreConfig()
        self._tree = FileTree(root, create)
        self._part_bytes = config.part_bytes
        self._threads = ThreadPoolExecutor(config.threads_max, thread_name_prefix="file-store")
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def put(self, key: str, content: bytes) -> None:
        await self._put(key, partial(self._tree.put, key, (content,)))

    async def put_new(self, key: str, content: bytes) -> bool:
        return await self._put(key, partial(self._tree.put_new, key, content))

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        if not (settled and await self._put(key, partial(self._tree.link, key, path))):
            parts = read_parts(path, self._part_bytes)
            await self._put(key, partial(self._tree.put, key, parts))

    async def get(self, key: str, bytes_max: int = OBJECT_BYTES_MAX) -> bytes:
        return await self._run(partial(self._tree.get, check_key(key), bytes_max))

    async def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        return await self._run(partial(self._tree.get_range, check_key(key), byte_range))

    def list(self, prefix: str, start_after: str = "") -> AsyncIterator[StoredObject]:
        return self._pages(self._tree.walk(check_prefix(prefix), start_after))

    def list_folders(self, prefix: str) -> AsyncIterator[str]:
        return self._pages(self._tree.folders(check_folder_prefix(prefix)))

    async def delete(self, key: str) -> None:
        await self._run(partial(self._tree.delete, check_key(key)))

    async def abort_stale_uploads(
        self, prefix: str, older_than_epoch_ms: int, is_ours: Callable[[str], bool]
    ) -> int:
        """Its temporary files have names of its own: those of others are never seen."""
        check_prefix(prefix)
        work = partial(self._tree.remove_temporaries, prefix, older_than_epoch_ms)
        return await self._run(work)

    async def close(self) -> None:
        """Does not wait for calls that a disk holds: they would hold the caller too."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _put(self, key: str, work: Callable[[Commit], T]) -> T:
        check_key(key)
        commit = Commit()
        try:
            return await self._run(partial(work, commit))
        finally:
            # The thread cannot be interrupted. If the caller goes, it must not commit later.
            commit.abandon()

    async def _pages(self, items: Iterator[T]) -> AsyncIterator[T]:
        while page := await self._run(lambda: tuple(islice(items, _LIST_PAGE_OBJECTS))):
            for item in page:
                yield item

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise RemoteStorageError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
