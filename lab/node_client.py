"""kafkajs, the lab's client on Node.js: a program in lab/clients/kafkajs_client.

npm installs its only dependency from its lock file into the cache.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from lab import cache
from lab.errors import PartMissing

_SOURCES = Path(__file__).with_name("clients") / "kafkajs_client"
_HOW = "Install Node.js (18 or newer) with npm, and give npm a way to its registry."


def kafkajs_entry() -> str:
    """The cache entry. Its name has a digest of the sources, so an edit causes a rebuild."""
    digest = hashlib.sha256()
    for name in ("main.js", "package.json", "package-lock.json"):
        digest.update(name.encode() + b"\0" + (_SOURCES / name).read_bytes())
    return f"kafkajs-client-{digest.hexdigest()[:12]}"


def kafkajs_command(*arguments: str) -> list[str]:
    """The command line of main.js, which lists its verbs. Raises PartMissing."""
    node = shutil.which("node")
    if node is None:
        raise PartMissing("kafkajs", "there is no Node.js on PATH", _HOW)
    folder = cache.build_once(kafkajs_entry(), _install)
    return [node, str(folder / "main.js"), *arguments]


def _install(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise PartMissing("kafkajs", "there is no npm on PATH", _HOW)
    cache.say("installing kafkajs by npm")
    for name in ("main.js", "package.json", "package-lock.json"):
        shutil.copy(_SOURCES / name, folder)
    command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise PartMissing("kafkajs", f"npm failed ({result.stderr.strip()[-500:]})", _HOW)
