"""The section `remote_fetch` of the configuration. Declares keys and nothing else."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from fetchproxy.config.section import KiB, MiB, Section


class RemoteFetchConfig(Section):
    """Reads from the archive."""

    remote_fetch_max_wait_ms: int = Field(
        30_000,
        description="longest a fetch waits for remote data, where its own max_wait is longer still "
        "(remote.fetch.max.wait.ms, which Kafka has instead of the client's); as long as clients "
        "wait for an answer",
        ge=1,
    )
    remote_error_after_ms: int = Field(
        60_000,
        description="a store failing for longer is shown to clients as KAFKA_STORAGE_ERROR",
        ge=0,
    )
    fetcher_tasks_max: int = Field(
        32, description="range reads in flight (remote.log.reader.threads)", ge=1
    )
    purgatory_entries_max: int = Field(10_000, description="waiting fetches", ge=1)
    inflight_bytes_max: int = Field(
        256 * MiB, description="bytes of chunks being read at once; further reads wait", ge=MiB
    )
    chunk_bytes: int = Field(4 * MiB, description="unit of a range read and of the cache", ge=KiB)
    chunk_cache_bytes_max: int = Field(256 * MiB, description="memory of the chunk cache", ge=0)
    read_ahead_chunks_max: int = Field(
        16,
        description="most chunks read ahead of a sequential reader, also across segments; reached "
        "only by one that has to wait with fewer, and all readers' together at most half of the "
        "cache; 0: none",
        ge=0,
    )
    client_bytes_per_s_max: int = Field(
        0,
        description="archived bytes a second that one client may have, over all its connections: "
        "who shows one certificate, else one address (of IPv6 a /64), whatever client ids it says; "
        "above it is throttled as by a broker's quota (consumer_byte_rate); relayed bytes do not "
        "count; 0: no limit",
        ge=0,
    )
    chunk_read_max_ms: int = Field(
        30_000, description="a range read without an answer is given up and tried again", ge=1
    )
    backoff_initial_ms: int = Field(100, description="first pause after a storage error", ge=1)
    backoff_max_ms: int = Field(5_000, description="longest pause between attempts", ge=1)
    backoff_jitter: float = Field(0.2, description="share of the pause that is random", ge=0, le=1)
    index_cache_bytes_max: int = Field(
        64 * MiB,
        description="memory of segments' indexes (remote.log.index.file.cache.total.size.bytes)",
        ge=MiB,
    )
    unasked_read_max_ms: int = Field(
        30_000,
        description="a failing read that no client has asked for again for this long is given up",
        ge=1,
    )
    corrupt_retry_ms: int = Field(
        60_000, description="bytes found corrupt twice are not read again before this", ge=1
    )
    disk_cache_dir: Path | None = Field(
        None,
        description="folder of a second cache of checked chunks, which survives a restart; of this "
        "process alone; off if not set",
    )
    disk_cache_bytes_max: int = Field(
        10_240 * MiB,
        description="of that folder; the longest unused chunk goes before this is reached",
        ge=MiB,
    )
    disk_cache_free_bytes_min: int = Field(
        1024 * MiB,
        description="left free on that folder's file system: the cache shrinks to keep it, since "
        "others write there too",
        ge=0,
    )
    disk_cache_writes_max: int = Field(
        8,
        description="chunks that may wait to be written there; what is beyond is not cached, as no "
        "reader waits for the disk",
        ge=1,
    )
    hedged_reads_share_max: float = Field(
        0.05,
        description="share of range reads that are asked a second time when slow, to take the "
        "faster answer; what a store is asked more at most; 0: none",
        ge=0,
        le=1,
    )
    hedge_after_min_ms: int = Field(
        20, description="a read is slow after the 95th percentile of the last, but not before", ge=1
    )
    hedge_after_max_ms: int = Field(
        2_000, description="a read is slow after this in any case, also before any is known", ge=1
    )
