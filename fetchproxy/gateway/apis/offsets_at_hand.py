"""Where thousands of partitions begin, or were at a time: what is in memory is written at once.

Result by result what is known is written over the broker's. Decides nothing, and waits for nothing
but the event loop: what is not known is left to the longer way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from fetchproxy.cluster.client import TopicInfo
from fetchproxy.errors import CorruptSegment
from fetchproxy.gateway.archive_lookup import VIEW_AGE_MAX_S
from fetchproxy.gateway.archive_starts import StartOf
from fetchproxy.gateway.gateway_parts import GatewayParts
from fetchproxy.many_items import each_of, pieces
from protocol import list_offsets as wire
from protocol.apis import ApiKey
from protocol.headers import response_body
from protocol.list_offsets import OffsetResult, ResultRows

# Some 2 µs each.
ROWS_AT_ONCE = 400
# Records that are searched for in memory, some 20 µs each.
SEARCHED_AT_ONCE = 50


class ResultsOfAll:
    """The results of an answer, v4 or newer; they can be gone through again."""

    def __init__(self, payload: bytes, version: int) -> None:
        self._payload = payload
        self._version = version

    def rows(self) -> Iterator[ResultRows]:
        """Raises WireError."""
        body = response_body(self._payload, ApiKey.LIST_OFFSETS, self._version)
        return wire.result_rows_in(body, self._version)

    def digest(self) -> int:
        """Nearly surely another one for other results, in this process. Raises WireError."""
        body = response_body(self._payload, ApiKey.LIST_OFFSETS, self._version)
        body.skip(4, "throttle time")
        return hash(self._payload[body.pos :])

    async def that_begin_above_0(self) -> set[str]:
        """Names of the topics with such a partition: nothing can lie below the others."""
        found: set[str] = set()
        for topic, rows, _, _ in self.rows():
            if topic in found:
                continue
            for piece in pieces(rows, ROWS_AT_ONCE):
                if any(offset and not error_code for _, error_code, _, offset, _ in piece):
                    found.add(topic)
                    break
                await asyncio.sleep(0)
        return found


async def patch_starts(
    answer: bytearray, version: int, rows: ResultRows, start_of: StartOf
) -> list[OffsetResult]:
    """Write where the archive begins over results that say a higher offset.

    Those of which that is not known are given back.
    """
    left: list[OffsetResult] = []
    at, stride = rows.position, rows.stride
    for piece in pieces(rows.rows, ROWS_AT_ONCE):
        for partition, error_code, timestamp, offset, epoch in piece:
            if offset and not error_code:
                start = start_of(partition)
                if start is None:
                    left.append(
                        OffsetResult(
                            rows.topic, partition, error_code, timestamp, offset, epoch, at
                        )
                    )
                elif not 0 <= offset <= start[0]:
                    wire.patch_at(answer, version, at, error_code, timestamp, *start)
            at += stride
        if len(piece) == ROWS_AT_ONCE:
            await asyncio.sleep(0)
    return left


async def patch_times(
    parts: GatewayParts,
    archived: Mapping[str, TopicInfo],
    results: Sequence[tuple[OffsetResult, int]],
    answer: bytearray,
    version: int,
) -> list[tuple[OffsetResult, int]]:
    """Write what the archive has at a timestamp over results that say a later record.

    Only where it holds all below the record that the broker has found. Gives back what is left,
    with its timestamp, and all that was not asked for by time. `archived`: topics by name.
    """
    view_of, search = parts.starts.view_of, parts.purgatory.first_offset_in_memory
    oldest = parts.clock() - VIEW_AGE_MAX_S
    left: list[tuple[OffsetResult, int]] = []
    async for result, timestamp in each_of(results, SEARCHED_AT_ONCE):
        topic = archived.get(result.topic) if timestamp >= 0 else None
        view = None if topic is None else view_of(topic, result.partition, oldest)
        record = None
        if view is not None and 0 <= result.offset <= (view.log_end_offset or -1):
            with suppress(CorruptSegment):  # the longer way says so
                record = search(view, timestamp)
        if record is None:
            left.append((result, timestamp))
        elif record[0] < result.offset:
            offset, found_ms, epoch = record
            place = result.position, result.error_code
            wire.patch_at(answer, version, *place, found_ms, offset, epoch)
    return left
