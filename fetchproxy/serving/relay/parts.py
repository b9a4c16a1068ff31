"""What every session of the gateway shares. Made once, by `GatewayServer`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import GatewayConfig, RemoteFetchConfig
from fetchproxy.metadata.archiver_positions import ArchiverPositions
from fetchproxy.metadata.leader_views import LeaderViews
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.reading.purgatory import RemoteFetchPurgatory
from fetchproxy.serving.admission import AnswerBudget, AnswerTurns, ClientRates
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.serving.relay.addresses import ToldAddresses
from fetchproxy.serving.relay.archive_starts import ArchiveStarts
from fetchproxy.serving.relay.archived_topics import ArchivedKnowledge, ArchivedTopics
from fetchproxy.serving.relay.held_readers import HeldReaders, SkippedOffsets
from fetchproxy.serving.transport import ReceiveBuffer, RecordPipe


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """`clock` is the running loop's time in seconds.

    `clients_use_sasl`: the brokers' listener asks for it. `is_archiving`: an archiver in this
    process has the partition. `positions`: what archivers say that they gather. `views` is the
    archive as clients may see it, `rlmm` as it is; `knowledge` is of which topics it has anything,
    `starts` is where it was found to begin.
    """

    config: GatewayConfig
    limits: ServingLimits
    clients_use_sasl: bool
    remote_fetch: RemoteFetchConfig
    cluster: Cluster
    rlmm: RemoteLogMetadataManager
    views: LeaderViews
    purgatory: RemoteFetchPurgatory
    addresses: ToldAddresses
    receive: ReceiveBuffer
    records: RecordPipe | None
    random: random.Random
    clock: Callable[[], float]
    warnings: SparingWarnings
    is_archiving: Callable[[TopicIdPartition], bool]
    positions: ArchiverPositions
    held: HeldReaders
    skipped: SkippedOffsets
    archived: ArchivedTopics
    knowledge: ArchivedKnowledge
    starts: ArchiveStarts
    answers: AnswerBudget
    turns: AnswerTurns
    rates: ClientRates

    def new_session_id(self) -> int:
        """A fetch session id that only the proxy knows."""
        return self.random.randint(1, (1 << 31) - 1)
