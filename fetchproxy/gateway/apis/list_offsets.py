"""ListOffsets over both tiers: the broker answers first, the archive corrects (DESIGN §4.10).

The broker has checked authorization, leadership and epoch when its answer comes, so only results
without error are touched. A client that asks for the earliest offset starts reading there, so a
broker's own log start is shown only on knowledge of the archive that is fresh; without it the
client gets a retriable error and asks again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fetchproxy.errors import ClusterError, CorruptSegment, RemoteStorageError
from fetchproxy.gateway.answers import Answer, HeldAnswer
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from protocol import list_offsets as wire
from protocol.error_codes import ErrorCode
from protocol.headers import RequestHead
from protocol.list_offsets import OffsetResult
from protocol.primitives import Buffer

_NOT_OURS = frozenset((wire.LATEST, wire.EARLIEST_LOCAL))


class ListOffsetsHandler:
    def __init__(self, parts: GatewayParts) -> None:
        self._parts = parts

    def on_request(self, frame: bytes, head: RequestHead, body_at: int) -> Answer:
        """What to expect for a framed request, which itself goes upstream unchanged."""
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
            return await self._search(result, timestamp, tip, view)
        except (RemoteStorageError, ClusterError, CorruptSegment):
            return result._replace(
                error_code=ErrorCode.KAFKA_STORAGE_ERROR,
                timestamp=wire.UNKNOWN_TIMESTAMP,
                offset=wire.UNKNOWN_OFFSET,
                leader_epoch=wire.UNKNOWN_EPOCH,
            )

    async def _view(self, tip: TopicIdPartition) -> PartitionView:
        """Fresh, or in an outage the last one, if it had segments: its start is still good."""
        try:
            return await self._parts.rlmm.refresh(tip, self._parts.clock())
        except RemoteStorageError:
            view = self._parts.rlmm.view(tip)
            if view is None or not view.segments:
                raise
            return view

    async def _search(
        self, result: OffsetResult, timestamp: int, tip: TopicIdPartition, view: PartitionView
    ) -> OffsetResult:
        if not view.segments:
            return result
        first, last = view.segments[0], view.segments[-1]
        if timestamp == wire.EARLIEST:
            if 0 <= result.offset <= first.start_offset:
                return result
            epochs = first.segment_leader_epochs
            epoch = epochs[0].epoch if epochs else wire.UNKNOWN_EPOCH
            return result._replace(offset=first.start_offset, leader_epoch=epoch)
        if timestamp == wire.LATEST_TIERED:
            epochs = last.segment_leader_epochs
            epoch = epochs[-1].epoch if epochs else wire.UNKNOWN_EPOCH
            return result._replace(offset=last.end_offset, leader_epoch=epoch)
        if timestamp == wire.MAX_TIMESTAMP:
            timestamp = max(segment.max_timestamp_ms for segment in view.segments)
            if timestamp <= result.timestamp:
                return result
        elif timestamp < 0:
            return result
        found = await self._parts.purgatory.first_offset_at_or_after(tip, timestamp)
        if found is None or 0 <= result.offset <= found[0]:
            return result
        offset, found_ms, epoch = found
        return result._replace(offset=offset, timestamp=found_ms, leader_epoch=epoch)
