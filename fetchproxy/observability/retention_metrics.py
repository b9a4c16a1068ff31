"""Metrics of what deletes, in either tier; `observability.metrics` names them with all others."""

from __future__ import annotations

from fetchproxy.observability.registry import counter, gauge

_BTM = "kafka_server_brokertopicmetrics"

REMOTE_DELETE_REQUESTS = counter(
    f"{_BTM}_remotedeleterequests",
    "Segment deletions that were begun (RemoteDeleteRequests)",
    "topic",
)
REMOTE_DELETE_ERRORS = counter(
    f"{_BTM}_remotedeleteerrors", "Segment deletions that failed (RemoteDeleteErrors)", "topic"
)
REMOTE_DELETE_LAG_BYTES = gauge(
    f"{_BTM}_remotedeletelagbytes",
    "Bytes of segments that are to go and are still stored (RemoteDeleteLagBytes)",
    "topic",
    "partition",
)
REMOTE_DELETE_LAG_SEGMENTS = gauge(
    f"{_BTM}_remotedeletelagsegments",
    "Segments that are to go and are still stored (RemoteDeleteLagSegments)",
    "topic",
    "partition",
)
REMOTE_LOG_SIZE_BYTES = gauge(
    f"{_BTM}_remotelogsizebytes",
    "Bytes of the finished segments from the log start on (RemoteLogSizeBytes)",
    "topic",
    "partition",
)
REMOTE_LOG_METADATA_COUNT = gauge(
    f"{_BTM}_remotelogmetadatacount",
    "Segments that metadata name, in any state (RemoteLogMetadataCount)",
    "topic",
    "partition",
)
ORPHAN_OBJECTS_DELETED = counter(
    "fetchproxy_orphan_objects_deleted", "Objects deleted that no metadata named", "topic"
)
LOCAL_LOG_TRIMMED = counter(
    "fetchproxy_local_log_trimmed",
    "Times that archived records were deleted from the brokers by local retention",
    "topic",
)
LOCAL_TRIMMING_REFUSED = gauge(
    "fetchproxy_local_trimming_refused",
    "Topics whose own settings contradict archive.local_retention_*; the log says why",
)
DELETED_PARTITIONS = counter(
    "fetchproxy_deleted_partitions", "Partitions deleted with their topic", "topic"
)
