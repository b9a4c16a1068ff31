"""Objects as files below one folder: the blocking half of `FilesystemObjectStore`.

Everything here may block for as long as the disk does, so it must only run on that store's own
threads. It decides one thing besides moving bytes: whether "no such file" means that an object is
absent or that the whole store is away. A store that is away must never look like an empty one,
since a reader who believes in an empty archive is told to skip data.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from errno import EACCES, EISDIR, ENAMETOOLONG, ENOENT, ENOTDIR, EPERM
from functools import partial
from itertools import count
from pathlib import Path
from typing import TypeVar

from fetchproxy.errors import (
    ObjectNotFound,
    RangeNotSatisfiable,
    RemoteStorageError,
    StorageDenied,
    StorageUnavailable,
    too_large,
)
from fetchproxy.model import ByteRange
from fetchproxy.storage.api import StoredObject
from fetchproxy.storage.plain_files import (
    NameTaken,
    check_no_link,
    make_private,
    move_to_free_name,
    new_file,
    open_plain,
    read_exactly,
    scan,
    sync,
    write_all,
)

T = TypeVar("T")

# Names with "~" are no legal keys (`storage.keys`), so these are never taken for objects.
OWN_MARK = "~"
MARKER_NAME = "~fetchproxy-store"
TEMPORARY_START = "~put-"
OWNER_ONLY = 0o700  # of a root that is made here

_FOLDER_RACES_MAX = 8
_NUMBERS = count()


class Abandoned(Exception):
    """The caller of a put has gone before its object became visible."""


class Commit:
    """Decides once between "becomes visible" and "the caller has gone", from two threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held for an assignment only, never during I/O
        self._decided: str | None = None

    def abandon(self) -> None:
        self._decide("abandoned")

    def claim(self) -> None:
        """Raises Abandoned if the caller was faster."""
        if self._decide("claimed") != "claimed":
            raise Abandoned

    def check(self) -> None:
        if self._decided == "abandoned":
            raise Abandoned

    def _decide(self, decision: str) -> str:
        with self._lock:
            if self._decided is None:
                self._decided = decision
            return self._decided


class FileTree:
    """`create`: the first put makes the folder, once; until then its absence is an empty store.

    Once it was seen, its absence is an outage.
    """

    def __init__(self, root: Path, create: bool) -> None:
        self._root = root.absolute()
        self._marker = self._root / MARKER_NAME
        self._create = create
        self._marker_seen = False
        self._opening = threading.Lock()

    def put(self, key: str, parts: Iterable[bytes], commit: Commit) -> None:
        """Write `parts` one after the other. Raises Abandoned, leaving nothing."""
        self._put(key, parts, commit, Path.replace)

    def put_new(self, key: str, content: bytes, commit: Commit) -> bool:
        """False: there is one already. Raises Abandoned, leaving nothing."""
        try:
            self._put(key, (content,), commit, move_to_free_name)
        except NameTaken:
            return False
        return True

    def _put(
        self,
        key: str,
        parts: Iterable[bytes],
        commit: Commit,
        move: Callable[[Path, Path], object],
    ) -> None:
        target = self._root / key
        with self._translated(key, absent=StorageUnavailable):
            self._check_writable()
            check_no_link(self._root, key)
            make = partial(new_file, permissions=self._permissions())
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
        """The file at `path` becomes the object itself: not a byte is copied.

        False, and nothing has happened: it cannot, as a rule because that is another file system.
        Raises Abandoned, leaving nothing.
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
                return False  # if anything is wrong, the copy tells
            try:
                commit.claim()
                temporary.replace(target)
            finally:
                temporary.unlink(missing_ok=True)  # a second name of `target` stays in a rename
            sync(target.parent)
            return True

    def get(self, key: str, bytes_max: int) -> bytes:
        with self._translated(key), self._opened(key) as (fd, size):
            if size > bytes_max:
                raise too_large(key, size, bytes_max)
            return read_exactly(fd, 0, size)

    def get_range(self, key: str, byte_range: ByteRange) -> bytes:
        with self._translated(key), self._opened(key) as (fd, size):
            if byte_range.start >= size:
                raise RangeNotSatisfiable(
                    f"{key}: range starts at {byte_range.start}, object has {size} bytes"
                )
            return read_exactly(fd, byte_range.start, min(byte_range.end, size))

    def delete(self, key: str) -> None:
        path = self._root / key
        with self._translated(key):
            check_no_link(self._root, key)
            try:
                self._certain(path.unlink)
            except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
                return
            # Object stores have no empty folders; a put that races with this makes them again.
            for folder in path.relative_to(self._root).parents[:-1]:
                try:
                    (self._root / folder).rmdir()
                except OSError:
                    return

    def walk(self, prefix: str, start_after: str) -> Iterator[StoredObject]:
        """Objects in the order of their keys."""
        folder, slash, name_start = prefix.rpartition("/")
        with self._translated(prefix):
            self.check_present()
            yield from self._walk(folder + slash, name_start, start_after)
            # Gone meanwhile: then files that vanished under the walk were not deleted.
            self.check_present()

    def folders(self, prefix: str) -> Iterator[str]:
        """Names of the folders below `prefix` that hold an object, in the order of keys."""
        with self._translated(prefix):
            self.check_present()
            for name, is_folder in self._entries(prefix):
                if is_folder and self._holds_object(prefix + name + "/"):
                    yield name
            self.check_present()

    def remove_temporaries(self, prefix: str, older_than_epoch_ms: int) -> int:
        """Remove the files that killed puts left behind; returns how many."""
        removed = 0
        with self._translated(prefix):
            self.check_present()
            start = self._root / prefix.rpartition("/")[0]
            for folder, _, names in os.walk(start):
                for name in names:
                    path = Path(folder, name)
                    if name.startswith(TEMPORARY_START) and _older(path, older_than_epoch_ms):
                        path.unlink(missing_ok=True)
                        removed += 1
        return removed

    def check_present(self) -> None:
        """Raises StorageUnavailable if the folder is away."""
        # Before the look: a put in another thread may be making it.
        seen, may_be_absent = self._marker_seen, self._may_be_absent
        try:
            self._marker.stat()
        except FileNotFoundError:
            # An empty mount point is a folder too: once seen, the marker has to be there.
            if seen or not (may_be_absent or self._root.is_dir()):
                raise StorageUnavailable(f"the folder {self._root} is not there") from None
        except OSError as error:
            raise StorageUnavailable(f"cannot read {self._root}: {error}") from error
        else:
            self._marker_seen = True

    def _check_writable(self) -> None:
        """Makes the folder, if it has to be made and was never seen. Raises StorageUnavailable,
        StorageDenied."""
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
        for _ in range(_FOLDER_RACES_MAX):
            try:
                return _new_name(folder, make)
            except FileNotFoundError:
                self._make_folders(folder)
        raise StorageUnavailable(f"{folder} is removed again and again")

    def _permissions(self) -> int:
        """Those of the root: whom its owner lets into the archive may read what is new in it."""
        return stat.S_IMODE(self._root.stat().st_mode)

    def _make_folders(self, folder: Path) -> None:
        """Never makes the root: if that is missing, the store is away."""
        path = self._root
        for part in folder.relative_to(self._root).parts:
            parent, path = path, path / part
            try:
                path.mkdir(self._permissions())
            except FileExistsError:
                continue
            except FileNotFoundError:  # removed by a delete just now, or the root is away
                self.check_present()
                return
            sync(parent)

    @contextmanager
    def _opened(self, key: str) -> Iterator[tuple[int, int]]:
        """Descriptor and size of an object."""
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
                with suppress(FileNotFoundError):  # deleted since
                    status = os.lstat(f"{self._root}/{key}")  # joining paths takes longer than it
                    version = f"{status.st_mtime_ns:x}-{status.st_ino:x}-{status.st_size:x}"
                    yield StoredObject(key, status.st_size, version)

    def _entries(self, folder: str) -> Iterator[tuple[str, bool]]:
        """(name, is it a folder), in the order of the keys: a folder sorts as `name/`."""
        try:
            entries = self._certain(lambda: scan(self._root, folder))
        except (FileNotFoundError, NotADirectoryError):
            return iter(())
        return iter(sorted(entries, key=lambda entry: entry[0] + "/" * entry[1]))

    def _holds_object(self, folder: str) -> bool:
        """A link counts as one that does: who looks into it is told that it is one."""
        if (self._root / folder).is_symlink():
            return True
        entries = list(self._entries(folder))
        return any(not is_folder for _, is_folder in entries) or any(
            self._holds_object(f"{folder}{name}/") for name, is_folder in entries if is_folder
        )

    def _certain(self, call: Callable[[], T]) -> T:
        """`call`, whose "no such file" counts only with the store seen to be there."""
        try:
            return call()
        except (FileNotFoundError, NotADirectoryError):
            self.check_present()
            return call()

    @contextmanager
    def _translated(
        self, what: str, absent: type[RemoteStorageError] = ObjectNotFound
    ) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if error.errno in (ENOENT, ENOTDIR, EACCES, EPERM):
                self._check_readable()
            raise storage_error(error, what, absent) from error

    def _check_readable(self) -> None:
        """Raises StorageUnavailable if it is the whole store that cannot be read."""
        may_be_absent = self._may_be_absent
        try:
            with os.scandir(self._root):
                pass
        except OSError as error:
            if may_be_absent and isinstance(error, FileNotFoundError):
                return
            raise StorageUnavailable(f"cannot read {self._root}: {error}") from error


def storage_error(
    error: OSError, what: str, absent: type[RemoteStorageError] = ObjectNotFound
) -> RemoteStorageError:
    """The domain's error for one of the operating system, the store itself being there."""
    text = f"{what}: {error.strerror or error}"
    if error.errno in (ENOENT, ENOTDIR):
        return absent(text)
    if error.errno in (EACCES, EPERM):
        return StorageDenied(text)
    if error.errno in (ENAMETOOLONG, EISDIR):
        return RemoteStorageError(text)  # no retry makes a name shorter
    return StorageUnavailable(text)


def _new_name(folder: Path, make: Callable[[Path], T]) -> tuple[Path, T]:
    """A new file of a name of its own; processes on other hosts may write to the same folder."""
    while True:
        path = folder / f"{TEMPORARY_START}{os.getpid()}-{next(_NUMBERS)}"
        try:
            return path, make(path)
        except FileExistsError:
            continue


def _older(path: Path, epoch_ms: int) -> bool:
    try:
        return path.stat().st_mtime_ns < epoch_ms * 1_000_000
    except FileNotFoundError:
        return False
