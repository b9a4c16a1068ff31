"""DeleteRecords (v0–2): deletes the records below an offset in both tiers.

The broker answers first: it has checked authorization and leadership, refuses an offset above its
high watermark, and has trimmed its own log. Then the archive's log start is raised, durably and
for every proxy, before the client gets its response (KIP-405: UnifiedLog has one log start for both
tiers). `low_watermark` becomes the log start of both tiers, which is below the broker's own log
start for an offset in the archive. With offset -1, the broker's low watermark tells its high
watermark.

If the store fails, the broker has trimmed its log already. The client then gets KAFKA_STORAGE_ERROR
(or REQUEST_TIMED_OUT after the request's own time), which admin clients retry: the retry finds the
broker done and raises the archive's log start. A broker's error leaves the archive unchanged.
Segments below the log start are no longer served; the archiver (`deletion.expirer`) deletes their
objects.

A partition that has no archive gets the broker's response, and no store is asked: Kafka Streams
purges its internal topics all the time. What memory knows may be some seconds old, and an archiver
may just have begun with the partition. So the deletion is remembered until the archived topics and
the archivers' positions have been read again, and then goes to the archive if there is one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import structlog
from fetchproxy_protocol import delete_records as wire
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.delete_records import DeletionResult
from fetchproxy_protocol.headers import RequestHead
from fetchproxy_protocol.primitives import Buffer, Cursor

from fetchproxy.brokers.cluster import TopicInfo
from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.cooperative import checkpoint, collected, cooperative, for_each
from fetchproxy.serving.gateway.broker_link import BufferedResponse
from fetchproxy.serving.gateway.served_archive import LIST_INTERVAL_S, Deletion, ServedArchive
from fetchproxy.serving.gateway.session import Buffered, GatewaySession, rewritten
from fetchproxy.serving.upstream import ExpectedResponse

log = structlog.get_logger(__name__)

# With less, requests would fail although the broker is done: with 0 a client awaits no replica.
STORE_WAIT_MIN_MS = 5_000
# Log starts raised at once for one request.
RAISED_AT_ONCE = 16
# Remembered deletions, some 200 bytes each. Beyond that, a deletion asks the store at once.
DELETIONS_MAX = 100_000

_Topics = Mapping[str, TopicInfo | ClusterError]


def expect(
    archive: ServedArchive, frame: bytes, head: RequestHead, body_at: int
) -> ExpectedResponse:
    """For a framed request, which itself goes upstream unchanged."""
    version = head.api_version

    async def rewrite(payload: bytes) -> Sequence[Buffer]:
        cursor = Cursor(memoryview(frame)[4:], body_at)
        partitions = dict(await collected(wire.partitions_in(cursor, version)))
        deadline = archive.clock() + max(cursor.int32(), STORE_WAIT_MIN_MS) / 1000
        corrected = bytearray(payload)

        deleted: list[tuple[DeletionResult, int]] = []
        async for result in cooperative(await collected(wire.parse_response(payload, version))):
            offset = partitions.get((result.topic, result.partition))
            if offset is not None and not result.error_code and result.partition >= 0:
                deleted.append((result, offset))
        topics = await _identified(archive, {result.topic for result, _ in deleted})

        async def correct(one: tuple[DeletionResult, int]) -> None:
            result, offset = one
            topic = topics[result.topic]
            wire.patch(corrected, await _in_both_tiers(archive, topic, result, offset, deadline))
            await checkpoint(len(deleted))  # what memory knows comes without waiting

        await for_each(deleted, correct, min(len(deleted), RAISED_AT_ONCE))
        return [corrected]

    return BufferedResponse(head.correlation_id, rewrite)


async def _identified(archive: ServedArchive, names: Collection[str]) -> _Topics:
    """Asked again, as a name may mean a topic that was made anew."""
    try:
        return await archive.cluster.topics_by_name(names, max_age_ms=0)
    except ClusterError as error:
        return dict.fromkeys(names, error)


async def _in_both_tiers(
    archive: ServedArchive,
    topic: TopicInfo | ClusterError,
    result: DeletionResult,
    offset: int,
    deadline: float,
) -> DeletionResult:
    code = ErrorCode.KAFKA_STORAGE_ERROR
    failure: Exception
    try:
        if isinstance(topic, ClusterError):
            if topic.error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                return result  # the proxy's own user may not describe it, so it cannot archive it
            raise topic
        tp = TopicIdPartition(topic.topic_id, topic.name, result.partition)
        if offset == wire.HIGH_WATERMARK:
            offset = result.low_watermark
        async with asyncio.timeout_at(deadline):
            if not await _has_archive(archive, tp, offset):
                return result
            start = await _raise_log_start(archive, tp, offset)
        low_watermark = result.low_watermark if start is None else min(start, result.low_watermark)
        return result._replace(low_watermark=low_watermark)
    except TimeoutError as error:
        code, failure = ErrorCode.REQUEST_TIMED_OUT, error
    except (RemoteStorageError, ClusterError) as error:
        failure = error
    log.warning(
        "records_deleted_on_broker_only",
        topic=result.topic,
        partition=result.partition,
        offset=offset,
        error=str(failure) or "the request's time is over",
    )
    return result._replace(low_watermark=wire.INVALID_LOW_WATERMARK, error_code=code)


async def _has_archive(archive: ServedArchive, tp: TopicIdPartition, offset: int) -> bool:
    """Whether the partition has an archive or is accumulated for one, as memory knows. Otherwise
    `check_deletions` looks once more. Raises RemoteStorageError.
    """
    at = archive.clock()
    await archive.positions.first_read()
    if _is_accumulated(archive, tp) or await archive.knowledge.archived_among({tp.topic_id}):
        return True
    known, deletions = archive.deletions.get(tp), archive.deletions
    if known is None and len(deletions) >= DELETIONS_MAX:
        await archive.positions.refresh(at)
        return _is_accumulated(archive, tp) or await archive.knowledge.may_be_archived(
            tp.topic_id, at
        )
    deletions[tp] = Deletion(offset if known is None else max(offset, known.offset), at)
    return False


def _is_accumulated(archive: ServedArchive, tp: TopicIdPartition) -> bool:
    return archive.is_archiving(tp) or archive.positions.archiver_position(tp) is not None


async def _raise_log_start(archive: ServedArchive, tp: TopicIdPartition, offset: int) -> int | None:
    """The archive's log start afterwards; None: the archive holds no records there."""
    view = await archive.rlmm.refresh(tp, archive.clock())
    if not (view.segments or view.copies_started or _is_accumulated(archive, tp)):
        return None
    start = view.log_start_offset
    if start is None or offset > start:
        view = await archive.rlmm.raise_log_start_offset(tp, offset)
    return view.log_start_offset


async def check_deletions(archive: ServedArchive) -> None:
    """For ever: raise the log start of partitions that turn out to have had an archive when their
    records were deleted. Asks the store for nothing else.
    """
    while True:
        await asyncio.sleep(LIST_INTERVAL_S)
        read_at = min(archive.knowledge.listed_at, archive.positions.read_at)
        due = {tp: d for tp, d in archive.deletions.items() if d.at <= read_at}
        async for tp, deletion in cooperative(due.items()):
            try:
                archived = await archive.knowledge.archived_among({tp.topic_id})
                if archived or _is_accumulated(archive, tp):
                    await _raise_log_start(archive, tp, deletion.offset)
                    log.info("records_deleted_in_archive", **tp.logged, offset=deletion.offset)
            except (RemoteStorageError, ClusterError) as error:
                log.warning(
                    "records_deleted_on_broker_only",
                    **tp.logged,
                    offset=deletion.offset,
                    error=str(error),
                )
                continue  # it stays, and is tried again
            if archive.deletions.get(tp) is deletion:  # no later one came meanwhile
                del archive.deletions[tp]


def _on_request(session: GatewaySession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    topics = wire.topics_in(Cursor(memoryview(frame)[4:], body_at), head.api_version)
    session.send_counted(frame, topics, partial(expect, session.archive, frame, head, body_at))
    return True


API = rewritten(
    ApiKey.DELETE_RECORDS,
    Buffered(_on_request),
    "The broker raises its log start first. Then the proxy raises the archive's, and writes it to "
    "the store.",
)
