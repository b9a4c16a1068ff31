"""OffsetForLeaderEpoch (v2–4): where the log of a leader epoch ended, over both tiers.

Consumers ask for it after a change of leaders, to see whether the records they read are still in
the log. The broker answers first: it has checked authorization, leadership and fencing (74, 75),
and errors stay. For an epoch older than its whole local log it answers (that epoch, its log start).
The archive's lineage corrects that, as a Kafka with tiered storage would answer, whose lineage
begins at the first remote offset (`metadata.lineage.merged_end_offset`).

The last view of the archive will do, however old: a lineage changes only at its ends and by an
unclean election, after which only the part shared with the new leader is used. Without any view,
the broker's own response may only be too high. So no response makes a consumer believe that its log
was truncated, and no outage of store or cluster becomes an error.

v0 and v1 were for replicas of old brokers: v0 answers without an epoch, and neither can be fenced.
Clients do not send them, so they are not offered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

from fetchproxy_protocol import offset_for_leader_epoch as wire
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.headers import RequestHead, response_body
from fetchproxy_protocol.offset_for_leader_epoch import EpochResult
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.errors import ClusterError
from fetchproxy.metadata.lineage import lineage_of, merged_end_offset
from fetchproxy.model import EpochEnd, EpochStart, TopicIdPartition
from fetchproxy.runtime.cooperative import READ_AT_ONCE_BYTES_MAX, chosen, collected, cooperative
from fetchproxy.serving.gateway.broker_link import BufferedResponse
from fetchproxy.serving.gateway.offset_lookup import ArchiveLookup
from fetchproxy.serving.gateway.served_archive import ServedArchive
from fetchproxy.serving.gateway.session import Buffered, GatewaySession, rewritten
from fetchproxy.serving.upstream import ExpectedResponse

# How long a response may wait for store and cluster: the broker's own is safe, if less exact.
ARCHIVE_WAIT_MAX_S = 2.0
# The part of it for partitions that were never read, so that the others are still answered.
FIRST_READ_WAIT_MAX_S = 1.0
# Lineages read through in one turn of the event loop.
LINEAGES_AT_ONCE = 50
# Warnings in one turn: a line of the log takes up to 0.5 ms.
WARNED_AT_ONCE = 10

_Epochs = Mapping[tuple[str, int], int]  # epoch by topic and partition


def expect(
    archive: ServedArchive, frame: bytes, head: RequestHead, body_at: int
) -> ExpectedResponse:
    request, version = memoryview(frame)[4:], head.api_version
    epochs_of: _Epochs | None = None
    if len(frame) <= READ_AT_ONCE_BYTES_MAX:
        epochs_of = dict(wire.partitions_in(request, body_at, version))
    if wire.replica_id(request, body_at, version) >= 0:
        return ExpectedResponse(
            head.correlation_id
        )  # a follower must get its leader's own response

    async def rewrite(payload: bytes) -> Sequence[Buffer]:
        epochs = epochs_of
        if epochs is None:
            epochs = dict(await collected(wire.partitions_in(request, body_at, version)))
        return [await _correct(archive, payload, version, epochs)]

    return BufferedResponse(head.correlation_id, rewrite)


async def _correct(archive: ServedArchive, payload: bytes, version: int, epochs: _Epochs) -> Buffer:
    deadline = archive.clock() + ARCHIVE_WAIT_MAX_S
    body = response_body(payload, ApiKey.OFFSET_FOR_LEADER_EPOCH, version)

    def may_change(result: EpochResult) -> bool:
        # Otherwise the broker found the epoch in its own log, or knows that it is impossible.
        requested = epochs.get((result.topic, result.partition))
        return requested == result.leader_epoch and not result.error_code and result.end_offset >= 0

    results = await chosen(await collected(wire.results_in(body, version)), may_change)
    if not results:
        return payload
    corrected = bytearray(payload)
    try:
        async with asyncio.timeout_at(deadline):
            async for response in cooperative(await _both_tiers(archive, results)):
                wire.patch(corrected, response)
    except TimeoutError as error:
        async for topic in cooperative({result.topic for result in results}, WARNED_AT_ONCE):
            _warn(archive, topic, error)
    return corrected


async def _both_tiers(archive: ServedArchive, results: Sequence[EpochResult]) -> list[EpochResult]:
    """The results that the archive changes."""
    lookup = ArchiveLookup(archive, archive.clock(), FIRST_READ_WAIT_MAX_S)
    identified = await lookup.identify({result.topic for result in results})
    async for name, error in cooperative(identified.unknown.items(), WARNED_AT_ONCE):
        _warn(archive, name, error)
    known: dict[TopicIdPartition, EpochResult] = {}
    async for result in cooperative(results):
        topic = identified.archived.get(result.topic)
        if topic is not None and result.partition >= 0:
            known[TopicIdPartition(topic.topic_id, topic.name, result.partition)] = result
    lineages: dict[TopicIdPartition, Sequence[EpochStart]] = {}
    views = await lookup.last_views(known)
    async for tp, (view, failure) in cooperative(views.items(), LINEAGES_AT_ONCE):
        if failure is not None:
            _warn(archive, tp.topic, failure)
        elif view is not None:
            lineages[tp] = lineage_of(view)
    local_epochs = await _local_epochs(archive, lineages, known)
    merged = []
    async for tp, epoch in cooperative(local_epochs.items()):
        if not isinstance(epoch, ClusterError):
            local = known[tp]
            broker = EpochEnd(local.leader_epoch, local.end_offset)
            end = merged_end_offset(
                lineages[tp], local.leader_epoch, broker, epoch, _apart_to(archive, tp)
            )
            merged.append(local._replace(leader_epoch=end.epoch, end_offset=end.end_offset))
    return merged


def _apart_to(archive: ServedArchive, tp: TopicIdPartition) -> int | None:
    """The archive's end, if its log diverges from the broker's."""
    view = archive.views.view(tp)
    if view is None or not (view.history.kept_below or archive.views.begins_again(tp)):
        return None
    return view.log_end_offset


async def _local_epochs(
    archive: ServedArchive,
    lineages: Mapping[TopicIdPartition, Sequence[EpochStart]],
    results: Mapping[TopicIdPartition, EpochResult],
) -> dict[TopicIdPartition, int | ClusterError | None]:
    """The epochs in which the brokers' local logs begin; asks if the archive does not settle it."""
    epochs: dict[TopicIdPartition, int | ClusterError | None] = {}
    open_ones: list[TopicIdPartition] = []
    async for tp, archived in cooperative(lineages.items()):
        requested = results[tp].leader_epoch
        log_offsets = archive.cluster.cached_log_offsets(tp)
        if not archived or any(entry.epoch >= requested for entry in archived):
            epochs[tp] = None
        # Epochs only leave the local log, so the last known start can only be too low.
        elif log_offsets is not None and 0 <= log_offsets.log_start_epoch <= requested:
            epochs[tp] = log_offsets.log_start_epoch
        else:
            open_ones.append(tp)
    fresh_log_offsets = await archive.cluster.fetch_log_offsets(
        open_ones, not_older_than=archive.clock()
    )
    async for tp, now in cooperative(fresh_log_offsets.items(), LINEAGES_AT_ONCE):
        if isinstance(now, ClusterError):
            epochs[tp] = now
            _warn(archive, tp.topic, now)
        else:
            epochs[tp] = None if now.log_start_epoch < 0 else now.log_start_epoch
    return epochs


def _warn(archive: ServedArchive, topic: str, error: Exception) -> None:
    archive.warnings.warn(
        "epoch_answered_by_broker_alone",
        topic,
        topic=topic,
        error=str(error) or "not known in time",
    )


def _on_request(session: GatewaySession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    topics = wire.topics_in(memoryview(frame)[4:], body_at, head.api_version)
    session.send_counted(frame, topics, partial(expect, session.archive, frame, head, body_at))
    return True


API = rewritten(
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    Buffered(_on_request),
    "An epoch older than the broker's log is looked up in the archive's lineage.",
)
