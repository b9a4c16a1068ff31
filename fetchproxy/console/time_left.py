"""How long the brokers keep what is not archived, if the archiver that knows it is away.

An archiver knows the time left of its partitions. While none works, a process that only serves
finds it from what it has: the newest archived timestamp, the topic's retention, and how much the
brokers have beyond the archive. Records behind that timestamp are newer, so the brokers delete them
no earlier. For retention by bytes, sizes and pace are estimates: as if unarchived records were as
large as those of the newest segment, and went on to come as fast as since then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.errors import ClusterError
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import LogOffsets
from fetchproxy.writing.status import BROKER_UNLIMITED, BrokerRetention, broker_retention

# One request each. The next updates ask for the rest.
TOPICS_ASKED_AT_ONCE = 20
# An operator may raise the retention meanwhile, as the remedy says.
RETENTION_ASKED_AGAIN_S = 60.0
_UNKNOWN_RETENTION = (0.0, BROKER_UNLIMITED)


@dataclass(eq=False, slots=True)
class TimeLeft:
    """`_retention` by topic, as last heard. What is not known counts as unlimited."""

    _retention: dict[str, tuple[float, BrokerRetention]] = field(default_factory=dict)

    async def update(self, cluster: Cluster, topics: Iterable[str]) -> None:
        """`topics`: those with records that nobody archives now."""
        now = asyncio.get_running_loop().time()
        before, self._retention = self._retention, {}
        due: list[str] = []
        for name in sorted(set(topics)):
            if (earlier := before.get(name)) is not None:
                self._retention[name] = earlier
            if earlier is None or now - earlier[0] > RETENTION_ASKED_AGAIN_S:
                due.append(name)
        due.sort(key=lambda name: before.get(name, _UNKNOWN_RETENTION)[0])  # none waits for ever
        for name in due[:TOPICS_ASKED_AT_ONCE]:
            try:
                retention = broker_retention(await cluster.topic_config(name))
            except ClusterError:
                retention = BROKER_UNLIMITED  # the page says that it is not known
            self._retention[name] = now, retention

    def seconds(
        self,
        topic: str,
        view: PartitionView | None,
        now_ms: int,
        log_offsets: LogOffsets | None = None,
    ) -> int | None:
        """Until the brokers may delete the first record behind the archive's end."""
        _, retention = self._retention.get(topic, _UNKNOWN_RETENTION)
        if view is None or not view.segments:
            return None
        left_ms = (
            _left_by_age(retention.ms, view, now_ms),
            _left_by_size(retention.bytes, view, now_ms, log_offsets),
        )
        least_ms = min((ms for ms in left_ms if ms is not None), default=None)
        return None if least_ms is None else least_ms // 1000


def _left_by_age(retention_ms: int | None, view: PartitionView, now_ms: int) -> int | None:
    newest_ms = _newest_ms(view, now_ms)
    if retention_ms is None or newest_ms is None:
        return None
    return max(newest_ms + retention_ms - now_ms, 0)


def _left_by_size(
    retention_bytes: int | None, view: PartitionView, now_ms: int, log_offsets: LogOffsets | None
) -> int | None:
    if retention_bytes is None or log_offsets is None or view.log_end_offset is None:
        return None
    newest = view.segments[len(view.segments) - 1]
    record_bytes = newest.segment_size_bytes / (newest.end_offset - newest.start_offset + 1)
    records = log_offsets.high_watermark - max(view.log_end_offset, log_offsets.log_start_offset)
    bytes_left = retention_bytes - records * record_bytes
    if bytes_left <= 0:
        return 0
    newest_ms = _newest_ms(view, now_ms)
    if newest_ms is None or records <= 0 or record_bytes <= 0:
        return None
    return int(bytes_left / record_bytes * (now_ms - newest_ms) / records)


def _newest_ms(view: PartitionView, now_ms: int) -> int | None:
    """The newest archived timestamp; None: it cannot be."""
    newest_ms = view.segments[len(view.segments) - 1].max_timestamp_ms
    return newest_ms if 0 < newest_ms <= now_ms else None
