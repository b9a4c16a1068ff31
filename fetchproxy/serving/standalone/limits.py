"""The bounds of an archive's own server that nobody has to set."""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.config.schema import KiB, MiB
from fetchproxy.serving.limits import ServingLimits


@dataclass(frozen=True, kw_only=True)
class StandaloneLimits(ServingLimits):
    """`group_*` and `offset_metadata_bytes_max` are Kafka's settings with Kafka's defaults."""

    # Nobody produces here, so requests are small: far below gateway.frame_bytes_max.
    request_bytes_max: int = 1 * MiB
    # Committed offsets of all groups. The file is written whole at each commit.
    offsets_max: int = 100_000
    offset_metadata_bytes_max: int = 4 * KiB  # offset.metadata.max.bytes
    # Groups with members at once, each with a timer. Their memory has a limit of its own.
    groups_max: int = 10_000
    group_members_max: int = 1_000  # of one group; group.max.size, which has no limit in Kafka
    group_session_timeout_min_ms: int = 6_000  # group.min.session.timeout.ms
    group_session_timeout_max_ms: int = 1_800_000  # group.max.session.timeout.ms
    group_initial_rebalance_delay_ms: int = 3_000  # group.initial.rebalance.delay.ms
