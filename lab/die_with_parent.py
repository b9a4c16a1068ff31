"""Runs a command that the kernel kills when the process that started it dies, however it dies:
`python die_with_parent.py PARENT_PID COMMAND ARG…`. A launcher rather than a `preexec_fn`, because
running Python between fork and exec can deadlock in a parent that has threads. On systems without
`prctl` the command simply runs; the lab's atexit handler is then the only guard."""

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
        # The parent may have died before the call; then nobody is left to send the signal.
        if os.getppid() != parent_pid:
            sys.exit("the parent died before the command started")
    os.execvp(sys.argv[2], sys.argv[2:])


main()
