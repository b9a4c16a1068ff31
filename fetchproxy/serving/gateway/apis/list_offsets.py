"""ListOffsets (v0–11) over both tiers: the broker answers first, the archive corrects.

The broker has then checked authorization, leadership, epoch, and whether the version knows the
timestamp, so only results without error are corrected.

    -1 latest, -4 earliest local      the broker's
    -2 earliest                       the log start of both tiers
    -3 maximum timestamp, and times   the first of both tiers, also if they overlap
    -5 latest tiered, -6 earliest     the archive's end
       pending upload

The broker's response passes for a topic that was never archived: no store is asked, whatever state
it is in. The archive is asked only about topics in the list of archived topics
(`ArchivedKnowledge`) whose log does not begin at 0 on the broker. A client that asks for the
earliest offset starts to read there. So it sees the broker's own log start only if the archive is
known; otherwise it gets a retriable error and asks again. Lookups by time need no such knowledge if
the broker has the whole log. The epoch is that of the answered offset, or -1. The isolation level
does not matter: all archived records are below the last stable offset. v0 answers with arrays of
offsets, from before logs had timestamps; they are relayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from fetchproxy_protocol import list_offsets as wire
from fetchproxy_protocol.apis import ApiKey
from fetchproxy_protocol.headers import (
    RequestHead,
    client_id,
    peek_request_header,
    response_body,
)
from fetchproxy_protocol.list_offsets import OffsetResult
from fetchproxy_protocol.primitives import Buffer, Cursor

from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.errors import ClusterError, ClusterUnavailable, CorruptSegment, RemoteStorageError
from fetchproxy.metadata.lineage import lineage_of
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import LogOffsets, TopicIdPartition
from fetchproxy.runtime.cooperative import (
    READ_AT_ONCE_BYTES_MAX,
    a_turn,
    checkpoint,
    chosen,
    collected,
    cooperative,
)
from fetchproxy.serving.gateway.broker_link import BufferedResponse
from fetchproxy.serving.gateway.offset_lookup import (
    VIEW_AGE_MAX_S,
    ArchiveLookup,
    Identified,
    ViewResult,
    edge_of_archive,
    found_at,
    not_known,
    of_records,
    patch_starts,
    patch_times,
    patch_times_of_topic,
    rows_in,
    topics_above_0,
)
from fetchproxy.serving.gateway.served_archive import ServedArchive
from fetchproxy.serving.gateway.session import Buffered, GatewaySession, rewritten
from fetchproxy.serving.upstream import ExpectedResponse
from fetchproxy.storage.reader_accounts import Client

_NOT_OURS = frozenset((wire.LATEST, wire.EARLIEST_LOCAL))
# Answers made in one turn of the event loop: each reads through a partition's lineage.
RESPONDED_AT_ONCE = 50
# As above, for responses that search records in memory, some 50 µs each.
_READ_AT_ONCE = 20

_Timestamps = Mapping[tuple[str, int], int]  # timestamp by topic and partition


def may_change(result: OffsetResult, timestamp: int) -> bool:
    """Whether the archive can change the result. No records are below offset 0. Pure."""
    if result.error_code or timestamp in _NOT_OURS:
        return False
    at_or_after = timestamp == wire.EARLIEST or timestamp >= 0
    return not (at_or_after and result.offset == 0)


@dataclass(slots=True)
class _Question:
    """`view_result` and `log_offsets` are None if they are not needed."""

    result: OffsetResult
    timestamp: int
    topic: TopicInfo
    tp: TopicIdPartition
    view_result: ViewResult | None = None
    log_offsets: LogOffsets | ClusterError | None = None


def expect(
    archive: ServedArchive, frame: bytes, head: RequestHead, body_at: int, client: Client
) -> ExpectedResponse:
    """For a framed request, which itself goes upstream unchanged."""
    request, version = memoryview(frame)[4:], head.api_version
    by_partition: _Timestamps | None = None
    of_all = wire.timestamp_of_all(request, body_at, version)
    if of_all is None and len(frame) <= READ_AT_ONCE_BYTES_MAX:
        by_partition = dict(wire.partitions_in(request, body_at, version))
    of_replica = Cursor(request, body_at).int32() >= 0
    if of_replica or of_all in _NOT_OURS:
        return ExpectedResponse(head.correlation_id)
    if by_partition is not None and _NOT_OURS.issuperset(by_partition.values()):
        return ExpectedResponse(head.correlation_id)

    async def rewrite(payload: bytes) -> Sequence[Buffer]:
        if of_all == wire.EARLIEST:
            return [await _correct_earliest(archive, payload, version)]
        if of_all is not None and of_all >= 0:
            return [await _correct_times(archive, payload, version, of_all, client)]
        timestamps = of_all if by_partition is None else by_partition
        if timestamps is None:
            timestamps = dict(await collected(wire.partitions_in(request, body_at, version)))
        return [await _correct(archive, payload, version, timestamps, client)]

    return BufferedResponse(head.correlation_id, rewrite)


async def _correct_earliest(archive: ServedArchive, payload: bytes, version: int) -> Buffer:
    """For all partitions: overwrites the broker's results with starts found before."""
    names = await topics_above_0(payload, version)
    if not names:
        return payload
    lookup = ArchiveLookup(archive, archive.clock())
    identified = await lookup.identify(names)
    corrected = bytearray(payload)
    others = await _about_to_have_an_archive(archive, identified.others.values())
    starts, oldest = archive.starts, archive.clock() - VIEW_AGE_MAX_S
    left: list[OffsetResult] = []
    async for rows in cooperative(rows_in(payload, version)):
        if (topic := identified.archived.get(rows.topic)) is not None:
            left += await patch_starts(corrected, version, rows, starts.of(topic, oldest))
        elif rows.topic in others or rows.topic in identified.unknown:
            left += await patch_starts(corrected, version, rows, lambda partition: None)
    if left:
        results = [(result, wire.EARLIEST) for result in left]
        await _patch(lookup, identified, results, corrected, version)
    lookup.renew(identified.archived.values())
    return corrected


async def _correct_times(
    archive: ServedArchive, payload: bytes, version: int, timestamp: int, client: Client
) -> Buffer:
    """As `_correct`, for one timestamp in all partitions: in rows, at half the cost of each."""
    names = await topics_above_0(payload, version)
    if not names:
        return payload
    lookup = ArchiveLookup(archive, archive.clock())
    identified = await lookup.identify(names)
    corrected, left = bytearray(payload), list[OffsetResult]()
    async for rows in cooperative(rows_in(payload, version)):
        if rows.topic in names:
            topic = identified.archived.get(rows.topic)
            left += await patch_times_of_topic(archive, topic, timestamp, corrected, version, rows)
    if left:
        results = [(result, timestamp) for result in left]
        await _patch(lookup, identified, results, corrected, version, client)
    lookup.renew(identified.archived.values())
    return corrected


async def _about_to_have_an_archive(
    archive: ServedArchive, topics: Collection[TopicInfo]
) -> set[str]:
    """Names of topics that an archiver accumulates: see `_about_to_be_archived`."""
    positions = archive.positions
    if topics:
        await positions.first_read()
    return {topic.name for topic in topics if positions.accumulates(topic.topic_id)}


async def _correct(
    archive: ServedArchive,
    payload: bytes,
    version: int,
    timestamps: _Timestamps | int,
    client: Client,
) -> Buffer:
    if version < 1:
        return payload
    lookup = ArchiveLookup(archive, archive.clock())
    body = response_body(payload, ApiKey.LIST_OFFSETS, version)
    results: list[tuple[OffsetResult, int]] = []
    of_all = timestamps if isinstance(timestamps, int) else None
    by_partition = {} if isinstance(timestamps, int) else timestamps
    async for result in cooperative(wire.results_in(body, version)):
        timestamp = of_all
        if timestamp is None:
            timestamp = by_partition.get((result.topic, result.partition), wire.LATEST)
        if may_change(result, timestamp):
            results.append((result, timestamp))
    if not results:
        return payload
    corrected = bytearray(payload)
    identified = await lookup.identify({result.topic for result, _ in results})
    left = await patch_times(archive, identified.archived, results, corrected, version)
    if left:
        await _patch(lookup, identified, left, corrected, version, client)
    lookup.renew(identified.archived.values())
    return corrected


async def _patch(
    lookup: ArchiveLookup,
    identified: Identified,
    results: Sequence[tuple[OffsetResult, int]],
    corrected: bytearray,
    version: int,
    client: Client | None = None,
) -> None:
    """Write both tiers' responses over the broker's results, each for its timestamp."""
    archived: list[_Question] = []
    others: list[_Question] = []
    unlisted: list[_Question] = []
    async for result, timestamp in cooperative(results):
        if result.partition < 0:
            continue  # no archive has it, whatever the broker says
        topic, of_topic = identified.archived.get(result.topic), archived
        if topic is None:
            topic, of_topic = identified.others.get(result.topic), others
        if topic is None and of_records(timestamp):
            topic, of_topic = identified.unlisted.get(result.topic), unlisted
        if topic is not None:
            tp = TopicIdPartition(topic.topic_id, topic.name, result.partition)
            of_topic.append(_Question(result, timestamp, topic, tp))
        elif result.topic in identified.unknown:
            wire.patch(corrected, version, not_known(result))
    if unlisted:
        async for question in cooperative(await _not_whole(lookup, unlisted)):
            wire.patch(corrected, version, not_known(question.result))
    await _look(lookup, archived, others)
    for response in await _about_to_be_archived(lookup.archive, others):
        wire.patch(corrected, version, response)
    open_questions = [*archived, *(q for q in others if q.log_offsets is not None)]
    async for response in cooperative(await _responses(lookup.archive, open_questions, client)):
        wire.patch(corrected, version, response)


async def _not_whole(lookup: ArchiveLookup, unlisted: Sequence[_Question]) -> list[_Question]:
    """Questions whose broker may have deleted records; a broker with the whole log is right."""
    tps = [question.tp for question in unlisted]
    log_offsets = await lookup.archive.cluster.fetch_log_offsets(
        tps, not_older_than=lookup.responded_at
    )

    def has_lost_some(question: _Question) -> bool:
        log = log_offsets[question.tp]
        return isinstance(log, ClusterError) or log.log_start_offset > 0

    return await chosen(unlisted, has_lost_some)


async def _about_to_be_archived(
    archive: ServedArchive, questions: Sequence[_Question]
) -> list[OffsetResult]:
    """Logs that begin in an archiver's spool, below the broker's: their readers wait there."""
    earliest = [q for q in questions if q.timestamp == wire.EARLIEST]
    positions = archive.positions
    if earliest:
        await positions.first_read()
    undecided = []
    async for question in cooperative(earliest):
        begin, result = positions.archiver_position(question.tp), question.result
        if begin is not None and 0 <= begin < result.offset:
            undecided.append(result._replace(offset=begin, leader_epoch=wire.UNKNOWN_EPOCH))
    return undecided


# --- what is known ---
async def _look(
    lookup: ArchiveLookup, archived: Sequence[_Question], others: Sequence[_Question]
) -> None:
    """Fill in the views, and the log offsets of the brokers' logs if they matter."""
    known: list[_Question] = []
    within: list[_Question] = []
    async for question in cooperative(archived):
        (known if _needs_no_log_offsets(lookup.archive, question) else within).append(question)
    pending = [
        q
        for q in others
        if q.timestamp == wire.EARLIEST_PENDING_UPLOAD and lookup.archive.is_archiving(q.tp)
    ]
    if within or pending:
        log_offsets = await lookup.archive.cluster.fetch_log_offsets(
            [q.tp for q in (*within, *pending)], not_older_than=lookup.responded_at
        )
        reaching = await lookup.views_reaching([q.tp for q in within], log_offsets)
        async for question in cooperative((*within, *pending)):
            question.view_result = reaching.get(question.tp)
            question.log_offsets = log_offsets[question.tp]
    views = await lookup.views([q.tp for q in known])
    async for question in cooperative(known):
        question.view_result = views[question.tp]


def _needs_no_log_offsets(archive: ServedArchive, question: _Question) -> bool:
    if question.timestamp == wire.EARLIEST:
        return True
    view = archive.rlmm.view(question.tp)
    return view is not None and _holds_all_below(question, view)


# --- what is answered ---
async def _responses(
    archive: ServedArchive, questions: Sequence[_Question], client: Client | None
) -> list[OffsetResult]:
    """Answers that read records are made side by side, as many as there are fetchers."""
    responses: list[OffsetResult] = []
    reading: list[_Question] = []
    async for question in cooperative(questions, RESPONDED_AT_ONCE):
        if of_records(question.timestamp):
            reading.append(question)
        else:
            responses.append(await _respond(archive, question, client))
    reading.reverse()  # taken from the end

    async def respond_to_some() -> None:
        await checkpoint(len(reading))
        while reading:
            responses.append(await _respond(archive, reading.pop(), client))
            if not len(reading) % _READ_AT_ONCE:
                await a_turn()  # in-memory results come without waiting

    async with asyncio.TaskGroup() as look_ups:
        for _ in range(min(len(reading), archive.reads_at_once)):
            look_ups.create_task(respond_to_some(), name="look-up")
    return responses


async def _respond(
    archive: ServedArchive, question: _Question, client: Client | None
) -> OffsetResult:
    try:
        if question.view_result is None:
            return _earliest_pending_upload(archive, question, None)
        view = _usable(question.view_result)
        response = await _search(archive, question, view, client)
        if response is question.result and not _reaches(question, view):
            # The record may be one that was archived after this view was read.
            raise question.view_result.failure or ClusterUnavailable(f"{view.tp}: log start")
        return response
    except (RemoteStorageError, ClusterError, CorruptSegment):
        return not_known(question.result)


async def _search(
    archive: ServedArchive, question: _Question, view: PartitionView, client: Client | None
) -> OffsetResult:
    result, timestamp = question.result, question.timestamp
    if timestamp == wire.EARLIEST_PENDING_UPLOAD:
        return _earliest_pending_upload(archive, question, view)
    if timestamp == wire.MAX_TIMESTAMP:
        return await _max_timestamp(archive, question, view, client)
    if timestamp < 0:
        return edge_of_archive(result, timestamp, view)
    first_record = await archive.purgatory.first_offset_at_or_after(view.tp, timestamp, client)
    if first_record is None or 0 <= result.offset <= first_record[0]:
        return result
    return found_at(result, *first_record)


async def _max_timestamp(
    archive: ServedArchive, question: _Question, view: PartitionView, client: Client | None
) -> OffsetResult:
    """The latest record of both tiers; the first one if there are several.

    If a broker names none, it is above the client's readable offsets, or the log is empty.
    """
    result, latest = question.result, view.segments.max_timestamp_ms()
    if latest is not None and result.offset < 0:
        log_offsets = _known(question)
        if log_offsets.log_start_offset < log_offsets.high_watermark:
            return result
    while latest is not None and latest >= result.timestamp:
        first_record = await archive.purgatory.first_offset_at_or_after(view.tp, latest, client)
        if first_record is not None:
            same = first_record[1] == result.timestamp and 0 <= result.offset <= first_record[0]
            return result if same else found_at(result, *first_record)
        # The record was in a part that no longer counts (the index does not know more): at the
        # start by DeleteRecords, or after the place where an election cut the log.
        latest = view.segments.max_timestamp_ms(below=latest)
    return result


def _earliest_pending_upload(
    archive: ServedArchive, question: _Question, view: PartitionView | None
) -> OffsetResult:
    """The start of the unarchived records (KIP-1023). A broker says -1, or where its own tier ends:
    the tier that reaches further counts.
    """
    result = question.result
    if view is not None and view.log_end_offset is not None:
        if result.offset >= view.log_end_offset:
            return result
        lineage = lineage_of(view)
        last_epoch = lineage[-1].epoch if lineage else wire.UNKNOWN_EPOCH
        # No other epoch since: then it also holds for the offset after the archive's end.
        now = question.topic.leaders.get(view.tp.partition, (-1, wire.UNKNOWN_EPOCH))[1]
        epoch = last_epoch if now == last_epoch else wire.UNKNOWN_EPOCH
        return result._replace(offset=view.log_end_offset, leader_epoch=epoch)
    begun = view is not None and view.copies_started
    if not (begun or archive.is_archiving(question.tp)):
        return result
    log_offsets = _known(question)
    # Never written to: Kafka does not know either.
    if log_offsets.high_watermark == 0 or result.offset >= log_offsets.log_start_offset:
        return result
    return result._replace(
        offset=log_offsets.log_start_offset, leader_epoch=log_offsets.log_start_epoch
    )


def _usable(result: ViewResult) -> PartitionView:
    """In an outage the last view will do if it had segments: their start is still good."""
    if result.view is not None and (result.failure is None or result.view.segments):
        return result.view
    raise result.failure or RemoteStorageError("the archive is not known")


def _known(question: _Question) -> LogOffsets:
    if isinstance(question.log_offsets, LogOffsets):
        return question.log_offsets
    raise question.log_offsets or ClusterUnavailable(
        f"{question.tp}: the log's offsets are not known"
    )


def _reaches(question: _Question, view: PartitionView) -> bool:
    """Whether a view without a response is new enough to be believed."""
    if question.view_result is None or question.view_result.failure is None:
        return True
    if question.timestamp in (wire.EARLIEST, wire.LATEST_TIERED):
        return True
    if _holds_all_below(question, view):
        return True
    log_offsets = question.log_offsets
    return isinstance(log_offsets, LogOffsets) and log_offsets.log_start_offset <= (
        view.log_end_offset or 0
    )


def _holds_all_below(question: _Question, view: PartitionView) -> bool:
    """The archive reaches up to the broker's record: later archived records, and records that left
    the broker since, are above that record.
    """
    by_time = question.timestamp >= 0 or question.timestamp == wire.MAX_TIMESTAMP
    return by_time and 0 <= question.result.offset <= (view.log_end_offset or -1)


def _on_request(session: GatewaySession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    name = client_id(frame, peek_request_header(frame, 4))
    client = session.share.client(session.client_host, name)
    topics = wire.topics_in(memoryview(frame)[4:], body_at, head.api_version)
    response = partial(expect, session.archive, frame, head, body_at, client)
    session.send_counted(frame, topics, response)
    return True


API = rewritten(
    ApiKey.LIST_OFFSETS,
    Buffered(_on_request),
    "Earliest, latest-tiered, maximum and real timestamps count both tiers.",
)
