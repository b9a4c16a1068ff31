"""SIGKILL to a process that does a job's work, before each of its writes in turn. Not a test."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

# What Python says of itself before it does it; a file that is being written has no name yet.
_FILE_WRITES = ("os.rename", "os.remove", "os.link")


class Writes:
    """Counts the writes of this process, and kills it before the one with `number`."""

    def __init__(self, number: int, folders: list[Path]) -> None:
        self._numbers = count(1)
        self._number = number
        self._folders = [str(folder) for folder in folders]

    def watch_files(self) -> None:
        """Files below the folders that get a name or lose one."""
        sys.addaudithook(self._heard)

    def watch(self, owner: type, name: str) -> None:
        """Each call of that method; sync or not, the write is begun by the call."""
        before = getattr(owner, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            self._next()
            return before(*args, **kwargs)

        setattr(owner, name, watched)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _FILE_WRITES and any(self._is_inside(str(path)) for path in args[:2]):
            self._next()

    def _is_inside(self, path: str) -> bool:
        return any(path.startswith(folder) for folder in self._folders)

    def _next(self) -> None:
        if next(self._numbers) == self._number:
            os.kill(os.getpid(), signal.SIGKILL)


def is_killed(
    number: int, folders: list[Path], watch: Callable[[Writes], None], work: Callable[[], object]
) -> bool:
    """Whether `work` had so many writes: it was killed before that one, in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            writes = Writes(number, folders)
            watch(writes)
            work()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - nothing of it may go on in the fork
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "it failed by itself: see its traceback"
    return False
