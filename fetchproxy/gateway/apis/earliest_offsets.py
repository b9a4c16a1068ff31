"""An answer to "where does each of these partitions begin", as rows: thousands at once.

Row by row what is known is written over the broker's. Decides nothing, and waits for nothing but
the event loop: what is not known is left to the longer way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from fetchproxy.gateway.archive_starts import StartOf
from fetchproxy.many_items import pieces
from protocol import list_offsets as wire
from protocol.apis import ApiKey
from protocol.headers import response_body
from protocol.list_offsets import OffsetResult, ResultRows

# Some 2 µs each.
ROWS_AT_ONCE = 400


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
