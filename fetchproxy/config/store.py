"""The section `store` of the configuration. Declares keys and nothing else."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fetchproxy.config.forms import OptionalUrl
from fetchproxy.config.section import MiB, Section


class StoreConfig(Section):
    """The object store that holds the archive."""

    url: OptionalUrl = Field(
        None,
        description="file:///path, s3://bucket/prefix?endpoint_url=… or webhdfs://host:port/path",
    )
    hdfs_token_file: Path | None = Field(
        None,
        description="holds a delegation token for an HDFS, read at the first request and again when"
        " the token is refused; none: the URL's user is believed, as HDFS does without Kerberos",
    )
    part_bytes: int = Field(8 * MiB, description="unit of a multipart upload", ge=5 * MiB)
    parts_in_flight_max: int = Field(
        4, description="parts of one upload sent at once; memory is this times part_bytes", ge=1
    )
    threads_max: int = Field(
        8, description="for blocking file calls; a hanging disk holds these, never the loop", ge=1
    )
    connections_max: int = Field(
        32, description="to the store; range reads of S3 have as many of their own", ge=1
    )
    connect_max_ms: int = Field(3_000, description="to reach the store", ge=1)
    read_max_ms: int = Field(20_000, description="silence of the store within an answer", ge=1)
    write_max_ms: int = Field(
        60_000,
        description="sending one part to the store may take this; then it is tried again"
        " (a part of 8 MiB needs 140 KiB/s)",
        ge=1,
    )
