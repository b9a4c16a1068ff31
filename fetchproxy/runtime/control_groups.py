"""What this process may use of the machine: limits of its control groups, of both versions.

A limit of any group around it counts, so the least applies. In a container the groups outside are
not visible, and the path that /proc names may not exist: then the mount's root is the container's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_ROOT = Path("/")
_MOUNT = "sys/fs/cgroup"


def available_memory_bytes(root: Path = _ROOT) -> int:
    """Reads files: for a thread."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    texts = [*_texts(root, "", "memory.max"), *_texts(root, "memory", "memory.limit_in_bytes")]
    return min([machine, *(int(text) for text in texts if text.isdigit())])


def available_cpu_cores(root: Path = _ROOT) -> float:
    """Reads files: for a thread. A quota may be a part of a core."""
    is_linux = hasattr(os, "sched_getaffinity")
    cores = float(len(os.sched_getaffinity(0)) if is_linux else os.cpu_count() or 1)
    quotas = [text.split() for text in _texts(root, "", "cpu.max")]
    quotas += [
        [quota, period]
        for quota, period in zip(
            _texts(root, "cpu", "cpu.cfs_quota_us"),
            _texts(root, "cpu", "cpu.cfs_period_us"),
            strict=False,
        )
    ]
    for quota, period in quotas:
        if quota.isdigit() and int(quota) > 0:
            cores = min(cores, int(quota) / int(period))
    return cores


def _texts(root: Path, controller: str, name: str) -> Iterator[str]:
    """The file's content in the process's own group and in those around it."""
    mount = root / _MOUNT / controller
    folder = mount / _own_group(root, controller)
    for group in (folder, *folder.parents):
        if not group.is_relative_to(mount):
            return
        try:
            yield (group / name).read_text(encoding="ascii").strip()
        except OSError:
            continue  # this group has no such limit, or is not visible


def _own_group(root: Path, controller: str) -> str:
    """From /proc/self/cgroup, lines of `number:controllers:/path`; version 2 names none."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""  # no Linux
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return path.lstrip("/")
    return ""
