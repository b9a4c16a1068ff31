"""ListOffsets and OffsetForLeaderEpoch: start and end of the archive, the offset for a time, and
the end of a leader epoch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from fetchproxy_protocol import list_offsets as wire
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.messages import MessageFields, elements
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.errors import CorruptSegment, RemoteStorageError
from fetchproxy.metadata.lineage import end_offset_for, epoch_of, lineage_of
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import EpochStart, TopicIdPartition
from fetchproxy.runtime.cooperative import checkpoint, collected, cooperative, for_each
from fetchproxy.serving.archive_only.handling import ArchiveOnlyParts, Request, ServedApi

# The first version in which each negative timestamp has a meaning.
_KNOWN_FROM = {-1: 0, -2: 0, -3: 7, -4: 8, -5: 9, wire.EARLIEST_PENDING_UPLOAD: 11}
_ENDS = (wire.LATEST, wire.EARLIEST_LOCAL, wire.EARLIEST_PENDING_UPLOAD)

# Partitions whose records are searched side by side; the fetchers limit the reads.
LOOKED_UP_AT_ONCE = 32
# Lineages made in a step, each of up to some milliseconds.
_LINEAGES_A_STEP = 5

RecordPosition = tuple[int, int, int]  # timestamp, offset, leader epoch
_NONE: RecordPosition = (wire.UNKNOWN_TIMESTAMP, wire.UNKNOWN_OFFSET, wire.UNKNOWN_EPOCH)


async def _list_offsets(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Looks up a timestamp, or one of these constants:

    -1 latest            the archive's end, at either isolation level: all its records are stable
    -2 earliest          the archive's start
    -3 max timestamp     the record with the largest timestamp
    -4 earliest local    the archive's end: no records are on a local disk
    -5 latest tiered     the last archived offset, -1 if there is none
    -6 earliest pending  the archive's end: no records wait for an upload

    A time later than all records is answered with offset -1, as by a broker. So is a partition that
    is named twice: with an error.
    """
    payload = request.take_payload()
    timestamps: dict[tuple[str, int], int] = {}
    twice: set[tuple[str, int]] = set()
    reading = wire.partitions_in(payload, request.head.body_position, request.version)
    async for place, timestamp in cooperative(reading):
        if place in timestamps:
            twice.add(place)
        timestamps[place] = timestamp
    del payload
    tps = {place: _readable(parts, request, *place) for place in timestamps}
    views = await parts.archive.views(tp for tp in tps.values() if tp is not None)
    results = {place: (ErrorCode.INVALID_REQUEST, _NONE) for place in twice}

    async def look_up(item: tuple[tuple[str, int], int]) -> None:
        place, timestamp = item
        tp = tps[place]
        view = None if tp is None else views[tp]
        results[place] = await _look_up(parts, request, place[0], timestamp, view)
        await checkpoint(len(once))  # in-memory results come without waiting

    once = [(place, timestamp) for place, timestamp in timestamps.items() if place not in twice]
    await for_each(once, look_up, min(len(once), LOOKED_UP_AT_ONCE))
    topics: dict[str, list[dict[str, Any]]] = {}
    async for topic, partition in cooperative(timestamps):
        error, (timestamp, offset, epoch) = results[topic, partition]
        topics.setdefault(topic, []).append(
            {
                "partition_index": partition,
                "error_code": error,
                "timestamp": timestamp,
                "offset": offset,
                "leader_epoch": epoch,
            }
        )
    values = [{"name": name, "partitions": partitions} for name, partitions in topics.items()]
    return await request.respond({"topics": values})


def _readable(
    parts: ArchiveOnlyParts, request: Request, topic: str, partition: int
) -> TopicIdPartition | None:
    """None: there is no such partition, or this user may not read it."""
    readable = request.may_read(topic)
    return parts.archive.catalogue.partition(topic, partition) if readable else None


async def _look_up(
    parts: ArchiveOnlyParts,
    request: Request,
    topic: str,
    timestamp: int,
    view: PartitionView | RemoteStorageError | None,
) -> tuple[ErrorCode, RecordPosition]:
    if view is None:
        return request.missing(topic), _NONE
    known_from = _KNOWN_FROM.get(timestamp, request.version + 1)
    if timestamp < 0 and request.version < known_from:
        return ErrorCode.UNSUPPORTED_VERSION, _NONE
    try:
        if isinstance(view, RemoteStorageError):
            raise view
        return ErrorCode.NONE, await _find(parts, request, view, timestamp)
    except (RemoteStorageError, CorruptSegment):
        return ErrorCode.KAFKA_STORAGE_ERROR, _NONE  # retriable: the client asks again


async def _find(
    parts: ArchiveOnlyParts, request: Request, view: PartitionView, timestamp: int
) -> RecordPosition:
    if not view.segments and view.unreadable:
        raise CorruptSegment(f"{view.tp}: no segment's metadata can be read")
    start, end = parts.archive.log_start_and_end(view)
    if timestamp == wire.EARLIEST:
        return _edge(view, start, start)
    if timestamp in _ENDS:
        return _edge(view, end, end - 1)
    latest_ms = view.segments.max_timestamp_ms()
    if latest_ms is None:
        return _NONE
    if timestamp == wire.LATEST_TIERED:
        return _edge(view, end - 1, end - 1)
    if timestamp == wire.MAX_TIMESTAMP:
        timestamp = latest_ms
    first_record = await parts.purgatory.first_offset_at_or_after(
        view.tp, timestamp, request.client
    )
    if first_record is None:
        return _NONE
    offset, found_ms, epoch = first_record
    if parts.rlmm.of_mirror and any(first < offset for first in view.unreadable):
        raise CorruptSegment(f"{view.tp}: this mirror does not have all that is before {offset}")
    return found_ms, offset, epoch


def _edge(view: PartitionView, offset: int, epoch_at: int) -> RecordPosition:
    return wire.UNKNOWN_TIMESTAMP, offset, epoch_of(view, epoch_at)


async def _offset_for_leader_epoch(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    """Answered from the lineage in the segments. Of a partition that is named again and again, the
    lineage is made once.

    The client's current leader epoch is not checked: no leader could fence it.
    """
    named = await collected(_named(await request.read()))
    tps = {place: _readable(parts, request, *place) for place in {place for place, _ in named}}
    views = await parts.archive.views(tp for tp in tps.values() if tp is not None)
    lineages: dict[TopicIdPartition, Sequence[EpochStart]] = {}
    # A lineage has as many entries as the partition has had leaders.
    async for one, view in cooperative(views.items(), _LINEAGES_A_STEP):
        if not isinstance(view, RemoteStorageError):
            lineages[one] = lineage_of(view)
    topics: dict[str, list[dict[str, Any]]] = {}
    async for place, epoch in cooperative(named):
        tp = tps[place]
        result: dict[str, Any] = {"partition": place[1]}
        if tp is None:
            result["error_code"] = request.missing(place[0])
        elif tp not in lineages:
            result["error_code"] = ErrorCode.KAFKA_STORAGE_ERROR
        else:
            view = views[tp]
            log_end = 0 if isinstance(view, RemoteStorageError) else view.log_end_offset or 0
            end = end_offset_for(lineages[tp], epoch, log_end)
            result |= {"leader_epoch": end.epoch, "end_offset": end.end_offset}
        topics.setdefault(place[0], []).append(result)
    values = [{"topic": name, "partitions": partitions} for name, partitions in topics.items()]
    return await request.respond({"topics": values})


def _named(fields: MessageFields) -> Iterator[tuple[tuple[str, int], int]]:
    """Topic, partition and epoch of each."""
    for topic in elements(fields["topics"]):
        for partition in elements(topic["partitions"]):
            yield (topic["topic"], partition["partition"]), partition["leader_epoch"]


APIS = (
    ServedApi(ApiKey.LIST_OFFSETS, 1, 11, _list_offsets),
    ServedApi(ApiKey.OFFSET_FOR_LEADER_EPOCH, 2, 4, _offset_for_leader_epoch),
)
