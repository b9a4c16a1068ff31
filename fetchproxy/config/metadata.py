"""The section `metadata` of the configuration. Declares keys and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field

from fetchproxy.config.section import KiB, Section


class MetadataConfig(Section):
    """What the proxy knows of the archive."""

    manager: Literal["store", "topic"] = Field(
        "store",
        description="where segments' states are read from: the store itself, or the topic "
        "`__remote_log_metadata`, which costs no listings and keeps 100 bytes per segment in "
        "memory; every process of one archive must have the same (archive-only always reads the "
        "store)",
    )
    topic_name: str = Field(
        "__remote_log_metadata",
        description="another name is needed where the brokers have tiered storage of their own, "
        "which takes this one, or for a second archive of the same cluster",
    )
    topic_partitions: int = Field(
        50,
        description="of the metadata topic (remote.log.metadata.topic.num.partitions); never "
        "changed afterwards, as it says where a partition's events are",
        ge=1,
    )
    topic_replication_factor: int = Field(
        3, description="of the metadata topic (remote.log.metadata.topic.replication.factor)", ge=1
    )
    cache_dir: Path | None = Field(
        None,
        description="where what was read of the metadata topic is kept, so that a restart reads "
        "only what is new; not set: in memory alone, and a start reads the whole topic",
    )
    refresh_interval_ms: int = Field(
        5_000, description="between two looks of the console at store and brokers", ge=1
    )
    view_age_max_ms: int = Field(
        30_000,
        description="a partition's view that is older and still in use is read again in the "
        "background: so long what another process has deleted may still be served",
        ge=1,
    )
    metadata_read_max_ms: int = Field(
        10_000,
        description="a listing or a read of metadata is given up when nothing came for so long",
        ge=1,
    )
    metadata_reads_max: int = Field(
        32,
        description="metadata objects read at once per topic, or partitions of the metadata "
        "topic: as many as there are connections to a store, whose latency they wait for",
        ge=1,
    )
    topic_read_bytes: int = Field(
        256 * KiB,
        description="of the metadata topic per fetch; decoding one holds up everything else for "
        "some 20 ms",
        ge=KiB,
    )

    @property
    def ruling(self) -> str:
        """Which metadata manager it is, as the archive states it."""
        return self.manager if self.manager == "store" else f"{self.manager} {self.topic_name}"
