"""Which kept state counts at a time, and which states have served their time. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

from fetchproxy.storage.archive_objects import ClusterStateObject

# Each state of this time is kept; of the time before, the last one of each hour.
EACH_KEPT_MS = 3_600_000
_HOUR_MS = 3_600_000


def state_at(states: Sequence[ClusterStateObject], at_ms: int) -> ClusterStateObject | None:
    """The last state that was read at `at_ms` or before. `kept`: by time. A state of the future,
    which a wrong clock has written, does not count before its time.
    """
    return next((one for one in reversed(states) if one.read_at_ms <= at_ms), None)


def served_their_time(
    states: Sequence[ClusterStateObject], now_ms: int, retention_ms: int
) -> Iterator[ClusterStateObject]:
    """The states to remove. `kept`: by time. A state counts until the next one was read, so it goes
    when that is older than `retention_ms`. The newest one always stays.
    """
    for one, following in pairwise(states):
        same_hour = one.read_at_ms // _HOUR_MS == following.read_at_ms // _HOUR_MS
        if following.read_at_ms < now_ms - retention_ms or (
            same_hour and one.read_at_ms < now_ms - EACH_KEPT_MS
        ):
            yield one
