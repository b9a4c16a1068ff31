"""The lab's cache: one folder per part and version, built once, completely or not at all.

The cache knows nothing about its content. It is safe for parallel callers: each entry has a file
lock, and a build runs in a temporary folder that is renamed into place only when it is complete.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def root() -> Path:
    """`$FETCHPROXY_LAB_CACHE`, else `~/.cache/fetchproxy-lab`; created when absent."""
    configured = os.environ.get("FETCHPROXY_LAB_CACHE")
    path = Path(configured).expanduser() if configured else Path.home() / ".cache/fetchproxy-lab"
    path.mkdir(parents=True, exist_ok=True)
    return path.resolve()


def entry(name: str) -> Path | None:
    """The finished folder of `name`, or None. Builds nothing."""
    path = root() / name
    return path if path.is_dir() else None


def build_once(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name`. If it does not exist, `build(empty_folder)` fills it.

    If `build` raises, no entry remains, and the next call tries again.
    """
    final = root() / name
    if final.is_dir():
        return final
    with _lock(name):
        if final.is_dir():
            return final
        building = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=root()))
        try:
            build(building)
            building.chmod(0o755)
            building.rename(final)
        except BaseException:
            _remove(building)
            raise
    return final


def say(message: str) -> None:
    """Prints a line of progress to stderr, because setting up a part can take minutes."""
    print(f"lab: {message}", file=sys.stderr, flush=True)


@contextmanager
def _lock(name: str) -> Iterator[None]:
    with open(root() / f".{name}.lock", "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is setting up {name}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _remove(folder: Path) -> None:
    # Go's module cache is read-only by design; without write permission rmtree stops half-way.
    for directory, _, _ in os.walk(folder):
        Path(directory).chmod(0o755)
    shutil.rmtree(folder)
