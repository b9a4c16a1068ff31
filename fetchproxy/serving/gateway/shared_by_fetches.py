"""What the fetches of all connections share: the archive and its limits."""

from __future__ import annotations

from collections.abc import (
    Callable,
    Collection,
    Mapping,
)
from dataclasses import dataclass

from fetchproxy_protocol.fetch import (
    PartitionKey,
    PartitionPatch,
)

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from fetchproxy.serving.archived_reads import SkippedOffsets
from fetchproxy.serving.gateway.held_readers import HeldReaders
from fetchproxy.serving.gateway.out_of_range import (
    RouteDecision,
    RouteDecisions,
)
from fetchproxy.serving.gateway.served_archive import ArchivedTopics, ServedArchive


@dataclass(frozen=True, slots=True)
class SharedByFetches:
    """One per process. `refuses_lost`: see `RouteDecisions`.

    `topics`: the log starts of archived topics that clients read at the tail.
    `permit_ttl_s`: how long a broker's permission for a client to read a topic is valid.
    `new_session_id`: makes the id of a fetch session that only the proxy knows.
    """

    archive: ServedArchive
    refuses_lost: bool
    held: HeldReaders
    skipped: SkippedOffsets
    topics: ArchivedTopics
    wait_max_s: float
    response_bytes_max: int
    permit_ttl_s: float
    new_session_id: Callable[[], int]

    async def decide_routes(
        self,
        by_id: bool,
        offsets: Mapping[PartitionKey, int],
        caught_at: float,
        impatient: Collection[PartitionKey] = (),
    ) -> Mapping[PartitionKey, RouteDecision]:
        undecided = RouteDecisions(
            self.archive, self.refuses_lost, by_id, offsets, caught_at, impatient
        )
        return await undecided.run()

    def watermarks(
        self, tp: TopicIdPartition | None, view: PartitionView | None = None
    ) -> PartitionPatch:
        """The ends of the live log and the start of the archived one, as far as they are in memory.

        `view`: the archive as the response shows it; None: the current view.
        """
        if tp is None:
            return PartitionPatch()
        view = view or self.archive.views.view(tp)
        log_offsets = self.archive.cluster.cached_log_offsets(tp)
        start = view.log_start_offset if view is not None else None
        if log_offsets is None:
            return PartitionPatch(log_start_offset=-1 if start is None else start)
        # The archive may have grown since the log offsets were read.
        end = view.log_end_offset if view is not None else None
        high_watermark = max(log_offsets.high_watermark, end or 0)
        last_stable = max(log_offsets.last_stable_offset, end or 0)
        local_start = log_offsets.log_start_offset
        return PartitionPatch(
            high_watermark, last_stable, local_start if start is None else min(start, local_start)
        )
