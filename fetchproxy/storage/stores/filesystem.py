"""Objects as files below one folder, local or mounted."""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from errno import EACCES, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, EPERM
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

from fetchproxy.config.memory_plan import PART_BYTES
from fetchproxy.errors import (
    DamagedObject,
    ObjectNotFound,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageDenied,
    StorageUnavailable,
    StoreMissing,
    too_large,
)
from fetchproxy.model import ByteRange
from fetchproxy.runtime.folders import OWNER_ONLY
from fetchproxy.segments.object_keys import check_folder_prefix, check_key, check_prefix
from fetchproxy.storage.stores.object_store import (
    FILE_NAME_BYTES_MAX,
    OBJECT_BYTES_MAX,
    ObjectStore,
    StoredObject,
    file_parts,
)

# Opening a FIFO or a device can block. A symbolic link leads out of the archive: to other files of
# this host, or to a folder that is empty while a file system is not mounted. Each is a
# DamagedObject; a link in place of a folder fails the whole listing. The root itself may be a link,
# because its owner has configured it.

# O_NONBLOCK: opening a FIFO would otherwise block until a process writes to it.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_KINDS = {
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
    stat.S_IFLNK: "symbolic link",
}
T = TypeVar("T")
# "~" is illegal in keys (`segments.object_keys`), so no object has such a name.
OWN_MARK = "~"
MARKER_NAME = "~fetchproxy-store"
TEMPORARY_START = "~put-"
_FOLDER_RACES_MAX = 8
_LIST_PAGE_OBJECTS = 1000
# Threads for blocking file calls: a hanging disk or NFS server blocks these, never the event loop.
THREADS_MAX = 8
# What a bad sector, a broken inode, or a file that another host has replaced says when it is read.
# A disk or a mount that has gone says the same of every file.
_MAY_BE_OF_ONE_FILE = {
    getattr(errno, name)
    for name in ("EIO", "ESTALE", "EBADMSG", "ENODATA", "EUCLEAN")
    if hasattr(errno, name)  # EUCLEAN: only Linux
}
# A folder may be a mount of its own, whose server has gone, and may have other rights.
_MAY_BE_OF_ONE_FOLDER = _MAY_BE_OF_ONE_FILE | {errno.ENOTCONN, EACCES, EPERM}


def check_no_link(root: Path, key: str) -> None:
    """Raises RemoteStorageError if a folder between `root` and `key` is a link."""
    path = str(root)
    for part in key.split("/")[:-1]:
        path = f"{path}/{part}"
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return  # not made yet, or removed: the caller's next call reports it
        if stat.S_ISLNK(mode):
            raise RemoteStorageError(
                f"{path} is a symbolic link, and links below the store's folder are not "
                "followed: mount the folder there instead"
            )


def open_plain(root: Path, key: str) -> int:
    """A descriptor of a plain file, for reads. Raises OSError; ObjectNotFound for a folder;
    DamagedObject for other kinds of file; RemoteStorageError as `check_no_link`.
    """
    check_no_link(root, key)
    try:
        fd = os.open(root / key, _READ)
    except OSError as error:
        if error.errno == ELOOP:
            raise DamagedObject(f"{key} is a symbolic link: not followed") from error
        kind = _kind_of(root / key)
        if kind is not None:  # sockets and devices without a driver fail to open
            raise DamagedObject(f"{key} is a {kind}: not read") from error
        raise
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise ObjectNotFound(key)
    raise DamagedObject(f"{key} is a {_KINDS.get(stat.S_IFMT(mode), 'special file')}: not read")


def scan(root: Path, folder: str) -> list[tuple[str, bool]]:
    """(name, is it a folder) of all entries except the store's own files. A link that does not lead
    to a file counts as a folder, as which its owner uses it. Raises as `check_no_link`, OSError.
    """
    check_no_link(root, folder)
    with os.scandir(root / folder) as entries:
        return [
            (e.name, e.is_dir(follow_symlinks=False) or (e.is_symlink() and not e.is_file()))
            for e in entries
            if OWN_MARK not in e.name
        ]


def _kind_of(path: Path) -> str | None:
    """The kind of special file at `path`; None: a file, a folder, or nothing."""
    try:
        return _KINDS.get(stat.S_IFMT(os.lstat(path).st_mode))
    except OSError:
        return None


def make_private(path: Path, permissions: int) -> None:
    """Reduce the mode of a file to `permissions`. Leaves files of other users, and files with a
    second name, which may be a broker's.
    """
    status = os.lstat(path)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_nlink == 1 and status.st_uid == os.geteuid() and mode & ~permissions:
        os.chmod(path, mode & permissions)


class NameTaken(Exception):
    """The name for a new file exists already."""


def move_to_free_name(path: Path, target: Path) -> None:
    """Uses a link, because a rename would replace `target`. Raises NameTaken, OSError."""
    try:
        os.link(path, target)
    except FileExistsError:
        raise NameTaken from None
    except OSError:
        # The file system has no links: of two concurrent calls the later one replaces the other.
        if os.path.lexists(target):
            raise NameTaken from None
        path.replace(target)
    else:
        path.unlink()


def write_all(fd: int, content: bytes) -> None:
    remaining = memoryview(content)
    while remaining:
        remaining = remaining[os.write(fd, remaining) :]


def read_exactly(fd: int, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    while start < end:
        part = os.pread(fd, end - start, start)
        if not part:
            raise StorageUnavailable("a file became shorter while it was read")
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def sync(path: Path) -> None:
    """Write a file's content, or a folder's names, to disk (a new name survives only then)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Abandoned(Exception):
    """The caller of a put was cancelled before its object became visible."""


class Commit:
    """Decides once, between two threads: the object becomes visible, or the caller has gone."""

    def __init__(self) -> None:
        self._decided = threading.Lock()  # taken once, by the first to decide, and never released

    def abandon(self) -> None:
        self._decided.acquire(blocking=False)

    def check(self) -> None:
        """For use before `claim`. Raises Abandoned."""
        if self._decided.locked():
            raise Abandoned

    def claim(self) -> None:
        """Raises Abandoned if the caller was faster."""
        if not self._decided.acquire(blocking=False):
            raise Abandoned


class FileTree:
    """Methods may block as long as the disk does: only threads of `FilesystemObjectStore` use them.

    It decides whether "no such file" means an absent object or a missing store. `create`: the first
    put makes the folder, once; until then a missing folder is an empty store. Once the folder was
    seen, its absence is an outage.
    """

    def __init__(self, root: Path, create: bool) -> None:
        self._root = root.absolute()
        self._marker = self._root / MARKER_NAME
        self._create = create
        self._marker_seen = False
        self._opening = threading.Lock()

    def put(
        self,
        key: str,
        parts: Iterable[bytes],
        commit: Commit,
        move: Callable[[Path, Path], object] = lambda part, target: part.replace(target),
    ) -> None:
        """Write `parts` in order, and `move` the file to its name. Raises Abandoned, or the error
        of `move`, and then leaves nothing.
        """
        target = self._root / key
        with self._translated(key, absent=StorageUnavailable):
            self._check_writable()
            check_no_link(self._root, key)
            make = partial(os.open, flags=_NEW, mode=self._permissions() & 0o666)
            temporary, fd = self._create_temporary(target.parent, make)
            try:
                with open(fd, "wb", buffering=0) as file:
                    for part in parts:
                        commit.check()
                        write_all(file.fileno(), part)
                    os.fsync(file.fileno())
                commit.claim()
                move(temporary, target)
            except BaseException:
                with suppress(OSError):
                    temporary.unlink()
                raise
            sync(target.parent)

    def link(self, key: str, path: Path, commit: Commit) -> bool:
        """Hard-link the file at `path` as the object, without copying a byte.

        False: it failed without effect, usually because `path` is on another file system. Raises
        Abandoned, and then leaves nothing.
        """
        target = self._root / key
        with self._translated(key, absent=StorageUnavailable):
            self._check_writable()
            check_no_link(self._root, key)
            try:
                sync(path)
                make_private(path, self._permissions())
                temporary, _ = self._create_temporary(target.parent, partial(os.link, path))
            except OSError:
                return False  # the caller's copy will report a real error
            try:
                commit.claim()
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)  # a rename to a link of the file is a no-op
            sync(target.parent)
            return True

    def get(self, key: str, bytes_max: int) -> bytes:
        def read(fd: int, size: int) -> bytes:
            if size > bytes_max:
                raise too_large(key, size, bytes_max)
            return read_exactly(fd, 0, size)

        return self._read(key, read)

    def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        def read(fd: int, size: int) -> bytes:
            if byte_range.start >= size:
                raise RangeNotSatisfiable(
                    f"{key}: range starts at {byte_range.start}, object has {size} bytes"
                )
            return read_exactly(fd, byte_range.start, min(byte_range.end, size))

        return self._read(key, read)

    def _read(self, key: str, read: Callable[[int, int], bytes]) -> bytes:
        """`read(descriptor, size)` of the file; once more, with the file opened anew, after an
        error that may be of this file.
        """
        with self._translated(key):
            try:
                with self._opened(key) as (fd, size):
                    return read(fd, size)
            except OSError as error:
                if error.errno not in _MAY_BE_OF_ONE_FILE:
                    raise
            with self._opened(key) as (fd, size):
                return read(fd, size)

    def delete(self, key: str) -> None:
        path = self._root / key
        with self._translated(key):
            check_no_link(self._root, key)
            try:
                self._certain(path.unlink)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return
            # Object stores have no empty folders. A concurrent put makes them again.
            for folder in path.relative_to(self._root).parents[:-1]:
                try:
                    (self._root / folder).rmdir()
                except OSError:
                    return

    def walk(self, prefix: str, start_after: str) -> Iterator[StoredObject]:
        folder, slash, name_start = prefix.rpartition("/")
        with self._translated(prefix):
            self.check_present()
            yield from self._walk(folder + slash, name_start, start_after)
            # If the store has gone, files that vanished during the walk were not deleted.
            self.check_present()

    def folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders below `prefix` that contain an object, in key order."""
        with self._translated(prefix):
            self.check_present()
            for name, is_folder in self._entries(prefix):
                if is_folder and self._holds_object(prefix + name + "/"):
                    yield name
            self.check_present()

    def remove_temporaries(self, prefix: str, older_than_epoch_ms: int) -> int:
        """Remove the files that killed puts left; returns how many."""
        removed = 0
        with self._translated(prefix):
            self.check_present()
            start = self._root / prefix.rpartition("/")[0]
            for folder, _, names in os.walk(start):
                for name in names:
                    path = Path(folder, name)
                    if not name.startswith(TEMPORARY_START):
                        continue
                    with suppress(FileNotFoundError):
                        if path.stat().st_mtime_ns < older_than_epoch_ms * 1_000_000:
                            path.unlink()
                            removed += 1
        return removed

    def check_present(self) -> None:
        """Raises StorageUnavailable if the folder is missing."""
        # Read before the check, because a put in another thread may be making the folder.
        marker_seen, may_be_absent = self._marker_seen, self._may_be_absent
        try:
            self._marker.stat()
        except FileNotFoundError:
            # An empty mount point is also a folder: once seen, the marker must be there.
            if marker_seen or not (may_be_absent or self._root.is_dir()):
                raise StoreMissing(f"the folder {self._root} is not there") from None
        except OSError as error:
            raise StorageUnavailable(f"cannot read {self._root}: {error}") from error
        else:
            self._marker_seen = True

    def _check_writable(self) -> None:
        """Makes the folder if `create` is set and the folder was never seen. Raises
        StorageUnavailable, StorageDenied.
        """
        if self._may_be_absent:
            self._make_root()
        self.check_present()

    @property
    def _may_be_absent(self) -> bool:
        return self._create and not self._marker_seen

    def _make_root(self) -> None:
        with self._opening:
            if not self._create:
                return
            try:
                self._root.mkdir(mode=OWNER_ONLY, parents=True, exist_ok=True)
                if not self._marker.exists():
                    self._marker.touch()
            except PermissionError as error:
                raise StorageDenied(f"cannot make {self._root}: {error}") from error
            except OSError as error:
                raise StorageUnavailable(f"cannot make {self._root}: {error}") from error
            self._create = False

    def _create_temporary(self, folder: Path, make: Callable[[Path], T]) -> tuple[Path, T]:
        """A new file with a unique name, as processes on other hosts may write to the folder."""
        for _ in range(_FOLDER_RACES_MAX):
            path = folder / f"{TEMPORARY_START}{uuid4().hex}"
            try:
                return path, make(path)
            except FileNotFoundError:
                self._make_folders(folder)
        raise StorageUnavailable(f"another process keeps removing {folder}")

    def _permissions(self) -> int:
        """The root's mode, so that users with access to the archive can read new files in it."""
        return stat.S_IMODE(self._root.stat().st_mode)

    def _make_folders(self, folder: Path) -> None:
        """Never makes the root: if the root is missing, the store is unavailable."""
        path = self._root
        for part in folder.relative_to(self._root).parts:
            parent, path = path, path / part
            try:
                path.mkdir(self._permissions())
                sync(parent)
            except FileExistsError:
                continue
            except FileNotFoundError:  # a delete has just removed `parent`, or the root is missing
                self.check_present()
                return

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        if not self._marker_seen:
            self.check_present()
        fd = self._certain(lambda: open_plain(self._root, key))
        try:
            yield fd, os.fstat(fd).st_size
        finally:
            os.close(fd)

    def _walk(self, folder: str, name_start: str, start_after: str) -> Iterator[StoredObject]:
        for name, is_folder in self._entries(folder):
            key = folder + name
            if not name.startswith(name_start):
                continue
            if is_folder:
                below = key + "/"
                if below > start_after or start_after.startswith(below):
                    yield from self._walk(below, "", start_after)
            elif key > start_after:
                try:
                    status = os.lstat(f"{self._root}/{key}")  # joining Paths takes longer
                except FileNotFoundError:
                    continue  # deleted since
                except OSError as error:
                    raise storage_error(error, key) from error
                version = f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"
                yield StoredObject(key, status.st_size, version)

    def _entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        """(name, is it a folder), in key order: a folder sorts as `name/`. Raises
        RemoteStorageError, naming a folder that its disk or its mount does not give out.
        """
        try:
            entries = self._certain(lambda: self._scanned(folder))
        except (FileNotFoundError, NotADirectoryError):
            return iter(())
        except OSError as error:
            if error.errno not in _MAY_BE_OF_ONE_FOLDER:
                raise
            self._check_readable()
            failed = storage_error(error, f"the folder {self._root / folder}")
            failed.may_be_of_object = True
            raise failed from error
        return iter(sorted(entries, key=lambda entry: entry[0] + "/" * entry[1]))

    def _scanned(self, folder: str) -> list[tuple[str, bool]]:
        """`scan`; once more after an error that may be of this folder: it was mounted anew."""
        try:
            return scan(self._root, folder)
        except OSError as error:
            if error.errno not in _MAY_BE_OF_ONE_FOLDER:
                raise
        return scan(self._root, folder)

    def _holds_object(self, folder: str) -> bool:
        """True for a link, and for a folder that cannot be read: a listing of it then raises the
        error, and the others are listed.
        """
        try:
            if stat.S_ISLNK(os.lstat(self._root / folder).st_mode):
                return True
            entries = list(self._entries(folder))
        except (FileNotFoundError, NotADirectoryError):
            return False  # removed since
        except OSError as error:
            if error.errno in _MAY_BE_OF_ONE_FOLDER:
                return True
            raise
        except RemoteStorageError as error:
            if error.may_be_of_object:
                return True
            raise
        return any(not is_folder for _, is_folder in entries) or any(
            self._holds_object(f"{folder}{name}/") for name, is_folder in entries if is_folder
        )

    def _certain(self, call: Callable[[], T]) -> T:
        """Run `call`. Its "no such file" is trusted only after a check that the store exists."""
        try:
            return call()
        except (FileNotFoundError, NotADirectoryError):
            self.check_present()
            return call()

    @contextmanager
    def _translated(
        self, operation: str, absent: type[RemoteStorageError] = ObjectNotFound
    ) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (ENOENT, ENOTDIR, EACCES, EPERM):
                self._check_readable()
            raise storage_error(error, operation, absent) from error

    def _check_readable(self) -> None:
        """Raises StorageUnavailable if the whole store cannot be read."""
        may_be_absent = self._may_be_absent
        try:
            with os.scandir(self._root):
                pass
        except OSError as error:
            if may_be_absent and isinstance(error, FileNotFoundError):
                return
            raise StorageUnavailable(f"cannot read {self._root}: {error}") from error


def storage_error(
    error: OSError, operation: str, absent: type[RemoteStorageError] = ObjectNotFound
) -> RemoteStorageError:
    """The domain's error for an OSError while the store itself is available."""
    text = f"{operation}: {error.strerror or error}"
    if error.errno in (ENOENT, ENOTDIR):
        return absent(text)
    if error.errno in (EACCES, EPERM):
        return StorageDenied(text)
    if error.errno in (ENAMETOOLONG, EISDIR):
        return RemoteStorageError(text)  # no retry makes a name shorter
    unavailable = StorageUnavailable(text)
    unavailable.may_be_of_object = error.errno in _MAY_BE_OF_ONE_FILE
    return unavailable


class FilesystemObjectStore(ObjectStore):
    """Objects as files below a folder. `create`: the first put makes `root`. Without it a missing
    root raises StorageUnavailable, as does a root that disappears later.

    Names longer than the file system allows (`part_bytes_max`) raise
    RemoteStorageError.
    """

    def __init__(
        self,
        root: Path,
        *,
        create: bool = False,
        part_bytes: int = PART_BYTES,
        threads_max: int = THREADS_MAX,
    ) -> None:
        self._tree = FileTree(root, create)
        self._part_bytes = part_bytes
        self._threads = ThreadPoolExecutor(threads_max, thread_name_prefix="file-store")
        self._closed = False

    @property
    def part_bytes_max(self) -> int:
        return FILE_NAME_BYTES_MAX

    async def put(self, key: str, content: bytes) -> None:
        await self._put(key, partial(self._tree.put, key, (content,)))

    async def put_new(self, key: str, content: bytes) -> bool:
        put = partial(self._tree.put, key, (content,), move=move_to_free_name)
        try:
            await self._put(key, put)
        except NameTaken:
            return False
        return True

    async def put_file(self, key: str, path: Path, *, settled: bool = False) -> None:
        if not (settled and await self._put(key, partial(self._tree.link, key, path))):
            parts = file_parts(path, self._part_bytes)
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
        """Temporary files of this store have names that no other program uses."""
        check_prefix(prefix)
        work = partial(self._tree.remove_temporaries, prefix, older_than_epoch_ms)
        return await self._run(work)

    async def close(self) -> None:
        """Does not wait for calls that a disk blocks, because they would block the caller too."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _put(self, key: str, work: Callable[[Commit], T]) -> T:
        check_key(key)
        commit = Commit()
        try:
            return await self._run(partial(work, commit))
        finally:
            # The thread cannot be interrupted, and must not commit after the caller has gone.
            commit.abandon()

    async def _pages(self, items: Iterator[T]) -> AsyncIterator[T]:
        while page := await self._run(lambda: tuple(islice(items, _LIST_PAGE_OBJECTS))):
            for item in page:
                yield item

    async def _run(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise RemoteStorageError("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)
