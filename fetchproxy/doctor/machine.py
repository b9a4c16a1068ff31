"""The limits of this machine, and what of them the settings need."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_UNLIMITED_BYTES = 1 << 60  # cgroup 1 writes a number near 2^63 instead of "max"


@dataclass(frozen=True, slots=True)
class Machine:
    """`memory_bytes`: the least of all limits; None: not known. `memory_limit`: which it is."""

    open_files_max: int
    memory_bytes: int | None
    memory_limit: str


def read_machine(root: Path = Path("/")) -> Machine:
    """`root`: the folder below which /proc and /sys are mounted. Blocks."""
    _, files = resource.getrlimit(resource.RLIMIT_NOFILE)  # `serve` raises the soft limit to it
    limits = sorted(_memory_limits(root))
    memory_bytes, name = limits[0] if limits else (None, "")
    return Machine(files, memory_bytes, name)


def _memory_limits(root: Path) -> Iterator[tuple[int, str]]:
    """(bytes, what limits)."""
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        yield address_space, "the limit of its address space (ulimit -v)"
    for line in _lines(root / "proc/meminfo"):
        name, _, amount = line.partition(":")
        if name == "MemTotal":
            yield int(amount.split()[0]) * 1024, "the machine's memory"
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if not controllers:
            top, file = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            top, file = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # The limits of all groups above apply, too. In a container the path may be the host's.
        folder = Path(os.path.normpath("/" + path.lstrip("/"))).relative_to("/")
        for group in (folder, *folder.parents):
            for text in _lines(top / group / file):
                if text.isdecimal() and int(text) < _UNLIMITED_BYTES:
                    yield int(text), f"the memory limit of the cgroup /{group}".rstrip("/.")


def _lines(file: Path) -> list[str]:
    """[]: there is no such file here, as on macOS."""
    try:
        return file.read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return []
