"""DeleteRecords (v0–2): deletes the records below an offset in both tiers.

The broker answers first: it has checked authorization and leadership, refuses an offset above its
high watermark, and has trimmed its own log. Then the archive's log start is raised, durably and
for every proxy, before the client gets its answer (KIP-405: UnifiedLog has one log start for both
tiers). `low_watermark` becomes the log start of both tiers, which is below the broker's own log
start for an offset in the archive. With offset -1, the broker's low watermark tells its high
watermark.

If the store fails, the broker has trimmed its log already. The client then gets KAFKA_STORAGE_ERROR
(or REQUEST_TIMED_OUT after the request's own time), which admin clients retry: the retry finds the
broker done and raises the archive's log start. A broker's error leaves the archive unchanged.
Segments below the log start are no longer served; the archiver (`deletion.expirer`) deletes their
objects. A partition that the archive does not hold or gather yet gets no mark.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import structlog
from fetchproxy_protocol import delete_records as wire
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.delete_records import DeletionResult
from fetchproxy_protocol.headers import RequestHead
from fetchproxy_protocol.primitives import Buffer, Cursor

from fetchproxy.errors import ClusterError, RemoteStorageError
from fetchproxy.model import TopicIdPartition
from fetchproxy.runtime.loop import collected, each_of
from fetchproxy.serving.relay.broker_link import HeldAnswer
from fetchproxy.serving.relay.served_archive import ServedArchive
from fetchproxy.serving.relay.session import Held, RelaySession, rewritten

log = structlog.get_logger(__name__)

# With less, requests would fail although the broker is done: with 0 a client awaits no replica.
STORE_WAIT_MIN_MS = 5_000
# Log starts raised at once for one request.
RAISED_AT_ONCE = 16


def _on_request(session: RelaySession, frame: bytes, head: RequestHead, body_at: int) -> bool:
    archive, version = session.archive, head.api_version

    async def rewrite(payload: bytes) -> Sequence[Buffer]:
        cursor = Cursor(memoryview(frame)[4:], body_at)
        asked = dict(await collected(wire.asked_in(cursor, version)))
        deadline = archive.clock() + max(cursor.int32(), STORE_WAIT_MIN_MS) / 1000
        corrected, at_once = bytearray(payload), asyncio.Semaphore(RAISED_AT_ONCE)

        async def correct(result: DeletionResult, offset: int) -> None:
            async with at_once:
                wire.patch(corrected, await _in_both_tiers(archive, result, offset, deadline))

        results = await collected(wire.parse_response(payload, version))
        async with asyncio.TaskGroup() as tasks:
            async for result in each_of(results):
                offset = asked.get((result.topic, result.partition))
                if offset is not None and not result.error_code:
                    tasks.create_task(correct(result, offset), name="raise-log-start")
        return [corrected]

    session.send_upstream(frame, HeldAnswer(head.correlation_id, rewrite))
    return True


async def _in_both_tiers(
    archive: ServedArchive, result: DeletionResult, offset: int, deadline: float
) -> DeletionResult:
    code = ErrorCode.KAFKA_STORAGE_ERROR
    failure: Exception
    try:
        async with asyncio.timeout_at(deadline):
            start = await _raise_log_start(archive, result, offset)
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


async def _raise_log_start(
    archive: ServedArchive, result: DeletionResult, offset: int
) -> int | None:
    """The archive's log start afterwards; None: the archive holds no records there."""
    topic = await archive.cluster.topic_by_name(result.topic, max_age_ms=0)
    tip = TopicIdPartition(topic.topic_id, topic.name, result.partition)
    try:
        view = await archive.rlmm.refresh(tip, archive.clock())
    except RemoteStorageError:
        # Partitions that were never archived do not depend on the store.
        if archive.is_archiving(tip) or await archive.knowledge.may_be_archived(tip.topic_id):
            raise
        return None
    if not (view.segments or view.copies_started or archive.is_archiving(tip)):
        return None
    if offset == wire.HIGH_WATERMARK:
        offset = result.low_watermark
    start = view.log_start_offset
    if start is None or offset > start:
        view = await archive.rlmm.raise_log_start_offset(tip, offset)
    return view.log_start_offset


API = rewritten(
    ApiKey.DELETE_RECORDS,
    Held(_on_request),
    "After the broker's log start the proxy raises the archive's too, durably.",
)
