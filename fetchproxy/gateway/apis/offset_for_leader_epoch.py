"""OffsetForLeaderEpoch (v2–4): where the log of a leader epoch ended, over both tiers.

Consumers ask it after a change of leaders, to see whether what they have read is still in the log.
The broker answers first: it has checked authorization, leadership and fencing (74, 75), and errors
stay. Of an epoch that is older than all of its local log it answers (that epoch, its log start).
That is corrected from the archive's lineage, as a Kafka with tiered storage would answer, whose
lineage begins at the first remote offset (`metadata.lineage.merged_end_offset`).

The last view of the archive will do, however old: what a lineage says never changes but at its
ends and by an unclean election, after which only what the new leader shares is looked at. Without
any view the broker's own answer is too high at most. So nothing here can make a
consumer believe that its log was truncated, and no outage of store or cluster becomes an error.

v0 and v1 were for replicas of old brokers: v0 answers without epoch, and neither can be fenced. No
client asks them, so they are not offered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.gateway.answers import Answer, HeldAnswer
from fetchproxy.gateway.apis.behaviour import Api, Behaviour, Held, Treatment
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.topic_identity import IDENTITY_AGE_MAX_MS
from fetchproxy.metadata.lineage import EpochEnd, lineage_of, merged_end_offset
from fetchproxy.model import EpochStart, TopicIdPartition
from protocol import offset_for_leader_epoch as wire
from protocol.apis import PROXIED_VERSIONS, ApiKey
from protocol.headers import RequestHead
from protocol.offset_for_leader_epoch import EpochResult
from protocol.primitives import Buffer

if TYPE_CHECKING:
    from fetchproxy.gateway.client_session import ClientSession

# So long a whole answer may wait for store and cluster: the broker's own is safe, if less exact.
ARCHIVE_WAIT_MAX_S = 2.0


def _on_request(session: ClientSession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    session.send_upstream(frame, _expect(session.parts, frame, head, body_at))
    return True


def _expect(parts: GatewayParts, frame: bytes, head: RequestHead, body_at: int) -> Answer:
    request = wire.parse_request(memoryview(frame)[4:], body_at, head.api_version)
    if request.replica_id >= 0:  # a follower must get its leader's own answer
        return Answer(head.correlation_id)
    asked = {(a.topic, a.partition): a.leader_epoch for a in request.asked}

    async def rewrite(payload: bytes) -> Sequence[Buffer]:
        return [await _correct(parts, payload, head.api_version, asked)]

    return HeldAnswer(head.correlation_id, rewrite)


async def _correct(
    parts: GatewayParts, payload: bytes, version: int, asked: Mapping[tuple[str, int], int]
) -> Buffer:
    corrected = bytearray(payload)
    deadline = parts.clock() + ARCHIVE_WAIT_MAX_S
    for result in wire.parse_response(payload, version):
        requested = asked.get((result.topic, result.partition))
        # Otherwise the broker found the epoch in its own log, or knows that it cannot be.
        if requested == result.leader_epoch and not result.error_code and result.end_offset >= 0:
            wire.patch(corrected, await _both_tiers(parts, result, deadline))
    return corrected


async def _both_tiers(parts: GatewayParts, result: EpochResult, deadline: float) -> EpochResult:
    try:
        async with asyncio.timeout_at(deadline):
            topic = await parts.cluster.topic_by_name(result.topic, IDENTITY_AGE_MAX_MS)
            tip = TopicIdPartition(topic.topic_id, topic.name, result.partition)
            if parts.rlmm.view(tip) is None:
                await parts.rlmm.refresh(tip, parts.clock())
            if await parts.views.check([tip], deadline):
                return result
            view = parts.views.view(tip)
            assert view is not None  # it was read above
            archived = lineage_of(view)
            local_epoch = await _local_epoch(parts, tip, archived, result.leader_epoch)
    except (ClusterError, RemoteStorageError, TimeoutError) as error:
        parts.warnings.warn(
            "epoch_answered_by_broker_alone",
            result.topic,
            topic=result.topic,
            partition=result.partition,
            error=str(error) or "not known in time",
        )
        return result
    broker = EpochEnd(result.leader_epoch, result.end_offset)
    merged = merged_end_offset(archived, result.leader_epoch, broker, local_epoch)
    return result._replace(leader_epoch=merged.epoch, end_offset=merged.end_offset)


async def _local_epoch(
    parts: GatewayParts, tip: TopicIdPartition, archived: Sequence[EpochStart], requested: int
) -> int | None:
    """Where the broker's own log begins; asked for only where the archive does not settle it."""
    if not archived or any(entry.epoch >= requested for entry in archived):
        return None
    edges = parts.cluster.cached_log_edges(tip)
    # An epoch only leaves the local log, so the last known beginning is too low at most.
    if edges is None or not 0 <= edges.log_start_epoch <= requested:
        edges = await parts.cluster.log_edges(tip, not_older_than=parts.clock())
    return None if edges.log_start_epoch < 0 else edges.log_start_epoch


API = Api(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    (
        Behaviour(
            *PROXIED_VERSIONS[ApiKey.OFFSET_FOR_LEADER_EPOCH],
            Treatment.REWRITTEN,
            Held(_on_request),
            "An epoch older than the broker's log is looked up in the archive's lineage.",
        ),
    ),
)
