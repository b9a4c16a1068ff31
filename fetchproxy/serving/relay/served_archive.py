"""The archive as the relay knows it: what there is, where it begins, and who is adding to it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.metadata.archiver_positions import ArchiverPositions
from fetchproxy.metadata.leader_views import LeaderViews
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.serving.relay.archive_starts import ArchiveStarts
from fetchproxy.serving.relay.archived_topics import ArchivedKnowledge


@dataclass(frozen=True, slots=True)
class ServedArchive:
    """One per process, with the brokers in front of it. `clock` is the running loop's time in
    seconds.

    `views` is the archive as clients may see it, `rlmm` as it is; `knowledge` is of which topics it
    has anything, `starts` where it was found to begin. `is_archiving`: an archiver in this process
    has the partition. `positions`: what archivers say that they gather. `reads_at_once`: of records
    for one look-up.
    """

    cluster: Cluster
    rlmm: RemoteLogMetadataManager
    views: LeaderViews
    purgatory: RemoteFetchPurgatory
    knowledge: ArchivedKnowledge
    starts: ArchiveStarts
    positions: ArchiverPositions
    is_archiving: Callable[[TopicIdPartition], bool]
    reads_at_once: int
    warnings: SparingWarnings
    clock: Callable[[], float]
