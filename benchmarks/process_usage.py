"""The resources that another process has used so far, as the kernel counts them. Linux only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of `pid`, in steps of 10 ms. Raises OSError."""
    # The second field, the command, may contain spaces and brackets, so fields are counted after
    # it.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def resident_mib_max(pid: int) -> float:
    """The peak memory of `pid` so far. Raises OSError."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise OSError(f"/proc/{pid}/status names no VmHWM")


def resident_mib(pid: int) -> float:
    """The current memory of `pid`. Raises OSError."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def open_files(pid: int) -> int:
    """Files, sockets and pipes that `pid` has open. Raises OSError."""
    return len(os.listdir(f"/proc/{pid}/fd"))


class CpuMeter:
    """CPU seconds of several processes, by name, since the last call of `spent`."""

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._usage = self._read()

    def spent(self) -> dict[str, float]:
        """Since construction or the last call. Raises OSError if a process has ended."""
        before, self._usage = self._usage, self._read()
        return {name: now - before[name] for name, now in self._usage.items()}

    def _read(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self._pids.items()}
