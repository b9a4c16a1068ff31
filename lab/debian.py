"""Programs of Debian's packages, unpacked into the cache. Nothing is installed on the machine."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lab import cache
from lab.errors import PartMissing

_HOW = "It needs Debian's packages (apt-get download)."


def unpack(part: str, packages: Sequence[str], folder: Path) -> Path:
    """`folder`/tree, with the files of all `packages`. Raises PartMissing."""
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise PartMissing(part, f"{program} is not on PATH", _HOW)
    cache.say(f"{part}: unpacking Debian's packages into the cache")
    _run(part, ["apt-get", "download", *packages], folder)
    for package in folder.glob("*.deb"):
        _run(part, ["dpkg-deb", "-x", package.name, "tree"], folder)
        package.unlink()
    return folder / "tree"


def library_path(tree: Path) -> str:
    """For LD_LIBRARY_PATH: the folders below `tree` that have libraries."""
    return ":".join(sorted({str(path.parent) for path in tree.rglob("*.so.*")}))


def _run(part: str, command: list[str], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        output = (result.stdout + result.stderr).strip()[-300:]
        raise PartMissing(part, f"`{' '.join(command[:3])} …` failed ({output})", _HOW)
