"""When a compacted log is copied anew, and whether a copy has each deletion of a key. Pure.

A copy is read part by part, at different times, while the broker's log cleaner (LogCleaner) removes
records. It gives the last value of each key, and no key that was deleted, because:

- The cleaner removes a record if the log has a newer one with its key, below the last stable
  offset. So a copy needs all up to the last stable offset of its last read: then it has the newer
  one, too. Until then it does not count, and neither does what was added to one
  (`CompactedCopy.shown_to`).
- It removes a record that deletes a key (a tombstone), and the marker of a transaction,
  `delete.retention.ms` after the first cleaning that met it (KIP-534, the batch's delete horizon);
  that cleaning has removed the older values. So whoever reads an older value meets the tombstone if
  it reads on within `delete.retention.ms`. What is written after the copy had all of the log cannot
  have been cleaned before, so from then on the time counts anew.

So a copy is copied anew from the beginning of the log if more time has passed (`may_lack_deletes`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fetchproxy.model import CompactedCopy, RemoteLogSegmentMetadata

# Kafka's default of delete.retention.ms.
DELETE_RETENTION_MS = 86_400_000
# The rest is for a turn that began in time, for its requests, and for clocks that differ.
DELETES_SHARE_MAX = 0.75
# How often a growing copy records that it has all of the log. A restart within the rest of
# `DELETES_SHARE_MAX` goes on with the copy.
RECORDED_SHARE = 0.125
# The share of bytes added since a copy was made from which on it is made anew: Kafka's default of
# min.cleanable.dirty.ratio. So each byte is copied twice at most, and then once a week.
ADDED_SHARE_MAX = 0.5
# Segments added since. An archiver makes one in `archive.segment_age_max_ms` of a quiet topic.
ADDED_SEGMENTS_MAX = 100
# What compaction removed from the broker's log is in the archive no longer than this.
COPY_AGE_MAX_MS = 7 * 86_400_000

NO_DELETES = (
    "it has delete.retention.ms=0, so no reader of it can be sure to meet each deletion; set it to "
    "some hours at least"
)


class WhyAnew(StrEnum):
    """Why a log is copied from its beginning. Of the first two, the current copy does not grow."""

    FIRST = "first"  # no copy is whole
    LATE = "late"  # what follows the copy may lack deletions of keys that it has
    TRIMMED = "trimmed"  # the brokers have deleted its beginning
    GROWN = "grown"
    PIECES = "pieces"  # many small segments were added
    OLD = "old"


GROWTH_STOPS = (WhyAnew.FIRST, WhyAnew.LATE)


def is_compacted(topic_config: Mapping[str, str]) -> bool:
    return "compact" in {
        policy.strip() for policy in topic_config.get("cleanup.policy", "").split(",")
    }


def delete_retention_ms(topic_config: Mapping[str, str]) -> int:
    """`delete.retention.ms` of a topic."""
    return int(topic_config.get("delete.retention.ms", DELETE_RETENTION_MS))


def may_lack_deletes(since_ms: int, now_ms: int, retention_ms: int) -> bool:
    """Whether what is read now may lack tombstones of values that were read before. `since_ms`:
    when the copy was begun, or last had all of the log. A clock that was set back counts as late.
    """
    return not 0 <= now_ms - since_ms <= DELETES_SHARE_MAX * retention_ms


@dataclass(frozen=True, slots=True)
class CopySize:
    """Of the current copy. `made_bytes`: below `CompactedCopy.made_to`; the rest was added."""

    start_offset: int | None
    made_bytes: int
    added_bytes: int
    added_segments: int

    @classmethod
    def of(cls, copy: CompactedCopy, segments: Iterable[RemoteLogSegmentMetadata]) -> CopySize:
        start, made, added, count = None, 0, 0, 0
        for segment in segments:
            start = segment.start_offset if start is None else start
            if segment.start_offset < copy.made_to:
                made += segment.segment_size_bytes
            else:
                added += segment.segment_size_bytes
                count += 1
        return cls(start, made, added, count)


def why_anew(
    copy: CompactedCopy,
    size: CopySize,
    *,
    log_start_offset: int,
    caught_up_ms: int,
    now_ms: int,
    retention_ms: int,
    interval_min_ms: int,
) -> WhyAnew | None:
    """None: the copy goes on to grow. `log_start_offset`: of the broker's log. `caught_up_ms`: when
    the copy last had all of the log. `interval_min_ms`: a whole copy counts this long.
    """
    if not copy.number:
        return WhyAnew.FIRST
    if may_lack_deletes(caught_up_ms, now_ms, retention_ms):
        return WhyAnew.LATE
    age_ms = now_ms - copy.begun_at_ms
    if age_ms < interval_min_ms:
        return None
    if size.start_offset is not None and size.start_offset < log_start_offset:
        return WhyAnew.TRIMMED
    if size.added_bytes >= ADDED_SHARE_MAX * (size.made_bytes + size.added_bytes) > 0:
        return WhyAnew.GROWN
    if size.added_segments >= ADDED_SEGMENTS_MAX:
        return WhyAnew.PIECES
    return WhyAnew.OLD if age_ms >= COPY_AGE_MAX_MS else None
