"""HAProxy and nginx as load balancers on loopback, in the versions that Debian ships."""

from __future__ import annotations

import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

from lab import cache, debian
from lab.process import OneProcess, ServerProcess, port_responses

BALANCERS_ENTRY = "balancers-debian"
_PACKAGES = [
    *("haproxy", "liblua5.3-0", "libopentracing-c-wrapper0", "libopentracing1"),
    *("nginx", "libnginx-mod-stream"),
]


def balancers() -> Path:
    """The folder with Debian's files. Raises PartMissing."""

    def build(folder: Path) -> None:
        debian.unpack("balancers", _PACKAGES, folder)

    return cache.build_once(BALANCERS_ENTRY, build) / "tree"


def balancers_version() -> str:
    """One line with both versions. Raises PartMissing."""
    environment = {"LD_LIBRARY_PATH": debian.library_path(balancers())}
    lines = []
    for command in (["usr/sbin/haproxy", "-v"], ["usr/sbin/nginx", "-v"]):
        command[0] = str(balancers() / command[0])
        result = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=True
        )
        lines.append((result.stdout + result.stderr).splitlines()[0])
    return "; ".join(lines)


class _Balancer(OneProcess):
    """A load balancer in one process. `configuration` is the text of its file; `port`: one on which
    it listens then.
    """

    name: str

    def __init__(self, configuration: str, port: int) -> None:
        self._configuration, self._port = configuration, port
        self.folder = Path(tempfile.mkdtemp(prefix=f"lab-{self.name}-"))

    def start(self) -> None:
        """Raises PartMissing and PartFailed."""
        file = self.folder / f"{self.name}.conf"
        file.write_text(self._adapted(self._configuration))
        environment = {"LD_LIBRARY_PATH": debian.library_path(balancers())}
        self._process = ServerProcess(
            self.name, self._command(file), self.folder / "log", env=environment
        )
        self._process.start()
        self._process.wait_until(lambda: port_responses(self._port), 30.0)

    def stop(self) -> None:
        if self._process is not None:
            self._process.stop(timeout_s=2.0)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _adapted(self, configuration: str) -> str:
        return configuration

    def _command(self, file: Path) -> list[str]:
        raise NotImplementedError


class HAProxy(_Balancer):
    name = "haproxy"

    def _adapted(self, configuration: str) -> str:
        return f"global\n    stats socket {self.folder}/stats level admin\n{configuration}"

    def _command(self, file: Path) -> list[str]:
        return [str(balancers() / "usr/sbin/haproxy"), "-db", "-f", str(file)]

    def states(self, listener: str) -> dict[str, tuple[str, str]]:
        """By server of `listener`: whether it is up, and the result of its last health check."""
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(f"{self.folder}/stats")
            peer.sendall(b"show stat\n")
            text = b"".join(iter(lambda: peer.recv(65_536), b"")).decode()
        names, *rows = [line.split(",") for line in text.removeprefix("# ").splitlines() if line]
        states = [dict(zip(names, row, strict=False)) for row in rows]
        return {
            row["svname"]: (row["status"], row["check_status"])
            for row in states
            if row["pxname"] == listener and row["svname"] not in ("FRONTEND", "BACKEND")
        }


class Nginx(_Balancer):
    name = "nginx"

    def _adapted(self, configuration: str) -> str:
        return configuration.replace("modules/", f"{balancers()}/usr/lib/nginx/modules/")

    def _command(self, file: Path) -> list[str]:
        # Without a master process, no worker can outlive this one.
        plain = f"daemon off; master_process off; pid {self.folder}/pid; error_log stderr notice;"
        program = str(balancers() / "usr/sbin/nginx")
        return [program, "-p", str(self.folder), "-e", "stderr", "-c", str(file), "-g", plain]
