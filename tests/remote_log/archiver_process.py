"""An archiver alone in a process, to be killed: BOOTSTRAP STORE_DIR SPOOL_DIR TOPIC. Not a test."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from archive_harness import open_archive, running_archiver


async def main(bootstrap: str, store: str, spool: str, topic: str) -> None:
    async with (
        open_archive(Path(store)) as archive,
        running_archiver(
            bootstrap,
            archive,
            topic,
            segment_bytes_max=4_096,
            fetch_bytes_max=16_384,
            spool_dir=Path(spool),
        ),
    ):
        print("running", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
