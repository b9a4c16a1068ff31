"""A process with keys that crashes leaves no image of its memory behind."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from fetchproxy.storage.key_rings import NO_KEYS, write_keys

_CRASHES = """
import ctypes, os, resource, sys
from fetchproxy.config.schema import StoreConfig
from fetchproxy.storage.remote_storage import at_rest_of

keys = sys.argv[1] or None
at_rest_of(StoreConfig(url="file:///tmp", encryption_keys=keys))
is_dumpable = ctypes.CDLL(None).prctl(3, 0, 0, 0, 0) if sys.platform == "linux" else -1
print(is_dumpable, resource.getrlimit(resource.RLIMIT_CORE)[0], flush=True)
os.abort()
"""


def crashed(folder: Path, keys: str) -> tuple[int, int, bool]:
    """Whether it may be dumped, its limit of core files, and whether it says that it was dumped."""

    def allow() -> None:
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    with subprocess.Popen(
        [sys.executable, "-c", _CRASHES, keys], cwd=folder, stdout=subprocess.PIPE, preexec_fn=allow
    ) as process:
        assert process.stdout is not None
        dumpable, limit = map(int, process.stdout.read().split())
        _, status = os.waitpid(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode < 0
    return dumpable, limit, os.WCOREDUMP(status)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_only_a_process_without_keys_may_be_dumped(tmp_path: Path) -> None:
    ring = tmp_path / "keys.json"
    write_keys(ring, NO_KEYS.with_new("k1", bytes(range(32))), new=True)
    assert crashed(tmp_path, str(ring)) == (0, 0, False)
    dumpable, limit, _ = crashed(tmp_path, "")
    assert (dumpable, limit) == (1, resource.getrlimit(resource.RLIMIT_CORE)[1])
