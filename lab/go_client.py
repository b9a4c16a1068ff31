"""The franz-go consumer of the lab: a client that shares no code with any Python client. Its source
is lab/clients/franz_reader; it is rebuilt when that changes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from lab import go

_SOURCES = Path(__file__).with_name("clients") / "franz_reader"


def franz_reader_entry() -> str:
    """The cache entry, named by a digest of the sources so that an edit is never missed."""
    digest = hashlib.sha256()
    for source in sorted(_SOURCES.iterdir()):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return f"franz-reader-{digest.hexdigest()[:12]}"


def franz_reader() -> Path:
    """The built executable. Raises PartMissing."""
    return go.build_sources(franz_reader_entry(), _SOURCES)


def franz_reader_command(
    bootstrap: str,
    topic: str,
    ends: Mapping[int, int],
    isolation: str = "read_uncommitted",
    timeout_s: float = 60.0,
) -> list[str]:
    """Reads each partition of `ends` from 0 up to, not including, its end offset.

    Prints `partition offset crc32(key) crc32(value)` (8 hex digits, `-` for null) per record and
    exits with status 1 on any error, OFFSET_OUT_OF_RANGE and the time-out among them.
    """
    wanted = ",".join(f"{partition}:{end}" for partition, end in ends.items())
    return [
        str(franz_reader()),
        *("-bootstrap", bootstrap, "-topic", topic, "-ends", wanted),
        *("-isolation", isolation, "-timeout", f"{timeout_s}s"),
    ]
