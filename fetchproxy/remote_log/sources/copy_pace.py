"""How fast the archiver may take from the brokers, over all partitions together.

`archive.copy_bytes_per_s_max`, Kafka's remote.log.manager.copy.max.bytes.per.second (KIP-956). It
stands in front of the sources: what is not fetched costs neither broker nor store.
"""

from __future__ import annotations

import asyncio

from fetchproxy.observability.metrics import ARCHIVE_THROTTLE_SECONDS
from fetchproxy.token_bucket import TokenBucket

_GATHER_MAX_S = 60.0


class CopyPace:
    """One for all partitions of an archiver; first come, first served. 0: no limit."""

    def __init__(self, bytes_per_s_max: int) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self._bucket: TokenBucket | None = None
        self._turns = asyncio.Lock()

    def step(self, bytes_max: int) -> int:
        """A read's own limit: no more than a second's worth, so that one cannot owe for long."""
        return min(bytes_max, self._bytes_per_s_max) if self._bytes_per_s_max else bytes_max

    async def turn(self, until: float | None) -> bool:
        """Wait until nothing is owed; False where it still is at `until` (loop time, s)."""
        if not self._bytes_per_s_max:
            return True
        clock = asyncio.get_running_loop().time
        began_at = clock()
        try:
            async with asyncio.timeout_at(until), self._turns:
                # What others' reads bring meanwhile is waited for by who comes next.
                await asyncio.sleep(self._of(clock()).owed_s(clock()))
        except TimeoutError:
            return False
        finally:
            ARCHIVE_THROTTLE_SECONDS.inc(clock() - began_at)
        return True

    def spend(self, size_bytes: int) -> None:
        """What a read has brought."""
        if self._bytes_per_s_max:
            now = asyncio.get_running_loop().time()
            self._of(now).spend(size_bytes, now)

    def _of(self, now: float) -> TokenBucket:
        if self._bucket is None:
            self._bucket = TokenBucket(self._bytes_per_s_max, now)
        return self._bucket


def gather_until() -> float:
    """Loop time: what a rate keeps from a partition's turn is left to its next turn."""
    return asyncio.get_running_loop().time() + _GATHER_MAX_S
