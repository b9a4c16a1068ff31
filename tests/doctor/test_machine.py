"""The memory that there is, by the files in which Linux tells it."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest

from fetchproxy.doctor.machine import read_machine

MiB = 1024 * 1024


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMORY = {"proc/meminfo": "MemTotal:        8388608 kB\nMemFree: 1 kB\n"}


@pytest.mark.parametrize(
    ("files", "bytes_expected", "names"),
    [
        ({}, 8192 * MiB, "the machine's memory"),
        (
            {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.max": "max\n",
             "sys/fs/cgroup/a/memory.max": f"{512 * MiB}\n"},
            512 * MiB, "cgroup /a",
        ),
        (
            {"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/memory.max": f"{256 * MiB}\n"},
            256 * MiB, "cgroup",
        ),
        (
            {"proc/self/cgroup": "4:cpu,cpuacct:/x\n5:memory:/x\n",
             "sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{128 * MiB}\n"},
            128 * MiB, "cgroup /x",
        ),
        (
            {"proc/self/cgroup": "5:memory:/x\n",
             "sys/fs/cgroup/memory/x/memory.limit_in_bytes": "9223372036854771712\n"},
            8192 * MiB, "the machine's memory",
        ),
    ],
)  # fmt: skip
def test_the_least_limit_counts(
    files: dict[str, str], bytes_expected: int, names: str, tmp_path: Path
) -> None:
    plant(tmp_path, MEMORY | files)
    machine = read_machine(tmp_path)
    assert machine.memory_bytes == bytes_expected
    assert names in machine.memory_limit
    assert machine.open_files_max == resource.getrlimit(resource.RLIMIT_NOFILE)[1]


def test_a_system_without_these_files_does_not_tell(tmp_path: Path) -> None:
    assert read_machine(tmp_path).memory_bytes is None
