"""Whether the wall clock agrees with what other machines say of the time: store and producers.

`SteadyClock` sees a clock that jumps. One that was wrong from the start runs evenly. A store that
tells its own time settles it. Otherwise there are the timestamps of records alone, which producers
on other machines write: little, as an old one may only mean that nobody writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition

# A store says its time to about a second, in an answer that may take minutes.
STORE_AHEAD_MAX_MS = 3_600_000
# A weekend and a holiday may pass without a record; a clock that is off is off by more or by less.
RECORDS_AHEAD_MAX_MS = 7 * 86_400_000


@dataclass(frozen=True, slots=True)
class Doubt:
    """`sure`: the clock is wrong. Otherwise it may be."""

    what: str
    sure: bool


class ClockWitness:
    """Pure: it is told what was seen, and what time it is."""

    def __init__(self) -> None:
        self._first_seen_ms: dict[TopicIdPartition, int] = {}
        self._newest_ms = -1  # of all records seen
        self._newest_written_ms = -1  # of partitions to which was written meanwhile

    def saw(self, view: PartitionView) -> None:
        """What the archive holds of a partition."""
        newest_ms = view.segments[-1].max_timestamp_ms if view.segments else -1
        self._newest_ms = max(self._newest_ms, newest_ms)
        if newest_ms > self._first_seen_ms.setdefault(view.tip, newest_ms):
            self._newest_written_ms = max(self._newest_written_ms, newest_ms)

    def doubt(self, now_ms: int, store_ms: int | None) -> Doubt | None:
        """What is wrong with `now_ms`; `store_ms`: what the store says, None: nothing."""
        if store_ms is not None:
            return _ahead(now_ms - store_ms, STORE_AHEAD_MAX_MS, "the store's clock", sure=True)
        if self._newest_written_ms >= 0:
            what = "the newest record, and records were written while it ran"
            return _ahead(now_ms - self._newest_written_ms, RECORDS_AHEAD_MAX_MS, what, sure=True)
        if self._newest_ms < 0:
            return None  # records without timestamps say nothing
        what = "the newest record"
        return _ahead(now_ms - self._newest_ms, RECORDS_AHEAD_MAX_MS, what, sure=False)


def _ahead(ahead_ms: int, limit_ms: int, of: str, *, sure: bool) -> Doubt | None:
    if ahead_ms <= limit_ms:
        return None
    hours = round(ahead_ms / 3_600_000)
    return Doubt(f"this machine's clock is {hours} hours ahead of {of}", sure)
