"""The limits of control groups, in the files of both versions as a kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fetchproxy.runtime.control_groups import available_cpu_cores, available_memory_bytes

MACHINE_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
CORES = len(os.sched_getaffinity(0))


def kernel(root: Path, control_group: str, files: dict[str, str]) -> Path:
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(control_group)
    for name, content in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_the_least_limit_of_a_group_and_those_around_it(tmp_path: Path) -> None:
    root = kernel(
        tmp_path,
        "0::/pods/pod1/container\n",
        {
            "pods/memory.max": "900000\n",
            "pods/pod1/memory.max": "500000\n",
            "pods/pod1/container/memory.max": "max\n",
            "pods/cpu.max": "max 100000\n",
            "pods/pod1/container/cpu.max": "50000 100000\n",
        },
    )
    assert available_memory_bytes(root) == 500_000
    assert available_cpu_cores(root) == 0.5


def test_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    files = {"memory.max": "500000\n", "cpu.max": "25000 100000\n"}
    root = kernel(tmp_path, "0::/../../outside\n", files)
    assert available_memory_bytes(root) == 500_000
    assert available_cpu_cores(root) == 0.25


def test_limits_of_control_groups_version_1_count(tmp_path: Path) -> None:
    root = kernel(
        tmp_path,
        "3:cpu,cpuacct:/docker/a\n2:memory:/docker/a\n",
        {
            "memory/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/docker/a/memory.limit_in_bytes": "700000\n",
            "cpu/docker/a/cpu.cfs_quota_us": "30000\n",
            "cpu/docker/a/cpu.cfs_period_us": "100000\n",
            "cpu/cpu.cfs_quota_us": "-1\n",
            "cpu/cpu.cfs_period_us": "100000\n",
        },
    )
    assert available_memory_bytes(root) == 700_000
    assert available_cpu_cores(root) == pytest.approx(0.3)


@pytest.mark.parametrize("control_group", ["", "0::/a/b\n"])
def test_without_limits_it_is_the_machine(tmp_path: Path, control_group: str) -> None:
    root = kernel(tmp_path, control_group, {})
    assert available_memory_bytes(root) == MACHINE_BYTES
    assert available_cpu_cores(root) == CORES


def test_this_machine() -> None:
    assert 0 < available_memory_bytes() <= MACHINE_BYTES
    assert 0 < available_cpu_cores() <= CORES
