"""Bounds of the archiver that are not settings. Tests pass other values."""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.config.memory_plan import FETCH_BYTES_MAX
from fetchproxy.config.schema import MiB

LAST_COPY_AGE_MIN_MS = 60_000


@dataclass(frozen=True, kw_only=True)
class WritingLimits:
    # Time between two turns of a partition, and until its next turn after a remote error.
    rlm_process_interval_ms: int = 1_000
    rlm_retry_interval_ms: int = 5_000
    # Time limit of a turn without its copy: a silent broker or disk holds a worker no longer.
    turn_max_ms: int = 300_000
    # Time between two refreshes of a partition's archive, by leader and follower. Each lists the
    # partition, or its ends, if the store holds the metadata; S3 charges for that.
    remote_refresh_interval_ms: int = 60_000
    # Bytes per fetch from a broker. `process.memory_bytes_max` counts with the default.
    fetch_bytes_max: int = FETCH_BYTES_MAX
    # Age from which a segment is copied, although it is not full, if the brokers have deleted some
    # of its records. Kafka Streams deletes what it has read each 30 s: a segment for each deletion
    # would be thousands a day.
    last_copy_age_min_ms: int = LAST_COPY_AGE_MIN_MS
    # A local index file is rolled at this size, which bounds the read after a crash, or if its
    # segments were copied this long apart. When the log start rises, whole files are deleted.
    local_index_file_bytes_max: int = 8 * MiB
    local_index_file_age_max_ms: int = 7 * 24 * 3_600_000
    # Time between two looks for new and deleted topics. Each is one request to the brokers.
    discovery_interval_ms: int = 10_000
    # Time between two retention checks, in either tier; each looks at the partition. Kafka's
    # default (log.retention.check.interval.ms).
    retention_check_interval_ms: int = 300_000
    # Number of segments hidden or deleted before the partition's copying goes on.
    retention_deletes_per_turn_max: int = 16
    # Retention by time waits until the clock has run evenly for this long, so a wrong one deletes
    # nothing.
    retention_clock_settle_ms: int = 60_000
    # Time between two looks for objects without metadata; each lists the partition, so that of a
    # long one comes later: for each so many segments an hour, a day at most. An object is deleted
    # after it was seen for `orphan_age_min_ms`: no less than the largest `archive.copy_max_ms`.
    orphan_check_interval_ms: int = 3_600_000
    orphan_check_segments_per_hour: int = 8_000
    orphan_check_interval_max_ms: int = 24 * 3_600_000
    orphan_age_min_ms: int = 3_600_000
    # A whole copy of a compacted log counts this long before the log may be copied anew: a small
    # topic that changes all the time is copied 24 times a day.
    compacted_copy_interval_min_ms: int = 3_600_000
    # Time until the next attempt after a copy that was given up.
    compacted_copy_retry_ms: int = 600_000
    # Time between two looks for archives of deleted topics; each lists the archive's partitions.
    topic_deletion_check_interval_ms: int = 300_000
