"""How large an archive becomes if things go on as they did lately, and what retention takes. Pure.

The model is as simple as it can be explained: records go on arriving at the mean rate of the last
weeks; what is there goes when it is older than retention by time allows; retention by bytes caps
what is left. It knows no seasons and no plans.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fetchproxy.pipeline.jobs.partition_figures import DAY_MS, Held
from fetchproxy.remote_log.retention.retention_settings import Retention

RATE_DAYS = 28  # four of each day of the week
# What came within hours says nothing of a year: one import, or the night.
HISTORY_DAYS_MIN = 2
HORIZON_DAYS = (30, 90, 365)


@dataclass(frozen=True, slots=True)
class Forecast:
    """`history_days`: of how many days the rate is the mean. Where they are fewer than
    HISTORY_DAYS_MIN, `bytes_per_day` and `size_bytes`, which is at each of HORIZON_DAYS, are None.

    `next_deletion_ms`: when (epoch ms) retention by time takes the oldest segment; None: not by
    time, or there is none but the newest.
    """

    history_days: float
    bytes_per_day: int | None
    size_bytes: tuple[int, ...] | None
    next_deletion_ms: int | None


def forecast(held: Sequence[Held], retention: Retention, now_ms: int) -> Forecast:
    """Of one partition, by offset."""
    days = history_days(held, now_ms)
    deletion = _next_deletion_ms(held, retention)
    if days < HISTORY_DAYS_MIN:
        return Forecast(days, None, None, deletion)
    rate = bytes_per_day(held, now_ms)
    sizes = [_size_after(held, retention, now_ms, rate, ahead) for ahead in HORIZON_DAYS]
    return Forecast(days, rate, tuple(sizes), deletion)


def history_days(held: Sequence[Held], now_ms: int) -> float:
    """RATE_DAYS, or the time since the first records if that is shorter."""
    if not held:
        return 0.0
    since_ms = min(one.newest_ms for one in held)
    return min(max(now_ms - since_ms, 0) / DAY_MS, float(RATE_DAYS))


def bytes_per_day(held: Sequence[Held], now_ms: int) -> int:
    """The mean of `history_days`, which are not 0."""
    days = history_days(held, now_ms)
    since_ms = now_ms - days * DAY_MS
    return round(sum(one.size_bytes for one in held if one.newest_ms >= since_ms) / days)


def _size_after(
    held: Sequence[Held], retention: Retention, now_ms: int, rate: int, days: int
) -> int:
    stays, grown_days = list(held), float(days)
    if retention.remote_ms >= 0:
        oldest_ms = now_ms + days * DAY_MS - retention.remote_ms
        stays = [one for one in held if one.newest_ms >= oldest_ms]
        grown_days = min(grown_days, retention.remote_ms / DAY_MS)
    size = sum(one.size_bytes for one in stays) + round(rate * grown_days)
    return size if retention.remote_bytes < 0 else min(size, retention.remote_bytes)


def _next_deletion_ms(held: Sequence[Held], retention: Retention) -> int | None:
    if retention.remote_ms < 0 or len(held) < 2:  # the newest segment always stays
        return None
    return held[0].newest_ms + retention.remote_ms
