"""A byte rate that is kept by waiting afterwards. Pure: it neither sleeps nor has a clock.

How much a read brings is known when it has come. So, as with Kafka's quotas (ClientQuotaManager,
KIP-219, KIP-956), what came is counted, and whoever owes waits before the next one. Over any time
`t` no more than `burst + rate * t` passes, plus the one read that made the debt.
"""

from __future__ import annotations


class TokenBucket:
    """`bytes_per_s` above 0; up to one second's worth is saved up. Times in s, never falling."""

    __slots__ = ("_at", "_bytes_per_s", "_left")

    def __init__(self, bytes_per_s: int, now: float) -> None:
        self._bytes_per_s = bytes_per_s
        self._left = float(bytes_per_s)
        self._at = now

    def spend(self, size_bytes: int, now: float) -> float:
        """What came; seconds until nothing is owed, 0: nothing is."""
        self._refill(now)
        self._left -= size_bytes
        return self._owed_s()

    def owed_s(self, now: float) -> float:
        """Seconds until the next read may begin."""
        self._refill(now)
        return self._owed_s()

    def _refill(self, now: float) -> None:
        earned = (now - self._at) * self._bytes_per_s
        self._left = min(self._left + earned, self._bytes_per_s)
        self._at = now

    def _owed_s(self) -> float:
        return max(-self._left / self._bytes_per_s, 0.0)
