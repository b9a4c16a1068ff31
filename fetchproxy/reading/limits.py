"""The bounds of reads from the archive that nobody has to set. Tests pass others."""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.config.memory_plan import CHUNK_BYTES, DISK_CACHE_WRITES_MAX
from fetchproxy.config.schema import MiB


@dataclass(frozen=True, kw_only=True)
class ReadingLimits:
    # Range reads in flight; a process has `store.connections_max`.
    fetcher_tasks_max: int = 32
    # Unit of a range read and of the cache. `process.memory_bytes_max` counts with the default.
    chunk_bytes: int = CHUNK_BYTES
    # Read ahead of a sequential reader, also across segments. A reader gets so many only if fewer
    # make it wait; all readers together get at most half of the cache. 0: none.
    read_ahead_chunks_max: int = 16
    # Pauses after a storage error: short enough for a hiccup, then no load for a store that is down
    # for long. A part of each is random, so that many readers do not come back at once.
    backoff_initial_ms: int = 100
    backoff_max_ms: int = 5_000
    backoff_jitter: float = 0.2
    # A range read without an answer is given up and tried again. Above the store's own time-out: a
    # process has half as much again as that where it is longer.
    chunk_read_max_ms: int = 30_000
    # A failing read that no client has asked for again for this long is given up. Clients ask again
    # after their max_wait, which is far shorter.
    unasked_read_max_ms: int = 30_000
    # Bytes that were found corrupt twice are not read again before this: the store has them so, but
    # somebody may repair them.
    corrupt_retry_ms: int = 60_000
    # Left free on the disk cache's file system, as others write there. The cache shrinks for it.
    disk_cache_free_bytes_min: int = 1024 * MiB
    # Chunks that wait to be written to the disk. More are not cached: no reader waits for it.
    disk_cache_writes_max: int = DISK_CACHE_WRITES_MAX
    # Share of range reads that may be sent a second time when they are slow; the faster answer
    # counts. The store gets, and charges for, at most this share of requests more. 0: none.
    hedged_reads_share_max: float = 0.05
    # A read is slow after the 95th percentile of the last ones, within these. The upper one counts
    # before any is known.
    hedge_after_min_ms: int = 20
    hedge_after_max_ms: int = 2_000
    # Fetches that wait for archived records; more wait for a place. A connection has one fetch.
    purgatory_entries_max: int = 10_000
