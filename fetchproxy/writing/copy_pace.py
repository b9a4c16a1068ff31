"""Limits how fast the archiver reads from the brokers, over all partitions together.

`archive.copy_bytes_per_s_max` is Kafka's remote.log.manager.copy.max.bytes.per.second (KIP-956).
It limits the sources: bytes that are not fetched cost neither broker nor store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from fetchproxy.observability.metrics import ARCHIVE_THROTTLE_SECONDS
from fetchproxy.runtime.fairness import TokenBucket

_ACCUMULATE_MAX_S = 60.0


class CopyPace:
    """Limits how fast an archiver reads from the brokers. One for all partitions of an archiver;
    first come, first served. `bytes_per_s_max` is asked at each read. 0: no limit.
    """

    def __init__(self, bytes_per_s_max: Callable[[], int]) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self._bucket: tuple[int, TokenBucket | None] = 0, None
        self._turns = asyncio.Lock()

    def step(self, bytes_max: int) -> int:
        """The limit of one read: at most one second's bytes, to keep the debt short."""
        return min(bytes_max, self._bytes_per_s_max() or bytes_max)

    async def turn(self, until: float | None) -> bool:
        """Wait until no debt is left. False: some is left at `until` (loop time, s)."""
        bucket = self._bucket_now()
        if bucket is None:
            return True
        clock = asyncio.get_running_loop().time
        began_at = clock()
        try:
            async with asyncio.timeout_at(until), self._turns:
                # The next caller waits for the bytes that other reads bring meanwhile.
                await asyncio.sleep(bucket.owed_s(clock()))
        except TimeoutError:
            return False
        finally:
            ARCHIVE_THROTTLE_SECONDS.inc(clock() - began_at)
        return True

    def spend(self, size_bytes: int) -> None:
        """Count the bytes of a read."""
        if (bucket := self._bucket_now()) is not None:
            bucket.spend(size_bytes, asyncio.get_running_loop().time())

    def _bucket_now(self) -> TokenBucket | None:
        """A changed rate begins without a debt. None: no limit."""
        rate = self._bytes_per_s_max()
        if rate != self._bucket[0]:
            self._bucket = rate, TokenBucket(rate, 0.0) if rate else None
        return self._bucket[1]


def accumulate_until() -> float:
    """The loop time (s) until which a turn waits for the rate. The next turn goes on from there."""
    return asyncio.get_running_loop().time() + _ACCUMULATE_MAX_S
