"""The section `archive_only` of the configuration. Declares keys and nothing else."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fetchproxy.config.section import KiB, MiB, Section


class ArchiveOnlyConfig(Section):
    """Serving an archive without its cluster (`fetchproxy serve --archive-only`)."""

    enabled: bool = Field(
        False, description="answer every client from the archive alone; no broker is asked"
    )
    open_to_anybody: bool = Field(
        False,
        description="whoever reaches the listener may read the whole archive; beyond loopback it "
        "starts with this, with `users_file` or with `gateway.tls_client_auth = required` only",
    )
    users_file: Path | None = Field(
        None,
        description="clients log in by SASL (PLAIN, SCRAM) as users of this file, which says what "
        "each may read; lines for it are made by `fetchproxy user`; changes count within seconds",
    )
    refresh_interval_ms: int = Field(
        5_000,
        description="topics and segments that another process archives are seen within this; each "
        "look lists the archive's partitions, which an S3 store charges for",
        ge=50,
    )
    offsets_file: Path | None = Field(
        None,
        description="where committed offsets are kept; not set: in memory, so they are lost when "
        "the process ends",
    )
    offsets_max: int = Field(
        100_000,
        description="committed offsets of all groups; the file is written whole at each commit",
        ge=1,
    )
    offset_metadata_bytes_max: int = Field(
        4_096, description="of a commit's metadata (offset.metadata.max.bytes)", ge=0
    )
    request_bytes_max: int = Field(
        1 * MiB,
        description="largest request: nobody produces here, so it is far below gateway's",
        ge=KiB,
    )
    groups_max: int = Field(10_000, description="groups with members at once", ge=1)
    groups_bytes_max: int = Field(
        256 * MiB,
        description="what members of all groups brought and were given, and committed offsets, "
        "names included; above it members and new commits are turned away",
        ge=KiB,
    )
    group_members_max: int = Field(1_000, description="members of one group (group.max.size)", ge=1)
    group_session_timeout_min_ms: int = Field(
        6_000, description="group.min.session.timeout.ms", ge=1
    )
    group_session_timeout_max_ms: int = Field(
        1_800_000, description="group.max.session.timeout.ms", ge=1
    )
    group_initial_rebalance_delay_ms: int = Field(
        3_000,
        description="a new group waits this long for further members "
        "(group.initial.rebalance.delay.ms)",
        ge=0,
    )
