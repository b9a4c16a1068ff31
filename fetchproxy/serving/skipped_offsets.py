"""Readers that were led behind lost offsets: counted at each skip, logged once for each loss."""

from __future__ import annotations

import structlog
from cachetools import LRUCache

from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.metrics import OFFSETS_SKIPPED, READERS_LED_ON

log = structlog.get_logger(__name__)

# Losses that are known to be logged; beyond it the oldest is forgotten, and may be logged again.
LOSSES_KNOWN_MAX = 1_000


class SkippedOffsets:
    """One per process that serves."""

    def __init__(self) -> None:
        self._logged: LRUCache[tuple[TopicIdPartition, int], None] = LRUCache(LOSSES_KNOWN_MAX)

    def note(self, tip: TopicIdPartition, first: int, last: int) -> None:
        """An answer has led a reader behind the lost offsets `first` to `last`, both inclusive."""
        READERS_LED_ON.labels(tip.topic).inc()
        OFFSETS_SKIPPED.labels(tip.topic).inc(last - first + 1)
        if (tip, last) in self._logged:
            return
        self._logged[tip, last] = None
        log.warning(
            "lost_offsets_skipped",
            topic=tip.topic,
            partition=tip.partition,
            first_lost_offset=first,
            last_lost_offset=last,
        )
