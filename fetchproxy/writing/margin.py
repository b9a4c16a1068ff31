"""How much of the broker's own retention the oldest record has used up that is not archived. Pure.

At 1 the broker may delete it uncopied. Measured by what retention goes by, time and bytes, and not
by offsets: the log start moves a segment at a time, so of a topic with little traffic all that is
not archived may be one deletion away by offsets, and safe for days by the clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerRetention:
    """The broker's limits of one partition; None: unlimited."""

    ms: int | None
    bytes: int | None


UNLIMITED = BrokerRetention(None, None)


@dataclass(frozen=True, slots=True)
class Margin:
    """`used`: share of the retention, None: no limit, or not known. `deleted_in_ms`: when it will
    be used up, as things go.
    """

    used: float | None = None
    deleted_in_ms: int | None = None


NOT_LOOKED_AT = Margin()


def broker_retention(topic_config: Mapping[str, str]) -> BrokerRetention:
    """From a topic's effective settings (DescribeConfigs).

    With tiered storage of the brokers' own (KIP-405) local.retention.* counts for what they keep on
    disk, -2 there meaning retention.*. Without `delete` in cleanup.policy nothing is deleted.
    """
    if "delete" not in topic_config.get("cleanup.policy", "delete"):
        return UNLIMITED
    tiered = topic_config.get("remote.storage.enable") == "true"

    def limit(name: str) -> int | None:
        value = topic_config.get(name)
        if tiered and topic_config.get(f"local.{name}", "-2") != "-2":
            value = topic_config[f"local.{name}"]
        return None if value is None or int(value) < 0 else int(value)

    return BrokerRetention(ms=limit("retention.ms"), bytes=limit("retention.bytes"))


def deleted_in_ms(used: float, since: float, for_ms: int) -> int | None:
    """When the brokers begin to delete what is not archived, if all goes on as it does. The share
    was `since` so many ms ago, and nothing was copied in between. None: not under way.
    """
    if used >= 1:
        return 0
    if used <= since or for_ms <= 0:
        return None
    return round((1 - used) / (used - since) * for_ms)


def retention_used(
    retention: BrokerRetention, *, age_ms: int | None, unarchived_bytes: int | None
) -> float | None:
    """The larger share of the two; None where there is no limit, or nothing is known. `age_ms` of
    the oldest record that is not archived, `unarchived_bytes` from it to the log's end.
    """
    shares = [
        used / max(limit, 1)
        for used, limit in ((age_ms, retention.ms), (unarchived_bytes, retention.bytes))
        if used is not None and limit is not None
    ]
    return max(shares, default=None)
