"""Every metric of fetchproxy, declared once, on one registry; `docs/metrics.md` is made from here.

Names are Kafka's own where Kafka has the metric (KIP-405 and KIP-963, as a JMX exporter spells
them: domain, type, name, without the rate suffix), so that existing alerts go on working; the rest
begin with `fetchproxy_`. Modules count here and read nothing back: no decision may hang on a
metric. Labels are bounded sets, or topic and partition as in Kafka; never a client or an offset.
On hot paths use the bound children at the end of each block, as `labels()` costs a lookup.
"""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

from fetchproxy.observability.budget_metrics import (
    ARCHIVE_THROTTLE_SECONDS as ARCHIVE_THROTTLE_SECONDS,
)
from fetchproxy.observability.budget_metrics import (
    CLIENT_THROTTLE_SECONDS as CLIENT_THROTTLE_SECONDS,
)
from fetchproxy.observability.budget_metrics import CLIENT_THROTTLES as CLIENT_THROTTLES
from fetchproxy.observability.budget_metrics import (
    EVENT_LOOP_BUSY_SECONDS as EVENT_LOOP_BUSY_SECONDS,
)
from fetchproxy.observability.budget_metrics import EVENT_LOOP_CPU_SECONDS as EVENT_LOOP_CPU_SECONDS
from fetchproxy.observability.budget_metrics import (
    EVENT_LOOP_HELD_SECONDS as EVENT_LOOP_HELD_SECONDS,
)
from fetchproxy.observability.budget_metrics import (
    EVENT_LOOP_LONGEST_SECONDS as EVENT_LOOP_LONGEST_SECONDS,
)
from fetchproxy.observability.budget_metrics import EVENT_LOOP_TURNS as EVENT_LOOP_TURNS
from fetchproxy.observability.budget_metrics import MEMORY_BUDGET_BYTES as MEMORY_BUDGET_BYTES
from fetchproxy.observability.budget_metrics import MEMORY_USED_BYTES as MEMORY_USED_BYTES
from fetchproxy.observability.budget_metrics import READERS_WAITING as READERS_WAITING
from fetchproxy.observability.budget_metrics import REMOTE_ANSWER_BYTES as REMOTE_ANSWER_BYTES
from fetchproxy.observability.budget_metrics import REMOTE_ANSWERS_WAITING as REMOTE_ANSWERS_WAITING
from fetchproxy.observability.catch_metrics import CATCH_OUTCOMES as CATCH_OUTCOMES
from fetchproxy.observability.catch_metrics import CATCHES as CATCHES
from fetchproxy.observability.catch_metrics import HELD_PARTITIONS as HELD_PARTITIONS
from fetchproxy.observability.catch_metrics import OFFSETS_SKIPPED as OFFSETS_SKIPPED
from fetchproxy.observability.catch_metrics import READERS_LED_ON as READERS_LED_ON
from fetchproxy.observability.cluster_metrics import ARCHIVER_DISK_FAILING as ARCHIVER_DISK_FAILING
from fetchproxy.observability.cluster_metrics import ARCHIVERS_HEARD as ARCHIVERS_HEARD
from fetchproxy.observability.cluster_metrics import ARCHIVERS_SILENT as ARCHIVERS_SILENT
from fetchproxy.observability.cluster_metrics import BROKERS_KNOWN as BROKERS_KNOWN
from fetchproxy.observability.cluster_metrics import BROKERS_REACHABLE as BROKERS_REACHABLE
from fetchproxy.observability.cluster_metrics import (
    CLUSTER_AUTHENTICATION_REFUSALS as CLUSTER_AUTHENTICATION_REFUSALS,
)
from fetchproxy.observability.index_metrics import LOCAL_INDEX_BYTES as LOCAL_INDEX_BYTES
from fetchproxy.observability.index_metrics import LOCAL_INDEX_FILES as LOCAL_INDEX_FILES
from fetchproxy.observability.index_metrics import LOCAL_INDEX_READS as LOCAL_INDEX_READS
from fetchproxy.observability.index_metrics import LOCAL_INDEX_REBUILDS as LOCAL_INDEX_REBUILDS
from fetchproxy.observability.reading_metrics import DISK_CACHE_BYTES as DISK_CACHE_BYTES
from fetchproxy.observability.reading_metrics import DISK_CACHE_ERRORS as DISK_CACHE_ERRORS
from fetchproxy.observability.reading_metrics import DISK_CACHE_EVICTIONS as DISK_CACHE_EVICTIONS
from fetchproxy.observability.reading_metrics import DISK_CACHE_HITS as DISK_CACHE_HITS
from fetchproxy.observability.reading_metrics import DISK_CACHE_MISSES as DISK_CACHE_MISSES
from fetchproxy.observability.reading_metrics import (
    DISK_CACHE_NOT_WRITTEN as DISK_CACHE_NOT_WRITTEN,
)
from fetchproxy.observability.reading_metrics import HEDGED_READS as HEDGED_READS
from fetchproxy.observability.reading_metrics import READ_AHEAD_CHUNKS as READ_AHEAD_CHUNKS
from fetchproxy.observability.reading_metrics import READ_AHEAD_UNUSED as READ_AHEAD_UNUSED
from fetchproxy.observability.registry import REGISTRY as REGISTRY
from fetchproxy.observability.registry import counter as _counter
from fetchproxy.observability.registry import gauge as _gauge
from fetchproxy.observability.registry import tallied_counter as _tallied_counter
from fetchproxy.observability.retention_metrics import DELETED_PARTITIONS as DELETED_PARTITIONS
from fetchproxy.observability.retention_metrics import LOCAL_LOG_TRIMMED as LOCAL_LOG_TRIMMED
from fetchproxy.observability.retention_metrics import (
    LOCAL_TRIMMING_REFUSED as LOCAL_TRIMMING_REFUSED,
)
from fetchproxy.observability.retention_metrics import (
    ORPHAN_OBJECTS_DELETED as ORPHAN_OBJECTS_DELETED,
)
from fetchproxy.observability.retention_metrics import REMOTE_DELETE_ERRORS as REMOTE_DELETE_ERRORS
from fetchproxy.observability.retention_metrics import (
    REMOTE_DELETE_LAG_BYTES as REMOTE_DELETE_LAG_BYTES,
)
from fetchproxy.observability.retention_metrics import (
    REMOTE_DELETE_LAG_SEGMENTS as REMOTE_DELETE_LAG_SEGMENTS,
)
from fetchproxy.observability.retention_metrics import (
    REMOTE_DELETE_REQUESTS as REMOTE_DELETE_REQUESTS,
)
from fetchproxy.observability.retention_metrics import (
    REMOTE_LOG_METADATA_COUNT as REMOTE_LOG_METADATA_COUNT,
)
from fetchproxy.observability.retention_metrics import (
    REMOTE_LOG_SIZE_BYTES as REMOTE_LOG_SIZE_BYTES,
)
from fetchproxy.observability.store_metrics import STORE_FAILING_SECONDS as STORE_FAILING_SECONDS
from fetchproxy.observability.store_metrics import STORE_REQUEST_ERRORS as STORE_REQUEST_ERRORS
from fetchproxy.observability.store_metrics import STORE_REQUEST_SECONDS as STORE_REQUEST_SECONDS
from fetchproxy.observability.store_metrics import STORE_SECONDS
from fetchproxy.observability.store_metrics import STORE_UP as STORE_UP

_BTM = "kafka_server_brokertopicmetrics"
_RSM = "kafka_log_remote_remotestoragemanager"

# Milliseconds, as Kafka's RemoteLogReaderFetchRateAndTimeMs counts them.
_READ_MS = (1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)


# --- Kafka's own: reading the archive -------------------------------------------------------------
REMOTE_FETCH_BYTES = _counter(
    f"{_BTM}_remotefetchbytes", "Bytes read from the store for fetches (RemoteFetchBytes)", "topic"
)
REMOTE_FETCH_REQUESTS = _counter(
    f"{_BTM}_remotefetchrequests", "Remote reads that were begun (RemoteFetchRequests)", "topic"
)
REMOTE_FETCH_ERRORS = _counter(
    f"{_BTM}_remotefetcherrors", "Remote reads that failed (RemoteFetchErrors)", "topic"
)
REMOTE_LOG_READER_TASK_QUEUE_SIZE = _gauge(
    f"{_RSM}_remotelogreadertaskqueuesize",
    "Remote reads that wait for a free fetcher (RemoteLogReaderTaskQueueSize)",
)
REMOTE_READS_IN_FLIGHT = _gauge(
    "fetchproxy_remote_reads_in_flight", "Range reads that the store has not answered yet"
)
REMOTE_LOG_READER_FETCH_TIME_MS = Histogram(
    f"{_RSM}_remotelogreaderfetchrateandtimems",
    "Milliseconds per remote read, with its retries (RemoteLogReaderFetchRateAndTimeMs)",
    registry=REGISTRY,
    buckets=_READ_MS,
)
DELAYED_REMOTE_FETCH_EXPIRES = _counter(
    "kafka_server_delayedremotefetchmetrics_expires",
    "Waiting fetches that reached their deadline (DelayedRemoteFetchMetrics ExpiresPerSec)",
)

# --- Kafka's own: writing the archive -------------------------------------------------------------
REMOTE_COPY_BYTES = _counter(
    f"{_BTM}_remotecopybytes", "Bytes of segments copied to the store (RemoteCopyBytes)", "topic"
)
REMOTE_COPY_REQUESTS = _counter(
    f"{_BTM}_remotecopyrequests", "Segment copies that were begun (RemoteCopyRequests)", "topic"
)
REMOTE_COPY_ERRORS = _counter(
    f"{_BTM}_remotecopyerrors", "Segment copies that failed (RemoteCopyErrors)", "topic"
)
REMOTE_COPY_LAG_BYTES = _gauge(
    f"{_BTM}_remotecopylagbytes",
    "Bytes gathered and not copied yet (RemoteCopyLagBytes)",
    "topic",
    "partition",
)
REMOTE_COPY_LAG_SEGMENTS = _gauge(
    f"{_BTM}_remotecopylagsegments",
    "Closed segments not copied yet (RemoteCopyLagSegments)",
    "topic",
    "partition",
)

# --- The gateway ----------------------------------------------------------------------------------
CONNECTIONS = _gauge("fetchproxy_connections", "Client connections that are open")
CONNECTIONS_REFUSED = _counter(
    "fetchproxy_connections_refused",
    "Client connections closed at once: limit or broker_unreachable",
    "reason",
    values=("limit", "broker_unreachable"),
)
RELAYED_BYTES = _tallied_counter(
    "fetchproxy_relayed_bytes", "Bytes relayed: to_broker or to_client", "direction"
)
RELAYED_BYTES_TO_BROKER = RELAYED_BYTES.tally(direction="to_broker")
RELAYED_BYTES_TO_CLIENT = RELAYED_BYTES.tally(direction="to_client")
SPLICED_BYTES = _counter("fetchproxy_spliced_bytes", "Of those to clients, bytes never copied")
WIRE_ERRORS = _counter(
    "fetchproxy_wire_errors",
    "Connections closed for bytes that are not Kafka's protocol, by kind of fault",
    "kind",
)
LIMITS_REACHED = _counter(
    "fetchproxy_limits_reached",
    "How often a named limit was reached, by its configuration key",
    "limit",
)

# --- TLS ------------------------------------------------------------------------------------------
TLS_HANDSHAKES_FAILED = _counter(
    "fetchproxy_tls_handshakes_failed",
    "Clients closed before they were through the handshake: plaintext, version, no_certificate, "
    "certificate, certificate_refused, server_name, timeout, closed or other",
    "reason",
    values=(
        "plaintext",
        "version",
        "no_certificate",
        "certificate",
        "certificate_refused",
        "server_name",
        "timeout",
        "closed",
        "other",
    ),
)
TLS_CERTIFICATE_EXPIRY = _gauge(
    "fetchproxy_tls_certificate_expiry_timestamp_seconds",
    "When our own certificate in use ends, in epoch seconds; place: listener or upstream",
    "place",
)
TLS_FILES_UNUSABLE = _gauge(
    "fetchproxy_tls_files_unusable",
    "1: changed files could not be loaded and the former ones are still in use; an alarm",
    "place",
)
TLS_RELOADS = _counter(
    "fetchproxy_tls_reloads", "Times that changed files were loaded without a restart", "place"
)

# --- RemoteFetchPurgatory and the fetcher pool ----------------------------------------------------
PURGATORY_ENTRIES = _gauge("fetchproxy_purgatory_entries", "Fetches that wait for remote data")
PURGATORY_COMPLETED = _counter(
    "fetchproxy_purgatory_completed",
    "Waiting fetches answered: data, error, deadline or cancelled (the client left)",
    "reason",
    values=("data", "error", "deadline", "cancelled"),
)
BACKOFFS = _counter("fetchproxy_backoffs", "Pauses taken after a storage error")
CORRUPT_CHUNKS = _counter(
    "fetchproxy_corrupt_chunks", "Chunks whose bytes failed their own CRC-32C; each is an alarm"
)

# --- The chunk cache ------------------------------------------------------------------------------
CHUNK_CACHE_BYTES = _gauge("fetchproxy_chunk_cache_bytes", "Bytes in the chunk cache")
CHUNK_CACHE_HITS = _counter("fetchproxy_chunk_cache_hits", "Chunks found in the cache")
CHUNK_CACHE_MISSES = _counter(
    "fetchproxy_chunk_cache_misses", "Chunks read from disk cache or store"
)
CHUNK_CACHE_EVICTIONS = _counter(
    "fetchproxy_chunk_cache_evictions", "Chunks pushed out to make room"
)

# --- The archive's ranges -------------------------------------------------------------------------
ARCHIVE_START_OFFSET = _gauge(
    "fetchproxy_archive_start_offset", "First archived offset", "topic", "partition"
)
ARCHIVE_END_OFFSET = _gauge(
    "fetchproxy_archive_end_offset", "One past the last archived offset", "topic", "partition"
)
ARCHIVE_LAG_OFFSETS = _gauge(
    "fetchproxy_archive_lag_offsets",
    "Offsets below the last stable offset that are not archived yet",
    "topic",
    "partition",
)
ARCHIVE_MARGIN_OFFSETS = _gauge(
    "fetchproxy_archive_margin_offsets",
    "Archive end minus the broker's log start: below 0, data was lost before it was copied",
    "topic",
    "partition",
)
ARCHIVE_GAPS = _counter(
    "fetchproxy_archive_gaps",
    "Ranges that the broker deleted before they were copied",
    "topic",
    "partition",
)
ARCHIVE_REFUSED_TOPICS = _gauge(
    "fetchproxy_archive_refused_topics",
    "Topics that archive.topics matches and that cannot be archived; the log says why",
)
ARCHIVE_CONCERNS = _gauge(
    "fetchproxy_archive_concerns",
    "What there is to see to, or to know, in the whole archive, by its name in the log, in verify, "
    "segments and /api/status. Each process says it of the whole archive: take the maximum",
    "concern",
)
ARCHIVE_CONCERN_OFFSETS = _gauge(
    "fetchproxy_archive_concern_offsets",
    "Offsets that these are about: lost, missing, put aside, announced; 0 of those about none",
    "concern",
)
ARCHIVE_TRUNCATED_OFFSETS = _counter(
    "fetchproxy_archive_truncated_offsets",
    "Archived offsets that an unclean leader election took out of the log, and the archiver out of "
    "the archive; each is an alarm",
    "topic",
    "partition",
)
ARCHIVER_RESTARTS = _counter(
    "fetchproxy_archiver_restarts", "Times that the archiver failed as a whole and began again"
)

# --- Leadership, turns and the margin -------------------------------------------------------------
ARCHIVE_LEADER_PARTITIONS = _gauge(
    "fetchproxy_archive_leader_partitions", "Partitions that this archiver leads"
)
ARCHIVE_GROUP_STABLE = _gauge(
    "fetchproxy_archive_group_stable",
    "1: this archiver is a member of its consumer group and knows its part; 0: it is not",
)
ARCHIVE_GROUP_REBALANCES = _counter(
    "fetchproxy_archive_group_rebalances", "Times that this archiver has been assigned its part"
)
ARCHIVE_GROUP_LOST = _counter(
    "fetchproxy_archive_group_lost",
    "Times that this archiver was out of its group without leaving it, and led nothing: expired, "
    "fenced or error",
    "reason",
    values=("expired", "fenced", "error"),
)
ARCHIVE_OLDEST_COPY_SECONDS = _gauge(
    "fetchproxy_archive_oldest_copy_seconds",
    "Age of the copy that has been under way for longest; 0: none is",
)
ARCHIVE_STALLED_COPIES = _gauge(
    "fetchproxy_archive_stalled_copies",
    "Copies that have used up half of archive.copy_max_ms; at the whole of it they are ended",
)
ARCHIVE_TURNS_ENDED = _counter(
    "fetchproxy_archive_turns_ended", "Turns that took over archive.turn_max_ms and were ended"
)
ARCHIVE_RETENTION_USED_SHARE = _gauge(
    "fetchproxy_archive_retention_used_share",
    "Share of the broker's retention that the oldest record not archived has used up; at 1 the "
    "broker deletes it uncopied",
    "topic",
    "partition",
)

# --- Metadata -------------------------------------------------------------------------------------
METADATA_REFRESH_SECONDS = Histogram(
    "fetchproxy_metadata_refresh_seconds",
    "Seconds to learn anew what the archive holds of a partition",
    registry=REGISTRY,
    buckets=STORE_SECONDS,
)
METADATA_REFRESH_ERRORS = _counter(
    "fetchproxy_metadata_refresh_errors", "Refreshes that failed; the old view stays"
)
METADATA_UNREADABLE = _counter(
    "fetchproxy_metadata_unreadable",
    "Segment metadata objects that could not be read, once per version; each is an alarm",
)
METADATA_EVENTS_READ = _counter(
    "fetchproxy_metadata_events_read", "Events read of the metadata topic"
)
METADATA_EVENTS_WRITTEN = _counter(
    "fetchproxy_metadata_events_written", "Events that this process has written to it"
)
METADATA_EVENTS_REFUSED = _counter(
    "fetchproxy_metadata_events_refused",
    "Events that did not count at their place in the metadata topic: repeated, or second in a race",
)
METADATA_LAG = _gauge(
    "fetchproxy_metadata_lag_events",
    "Events of the metadata topic that are known to exist and were not read yet, by its partition",
    "partition",
)

# --- Archive-only mode ----------------------------------------------------------------------------
ARCHIVE_ONLY_REQUESTS = _counter(
    "fetchproxy_archive_only_requests", "Requests answered without a cluster, by API", "api"
)
ARCHIVE_ONLY_REFUSED = _counter(
    "fetchproxy_archive_only_refused",
    "Requests that an archive cannot answer, by API key",
    "api",
)
ARCHIVE_ONLY_LOGINS = _counter(
    "fetchproxy_archive_only_logins",
    "Logins of users of the archive's own (archive_only.users_file): accepted, refused",
    "result",
    values=("accepted", "refused"),
)
ARCHIVE_ONLY_TOPICS = _gauge(
    "fetchproxy_archive_only_topics", "Topics that archive-only mode serves"
)
ARCHIVE_ONLY_GROUPS = _gauge(
    "fetchproxy_archive_only_groups", "Groups with members, or with one about to join"
)

# --- The process ----------------------------------------------------------------------------------
HEAP_FREED_BYTES = _gauge(
    "fetchproxy_heap_freed_bytes",
    "Free memory within the C library's heap, with what was given back to the system already",
)
HEAP_TRIMS = _counter(
    "fetchproxy_heap_trims", "Times that freed memory was given back to the system"
)


def table() -> str:
    """A Markdown table of every metric: name as scraped, kind, labels, meaning."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for collector in (value for value in globals().values() if _is_declared(value)):
        for family in collector.describe():
            name = family.name + ("_total" if family.type == "counter" else "")
            labels = ", ".join(collector._labelnames) or "–"
            rows.append(f"| `{name}` | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(rows) + "\n"


def _is_declared(value: object) -> bool:
    """A metric as declared above, not one of its bound children (these have label values)."""
    return isinstance(value, Counter | Gauge | Histogram) and not value._labelvalues
