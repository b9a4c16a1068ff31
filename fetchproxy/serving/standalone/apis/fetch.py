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
from fetchproxy.serving.fetch_answer import AnswerRoom, PartitionAnswer, encode_own_answer
from fetchproxy.serving.standalone.handling import NODE_ID, ArchiveOnlyParts, Request, ServedApi
from fetchproxy.serving.standalone.topics import log_edges

_FULL_FETCH_EPOCHS = (SESSIONLESS_EPOCH, 0)


async def answer(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    payload, body_at = request.take_payload(), request.head.body_position
    if len(payload) <= READ_AT_ONCE_BYTES_MAX:
        fetch = parse_fetch_request(payload, body_at)
    else:
        fetch = await in_steps(request_in_steps(payload, body_at))
    del payload
    if fetch.session_id and fetch.session_epoch not in _FULL_FETCH_EPOCHS:
        # Of a broker, or of a proxy before its restart: the client begins anew with all partitions.
        code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return [encode_error_response(fetch.version, fetch.correlation_id, code)]
    if fetch.isolation_level not in tuple(IsolationLevel):
        raise MalformedMessage(f"isolation level {fetch.isolation_level}")
    share = request.share
    due_in = share.due_in(lambda: request.client, NODE_ID, fetch.partitions)
    if due_in:
        await asyncio.sleep(due_in)
    fetch = fetch._replace(bytes_max=share.bytes_wanted(fetch.bytes_max))
    one = _Fetch(parts, fetch, request)
    tips = one.tips = {key: one.tip(key) async for key in each_of(fetch.partitions)}
    # Who owes by his byte rate is told so at once; the connection then pauses.
    if not share.owed_s():
        await one.read()
    every = [one.answer_of(key, tip) async for key, tip in each_of(tips.items())]
    room, first_whole = share.room(fetch.bytes_max)
    answer_room = AnswerRoom(room, first_whole=first_whole)
    answers = [answer_room.fit(part) async for part in each_of(every)]
    for part in answers:
        if part.records and part.skipped is not None and (tip := tips[part.key]) is not None:
            parts.skipped.note(tip, *part.skipped)
    owed_ms = share.charge(sum(a.size for a in answers), told=True)
    return await in_steps(encode_own_answer(fetch, 0, answers, owed_ms))


class _Fetch:
    """What is known of one fetch so far; each partition is in one of `errors`, `records` and
    `at_end`, or still to be read. `tips`: None where there is nothing that this user may read.
    """

    def __init__(self, parts: ArchiveOnlyParts, fetch: FetchRequest, request: Request) -> None:
        self._parts = parts
        self._fetch = fetch
        self._request = request
        self.tips: Mapping[PartitionKey, TopicIdPartition | None] = {}
        self._forget()

    def _forget(self) -> None:
        self._errors: dict[PartitionKey, int] = {}
        self._records: dict[PartitionKey, RemoteReadResult] = {}
        self._at_end: set[PartitionKey] = set()

    def tip(self, key: PartitionKey) -> TopicIdPartition | None:
        ref, partition = key
        catalogue = self._parts.archive.catalogue
        if self._fetch.version >= TOPIC_IDS_FROM:
            topic = catalogue.by_id.get(UUID(bytes=ref))
        else:
            topic = catalogue.by_name.get(_name(ref))
        if topic is None or not self._request.may_read(topic.name):
            return None
        return topic.partition(partition)

    def _missing(self, key: PartitionKey) -> ErrorCode:
        """Why its tip is None."""
        if self._fetch.version < TOPIC_IDS_FROM:
            name = _name(key[0])
        else:
            topic = self._parts.archive.catalogue.by_id.get(UUID(bytes=key[0]))
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            name = topic.name
        return self._request.missing(name)

    async def read(self) -> None:
        """Until there is something to say, or the fetch has waited long enough.

        A look at the store may take longer than a client with a short wait asks for, and what it
        says of an offset counts for the fetch that it was made for: so that one is waited for.
        """
        clock, share, archive = self._parts.clock, self._request.share, self._parts.archive
        begun_at = clock()
        deadline = begun_at + max(self._fetch.max_wait_ms, 0) / 1000
        read_deadline = max(deadline, begun_at + READ_WAIT_MIN_S)
        await share.enter(self._reads().asked_bytes(self._fetch.partitions), deadline)
        while True:
            await self._judge_by_memory()
            reads = {
                key: tip
                for key, tip in self.tips.items()
                if tip is not None and key not in self._at_end and key not in self._errors
            }
            for piece in _in_rotation(reads, clock()):
                # What is wrong with one partition is not held back by a store slow with another.
                await self._read_archive(piece, clock() if self._errors else read_deadline)
                if self._records or clock() >= read_deadline:
                    break
            if not self._records and set(self._errors.values()) == {ErrorCode.INVALID_RECORD}:
                # Only that offsets are lost, at the client's own deadline: some ask again at once.
                share.to_store()
                await asyncio.sleep(deadline - clock())
            if self._errors or self._records or clock() >= deadline:
                return
            if self._at_end:
                tips = (self.tips[key] for key in self._at_end)
                archive.watch_ends(tip for tip in tips if tip is not None)
            share.to_store()
            await archive.wait_for_look(deadline)

    async def _judge_by_memory(self) -> None:
        """Topics that are unknown or not the user's, and partitions that are read to their end."""
        self._forget()
        async for key, tip in each_of(self.tips.items()):
            if tip is None:
                self._errors[key] = self._missing(key)
                continue
            view = self._parts.rlmm.view(tip)
            if view is not None and is_end(fetch_offset(self._fetch.partitions[key]), view):
                self._at_end.add(key)

    async def _read_archive(
        self, reads: Mapping[PartitionKey, TopicIdPartition], deadline: float
    ) -> None:
        under_way = self._reads()
        under_way.watch(reads.items(), deadline)
        if not under_way.ready:
            self._request.share.to_store()
        try:
            await under_way.completed.wait()
        finally:
            under_way.cancel()
        for key, (tip, result) in under_way.results().items():
            if isinstance(result.error, OffsetNotArchived):
                self._judge_not_archived(key, tip)
            elif result.error is not None:
                self._errors[key] = kafka_error_code(result.error)
            elif result.records:
                self._records[key] = result

    def _reads(self) -> ArchivedReads:
        fetch, parts = self._fetch, self._parts
        bytes_max = min(fetch.bytes_max, parts.limits.remote_answer_bytes_max)
        bytes_max = self._request.share.reads_max(bytes_max)
        client = self._request.client
        return ArchivedReads(parts.purgatory, fetch, fetch.partitions, client, bytes_max)

    def _judge_not_archived(self, key: PartitionKey, tip: TopicIdPartition) -> None:
        """The read has looked at the store anew: the view is younger than the request."""
        view = self._parts.rlmm.view(tip)
        offset = fetch_offset(self._fetch.partitions[key])
        if view is not None and (is_end(offset, view) or view.covers(offset)):
            # Covered, and yet without a batch: the last segment's tail, emptied of records.
            self._at_end.add(key)
        else:
            self._errors[key] = ErrorCode.OFFSET_OUT_OF_RANGE

    def answer_of(self, key: PartitionKey, tip: TopicIdPartition | None) -> PartitionAnswer:
        marks, view = PartitionPatch(), None if tip is None else self._parts.rlmm.view(tip)
        if view is not None:  # all that is archived was below the last stable offset
            start, end = log_edges(view)
            marks = PartitionPatch(end, end, start)
        if key in self._errors:
            return PartitionAnswer(key, marks, self._errors[key])
        result = self._records.get(key)
        if result is None:
            return PartitionAnswer(key, marks)
        return PartitionAnswer(key, marks, 0, result.records, result.aborted_txns, result.skipped)


def _name(ref: TopicRef) -> str:
    try:
        return ref.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"topic name is not UTF-8: {error}") from None


def _in_rotation(
    reads: Mapping[PartitionKey, TopicIdPartition], now: float
) -> Iterator[Mapping[PartitionKey, TopicIdPartition]]:
    """As many as one step takes; others come first in each half second, if some get nothing."""
    every = [dict(piece) for piece in pieces(reads.items(), PARTITIONS_READ_MAX)]
    first = int(now / READ_WAIT_MIN_S) % max(len(every), 1)
    yield from every[first:]
    yield from every[:first]


def is_end(offset: int, view: PartitionView) -> bool:
    """What comes next may still be archived."""
    return offset == log_edges(view)[1] and not view.uncertain_at(offset)


FETCH = ServedApi(ApiKey.FETCH, VERSION_MIN, VERSION_MAX, answer)
