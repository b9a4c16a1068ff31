"""A small disk that a test fills to the last byte, and frees again."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from errno import ENOSPC
from pathlib import Path

from lab.errors import PartMissing

SIZE = "16m"
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True)
class SmallDisk:
    folder: Path

    @property
    def _filler(self) -> Path:
        return self.folder / "filler"

    def fill(self) -> None:
        """Fill the disk; call it again, as space may become free meanwhile."""
        with self._filler.open("ab", buffering=0) as file:
            for size in (CHUNK_BYTES, 1):
                try:
                    while True:
                        file.write(bytes(size))
                except OSError as error:
                    if error.errno != ENOSPC:
                        raise

    def free(self) -> None:
        self._filler.unlink()


@contextmanager
def mount_small_disk(folder: Path) -> Iterator[SmallDisk]:
    """Raise PartMissing if this user may not mount."""
    place = folder / "small-disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "small-disk", str(place)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise PartMissing(
            "a small disk", f"it cannot be mounted: {error}", "Mounting takes the right to do so."
        ) from None
    try:
        yield SmallDisk(place)
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
