"""Metrics of the local remote log indexes; `observability.metrics` names them with all others."""

from __future__ import annotations

from fetchproxy.observability.registry import counter, gauge

LOCAL_INDEX_BYTES = gauge(
    "fetchproxy_local_index_bytes", "Bytes of local index files, of partitions opened so far"
)
LOCAL_INDEX_FILES = gauge(
    "fetchproxy_local_index_files", "Local index files, of partitions opened so far"
)
LOCAL_INDEX_REBUILDS = counter(
    "fetchproxy_local_index_rebuilds",
    "Times that local index files were torn or damaged, and were cut and made again",
)
LOCAL_INDEX_READS = counter(
    "fetchproxy_local_index_reads",
    "Segments looked up in a local index: hit (no request to the store), or a fallback to the "
    "store: absent, damaged or failed (the disk)",
    "outcome",
)
