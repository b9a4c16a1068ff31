"""The finished segments of a partition, by the history of the log that they are of."""

from __future__ import annotations

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


def by_history(rlmm: RemoteLogMetadataManager, tip: TopicIdPartition) -> tuple[Segments, Segments]:
    """(those that readers are shown, those that a person has put aside: `fetchproxy resolve`).

    The finished ones as last read, by start offset. Between the two nothing has to fit.
    """
    segments, view = rlmm.list_remote_log_segments(tip), rlmm.view(tip)
    history = FIRST_HISTORY if view is None else view.history
    shown: Segments = []
    aside: Segments = []
    for segment in finished(segments):
        (shown if history.shows(segment) else aside).append(segment)
    return shown, aside
