"""The whole file system is read-only but for the folders that the settings name.

This is what `readOnlyRootFilesystem` in Kubernetes, `docker run --read-only` and systemd's
`ProtectSystem=strict` give the process. Not even /tmp can be written to.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from archived_topics import SETTINGS
from client_readers import read_confluent
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, archived_ends, produce

from lab.mock_cluster import MockCluster


def read_only_but_for(folder: Path) -> list[str]:
    """The beginning of a command. A bind mount of `folder` stays writable."""
    script = f"mount --bind {folder} {folder}\n"
    script += "mount --make-rprivate /\nmount -o remount,ro,bind /\n"
    # Other file systems of the machine, but those of the kernel.
    script += (
        "for place in $(findmnt -rno TARGET); do case $place in\n"
        f"/|/proc*|/sys*|/dev*|{folder}) ;;\n"
        '*) mount -o remount,ro,bind "$place" 2>/dev/null || true ;;\nesac; done\n'
    )
    shell = ["sh", "-ec", f'{script}exec "$@"', "sh"]
    return ["unshare", "--user", "--map-root-user", "--mount", *shell]


@pytest.fixture
def writable(tmp_path: Path) -> Path:
    probe = [*read_only_but_for(tmp_path), "sh", "-c", f"touch {tmp_path}/here; ! touch /tmp/there"]
    try:
        result = subprocess.run(probe, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("unshare is not on PATH (Debian's package util-linux)")
    if result.returncode != 0:
        pytest.skip(f"no namespaces for this user: {result.stderr.strip()[-200:]}")
    return tmp_path


def test_it_serves_and_archives_with_its_folders_alone(writable: Path) -> None:
    (writable / "store").mkdir()
    store = (writable / "store").as_uri()
    folders = {
        "archive.spool_dir": writable / "spool",
        "archive.local_index_dir": writable / "index",
        "remote_fetch.disk_cache_dir": writable / "cache",
    }
    data = TopicData("read-only")
    with MockCluster() as cluster:
        produce(cluster.bootstrap, data, 600)
        proxy = ProxyProcess(
            cluster.bootstrap, store, writable, archive=data.topic, settings={**SETTINGS, **folders}
        )
        command = proxy._process.command
        assert command[0] == sys.executable
        command[:0] = read_only_but_for(writable)
        with proxy:
            wait_for("the archive", lambda: archived_ends(store, data.topic).get(0) == 600)
            assert read_confluent(proxy.bootstrap, data.topic, {0: 600}) == data.written
            faults = [e for e in proxy.log_text().splitlines() if '"level": "error"' in e]
            assert not faults
            assert not proxy.logged("part_failed")
            assert "Read-only file system" not in proxy.log_text()
    assert all(any(folder.iterdir()) for folder in folders.values())
