"""ListOffsets (v0–11) over both tiers: the broker answers first, the archive corrects.

The broker has checked authorization, leadership, epoch, and whether the version knows the
timestamp, when its answer comes, so only results without error are touched.

    -1 latest, -4 earliest local      the broker's
    -2 earliest                       the log start of both tiers
    -3 maximum timestamp, and times   the first of both tiers, also where they overlap
    -5 latest tiered, -6 earliest     the archive's end
       pending upload

A client that asks for the earliest offset starts reading there, so a broker's own log start is
shown only on knowledge of the archive that is fresh; without it the client gets a retriable error
and asks again. Epochs are those of the very offset that is answered, or -1. The isolation level
needs no look: nothing is archived that is not below the last stable offset. v0 answers with arrays
of offsets, from before logs had timestamps; they are relayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from fetchproxy.cluster.client import TopicInfo
from fetchproxy.errors import (
    ClusterError,
    ClusterUnavailable,
    CorruptSegment,
    RemoteStorageError,
)
from fetchproxy.gateway.answers import Answer, HeldAnswer
from fetchproxy.gateway.apis.behaviour import Api, Behaviour, Held, Treatment
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.gateway.judgement import COMPARE_WAIT_MAX_S
from fetchproxy.metadata.lineage import epoch_of, lineage_of
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from protocol import list_offsets as wire
from protocol.apis import PROXIED_VERSIONS, ApiKey
from protocol.error_codes import ErrorCode
from protocol.headers import RequestHead
from protocol.list_offsets import OffsetResult
from protocol.primitives import Buffer

if TYPE_CHECKING:
    from fetchproxy.gateway.client_session import ClientSession

_NOT_OURS = frozenset((wire.LATEST, wire.EARLIEST_LOCAL))


class ListOffsetsHandler:
    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts

    def expect(self, frame: bytes, head: RequestHead, body_at: int) -> Answer:
        """For a framed request, which itself goes upstream unchanged."""
        request = wire.parse_request(memoryview(frame)[4:], body_at, head.api_version)
        asked = {(a.topic, a.partition): a.timestamp for a in request.asked}
        if request.replica_id >= 0 or all(t in _NOT_OURS for t in asked.values()):
            return Answer(head.correlation_id)

        async def rewrite(payload: bytes) -> Sequence[Buffer]:
            return [await self._correct(payload, head.api_version, asked)]

        return HeldAnswer(head.correlation_id, rewrite)

    async def _correct(
        self, payload: bytes, version: int, asked: Mapping[tuple[str, int], int]
    ) -> Buffer:
        results = wire.parse_response(payload, version)
        if results is None:
            return payload
        corrected = bytearray(payload)
        for result in results:
            timestamp = asked.get((result.topic, result.partition), wire.LATEST)
            if result.error_code or timestamp in _NOT_OURS:
                continue
            wire.patch(corrected, version, await self._both_tiers(result, timestamp))
        return corrected

    async def _both_tiers(self, result: OffsetResult, timestamp: int) -> OffsetResult:
        try:
            topic = await self._parts.cluster.topic_by_name(result.topic, max_age_ms=0)
            tip = TopicIdPartition(topic.topic_id, topic.name, result.partition)
            view = await self._view(tip)
            return await self._search(result, timestamp, topic, view)
        except (RemoteStorageError, ClusterError, CorruptSegment):
            return result._replace(
                error_code=ErrorCode.KAFKA_STORAGE_ERROR,
                timestamp=wire.UNKNOWN_TIMESTAMP,
                offset=wire.UNKNOWN_OFFSET,
                leader_epoch=wire.UNKNOWN_EPOCH,
            )

    async def _view(self, tip: TopicIdPartition) -> PartitionView:
        """Fresh, or in an outage the last one, if it had segments: its start is still good."""
        views = self._parts.views
        try:
            await views.refresh(tip, self._parts.clock())
        except RemoteStorageError:
            view = views.view(tip)
            if view is None or not view.segments:
                raise
        held = await views.check([tip], self._parts.clock() + COMPARE_WAIT_MAX_S)
        view = views.view(tip)
        if held or view is None:
            raise ClusterUnavailable(f"{tip}: its new leader does not answer")
        return view

    async def _search(
        self, result: OffsetResult, timestamp: int, topic: TopicInfo, view: PartitionView
    ) -> OffsetResult:
        tip = view.tip
        if timestamp == wire.EARLIEST_PENDING_UPLOAD:
            return await self._earliest_pending_upload(result, topic, view)
        if timestamp == wire.MAX_TIMESTAMP:
            return await self._max_timestamp(result, view)
        if timestamp < 0:
            return edge_of_archive(result, timestamp, view)
        found = await self._parts.purgatory.first_offset_at_or_after(tip, timestamp)
        if found is None or 0 <= result.offset <= found[0]:
            return result
        return _found(result, *found)

    async def _max_timestamp(self, result: OffsetResult, view: PartitionView) -> OffsetResult:
        """The latest record of both tiers; of several, the first.

        A broker that names none has it above what the client may read, or has an empty log.
        """
        latest = view.segments.max_timestamp_ms()
        if latest is not None and result.offset < 0:
            edges = await self._parts.cluster.log_edges(
                view.tip, not_older_than=self._parts.clock()
            )
            if edges.log_start_offset < edges.high_watermark:
                return result
        while latest is not None and latest >= result.timestamp:
            found = await self._parts.purgatory.first_offset_at_or_after(view.tip, latest)
            if found is not None:
                same = found[1] == result.timestamp and 0 <= result.offset <= found[0]
                return result if same else _found(result, *found)
            # It lay in a part that does not count any more, of which the index says no more: at
            # the beginning by DeleteRecords, or behind the place where an election cut the log.
            latest = view.segments.max_timestamp_ms(below=latest)
        return result

    async def _earliest_pending_upload(
        self, result: OffsetResult, topic: TopicInfo, view: PartitionView
    ) -> OffsetResult:
        """What is not archived yet begins here (KIP-1023); brokers without a remote tier say -1."""
        lineage = lineage_of(view)
        if view.log_end_offset is not None:
            last_epoch = lineage[-1].epoch if lineage else wire.UNKNOWN_EPOCH
            # In no other epoch since: then it is true of the offset behind the archive's end too.
            now = topic.leaders.get(view.tip.partition, (-1, wire.UNKNOWN_EPOCH))[1]
            epoch = last_epoch if now == last_epoch else wire.UNKNOWN_EPOCH
            return result._replace(offset=view.log_end_offset, leader_epoch=epoch)
        if not (view.copies_started or self._parts.is_archiving(view.tip)):
            return result
        edges = await self._parts.cluster.log_edges(view.tip, not_older_than=self._parts.clock())
        if edges.high_watermark == 0:  # never written to: Kafka does not know either
            return result
        return result._replace(offset=edges.log_start_offset, leader_epoch=edges.log_start_epoch)


def edge_of_archive(result: OffsetResult, timestamp: int, view: PartitionView) -> OffsetResult:
    """EARLIEST and LATEST_TIERED; anything else is the broker's. Pure."""
    if not view.segments:
        return result
    if timestamp == wire.EARLIEST:
        # Not at one whose metadata cannot be read: the client would wait there for ever.
        offset = max(view.segments[0].start_offset, view.raised_log_start)
        if 0 <= result.offset <= offset:
            return result
    elif timestamp == wire.LATEST_TIERED:
        offset = view.segments[-1].end_offset
    else:
        return result
    return result._replace(offset=offset, leader_epoch=epoch_of(lineage_of(view), offset))


def _found(result: OffsetResult, offset: int, timestamp_ms: int, epoch: int) -> OffsetResult:
    return result._replace(offset=offset, timestamp=timestamp_ms, leader_epoch=epoch)


def _on_request(session: ClientSession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    answer = ListOffsetsHandler(session.parts).expect(frame, head, body_at)
    session.send_upstream(frame, answer)
    return True


API = Api(
    ApiKey.LIST_OFFSETS,
    (
        Behaviour(
            *PROXIED_VERSIONS[ApiKey.LIST_OFFSETS],
            Treatment.REWRITTEN,
            Held(_on_request),
            "Both tiers: earliest, latest-tiered, maximum and real timestamps.",
        ),
    ),
)
