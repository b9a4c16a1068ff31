"""How the phantom leader responds to its followers. Pure.

A follower with an empty log fetches at 0. It is told that this is out of range, asks for the ends
of the leader's log, and then truncates its own log so that it begins at the leader's end. It proves
that by its next fetch, which is at that offset and says that its log begins there: nothing else
counts as a proof.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from fetchproxy_protocol import fetch as wire
from fetchproxy_protocol import list_offsets
from fetchproxy_protocol.apis import ErrorCode
from fetchproxy_protocol.fetch_layout import TOPIC_IDS_FROM
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.cluster_restore.plan import Place


@dataclass(slots=True)
class LedPartition:
    """`start_offset`: where the log of each replica has to begin. `placed`: replicas whose log is
    proven to begin there.
    """

    start_offset: int
    leader_epoch: int = 0
    placed: set[int] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class FetchResponse:
    """`is_news`: the follower learns something, so it must not wait for the response."""

    frame: bytes
    is_news: bool


class LedPartitions:
    """The partitions that the phantom leads, and the replicas that have followed it."""

    def __init__(self) -> None:
        self._led: dict[Place, LedPartition] = {}
        self._names: dict[bytes, str] = {}

    def lead(self, topic: str, topic_id: UUID, start_offsets: Mapping[int, int]) -> None:
        """`start_offsets`: by partition. Proofs of an earlier call stay."""
        self._names[topic_id.bytes] = topic
        for partition, offset in start_offsets.items():
            self._led.setdefault((topic, partition), LedPartition(offset))

    def knows(self, request: wire.FetchRequest) -> bool:
        """Whether all topics of the request are known."""
        return all(
            self._name(request.version, topic) is not None for topic, _ in request.partitions
        )

    def placed(self, place: Place) -> frozenset[int]:
        """The replicas that are proven to begin at the start offset."""
        return frozenset(self._led[place].placed)

    def fetched(self, request: wire.FetchRequest) -> FetchResponse:
        """The response to a follower's Fetch, without a fetch session. Notes the proofs in it."""
        by_topic: dict[bytes, list[Buffer]] = {}
        is_news = False
        for (topic, partition), entry in request.partitions.items():
            name = self._name(request.version, topic)
            led = None if name is None else self._led.get((name, partition))
            if led is None:
                error = _unknown(request.version, name)
                row, news = _row(request.version, partition, error, wire.PartitionPatch()), True
            else:
                row, news = _row_for(request, partition, led, entry)
            by_topic.setdefault(topic, []).append(row)
            is_news |= news
        head = wire.FetchResponseHead(request.correlation_id, 0, 0, 0, len(by_topic))
        entries = {
            topic: wire.PartitionEntries(len(rows), rows) for topic, rows in by_topic.items()
        }
        frame = b"".join(wire.encode_response(request.version, head, entries))
        return FetchResponse(frame, is_news)

    def listed(self, requested: Iterable[tuple[Place, int]]) -> dict[str, Any]:
        """The fields of a ListOffsets response. The log is empty, so both of its ends, and the
        offset for any time, are its start.
        """
        topics: dict[str, list[dict[str, Any]]] = {}
        for (topic, partition), timestamp in requested:
            led = self._led.get((topic, partition))
            fields: dict[str, Any] = {"partition_index": partition, "error_code": ErrorCode.NONE}
            if led is None:
                fields["error_code"] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            elif timestamp < 0 and timestamp != list_offsets.MAX_TIMESTAMP:
                fields |= {"offset": led.start_offset, "leader_epoch": led.leader_epoch}
            topics.setdefault(topic, []).append(fields)
        return {"topics": [{"name": name, "partitions": rows} for name, rows in topics.items()]}

    def _name(self, version: int, topic: bytes) -> str | None:
        return self._names.get(topic) if version >= TOPIC_IDS_FROM else topic.decode()


def _unknown(version: int, name: str | None) -> ErrorCode:
    if version >= TOPIC_IDS_FROM and name is None:
        return ErrorCode.UNKNOWN_TOPIC_ID
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _row_for(
    request: wire.FetchRequest, partition: int, led: LedPartition, entry: wire.FetchEntry
) -> tuple[bytes, bool]:
    """The partition's row, and whether it is news for the follower."""
    start = led.start_offset
    if wire.fetch_offset(entry) != start:
        # Without offsets, or the follower would take them for those of its own log.
        error = ErrorCode.OFFSET_OUT_OF_RANGE
        return _row(request.version, partition, error, wire.PartitionPatch()), True
    is_first = request.replica_id not in led.placed
    is_follower = request.replica_id >= 0  # a consumer proves nothing
    if is_follower and wire.followers_log_start(entry) == start:
        led.placed.add(request.replica_id)
    watermarks = wire.PartitionPatch(start, start, start)
    return _row(request.version, partition, ErrorCode.NONE, watermarks), is_first


def _row(version: int, partition: int, error: int, watermarks: wire.PartitionPatch) -> bytes:
    start = wire.encode_partition_start(version, partition, error, watermarks, None, 0)
    return start + wire.no_tags(version)
