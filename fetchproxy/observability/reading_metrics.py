"""Metrics of reading ahead, disk cache and hedged reads; `metrics` names them with all others."""

from __future__ import annotations

from fetchproxy.observability.registry import counter, gauge

READ_AHEAD_CHUNKS = counter(
    "fetchproxy_read_ahead_chunks", "Chunks whose read was begun before anybody asked for them"
)
READ_AHEAD_UNUSED = counter(
    "fetchproxy_read_ahead_chunks_unused", "Chunks read ahead that left the cache unused"
)
DISK_CACHE_BYTES = gauge("fetchproxy_disk_cache_bytes", "Bytes of files in the disk cache")
DISK_CACHE_HITS = counter("fetchproxy_disk_cache_hits", "Chunks read from the disk cache")
DISK_CACHE_MISSES = counter(
    "fetchproxy_disk_cache_misses", "Chunks that were not in the disk cache, or not sound"
)
DISK_CACHE_EVICTIONS = counter(
    "fetchproxy_disk_cache_evictions", "Chunks removed from the disk cache to make room"
)
DISK_CACHE_NOT_WRITTEN = counter(
    "fetchproxy_disk_cache_not_written",
    "Chunks that did not enter the disk cache: busy (disk_cache_writes_max), full (the file system "
    "or the chunk is too large), failed (the disk)",
    "reason",
)
DISK_CACHE_ERRORS = counter(
    "fetchproxy_disk_cache_errors",
    "Files of the disk cache that were given up: damaged (read again from the store), failed (the "
    "disk)",
    "kind",
)
HEDGED_READS = counter(
    "fetchproxy_hedged_reads",
    "Slow range reads by what became of the second request: won (it was faster), lost, refused (no "
    "place in the budget), limited (hedged_reads_share_max)",
    "outcome",
)
