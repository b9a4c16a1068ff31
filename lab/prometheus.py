"""promtool, which checks and tests Prometheus' rules, in the version that Debian ships.

It is taken from PATH, or otherwise unpacked from Debian's package into the cache. Nothing is
installed on the machine.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from lab import cache
from lab.errors import PartMissing

PROMETHEUS_ENTRY = "prometheus-debian"
_HOW = "Install Prometheus with the system's package manager."


def find_promtool() -> Path:
    """The path of promtool. Raises PartMissing with the reason."""
    if on_path := shutil.which("promtool"):
        return Path(on_path)
    return cache.build_once(PROMETHEUS_ENTRY, _unpack) / "promtool"


def _unpack(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise PartMissing("prometheus", "it is not on PATH and this is not Debian", _HOW)
    cache.say("prometheus: unpacking Debian's package into the cache")
    _run(["apt-get", "download", "prometheus"], folder)
    for package in folder.glob("*.deb"):
        _run(["dpkg-deb", "-x", package.name, "tree"], folder)
        package.unlink()
    (folder / "tree/usr/bin/promtool").rename(folder / "promtool")  # both programs are static
    shutil.rmtree(folder / "tree")
    _run([str(folder / "promtool"), "--version"], folder)


def _run(command: list[str], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        output = (result.stdout + result.stderr).strip()[-300:]
        raise PartMissing("prometheus", f"`{' '.join(command)}` failed ({output})", _HOW)
