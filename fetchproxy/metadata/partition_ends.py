"""Which part of a long partition a refresh lists, and which changes that part lacks. Pure.

Objects sort by offset, and nearly all that happens to a partition happens at its ends: copies are
added behind the last segment, and retention deletes the first ones. So a refresh lists only both
ends.
Who changes anything else writes the object `past-changed` afterwards, which sorts behind all
segments. A refresh that finds a new version of it lists everything (docs/adr/0082).

More is listed at each end than a writer may change unannounced, because the writer may not know yet
what another one has added.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.model import RemoteLogSegmentMetadata, RemoteLogSegmentState
from fetchproxy.segments.records import LogStartOffset

_COPY = (
    RemoteLogSegmentState.COPY_SEGMENT_STARTED,
    RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndsLimits:
    """Tests pass other values."""

    # Segments that are listed at each end: with up to nine objects each, a page of 1,000.
    listed_segments: int = 100
    # Up to so many segments may be added at the end, or deleted at the start, unannounced.
    unannounced_segments_max: int = 50
    # A partition with fewer segments is listed as a whole: with four objects each these are two
    # pages, and the two ends are two requests.
    whole_below_segments: int = 500
    # So often everything is listed in any case. That shows changes that a crash, or a person, has
    # left unannounced.
    whole_listing_interval_ms: int = 6 * 3_600_000


def must_be_announced(
    table: PartitionTable,
    event: RemoteLogSegmentMetadata | LogStartOffset,
    limits: EndsLimits = EndsLimits(),
) -> bool:
    """Whether listings of the ends may miss the event. `table`: before it or after it.

    A copy in the first segments has to be announced too, because it moves later ones out of the
    part that is listed; so does a deletion in the last ones.
    """
    if table.segment_count <= limits.unannounced_segments_max:
        return False  # the listing of the first end shows all of them
    if isinstance(event, LogStartOffset):
        below, at_first, at_last = table.count_below(event.offset), True, True
    else:
        below, at_last = table.count_below(event.start_offset), event.state in _COPY
        at_first = not at_last
    is_first = below <= limits.unannounced_segments_max
    is_last = table.segment_count - below <= limits.unannounced_segments_max
    return not ((is_first and at_first) or (is_last and at_last))


def may_be_missed(segments: int) -> bool:
    """Whether listings of the ends may miss a change in a partition of so many segments."""
    return segments > EndsLimits().unannounced_segments_max


def at_the_ends(keys: list[str], first_up_to: str, last_after: str) -> list[str]:
    """The keys, sorted, up to `first_up_to` and after `last_after`."""
    if first_up_to >= last_after:
        return keys
    return keys[: bisect_right(keys, first_up_to)] + keys[bisect_right(keys, last_after) :]
