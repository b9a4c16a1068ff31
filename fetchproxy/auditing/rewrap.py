"""Has the data keys of an archive's segments encrypted by the key ring's active key.

One small object of each segment is replaced, whole or not at all, and stays true with either key:
archivers and readers notice nothing, and a next run goes on where one ended. It looks at objects:
a segment whose metadata are lost keeps its key, too.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from fetchproxy.errors import DamagedObject, ObjectNotFound
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.loop import for_each
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager

PARTITIONS_AT_ONCE = 4


@dataclass(slots=True)
class RewrapReport:
    rewrapped: int = 0
    keys: Counter[str] = field(default_factory=Counter)  # of how many segments each was, before
    faults: list[str] = field(default_factory=list)  # what could not be opened, and why


async def rewrap_archive(
    rsm: RemoteStorageManager, *, topics: re.Pattern[str] | None = None, dry_run: bool = False
) -> RewrapReport:
    """Of topics whose whole name matches (None: of all). Raises RemoteStorageError."""
    report = RewrapReport()

    async def rewrap(tip: TopicIdPartition) -> None:
        async for segment in rsm.list_packed(tip):
            try:
                found = await rsm.packed.rewrap(segment, dry_run=dry_run)
            except ObjectNotFound:
                continue  # deleted since it was listed
            except DamagedObject as error:
                report.faults.append(str(error))
                continue
            if found.key_id:
                report.keys[found.key_id] += 1
                report.rewrapped += found.done

    tips = [t for t in await rsm.list_partitions() if topics is None or topics.fullmatch(t.topic)]
    await for_each(tips, rewrap, PARTITIONS_AT_ONCE)
    report.faults.sort()
    return report
