"""HDFS on loopback: Hadoop's own mini cluster, a real NameNode and DataNode in one process.

Clients use WebHDFS. Its blocks survive `kill()`, so a kill and a start are an outage of the same
cluster.
"""

from __future__ import annotations

import getpass
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from lab import jars
from lab.jars import Artifact
from lab.java import find_java, quick_options
from lab.process import OneProcess, ServerProcess, free_ports

HADOOP_VERSION = "3.4.3"
HDFS_ENTRY = f"hdfs-{HADOOP_VERSION}"
_MANAGER = "org.apache.hadoop.test.MiniDFSClusterManager"
_ADMIN = "org.apache.hadoop.hdfs.tools.DFSAdmin"


def hdfs_jars() -> Path:
    """The folder of Hadoop's jars, downloaded on first use (110 MB). Raises PartMissing."""
    return jars.fetch(
        HDFS_ENTRY,
        [
            Artifact("org.apache.hadoop", "hadoop-minicluster", HADOOP_VERSION),
            # The mini cluster is test code and loads these two at its start.
            Artifact("junit", "junit", "4.13.2"),
            Artifact("org.mockito", "mockito-core", "4.11.0"),
        ],
    )


class HdfsServer(OneProcess):
    """`with HdfsServer() as hdfs: hdfs.store_url("archive")`. This process's user is the superuser.

    The NameNode's data and ports survive `kill()`.
    """

    def __init__(self, heap: str = "384m", start_timeout_s: float = 120.0) -> None:
        self._heap = heap
        self._start_timeout_s = start_timeout_s
        self._folder = Path(tempfile.mkdtemp(prefix="lab-hdfs-"))
        self._port = 0  # the NameNode's WebHDFS port; the next two are for RPC and the manager

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def rpc_address(self) -> str:
        """Of Hadoop's own clients."""
        return f"127.0.0.1:{self._port + 1}"

    @property
    def user(self) -> str:
        """The superuser's name."""
        return getpass.getuser()

    def store_url(self, folder: str, user: str = "") -> str:
        """The store URL for fetchproxy's `--store`."""
        return f"webhdfs://{self.address}/{folder}?user={user or self.user}"

    def start(self) -> None:
        """Returns when files can be written. Raises PartMissing and PartFailed."""
        if self._process is None:
            self._port = free_ports(3)
            command = self._command("-format")
        else:
            command = self._command()
        process = ServerProcess("HDFS", command, self._folder / "server.log", cwd=self._folder)
        process.start()
        self._process = process
        process.wait_until(self._is_ready, self._start_timeout_s)

    def stop(self) -> None:
        """Ends the server and removes everything it stored."""
        if self._process is not None:
            self._process.kill()  # an orderly end would spend time on data that is removed anyway
        shutil.rmtree(self._folder, ignore_errors=True)

    def admin(self, *arguments: str) -> None:
        """Runs `hdfs dfsadmin`, as in `admin("-safemode", "enter")`. Raises CalledProcessError."""
        command = find_java().command(
            f"{hdfs_jars()}/*",
            "-Xmx128m",
            *quick_options(),
            _ADMIN,
            "-fs",
            f"hdfs://{self.rpc_address}",
        )
        subprocess.run([*command, *arguments], check=True, capture_output=True, timeout=60)

    def _command(self, *options: str) -> list[str]:
        class_path = f"{self._folder}:{hdfs_jars()}/*"  # includes core-site.xml, if it was written
        command = find_java().command(class_path, f"-Xmx{self._heap}")
        command += [
            *(quick_options() or ["-XX:+UseSerialGC"]),
            *self._java_options(),
            _MANAGER,
            *options,
            "-datanodes",
            "1",
        ]
        command += ["-httpport", str(self._port), "-nnport", str(self._port + 1)]
        command += ["-cmdport", str(self._port + 2)]
        properties = {
            "hdfs.minidfs.basedir": self._folder / "data",
            "dfs.replication": 1,
            # The page size of listings. By default a page has a thousand entries, which take a
            # minute to write.
            "dfs.ls.limit": 100,
        }
        for name, value in properties.items():
            command += ["-D", f"{name}={value}"]
        return command

    def _java_options(self) -> list[str]:
        return []

    def _is_ready(self) -> bool:
        query = "jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        try:
            with urlopen(f"http://{self.address}/{query}", timeout=5) as response:
                [state] = json.load(response)["beans"]
        except (URLError, OSError, ValueError):
            return False
        return bool(state["FSState"] == "Operational" and state["NumLiveDataNodes"] == 1)
