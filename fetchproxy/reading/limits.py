"""Bounds of reads from the archive that are not settings. Tests pass other values."""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.config.memory_plan import CHUNK_BYTES, DISK_CACHE_WRITES_MAX
from fetchproxy.config.schema import MiB


@dataclass(frozen=True, kw_only=True)
class ReadingLimits:
    # Range reads in flight. A process uses `store.connections_max` instead.
    fetcher_tasks_max: int = 32
    # So many, if all of them are small (`read_budget.SMALL_READ_BYTES_MAX`). A process uses
    # `store.small_reads_max`. None: no more than of others.
    small_reads_max: int | None = None
    # Unit of a range read and of the cache. `process.memory_bytes_max` assumes the default.
    chunk_bytes: int = CHUNK_BYTES
    # Chunks that are read ahead of a sequential reader, also across segments. A reader gets this
    # many only if fewer make it wait. All readers together get at most half of the cache. 0: none.
    read_ahead_chunks_max: int = 16
    # Pauses after a storage error. The first ones are short, for a brief failure. Later ones are
    # long, to spare a store that stays down. A part of each pause is random, so that many readers
    # do not come back at once.
    backoff_initial_ms: int = 100
    backoff_max_ms: int = 5_000
    backoff_jitter: float = 0.2
    # A range read without a response for this long is cancelled and tried again. A process uses 1.5
    # times the store's own time-out if that is longer.
    chunk_read_max_ms: int = 30_000
    # A failing read is given up if no client has asked for it again for this long. Clients ask
    # again after their max_wait, which is far shorter.
    unasked_read_max_ms: int = 30_000
    # Bytes that were corrupt in two reads are not read again before this: they are corrupt in the
    # store, but an operator may repair them.
    corrupt_retry_ms: int = 60_000
    # Left free on the disk cache's file system, because other programs write there too. The cache
    # shrinks to keep it free.
    disk_cache_free_bytes_min: int = 1024 * MiB
    # Chunks that wait to be written to the disk. Further chunks are not cached, because no reader
    # waits for the disk.
    disk_cache_writes_max: int = DISK_CACHE_WRITES_MAX
    # Share of range reads that may be sent a second time when they are slow; the faster response
    # counts. The store gets, and charges for, at most this share of extra requests. 0: none.
    hedged_reads_share_max: float = 0.05
    # A read is slow after the 95th percentile of the last reads' times, bounded by these two. As
    # long as too few times are known, only a read above the maximum is slow.
    hedge_after_min_ms: int = 20
    hedge_after_max_ms: int = 2_000
    # Fetches that wait for archived records; further fetches wait for a place. A connection has one
    # fetch.
    purgatory_entries_max: int = 10_000
