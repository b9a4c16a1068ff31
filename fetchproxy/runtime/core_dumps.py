"""A process with keys leaves no image of its memory behind."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from functools import cache

_PR_SET_DUMPABLE = 4  # linux/prctl.h


@cache
def prevent_core_dumps() -> None:
    """From now on, a crash of this process writes no core file, and only root may attach to it.

    A core file has all keys in it, and it may lie on a disk that nobody counts as secret. Linux
    ignores the limit if `kernel.core_pattern` is a program. So there the process itself is marked
    as one that is not dumped. Programs that it starts are not. Raises OSError.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform != "linux":
        return
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_DUMPABLE): {os.strerror(error)}")
