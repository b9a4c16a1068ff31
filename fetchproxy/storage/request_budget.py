"""How many requests a second a store gets that refuses some of them as too many. Pure.

S3 answers `503 SlowDown` above some thousand requests a second and prefix, Cloud Storage 429, Azure
`503 ServerBusy`. Where only the caller of the refused request waits, all others go on as before. So
the process as a whole asks less: half of what it had asked in the second before, then a tenth more
each second, and as much as it likes once the store has refused nothing for a minute.
"""

from __future__ import annotations

# Stores refuse some thousand requests a second, not so few: that is another trouble of theirs, and
# to ask less would only make readers wait.
PER_S_MIN = 50.0
GROWTH_PER_S = 1.1
FORGOTTEN_AFTER_S = 60.0
# Requests that were under way together are refused together.
_SAME_REFUSAL_S = 1.0


class RequestBudget:
    """Of one kind of requests. Times are loop times (s), never falling."""

    __slots__ = ("_before", "_in_second", "_next_at", "_per_s", "_second", "refused_at")

    def __init__(self) -> None:
        self._second, self._in_second, self._before = 0, 0, 0
        self._per_s: float | None = None  # at `refused_at`
        self.refused_at = 0.0  # last
        self._next_at = 0.0

    def per_s(self, now: float) -> float | None:
        """None: no limit."""
        if self._per_s is None or now - self.refused_at >= FORGOTTEN_AFTER_S:
            return None
        return float(self._per_s * GROWTH_PER_S ** (now - self.refused_at))

    def wait_s(self, now: float) -> float:
        """Until the next request may begin; 0: it may now."""
        return 0.0 if self.per_s(now) is None else max(self._next_at - now, 0.0)

    def begins(self, now: float) -> None:
        """A request does."""
        self._count_until(now)
        self._in_second += 1
        per_s = self.per_s(now)
        if per_s is not None:
            self._next_at = max(self._next_at, now) + 1 / per_s

    def refused(self, now: float) -> None:
        """The store has refused a request as one too many."""
        limit = self.per_s(now)
        if limit is not None and now - self.refused_at < _SAME_REFUSAL_S:
            return
        self._count_until(now)
        asked = max(self._before, self._in_second)
        self._per_s = max(min(asked, limit or asked) / 2, PER_S_MIN)
        self.refused_at = now

    def _count_until(self, now: float) -> None:
        second = int(now)
        if second != self._second:
            self._before = self._in_second if second == self._second + 1 else 0
            self._second, self._in_second = second, 0
