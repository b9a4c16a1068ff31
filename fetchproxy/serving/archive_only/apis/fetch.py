"""Fetch: serves records from the archive. A fetch waits at the archive's end as at a log's end.

Every fetch is a full one: session id 0 tells clients that there are no fetch sessions (KIP-227). A
fetch is answered as soon as there are records (it does not wait for `min_bytes`), at the latest
after its `max_wait_ms`, or after READ_WAIT_MIN_S if the store is asked. A client gets
OffsetOutOfRange for an offset below the start or above the end: the store was looked at after the
request came, and no segment has the offset. In a mirror, what is not there yet is waited for. A
recorded gap is read like a hole that compaction left (`gateway.gap_policy`). While the store does
not answer, answers are empty; after `remote_fetch.remote_error_after_ms` they have
KAFKA_STORAGE_ERROR. Leader epochs are not checked, as the archive has no leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from uuid import UUID

from fetchproxy_protocol.apis import ApiKey, ErrorCode, MalformedMessage
from fetchproxy_protocol.fetch import (
    SESSIONLESS_EPOCH,
    FetchRequest,
    PartitionKey,
    PartitionPatch,
    TopicRef,
    encode_error_response,
    fetch_offset,
    parse_fetch_request,
    request_in_steps,
)
from fetchproxy_protocol.fetch_layout import FETCH_VERSION_MAX, FETCH_VERSION_MIN, TOPIC_IDS_FROM
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
from fetchproxy.runtime.cooperative import READ_AT_ONCE_BYTES_MAX, cooperative, in_steps, pieces
from fetchproxy.serving.archive_only.handling import NODE_ID, ArchiveOnlyParts, Request, ServedApi
from fetchproxy.serving.archived_entries import (
    PartitionResponse,
    ResponseRoom,
    encode_proxy_response,
)
from fetchproxy.serving.archived_reads import ArchivedReads

_FULL_FETCH_EPOCHS = (SESSIONLESS_EPOCH, 0)


async def respond(parts: ArchiveOnlyParts, request: Request) -> Sequence[Buffer]:
    payload, body_at = request.take_payload(), request.head.body_position
    if len(payload) <= READ_AT_ONCE_BYTES_MAX:
        fetch = parse_fetch_request(payload, body_at)
    else:
        fetch = await in_steps(request_in_steps(payload, body_at))
    del payload
    if fetch.session_id and fetch.session_epoch not in _FULL_FETCH_EPOCHS:
        # A session of a broker, or of a proxy before its restart: the client begins a new one.
        code = ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        return [encode_error_response(fetch.version, fetch.correlation_id, code)]
    if fetch.isolation_level not in tuple(IsolationLevel):
        raise MalformedMessage(f"isolation level {fetch.isolation_level}")
    share = request.share
    due_in = share.due_in(lambda: request.client, NODE_ID, fetch.partitions)
    if due_in:
        await asyncio.sleep(due_in)
    fetch = fetch._replace(bytes_max=share.budget_bytes(fetch.bytes_max))
    fetch_work = _Fetch(parts, fetch, request)
    tps = fetch_work.tps = {key: fetch_work.tp(key) async for key in cooperative(fetch.partitions)}
    # A client that owes by its byte rate is told at once; its connection then pauses.
    if not share.owed_s():
        await request.patience.wait(fetch_work.read())
    every = [fetch_work.response_of(key, tp) async for key, tp in cooperative(tps.items())]
    room, first_whole = share.room(fetch.bytes_max)
    response_room = ResponseRoom(room, first_whole=first_whole)
    responses = [response_room.fit(part) async for part in cooperative(every)]
    for part in responses:
        if part.records and part.skipped is not None and (tp := tps[part.key]) is not None:
            parts.skipped.note(tp, *part.skipped)
    owed_ms = share.charge(sum(a.size for a in responses), must_wait=True)
    return await in_steps(encode_proxy_response(fetch, 0, responses, owed_ms))


class _Fetch:
    """The state of one fetch. Each partition is in `_errors`, `_records` or `_at_end`, or is still
    to be read. `tps`: None for a partition that does not exist or that the user may not read.
    """

    def __init__(self, parts: ArchiveOnlyParts, fetch: FetchRequest, request: Request) -> None:
        self._parts = parts
        self._fetch = fetch
        self._request = request
        self.tps: Mapping[PartitionKey, TopicIdPartition | None] = {}
        self._forget()

    def _forget(self) -> None:
        self._errors: dict[PartitionKey, int] = {}
        self._records: dict[PartitionKey, RemoteReadResult] = {}
        self._at_end: set[PartitionKey] = set()
        self._views: dict[PartitionKey, PartitionView] = {}

    def tp(self, key: PartitionKey) -> TopicIdPartition | None:
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
        """Why its topic partition is None."""
        if self._fetch.version < TOPIC_IDS_FROM:
            name = _name(key[0])
        else:
            topic = self._parts.archive.catalogue.by_id.get(UUID(bytes=key[0]))
            if topic is None:
                return ErrorCode.UNKNOWN_TOPIC_ID
            name = topic.name
        return self._request.missing(name)

    async def read(self) -> None:
        """Read until there is something to answer, or the fetch has waited long enough.

        A look at the store may take longer than a client with a short max_wait allows. Its result
        for an offset counts only for the fetch that asked, so that fetch waits for it.
        """
        clock, share, archive = self._parts.clock, self._request.share, self._parts.archive
        begun_at = clock()
        # The client's wait has begun when its request came, which may have waited for memory.
        deadline = self._request.came_at + max(self._fetch.max_wait_ms, 0) / 1000
        read_deadline = max(deadline, begun_at + READ_WAIT_MIN_S)
        await share.enter(self._reads().requested_bytes(self._fetch.partitions), deadline)
        await self._look_at_many(read_deadline)
        while True:
            await self._judge_by_memory()
            reads = {
                key: tp
                for key, tp in self.tps.items()
                if tp is not None and key not in self._at_end and key not in self._errors
            }
            for piece in _pieces_in_turn(reads, clock()):
                # One partition's error does not wait while the store is slow with another one.
                await self._read_archive(piece, clock() if self._errors else read_deadline)
                if self._records or clock() >= read_deadline or self._request.pressed:
                    break
            if not self._records and set(self._errors.values()) == {ErrorCode.INVALID_RECORD}:
                # The response says only that offsets are lost. It waits for the client's deadline,
                # as some clients retry at once.
                share.to_store()
                await asyncio.sleep(deadline - clock())
            if self._errors or self._records or clock() >= deadline or self._request.pressed:
                return
            if self._at_end:
                tps = (self.tps[key] for key in self._at_end)
                archive.watch_ends(tp for tp in tps if tp is not None)
            share.to_store()
            await self._request.idle(archive.wait_for_look(deadline))
            if self._request.pressed:
                return

    async def _look_at_many(self, until: float) -> None:
        """Of very many partitions that were never looked at, list the topics: one after the other,
        each would be a listing of its own. A failure shows in the reads.
        """
        if len(self.tps) <= PARTITIONS_READ_MAX:
            return
        view = self._parts.rlmm.view
        unknown = [
            tp async for tp in cooperative(self.tps.values()) if tp is not None and view(tp) is None
        ]
        if len(unknown) > PARTITIONS_READ_MAX:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._parts.archive.views(unknown)

    async def _judge_by_memory(self) -> None:
        """Find topics that are unknown or forbidden, and partitions that are read to their end."""
        self._forget()
        async for key, tp in cooperative(self.tps.items()):
            if tp is None:
                self._errors[key] = self._missing(key)
                continue
            view = self._parts.rlmm.view(tp)
            if view is not None:
                self._views[key] = view
                if self._is_end(fetch_offset(self._fetch.partitions[key]), view):
                    self._at_end.add(key)

    async def _read_archive(
        self, reads: Mapping[PartitionKey, TopicIdPartition], deadline: float
    ) -> None:
        under_way = self._reads()
        under_way.watch(reads.items(), deadline, self._views)
        if not under_way.ready:
            self._request.share.to_store()
        try:
            await self._request.idle(_is_set(under_way.completed))
        except asyncio.CancelledError:
            under_way.cancel(client_gone=True)
            raise
        finally:
            under_way.cancel()
        for key, result in under_way.results().items():
            if isinstance(result.error, OffsetNotArchived):
                self._judge_not_archived(key, reads[key])
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

    def _judge_not_archived(self, key: PartitionKey, tp: TopicIdPartition) -> None:
        """The read has looked at the store anew, so the view is newer than the request."""
        view = self._parts.rlmm.view(tp)
        offset = fetch_offset(self._fetch.partitions[key])
        if view is not None and (self._is_end(offset, view) or view.covers(offset)):
            # Covered, but without a batch: the end of the last segment, whose records are removed.
            self._at_end.add(key)
        else:
            self._errors[key] = ErrorCode.OFFSET_OUT_OF_RANGE

    def _is_end(self, offset: int, view: PartitionView) -> bool:
        """True: the reader is at the end, and the next records may still be archived. A mirror may
        end below its readers' offsets: they wait for its next run.
        """
        end = self._parts.archive.log_start_and_end(view)[1]
        at_end = offset == end or (offset > end and self._parts.rlmm.of_mirror)
        return at_end and not view.uncertain_at(offset)

    def response_of(self, key: PartitionKey, tp: TopicIdPartition | None) -> PartitionResponse:
        marks, result = PartitionPatch(), self._records.get(key)
        if result is not None:
            view = result.view
        else:
            view = None if tp is None else self._parts.rlmm.view(tp)
        if view is not None:  # all archived records were below the last stable offset
            start, end = self._parts.archive.log_start_and_end(view)
            marks = PartitionPatch(end, end, start)
        if key in self._errors:
            return PartitionResponse(key, marks, self._errors[key])
        if result is None:
            return PartitionResponse(key, marks)
        return PartitionResponse(key, marks, 0, result.records, result.aborted, result.skipped)


async def _is_set(event: asyncio.Event) -> None:
    await event.wait()


def _name(ref: TopicRef) -> str:
    try:
        return ref.decode()
    except UnicodeDecodeError as error:
        raise MalformedMessage(f"topic name is not UTF-8: {error}") from None


def _pieces_in_turn(
    reads: Mapping[PartitionKey, TopicIdPartition], now: float
) -> Iterator[Mapping[PartitionKey, TopicIdPartition]]:
    """Pieces of PARTITIONS_READ_MAX. Another piece comes first in each half second, so that all
    get their turn.
    """
    every = [dict(piece) for piece in pieces(reads.items(), PARTITIONS_READ_MAX)]
    first = int(now / READ_WAIT_MIN_S) % max(len(every), 1)
    yield from every[first:]
    yield from every[:first]


FETCH_API = ServedApi(ApiKey.FETCH, FETCH_VERSION_MIN, FETCH_VERSION_MAX, respond)
