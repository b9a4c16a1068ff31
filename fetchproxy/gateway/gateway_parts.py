"""What every session of the gateway shares. Made once, by `GatewayServer`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from fetchproxy.cluster.client import Cluster
from fetchproxy.config.sections import GatewayConfig, RemoteFetchConfig
from fetchproxy.gateway.answer_budget import AnswerBudget
from fetchproxy.gateway.answer_turns import AnswerTurns
from fetchproxy.gateway.archive_starts import ArchiveStarts
from fetchproxy.gateway.archived_knowledge import ArchivedKnowledge
from fetchproxy.gateway.archived_topics import ArchivedTopics
from fetchproxy.gateway.client_rates import ClientRates
from fetchproxy.gateway.held_readers import HeldReaders
from fetchproxy.gateway.leader_views import LeaderViews
from fetchproxy.gateway.receive_buffer import ReceiveBuffer
from fetchproxy.gateway.record_pipe import RecordPipe
from fetchproxy.gateway.skipped_offsets import SkippedOffsets
from fetchproxy.gateway.told_addresses import ToldAddresses
from fetchproxy.metadata.api import RemoteLogMetadataManager
from fetchproxy.metadata.archiver_positions import ArchiverPositions
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.sparing_warnings import SparingWarnings
from fetchproxy.remote_fetch.purgatory import RemoteFetchPurgatory


@dataclass(frozen=True, slots=True)
class GatewayParts:
    """`clock` is the running loop's time in seconds.

    `clients_use_sasl`: the brokers' listener asks for it. `is_archiving`: an archiver in this
    process has the partition. `positions`: what archivers say that they gather. `views` is the
    archive as clients may see it, `rlmm` as it is; `knowledge` is of which topics it has anything,
    `starts` is where it was found to begin.
    """

    config: GatewayConfig
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
