"""The `log-dirs` source: rolled segment files of a broker on this host, one file one segment.

A sidecar beside each broker copies the partitions that this broker leads, so each is copied once.
What may be copied is asked of the leader (start, LSO), never guessed from files. Where a segment
ends is Kafka's own decision, so `archive.segment_bytes_max` and `segment_age_max_ms` do not count.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import structlog

from fetchproxy.cluster.client import Cluster
from fetchproxy.errors import ConfigError, LogDirUnusable, LogTruncated
from fetchproxy.model import LogEdges, TopicIdPartition
from fetchproxy.remote_log.sources.api import LogGap, SegmentGatherer, SegmentSource
from fetchproxy.remote_log.sources.copy_pace import CopyPace, gather_until
from fetchproxy.remote_log.sources.gathered_segment import GatheredSegment
from fetchproxy.remote_log.sources.kafka_log_dir import LogDir, list_partition, partition_folder
from fetchproxy.remote_log.sources.rolled_segment import (
    RolledSegment,
    SegmentGone,
    Taken,
    rolled_at,
    take_segment,
)
from fetchproxy.remote_log.sources.spool import Spool

log = structlog.get_logger(__name__)


class LogDirsSegments(SegmentSource):
    """`log_dirs` may be those of several brokers of the cluster."""

    def __init__(self, log_dirs: Sequence[LogDir], cluster: Cluster, pace: CopyPace) -> None:
        self.pace = pace
        self._log_dirs = tuple(log_dirs)
        self._cluster = cluster

    def gatherer(self, tip: TopicIdPartition, spool: Spool) -> SegmentGatherer:
        return LogDirsGatherer(tip, self, self._cluster, spool)

    async def of_leader(self, tip: TopicIdPartition) -> list[LogDir]:
        """The log directories of the broker that leads it; none where that is another host's.

        Raises ConfigError where a directory belongs to another cluster, ClusterError.
        """
        cluster_id = await self._cluster.cluster_id()
        for log_dir in self._log_dirs:
            if log_dir.cluster_id != cluster_id:
                raise ConfigError(
                    f"archive.log_dirs: {log_dir.path} belongs to cluster {log_dir.cluster_id}, "
                    f"the brokers are of cluster {cluster_id}"
                )
        topic = await self._cluster.topic_by_id(tip.topic_id)
        leader = topic.leaders.get(tip.partition, (-1, -1))[0]
        return [log_dir for log_dir in self._log_dirs if log_dir.node_id == leader]


class LogDirsGatherer(SegmentGatherer):
    def __init__(
        self, tip: TopicIdPartition, source: LogDirsSegments, cluster: Cluster, spool: Spool
    ) -> None:
        self._tip = tip
        self._source = source
        self._cluster = cluster
        self._spool = spool
        self._taken: Taken | None = None

    @property
    def gathered_bytes(self) -> int:
        return self._taken.segment.size_bytes if self._taken else 0

    @property
    def gathered_end(self) -> int | None:
        return self._taken.segment.end_offset + 1 if self._taken else None

    @property
    def first_timestamp_ms(self) -> int | None:
        return self._taken.first_timestamp_ms if self._taken else None

    async def find_log_start(self) -> int:
        return (await self._edges()).log_start_offset

    async def gather(self, position: int, *, close_short: bool) -> GatheredSegment | LogGap | None:
        """None also where another host's broker leads the partition."""
        await self.discard()
        # Before anything is asked, so that what is taken is what the leader has just said.
        if not await self._source.pace.turn(None if close_short else gather_until()):
            return None
        edges = await self._edges()
        if position < edges.log_start_offset:
            return LogGap(edges.log_start_offset)
        if position > edges.high_watermark:
            raise LogTruncated(
                f"{self._tip} ends at offset {edges.high_watermark}, archived up to {position}"
            )
        # Asking for the edges has found the leader, so this is who leads now.
        log_dirs = await self._source.of_leader(self._tip)
        if not log_dirs:
            return None
        rolled = await asyncio.to_thread(self._rolled, log_dirs, position, edges)
        if rolled is not None:
            self._taken = await self._take(rolled)
            self._source.pace.spend(self.gathered_bytes)
        return None if self._taken is None else self._taken.segment

    async def discard(self) -> None:
        taken, self._taken = self._taken, None
        if taken is not None:
            self._spool.size_bytes -= taken.copied_bytes
            await asyncio.to_thread(taken.segment.log.unlink, missing_ok=True)

    async def _edges(self) -> LogEdges:
        now = asyncio.get_running_loop().time()
        edges = await self._cluster.log_edges(self._tip, not_older_than=now)
        self.log_start_offset = edges.log_start_offset
        self.last_stable_offset = edges.last_stable_offset
        return edges

    def _rolled(
        self, log_dirs: Sequence[LogDir], position: int, edges: LogEdges
    ) -> RolledSegment | None:
        """The inactive segment that holds `position`, if it can be copied already."""
        folder = partition_folder(log_dirs, self._tip)
        listing = list_partition(folder)
        if listing.segments and position < listing.segments[0]:
            raise LogDirUnusable(f"{folder} begins at {listing.segments[0]}, above {position}")
        found = rolled_at(listing.segments, position)
        if found is None or found[1] > edges.last_stable_offset:
            return None
        return RolledSegment(self._tip, folder, listing, *found, position)

    async def _take(self, rolled: RolledSegment) -> Taken | None:
        """None: the broker has just deleted it, so the next look will find another log start."""
        stop = threading.Event()
        path = self._spool.new_file()
        try:
            taken = await asyncio.to_thread(take_segment, rolled, path, lambda: not stop.is_set())
        except SegmentGone:
            return None
        finally:
            stop.set()  # a cancelled wait does not end the thread
        self._spool.size_bytes += taken.copied_bytes
        log.debug(
            "segment_taken",
            topic=self._tip.topic,
            partition=self._tip.partition,
            base_offset=taken.segment.start_offset,
            end_offset=taken.segment.end_offset,
            size_bytes=taken.segment.size_bytes,
            copied_bytes=taken.copied_bytes,
        )
        return taken
