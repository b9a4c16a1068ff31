"""Fetch: records from the archive, waiting at its end as at the end of a log.

Every fetch is a full one: session id 0 says that there are no fetch sessions (KIP-227). A fetch is
answered as soon as anything is there (`min_bytes` is not waited for), at the latest after its
`max_wait_ms`, or READ_WAIT_MIN_S where the store is asked. OffsetOutOfRange is said of offsets that
a look at the store, taken after the request came, has in no segment: below the beginning, above the
end. A recorded gap is read as a hole that compaction left (`gateway.gap_policy`). While the store
does not answer, answers are empty, and KAFKA_STORAGE_ERROR after
`remote_fetch.remote_error_after_ms`. Leader epochs are not checked, as nobody leads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from fetchproxy_protocol.apis import ApiKey, ErrorCode, MalformedMessage
from fetchproxy_protocol.fetch import (
    SESSIONLESS_EPOCH,
    TOPIC_IDS_FROM,
    VERSION_MAX,
    VERSION_MIN,
    FetchRequest,
    PartitionKey,
    PartitionPatch,
    TopicRef,
    encode_error_response,
    fetch_offset,
    parse_fetch_request,
    request_in_steps,
)
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.errors import OffsetNotArchived
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.reading.segment_reader import (
    PARTITIONS_READ_MAX,
    READ_WAIT_MIN_S,
    RemoteReadResult,
    kafka_error_code,
)
from fetchproxy.runtime.loop import READ_AT_ONCE_BYTES_MAX, each_of, in_steps, pieces
from fetchproxy.serving.archived_reads import ArchivedReads
from fetchproxy.serving.fetch_answer import (
    AnswerRoom,
    PartitionAnswer,
    encode_own_answer,
)
from fetchproxy.serving.standalone.handling import NODE_ID, ArchiveOnlyParts, Request, ServedApi
from fetchproxy.serving.standalone.topics import log_edges

_FULL_FETCH_EPOCHS = (SESSIONLESS_EPOCH, 0)


@dataclass(slots=True)
class _Round:
    """What is known of one fetch so far; each partition is in one of these, or still to be read."""

    errors: dict[PartitionKey, int] = field(default_factory=dict)
    records: dict[PartitionKey, RemoteReadResult] = field(default_factory=dict)
    at_end: set[PartitionKey] = field(default_factory=set)

    @property
    def has_news(self) -> bool:
        return bool(self.errors or self.records)

    @property
    def only_refuses(self) -> bool:
        """There is nothing to say but that offsets are lost."""
        return not self.records and set(self.errors.values()) == {ErrorCode.INVALID_RECORD}


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    fetch = await _parsed(request.take_payload(), request.head.body_position)
    if fetch.session_id and fetch.session_epoch not in _FULL_FETCH_EPOCHS:
        # Of a broker, or of a proxy before its restart: the client begins anew with all partitions.
        code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return [encode_error_response(fetch.version, fetch.correlation_id, code)]
    if fetch.isolation_level not in tuple(IsolationLevel):
        raise MalformedMessage(f"isolation level {fetch.isolation_level}")
    due_in = request.share.due_in(lambda: request.client, NODE_ID, fetch.partitions)
    if due_in:
        await asyncio.sleep(due_in)
    fetch = fetch._replace(bytes_max=request.share.bytes_wanted(fetch.bytes_max))
    tips = {
        key: _tip(parts, key, fetch.version, request) async for key in each_of(fetch.partitions)
    }
    # Who owes by his byte rate is told so at once; the connection then pauses.
    owed_s = request.share.owed_s()
    found = _Round() if owed_s else await _read(parts, fetch, tips, request)
    asked = each_of(tips.items())
    every = [_partition_answer(parts, key, tip, found) async for key, tip in asked]
    room, first_whole = request.share.room(fetch.bytes_max)
    answer_room = AnswerRoom(room, first_whole=first_whole)
    answers = [answer_room.fit(part) async for part in each_of(every)]
    for part in answers:
        if part.records and part.skipped is not None and (tip := tips[part.key]) is not None:
            parts.skipped.note(tip, *part.skipped)
    owed_ms = request.share.charge(sum(a.size for a in answers), told=True)
    return await in_steps(encode_own_answer(fetch, 0, answers, owed_ms))


async def _parsed(payload: bytes, body_at: int) -> FetchRequest:
    if len(payload) <= READ_AT_ONCE_BYTES_MAX:
        return parse_fetch_request(payload, body_at)
    return await in_steps(request_in_steps(payload, body_at))


def _tip(
    parts: ArchiveOnlyParts, key: PartitionKey, version: int, request: Request
) -> TopicIdPartition | None:
    """None where there is nothing that this user may read."""
    ref, partition = key
    catalogue = parts.archive.catalogue
    if version >= TOPIC_IDS_FROM:
        topic = catalogue.by_id.get(UUID(bytes=ref))
    else:
        topic = catalogue.by_name.get(_name(ref))
    if topic is None or not request.may_read(topic.name):
        return None
    return topic.partition(partition)


def _missing(
    parts: ArchiveOnlyParts, key: PartitionKey, version: int, request: Request
) -> ErrorCode:
    """Why `_tip` is None. Of a name that may not be read nobody hears whether it is there."""
    if version < TOPIC_IDS_FROM:
        name = _name(key[0])
    else:
        topic = parts.archive.catalogue.by_id.get(UUID(bytes=key[0]))
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        name = topic.name
    if not request.may_read(name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def _name(ref: TopicRef) -> str:
    try:
        return ref.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"topic name is not UTF-8: {error}") from None


async def _read(
    parts: ArchiveOnlyParts,
    fetch: FetchRequest,
    tips: Mapping[PartitionKey, TopicIdPartition | None],
    request: Request,
) -> _Round:
    """Until there is something to say, or the fetch has waited long enough.

    A look at the store may take longer than a client with a short wait asks for, and what it says
    of an offset counts for the fetch that it was made for: so that one is waited for.
    """
    begun_at = parts.clock()
    deadline = begun_at + max(fetch.max_wait_ms, 0) / 1000
    read_deadline = max(deadline, begun_at + READ_WAIT_MIN_S)
    wanted = _reads(parts, fetch, request).asked_bytes(fetch.partitions)
    await request.share.enter(wanted, deadline)
    while True:
        found = await _judge_by_memory(parts, fetch, tips, request)
        reads = {
            key: tip
            for key, tip in tips.items()
            if tip is not None and key not in found.at_end and key not in found.errors
        }
        for piece in _in_rotation(reads, parts.clock()):
            # What is wrong with one partition is not held back by a store slow with another.
            until = parts.clock() if found.errors else read_deadline
            await _read_archive(parts, fetch, piece, until, found, request)
            if found.records or parts.clock() >= read_deadline:
                break
        if found.only_refuses:  # told at the client's own deadline: some ask again at once
            request.share.to_store()
            await asyncio.sleep(deadline - parts.clock())
        if found.has_news or parts.clock() >= deadline:
            return found
        if found.at_end:
            parts.archive.watch_ends(tip for key in found.at_end if (tip := tips[key]) is not None)
        request.share.to_store()
        await parts.archive.wait_for_look(deadline)


def _in_rotation(
    reads: Mapping[PartitionKey, TopicIdPartition], now: float
) -> Iterator[Mapping[PartitionKey, TopicIdPartition]]:
    """As many as one step takes; others come first in each half second, if some get nothing."""
    every = [dict(piece) for piece in pieces(reads.items(), PARTITIONS_READ_MAX)]
    first = int(now / READ_WAIT_MIN_S) % max(len(every), 1)
    yield from every[first:]
    yield from every[:first]


async def _judge_by_memory(
    parts: ArchiveOnlyParts,
    fetch: FetchRequest,
    tips: Mapping[PartitionKey, TopicIdPartition | None],
    request: Request,
) -> _Round:
    """Topics that are unknown or not the user's, and partitions that are read to their end."""
    found = _Round()
    async for key, tip in each_of(tips.items()):
        if tip is None:
            found.errors[key] = _missing(parts, key, fetch.version, request)
            continue
        view = parts.rlmm.view(tip)
        if view is not None and is_end(fetch_offset(fetch.partitions[key]), view):
            found.at_end.add(key)
    return found


def is_end(offset: int, view: PartitionView) -> bool:
    """What comes next may still be archived."""
    return offset == log_edges(view)[1] and not view.uncertain_at(offset)


async def _read_archive(
    parts: ArchiveOnlyParts,
    fetch: FetchRequest,
    reads: Mapping[PartitionKey, TopicIdPartition],
    deadline: float,
    found: _Round,
    request: Request,
) -> None:
    under_way = _reads(parts, fetch, request)
    under_way.watch(reads.items(), deadline)
    if not under_way.ready:
        request.share.to_store()
    try:
        await under_way.completed.wait()
    finally:
        under_way.cancel()
    for key, (tip, result) in under_way.results().items():
        if isinstance(result.error, OffsetNotArchived):
            _judge_not_archived(parts, fetch, key, tip, found)
        elif result.error is not None:
            found.errors[key] = kafka_error_code(result.error)
        elif result.records:
            found.records[key] = result


def _reads(parts: ArchiveOnlyParts, fetch: FetchRequest, request: Request) -> ArchivedReads:
    bytes_max = min(fetch.bytes_max, parts.limits.remote_answer_bytes_max)
    bytes_max = request.share.reads_max(bytes_max)
    return ArchivedReads(parts.purgatory, fetch, fetch.partitions, request.client, bytes_max)


def _judge_not_archived(
    parts: ArchiveOnlyParts,
    fetch: FetchRequest,
    key: PartitionKey,
    tip: TopicIdPartition,
    found: _Round,
) -> None:
    """The read has looked at the store anew: the view is younger than the request."""
    view = parts.rlmm.view(tip)
    offset = fetch_offset(fetch.partitions[key])
    if view is not None and (is_end(offset, view) or view.covers(offset)):
        # Covered, and yet without a batch: the last segment's tail, emptied of records.
        found.at_end.add(key)
    else:
        found.errors[key] = ErrorCode.OFFSET_OUT_OF_RANGE


def _partition_answer(
    parts: ArchiveOnlyParts, key: PartitionKey, tip: TopicIdPartition | None, found: _Round
) -> PartitionAnswer:
    view = None if tip is None else parts.rlmm.view(tip)
    marks = PartitionPatch() if view is None else _marks(view)
    if key in found.errors:
        return PartitionAnswer(key, marks, found.errors[key])
    result = found.records.get(key)
    if result is None:
        return PartitionAnswer(key, marks)
    return PartitionAnswer(key, marks, 0, result.records, result.aborted_txns, result.skipped)


def _marks(view: PartitionView) -> PartitionPatch:
    """All that is archived was below the last stable offset."""
    start, end = log_edges(view)
    return PartitionPatch(end, end, start)


FETCH = ServedApi(ApiKey.FETCH, VERSION_MIN, VERSION_MAX, answer)
