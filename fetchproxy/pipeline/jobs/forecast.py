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
HORIZON_DAYS = (30, 90, 365)


@dataclass(frozen=True, slots=True)
class Forecast:
    """`size_bytes`: at each of HORIZON_DAYS. `next_deletion_ms`: when (epoch ms) retention by time
    takes the oldest segment; None: not by time, or there is none but the newest.
    """

    bytes_per_day: int
    size_bytes: tuple[int, ...]
    next_deletion_ms: int | None


def forecast(held: Sequence[Held], retention: Retention, now_ms: int) -> Forecast:
    """Of one partition, by offset."""
    rate = bytes_per_day(held, now_ms)
    return Forecast(
        bytes_per_day=rate,
        size_bytes=tuple(_size_after(held, retention, now_ms, rate, days) for days in HORIZON_DAYS),
        next_deletion_ms=_next_deletion_ms(held, retention),
    )


def bytes_per_day(held: Sequence[Held], now_ms: int) -> int:
    """The mean of the last RATE_DAYS, or of the time since the first record if that is shorter."""
    if not held:
        return 0
    since_ms = max(now_ms - RATE_DAYS * DAY_MS, min(one.newest_ms for one in held))
    days = max((now_ms - since_ms) / DAY_MS, 1.0)
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
