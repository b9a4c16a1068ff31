"""An archiver in a process of its own, to be killed. Not a test.

Arguments: BOOTSTRAP STORE_DIR SPOOL_DIR TOPIC [CHANGES [LABEL [KEY_RING]]]. CHANGES are keys of
ArchiveConfig as JSON. At the step LABEL (see `labelled_store`) the process kills itself. With
`stop LABEL` it stops itself there once, and with `within LABEL` within the last call of that step.
With a KEY_RING segments are compressed and encrypted.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from archive_harness import open_archive, running_archiver
from labelled_store import (
    WITHIN_PACKING,
    LabelledStore,
    kill_at,
    kill_within_packing,
    stop_at,
    stop_within_rename,
)

from fetchproxy.storage.key_rings import FileKeyRing
from fetchproxy.storage.packed_logs import NO_ENCRYPTION, AtRest
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore

SMALL = '{"segment_bytes_max": 4096, "fetch_bytes_max": 16384}'
STOP = "stop "
WITHIN = "within "


async def main(
    bootstrap: str,
    store: str,
    spool: str,
    topic: str,
    changes: str = SMALL,
    label: str = "",
    ring: str = "",
) -> None:
    if label == WITHIN_PACKING:
        kill_within_packing()
    if label.startswith(WITHIN):
        stop_within_rename(label.removeprefix(WITHIN))
    stops = label.startswith(STOP)
    reached = stop_at(label.removeprefix(STOP)) if stops else kill_at(label)
    labelled = LabelledStore(FilesystemObjectStore(Path(store), create=True), reached)
    at_rest = AtRest(compress=True, keys=FileKeyRing(Path(ring))) if ring else NO_ENCRYPTION
    async with (
        open_archive(labelled, at_rest) as archive,
        running_archiver(bootstrap, archive, topic, spool_dir=Path(spool), **json.loads(changes)),
    ):
        print("running", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
