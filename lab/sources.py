"""The programs of lab/clients: their sources, and the cache entries that they are built into."""

from __future__ import annotations

import hashlib
from pathlib import Path

CLIENTS = Path(__file__).with_name("clients")


def entry_of(name: str, sources: Path) -> str:
    """`name` and a digest of all files below `sources`, so that an edit is never missed."""
    digest = hashlib.sha256()
    for source in sorted(path for path in sources.rglob("*") if path.is_file()):
        digest.update(source.relative_to(sources).as_posix().encode() + b"\0" + source.read_bytes())
    return f"{name}-{digest.hexdigest()[:12]}"
