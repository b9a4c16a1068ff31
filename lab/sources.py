"""The sources of the programs in lab/clients, and the names of their cache entries."""

from __future__ import annotations

import hashlib
from pathlib import Path

CLIENTS = Path(__file__).with_name("clients")


def entry_of(name: str, sources: Path) -> str:
    """`name` with a digest of all files below `sources`, so an edit causes a rebuild."""
    digest = hashlib.sha256()
    for source in sorted(path for path in sources.rglob("*") if path.is_file()):
        digest.update(source.relative_to(sources).as_posix().encode() + b"\0" + source.read_bytes())
    return f"{name}-{digest.hexdigest()[:12]}"
