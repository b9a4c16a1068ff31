"""kcat, librdkafka's command-line consumer, in the version that Debian ships.

It is taken from PATH, or otherwise unpacked from Debian packages into the cache. Nothing is
installed on the machine.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from lab import cache, debian
from lab.errors import PartMissing

KCAT_ENTRY = "kcat-debian"
_HOW = "Install kcat with the system's package manager."
_PACKAGES = ["kcat", "librdkafka1", "libyajl2"]


def find_kcat() -> Path:
    """The path of kcat. Raises PartMissing with the reason."""
    if on_path := shutil.which("kcat"):
        return Path(on_path)
    return cache.build_once(KCAT_ENTRY, _unpack) / "kcat"


def _unpack(folder: Path) -> None:
    debian.unpack("kcat", _PACKAGES, folder)
    libraries = sorted({str(path.parent.relative_to(folder)) for path in folder.rglob("*.so.*")})
    # The script finds its own folder, because the entry is renamed into place after it is built.
    path_list = ":".join(f"$here/{library}" for library in libraries)
    script = folder / "kcat"
    script.write_text(
        "#!/bin/sh\n"
        'here=$(dirname "$0")\n'
        f'LD_LIBRARY_PATH="{path_list}" exec "$here/tree/usr/bin/kcat" "$@"\n'
    )
    script.chmod(0o755)
    _run([str(script), "-V"], folder)


def _run(command: list[str], folder: Path) -> None:
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        output = (result.stdout + result.stderr).strip()[-300:]
        raise PartMissing("kcat", f"`{' '.join(command)}` failed ({output})", _HOW)
