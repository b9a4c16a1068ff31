"""Runs a command that the kernel kills when its parent process dies, for whatever reason.

`python die_with_parent.py PARENT_PID COMMAND ARG…`. This is a launcher and no `preexec_fn`, because
Python code between fork and exec can deadlock if the parent has threads. On systems without `prctl`
the command simply runs; then only the lab's atexit handler ends it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid = int(sys.argv[1])
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
        # The parent may have died before the call. Then no signal would come.
        if os.getppid() != parent_pid:
            sys.exit("the parent died before the command started")
    os.execvp(sys.argv[2], sys.argv[2:])


main()
