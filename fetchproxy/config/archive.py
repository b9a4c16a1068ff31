"""The section `archive` of the configuration. Declares keys and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from fetchproxy.config.forms import OptionalPaths, OptionalPattern, OptionalRetentionOverrides
from fetchproxy.config.section import GiB, KiB, MiB, Section


class ArchiveConfig(Section):
    """The archiver (RemoteLogManager)."""

    topics: OptionalPattern = Field(None, description="regular expression; whole topic names match")
    source: Literal["broker", "log-dirs"] = Field(
        "broker",
        description="where segments come from: `broker` fetches from any broker over the network; "
        "`log-dirs` copies rolled segment files from the directories of a broker on this host",
    )
    log_dirs: OptionalPaths = Field(
        None,
        description="that broker's log.dirs, all of them; only partitions that it leads are copied",
    )
    # A batch more must stay below the largest segment that anybody reads (`SEGMENT_BYTES_MAX`).
    segment_bytes_max: int = Field(
        64 * MiB, description="a segment is cut at this size", ge=KiB, le=8 * GiB
    )
    segment_age_max_ms: int = Field(
        600_000, description="or when its first batch was read this long ago", ge=1
    )
    rlm_process_interval_ms: int = Field(
        1_000, description="between two looks at a partition", ge=1
    )
    rlm_retry_interval_ms: int = Field(5_000, description="after a remote error", ge=1)
    workers_max: int = Field(4, description="partitions processed at once", ge=1)
    copy_max_ms: int = Field(300_000, description="a copy that takes longer is given up", ge=1)
    turn_max_ms: int = Field(
        300_000,
        description="a partition's turn may take this besides its copy; then it is ended and tried "
        "again, so that a silent broker or disk does not hold a worker for ever",
        ge=1,
    )
    remote_refresh_interval_ms: int = Field(
        60_000,
        description="leader and follower know what is in the archive no older than this (and one "
        "process interval); a look lists the partition where metadata lies in the store, which S3 "
        "charges for",
        ge=0,
    )
    fetch_bytes_max: int = Field(8 * MiB, description="per fetch from a broker", ge=KiB)
    copy_bytes_per_s_max: int = Field(
        0,
        description="bytes a second that are taken from the brokers, over all partitions, so that "
        "an archiver that catches up leaves consumers their share; 0: no limit "
        "(remote.log.manager.copy.max.bytes.per.second)",
        ge=0,
    )
    spool_dir: Path | None = Field(
        None,
        description="where a segment is gathered before its copy; default: a temporary folder; for "
        "`log-dirs` on the file system of the log directories, but not inside one: then segments "
        "are hard links and take no space",
    )
    spool_bytes_max: int = Field(
        8 * 1024 * MiB,
        description="bytes in the spool; above this, segments are cut before they are full",
        ge=MiB,
    )
    local_index_dir: Path | None = Field(
        None,
        description="where this process keeps the archive's indexes, so that a reader's first look "
        "into a segment costs one request to the store less; rebuilt from the store if lost, and "
        "of one process alone. Not set: none, as it is of use only in a folder that lasts, takes "
        "0.2% of the archive's size, and is filled by a request for each segment",
    )
    local_index_file_bytes_max: int = Field(
        8 * MiB,
        description="a local index file is rolled at this size: what a start after a crash reads, "
        "per partition",
        ge=KiB,
        le=1024 * MiB,
    )
    local_index_file_age_max_ms: int = Field(
        604_800_000,
        description="or when the segments in it were copied this long apart; the log start deletes "
        "whole files",
        ge=1,
    )
    discovery_interval_ms: int = Field(
        10_000, description="between two looks for new and deleted topics", ge=1
    )

    margin_warn_share: float = Field(
        0.5,
        description="warn when the oldest record that is not archived has used up this share of "
        "the broker's retention, by time or by bytes: at 1 the broker deletes it uncopied",
        gt=0,
        le=1,
    )

    # --- leadership ---
    group_id: str | None = Field(
        None,
        description="archivers that name the same consumer group share the partitions between "
        "them, one leads each; not set: this archiver leads all and must be the only one",
    )
    group_instance_id: str | None = Field(
        None,
        description="group.instance.id, of its own for each archiver: one that is back within "
        "group_session_timeout_ms finds its partitions where it left them",
    )
    group_session_timeout_ms: int = Field(
        45_000,
        description="the others take over from an archiver that is silent this long "
        "(session.timeout.ms)",
        ge=100,
    )
    group_heartbeat_interval_ms: int = Field(
        3_000,
        description="a change in the group is noticed within this (heartbeat.interval.ms)",
        ge=10,
    )

    # --- retention ---
    remote_log_retention_ms: int = Field(
        -1,
        description="segments whose newest record is older are deleted from the archive, oldest "
        "first; -1: never. The brokers' own `retention.ms` is not meant here: it is short where "
        "there is an archive",
        ge=-1,
    )
    remote_log_retention_bytes: int = Field(
        -1,
        description="what a partition holds in the archive beyond this is deleted, oldest first; "
        "-1: no limit",
        ge=-1,
    )
    local_retention_ms: int = Field(
        -1,
        description="records older than this are deleted from the brokers once they are archived, "
        "by DeleteRecords; the topic's own retention must be unlimited then (retention.ms=-1, "
        "retention.bytes=-1), as a broker does not wait for the copy; -1: not by the archiver",
        ge=-1,
    )
    local_retention_bytes: int = Field(
        -1,
        description="as `local_retention_ms`: archived records beyond so many bytes a partition "
        "are deleted from the brokers",
        ge=-1,
    )
    retention_overrides: OptionalRetentionOverrides = Field(
        None,
        description="the four keys above by topic: a table of patterns for whole topic names, the "
        'first that matches counts, as `"orders[.].*" = { remote_log_retention_ms = 86400000 }`; '
        "as text the same in JSON",
    )
    follow_topic_retention: bool = Field(
        False,
        description="the topic's own settings count before `archive.*`, though not before an "
        "override: with remote.storage.enable=true its retention.ms and retention.bytes, which are "
        "then those of both tiers; without it its local.retention.ms and local.retention.bytes",
    )
    retention_check_interval_ms: int = Field(
        300_000,
        description="between two looks at what of a partition is to be deleted, in either tier; "
        "each lists the partition (log.retention.check.interval.ms)",
        ge=1,
    )
    retention_grace_ms: int = Field(
        300_000,
        description="a segment's objects are deleted this long after it was hidden, for readers in "
        "flight and for proxies whose view is metadata.view_age_max_ms old (file.delete.delay.ms)",
        ge=0,
    )
    retention_step_grace_ms: int = Field(
        86_400_000,
        description="retention that would hide more than half of a partition at once is announced "
        "(log, metrics, console) and waits this long: a day to notice a mistyped retention or a "
        "wrong clock, and to take it back. 0: it does not wait, and the clock is not compared with "
        "those of the store and of producers",
        ge=0,
    )
    retention_deletes_per_turn_max: int = Field(
        16,
        description="segments hidden or deleted before the partition's copying goes on",
        ge=1,
    )
    retention_clock_settle_ms: int = Field(
        60_000,
        description="retention by time waits until the system's clock has run evenly for this "
        "long, after the start and after each jump, so that a wrong clock deletes nothing",
        ge=0,
    )
    orphan_check_interval_ms: int = Field(
        3_600_000,
        description="between two looks for objects that no metadata names; each lists the "
        "partition",
        ge=1,
    )
    orphan_age_min_ms: int = Field(
        3_600_000,
        description="such an object is deleted once it was seen this long; above `copy_max_ms`, "
        "which an upload may take whose answer was lost",
        ge=0,
    )
    topic_deletion: Literal["delete", "keep", "delete-all"] = Field(
        "delete",
        description="what becomes of the archive of a topic that the cluster has deleted. `delete` "
        "stops where most topics are gone at once, or none is left of those that the cluster had: "
        "then it may be another cluster with the same id. `delete-all` does not stop: set it for "
        "as long as that takes; `keep` for a while keeps those for good",
    )
    topic_deletion_grace_ms: int = Field(
        86_400_000,
        description="the cluster must have denied such a topic for this long at every look: a day "
        "is time to notice a mistake, and for a cluster that shows itself by half",
        ge=0,
    )
    topic_deletion_check_interval_ms: int = Field(
        300_000, description="between two looks for them; each lists the archive's partitions", ge=1
    )
