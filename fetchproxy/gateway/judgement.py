"""A broker said OffsetOutOfRange. Is the offset in the archive, gone for good, or not yet known?

A client that is told OffsetOutOfRange skips data for good, so the error is passed on only on fresh
knowledge: a view of the archive and of the log's ends that was read *after* the broker answered
(DESIGN §4.7). `decide` is the rule, pure; `judge` gets the knowledge.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from uuid import UUID

from fetchproxy.errors import ClusterError, ClusterUnavailable, RemoteStorageError
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.topic_identity import IDENTITY_AGE_MAX_MS
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import LogEdges, TopicIdPartition
from fetchproxy.observability.metrics import CATCH_OUTCOMES
from protocol.fetch_request import TopicRef

# So long a judgement waits for a new leader's word about the archive.
COMPARE_WAIT_MAX_S = 2.0
_UNKNOWN_TOPIC = (3, 100)  # UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID


class Verdict(Enum):
    REMOTE = "remote"  # the archive has it
    LOCAL = "local"  # the broker has it (again): ask it
    PASS_ON = "passed_on"  # above the end, below both tiers, in a recorded gap: the client's error
    HOLD = "held_stale"  # not known, or not archived yet: no data and no error


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    tip: TopicIdPartition | None = None


def decide(offset: int, view: PartitionView, edges: LogEdges, archiving: bool) -> Verdict:
    """What an offset is that was out of the broker's range, before both were read.

    `archiving`: an archiver of this process gathers the partition, perhaps its first segment.
    """
    if view.covers(offset):
        return Verdict.REMOTE
    if offset > edges.high_watermark:
        return Verdict.PASS_ON
    if offset >= edges.log_start_offset:
        return Verdict.LOCAL
    if offset < view.raised_log_start:
        return Verdict.PASS_ON  # deleted on purpose
    if not view.segments:
        # Never archived, unless a first segment is being gathered or copied.
        gathering = archiving and edges.log_start_offset < edges.high_watermark
        return Verdict.HOLD if view.copies_started or gathering else Verdict.PASS_ON
    start = view.log_start_offset
    if (start is not None and offset < start) or view.gap_at(offset):
        return Verdict.PASS_ON
    # Between the archive's end and the broker's log start. It may still be on its way: if it was
    # lost, the archiver's next segment records the gap, and then the error is true.
    return Verdict.HOLD


async def judge(
    parts: GatewayParts, topic: TopicRef, by_id: bool, partition: int, offset: int, caught_at: float
) -> Judgement:
    """Never raises for a store or cluster that does not answer: then nothing is known (HOLD)."""
    tip: TopicIdPartition | None = None
    try:
        tip = await _identify(parts, topic, by_id, partition)
        judgement = await _judge_known(parts, tip, offset, caught_at)
    except ClusterError as error:
        if error.error_code in _UNKNOWN_TOPIC:
            judgement = Judgement(Verdict.LOCAL)  # the broker says so itself when asked again
        else:
            judgement = _held(parts, tip, partition, offset, error)
    except RemoteStorageError as error:
        judgement = _held(parts, tip, partition, offset, error)
    CATCH_OUTCOMES.labels(judgement.verdict.value).inc()
    return judgement


def _held(
    parts: GatewayParts,
    tip: TopicIdPartition | None,
    partition: int,
    offset: int,
    error: Exception,
) -> Judgement:
    parts.warnings.warn(
        "judgement_without_fresh_knowledge",
        tip or partition,
        topic=tip.topic if tip else None,
        partition=partition,
        offset=offset,
        error=str(error),
    )
    return Judgement(Verdict.HOLD, tip)


async def _identify(
    parts: GatewayParts, topic: TopicRef, by_id: bool, partition: int
) -> TopicIdPartition:
    """Afresh: a name's topic may have been created again, and any topic may have a new leader."""
    if by_id:
        topic_id = UUID(bytes=topic)
        try:
            info = await parts.cluster.topic_by_id(topic_id, max_age_ms=IDENTITY_AGE_MAX_MS)
        except ClusterUnavailable:
            cached = parts.cluster.cached_topic_by_id(topic_id)
            if cached is None:
                raise
            info = cached
    else:
        info = await parts.cluster.topic_by_name(topic.decode(errors="replace"), max_age_ms=0)
    return TopicIdPartition(info.topic_id, info.name, partition)


async def _judge_known(
    parts: GatewayParts, tip: TopicIdPartition, offset: int, caught_at: float
) -> Judgement:
    if parts.rlmm.view(tip) is None:
        await parts.views.refresh(tip, caught_at)
    if await parts.views.check([tip], parts.clock() + COMPARE_WAIT_MAX_S):
        return Judgement(Verdict.HOLD, tip)
    view = parts.views.view(tip)
    if view is not None and view.covers(offset):
        return Judgement(Verdict.REMOTE, tip)
    view = await parts.views.refresh(tip, caught_at)
    if view.covers(offset):  # settled, whether or not a broker can be asked
        return Judgement(Verdict.REMOTE, tip)
    edges = await parts.cluster.log_edges(tip, not_older_than=caught_at)
    verdict = decide(offset, view, edges, parts.is_archiving(tip))
    if verdict is Verdict.HOLD:
        parts.warnings.warn(
            "offset_in_neither_tier",
            tip,
            topic=tip.topic,
            partition=tip.partition,
            offset=offset,
            archive_end=view.log_end_offset,
            broker_log_start=edges.log_start_offset,
        )
    return Judgement(verdict, tip)
