"""Regular files and folders below one root, and nothing else that may lie there. Blocking.

A FIFO or a device holds up whoever opens it, and a link leads out of the archive: to other files
of this host, or to a folder that is empty while something is not mounted. None is followed or
waited for; it is a DamagedObject, or an error of the whole listing where it stands for a folder.
The root itself may be a link: that is for its owner to say.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from errno import ELOOP
from pathlib import Path

from fetchproxy.errors import DamagedObject, ObjectNotFound, RemoteStorageError, StorageUnavailable

# Not waiting: opening a FIFO would last until somebody writes to it.
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_KINDS = {
    stat.S_IFIFO: "FIFO",
    stat.S_IFSOCK: "socket",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
    stat.S_IFLNK: "symbolic link",
}


def check_no_link(root: Path, key: str) -> None:
    """Raises RemoteStorageError where a folder on the way from `root` to `key` is a link."""
    path = str(root)
    for part in key.split("/")[:-1]:
        path = f"{path}/{part}"
        try:
            mode = os.lstat(path).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return  # not there yet, or not any more: the call itself tells
        if stat.S_ISLNK(mode):
            raise RemoteStorageError(
                f"{path} is a symbolic link, and links below the store's folder are not "
                "followed: mount the folder there instead"
            )


def open_plain(root: Path, key: str) -> int:
    """A descriptor to read from. Raises OSError; ObjectNotFound for a folder; DamagedObject for
    what is neither; RemoteStorageError as `check_no_link`."""
    check_no_link(root, key)
    try:
        fd = os.open(root / key, _READ)
    except OSError as error:
        if error.errno == ELOOP:
            raise DamagedObject(f"{key} is a symbolic link: not followed") from error
        kind = _kind_of(root / key)
        if kind is not None:  # a socket cannot be opened, nor a device without a driver
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
    """(name, is it a folder) of all but the store's own files. A link that does not lead to a file
    counts as a folder: its owner takes it for one. Raises as `check_no_link`, OSError."""
    check_no_link(root, folder)
    with os.scandir(root / folder) as entries:
        return [(e.name, _is_folder(e)) for e in entries if "~" not in e.name]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False) or (entry.is_symlink() and not entry.is_file())


def _kind_of(path: Path) -> str | None:
    """What stands there where a file should; None: a file, a folder, or nothing."""
    try:
        return _KINDS.get(stat.S_IFMT(os.lstat(path).st_mode))
    except OSError:
        return None


def new_file(path: Path, permissions: int) -> int:
    """A descriptor to write to. Raises FileExistsError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.open(path, flags, permissions & 0o666)


def make_private(path: Path, permissions: int) -> None:
    """Take from a file of our own what `permissions` do not give. Others' are left as they are:
    with a second name it may be a broker's."""
    status = os.lstat(path)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_nlink == 1 and status.st_uid == os.geteuid() and mode & ~permissions:
        os.chmod(path, mode & permissions)


class NameTaken(Exception):
    """There is something of the name that a new file was to have."""


def move_to_free_name(path: Path, target: Path) -> None:
    """By a link, since a rename replaces. Raises NameTaken, OSError."""
    try:
        os.link(path, target)
    except FileExistsError:
        raise NameTaken from None
    except OSError:
        # A file system without links: of two at the same moment the later one replaces the other.
        if os.path.lexists(target):
            raise NameTaken from None
        path.replace(target)
    else:
        path.unlink()


def write_all(fd: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(fd, rest) :]


def read_exactly(fd: int, start: int, end: int) -> bytes:
    parts: list[bytes] = []
    while start < end:
        part = os.pread(fd, end - start, start)
        if not part:
            raise StorageUnavailable("a file became shorter while it was read")
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_parts(path: Path, part_bytes: int) -> Iterator[bytes]:
    """The content of a local file in parts. Raises RemoteStorageError if it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            while part := file.read(part_bytes):
                yield part
    except OSError as error:
        raise RemoteStorageError(f"cannot read {path} to store it: {error}") from error


def sync(path: Path) -> None:
    """To disk: the content of a file, the names in a folder (a new one is there only then)."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
