"""The bounds of the archiver that nobody has to set. Tests pass others."""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.config.memory_plan import FETCH_BYTES_MAX
from fetchproxy.config.schema import MiB


@dataclass(frozen=True, kw_only=True)
class WritingLimits:
    # Between two turns of a partition, and until its next turn after a remote error.
    rlm_process_interval_ms: int = 1_000
    rlm_retry_interval_ms: int = 5_000
    # A partition's turn besides its copy: a silent broker or disk holds a worker no longer.
    turn_max_ms: int = 300_000
    # Between two looks of leader and follower at the archive. Each lists the partition where
    # metadata lies in the store, which S3 charges for.
    remote_refresh_interval_ms: int = 60_000
    # Of a broker, per fetch. `process.memory_bytes_max` counts with the default.
    fetch_bytes_max: int = FETCH_BYTES_MAX
    # A local index file is rolled at this size, which is what a start after a crash reads, or when
    # its segments were copied this long apart: the log start deletes whole files.
    local_index_file_bytes_max: int = 8 * MiB
    local_index_file_age_max_ms: int = 7 * 24 * 3_600_000
    # Between two looks for new and deleted topics, which are one request to the brokers.
    discovery_interval_ms: int = 10_000
    # Between two looks at what is to be deleted, in either tier; each lists the partition. Kafka's
    # default (log.retention.check.interval.ms).
    retention_check_interval_ms: int = 300_000
    # Segments hidden or deleted before the partition's copying goes on.
    retention_deletes_per_turn_max: int = 16
    # Retention by time waits until the clock has run evenly for this long: a wrong one deletes
    # nothing.
    retention_clock_settle_ms: int = 60_000
    # Between two looks for objects that no metadata names; each lists the partition. One is deleted
    # when it was seen for so long: no less than the largest `archive.copy_max_ms`.
    orphan_check_interval_ms: int = 3_600_000
    orphan_age_min_ms: int = 3_600_000
    # Between two looks for archives of deleted topics; each lists the archive's partitions.
    topic_deletion_check_interval_ms: int = 300_000
