"""What the fetches of all connections share: the archive they are answered from, and its limits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fetchproxy_protocol.fetch import PartitionPatch

from fetchproxy.model import TopicIdPartition
from fetchproxy.serving.admission import Admission
from fetchproxy.serving.archived_reads import SkippedOffsets
from fetchproxy.serving.relay.held_readers import HeldReaders
from fetchproxy.serving.relay.judgement import Judge
from fetchproxy.serving.relay.served_archive import ArchivedTopics, ServedArchive


@dataclass(frozen=True, slots=True)
class FetchLimits:
    """`permit_ttl_s`: for so long a broker's word counts that a client may read a topic."""

    wait_max_s: float
    answer_bytes_max: int
    permit_ttl_s: float


@dataclass(frozen=True, slots=True)
class SharedByFetches:
    """One per process. `topics`: where the archive of what the tail's readers read begins.

    `new_session_id`: of a fetch session that only the proxy knows.
    """

    archive: ServedArchive
    judge: Judge
    held: HeldReaders
    skipped: SkippedOffsets
    topics: ArchivedTopics
    admission: Admission
    limits: FetchLimits
    new_session_id: Callable[[], int]

    def watermarks(self, tip: TopicIdPartition | None) -> PartitionPatch:
        """What is known without waiting: ends of the live log, start of the archived one."""
        if tip is None:
            return PartitionPatch()
        view = self.archive.views.view(tip)
        edges = self.archive.cluster.cached_log_edges(tip)
        start = view.log_start_offset if view is not None else None
        if edges is None:
            return PartitionPatch(log_start_offset=-1 if start is None else start)
        # The archive may have grown since the edges were read.
        end = view.log_end_offset if view is not None else None
        high_watermark = max(edges.high_watermark, end or 0)
        last_stable = max(edges.last_stable_offset, end or 0)
        local_start = edges.log_start_offset
        return PartitionPatch(
            high_watermark, last_stable, local_start if start is None else min(start, local_start)
        )
