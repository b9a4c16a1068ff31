"""A merge in a process of its own, to be killed. Not a test.

Arguments: STORE_DIR SPOOL_DIR BYTES_MAX LATER_MS [LABEL]: at the step LABEL (`labelled_store`) the
process kills itself. Without a LABEL it merges all partitions and removes expired segments.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from pathlib import Path

from archive_harness import Archive, open_archive, wall_clock_ms
from labelled_store import LabelledStore, kill_at

from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore
from fetchproxy.writing.copier import SegmentCopier
from fetchproxy.writing.deletion.expirer import Expirer
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.merging import PartitionMerger
from fetchproxy.writing.spool import Spool

COPY_MAX_MS = 60_000
COPIES_OLD_MS = 3 * COPY_MAX_MS  # after this time replaced segments are removed


async def merge_all(archive: Archive, spool_dir: Path, bytes_max: int, later_ms: int = 0) -> int:
    """Merge and tidy as the job does, `later_ms` from now; return the number of merged segments."""
    config = ArchiveConfig(copy_max_ms=COPY_MAX_MS, retention_grace_ms=0)
    later = lambda: wall_clock_ms() + later_ms  # noqa: E731
    merged = 0
    async with Spool(spool_dir) as spool:
        copier = SegmentCopier(
            archive.storage.rsm,
            archive.rlmm,
            copy_max_ms=COPY_MAX_MS,
            wall_clock_ms=later,
            uuid_factory=uuid.uuid4,
        )
        merger = PartitionMerger(
            archive.storage.rsm, archive.rlmm, copier, spool, bytes_max=bytes_max
        )
        expirer = Expirer(
            config,
            archive.storage.rsm,
            archive.storage.objects,
            archive.rlmm,
            topic_config=lambda topic_id: None,
            wall_clock_ms=later,
            limits=WritingLimits(retention_clock_settle_ms=0),
        )
        for tp in await archive.rlmm.list_partitions():
            merged += (await merger.merge(tp)).merged
            await expirer.delete_all_due(tp)
    return merged


async def main(store: str, spool: str, bytes_max: str, later_ms: str, label: str = "") -> None:
    labelled = LabelledStore(FilesystemObjectStore(Path(store)), kill_at(label))
    async with open_archive(labelled) as archive:
        await merge_all(archive, Path(spool), int(bytes_max), int(later_ms))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
