"""The finished segments of a partition, by the history of the log that they are of."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.model import (
    FIRST_HISTORY,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

Segments = list[RemoteLogSegmentMetadata]


def finished(segments: Iterable[RemoteLogSegmentMetadata]) -> Segments:
    return [s for s in segments if s.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED]


def by_history(rlmm: RemoteLogMetadataManager, tip: TopicIdPartition) -> list[Segments]:
    """First those that readers are shown, then those that a person has put aside, log by log.

    The finished ones as last read, by start offset (`fetchproxy resolve`). Between two of these
    nothing has to fit.
    """
    segments, view = rlmm.list_remote_log_segments(tip), rlmm.view(tip)
    history = FIRST_HISTORY if view is None else view.history
    borders = sorted({*history.earlier, history.after_epoch, history.kept_epoch})
    found: dict[int, Segments] = {}
    for segment in finished(segments):
        epochs = segment.segment_leader_epochs
        last = epochs[-1].epoch if epochs else -1
        log = -1 if history.shows(segment) else bisect_left(borders, last)
        found.setdefault(log, []).append(segment)
    return [found[log] for log in sorted(found)]
