"""How large an object may be that is read whole. Pure.

A store may hold anything under the archive's names. What is larger than all that was ever written
there is damaged, and refused before a byte of it is read (`errors.DamagedObject`). Logs are read
in ranges alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from fetchproxy.model import SEGMENT_BYTES_MAX
from fetchproxy.storage.layout import SegmentFile

KiB = 1024
MiB = 1024 * KiB

# Of what says a few values: `.metadata` objects of 10,000 leader epochs, notes, records, concerns.
SMALL_OBJECT_BYTES_MAX = MiB
# Of what names every topic of a cluster or every partition of an archiver: some two million.
OBJECT_BYTES_MAX = 64 * MiB

# An index has an entry for every 64 KiB of the log: the log's key and less than this. Beside that a
# small log may have one for each batch.
_INDEX_BYTES = 8 * MiB
_INDEX_INTERVAL_BYTES = 64 * KiB
_INDEX_ENTRY_BYTES = 80
# A marker that aborts a transaction takes 78 bytes of the log, its entry 34. 200,000 more may have
# begun before the segment and end behind it.
_ABORTED_AROUND_BYTES = 8 * MiB
# One line for each election of the partition's leader, ever.
_EPOCHS_BYTES = 8 * MiB
# A broker makes its index files this large and cuts them when it rolls the segment. With
# `index.interval.bytes = 0` each batch has an entry: 12 bytes of no less than 61.
_KAFKA_INDEX_BYTES = 16 * MiB


def segment_file_bytes_max(file: SegmentFile, key: str, log_bytes: int) -> int:
    """Of an object beside a log of that size; `key` is its own."""
    log_bytes = min(log_bytes, SEGMENT_BYTES_MAX)
    entries = log_bytes // _INDEX_INTERVAL_BYTES
    limits: Mapping[SegmentFile, int] = {
        SegmentFile.METADATA: SMALL_OBJECT_BYTES_MAX,
        SegmentFile.INDEX: _INDEX_BYTES + entries * (len(key) + _INDEX_ENTRY_BYTES),
        SegmentFile.TXN: _ABORTED_AROUND_BYTES + log_bytes // 2,
        SegmentFile.EPOCHS: _EPOCHS_BYTES,
        SegmentFile.OFFSET_INDEX: _KAFKA_INDEX_BYTES + log_bytes // 5,
        SegmentFile.TIME_INDEX: _KAFKA_INDEX_BYTES + log_bytes // 5,
        SegmentFile.PRODUCER_SNAPSHOT: OBJECT_BYTES_MAX,
    }
    return limits[file]
