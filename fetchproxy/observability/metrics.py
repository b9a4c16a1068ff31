"""Every metric of fetchproxy, declared once.

It is the source of docs/reference/metrics.md. `REGISTRY` has every series. `BY_TOPIC` has one
series for each topic where the other has one for each of its partitions: a scrape then stays small,
however many partitions there are.
"""

from __future__ import annotations

import platform
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fetchproxy import __version__

# A `_created` series for each counter would double a scrape, and nobody reads it.
disable_created_metrics()  # type: ignore[no-untyped-call]

REGISTRY = CollectorRegistry()
BY_TOPIC = CollectorRegistry()
for _registry in (REGISTRY, BY_TOPIC):
    ProcessCollector(registry=_registry)  # process_cpu_seconds_total, process_resident_memory_bytes


_TAKING_OVER = Lock()  # two scrapes at once must not add the same counts twice
_TOPIC = ("topic",)
_PARTITION = (*_TOPIC, "partition")
_READER = ("address", "client_id", "user", "group")
# The labels of each metric. Series whose first label is the topic go with their topics.
_DECLARED: dict[Counter | Gauge | Histogram, tuple[str, ...]] = {}
_BTM = "kafka_server_brokertopicmetrics"
# Seconds, from a read of a local file in the page cache to a failing store.
STORE_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_RSM = "kafka_log_remote_remotestoragemanager"
# Milliseconds, as in Kafka's RemoteLogReaderFetchRateAndTimeMs.
_READ_MS = (1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000)


class _ByTopic(Collector):
    """A metric of partitions, as one series for each topic. `combine` makes its value from those of
    the partitions: their sum, as in Kafka's BrokerTopicMetrics, or the worst.
    """

    def __init__(
        self, metric: Counter | Gauge, combine: Callable[[Iterable[float]], float]
    ) -> None:
        self._metric, self._combine = metric, combine

    def describe(self) -> Iterable[Metric]:
        return self._metric.describe()

    def collect(self) -> Iterable[Metric]:
        samples_by_topics = defaultdict(list)
        for labels, value in values_of(self._metric):
            samples_by_topics[labels[0]].append(value)
        family_of = CounterMetricFamily if isinstance(self._metric, Counter) else GaugeMetricFamily
        for described in self._metric.describe():
            family = family_of(described.name, described.documentation, labels=_TOPIC)
        for topic, values in samples_by_topics.items():
            family.add_metric((topic,), self._combine(values))
        return [family]


class Tally:
    """Counts by `tally.total += n`, without the library counter's calls and lock.

    It counts relayed bytes. One thread counts; any thread may read.
    """

    __slots__ = ("exported", "total")

    def __init__(self) -> None:
        self.total = 0
        self.exported = 0  # the part of `total` that the counter has


class TalliedCounter(Counter):
    """A counter that adds the counts of its tallies at each scrape."""

    _tallies: tuple[tuple[Counter, Tally], ...] = ()

    def tally(self, **labels: str) -> Tally:
        tallied = Tally()
        self._tallies = (*self._tallies, (self.labels(**labels) if labels else self, tallied))
        return tallied

    def collect(self) -> Iterable[Metric]:
        with _TAKING_OVER:
            for counter, tally in self._tallies:
                total = tally.total
                counter.inc(total - tally.exported)
                tally.exported = total
        return super().collect()


def counter(name: str, help_text: str, *labels: str, values: Iterable[str] = ()) -> Counter:
    """`values` of its one label start at 0, as `increase()` would miss a first count otherwise."""
    metric = Counter(name, help_text, labels, registry=REGISTRY)
    for value in values:
        metric.labels(value)
    _declare(metric, labels)
    return metric


def gauge(
    name: str,
    help_text: str,
    *labels: str,
    sum_of_topic: Callable[[Iterable[float]], float] = sum,
) -> Gauge:
    """`sum_of_topic`: the value for a topic, from those of its partitions."""
    metric = Gauge(name, help_text, labels, registry=REGISTRY)
    _declare(metric, labels, sum_of_topic)
    return metric


def histogram(name: str, help_text: str, *labels: str, buckets: Sequence[float]) -> Histogram:
    metric = Histogram(name, help_text, labels, registry=REGISTRY, buckets=buckets)
    _declare(metric, labels)
    return metric


def _declare(
    metric: Counter | Gauge | Histogram,
    labels: tuple[str, ...],
    combine: Callable[[Iterable[float]], float] = sum,
) -> None:
    _DECLARED[metric] = labels
    if labels == _PARTITION and not isinstance(metric, Histogram):
        BY_TOPIC.register(_ByTopic(metric, combine))
    else:
        BY_TOPIC.register(metric)


EVENT_LOOP_LAG_SECONDS = histogram(
    "fetchproxy_event_loop_lag_seconds",
    "Seconds by which a timer of the event loop was late, measured twice a second: the loop was "
    "busy or had no core",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
EVENT_LOOP_HELD_SECONDS = histogram(
    "fetchproxy_event_loop_held_seconds",
    "Seconds of each turn of the event loop that took 1 ms or more; all other work waited for it",
    buckets=(0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
EVENT_LOOP_CPU_SECONDS = histogram(
    "fetchproxy_event_loop_cpu_seconds",
    "CPU seconds of each turn of 1 ms or more, without those of other threads and processes",
    buckets=(0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
STORE_REQUEST_SECONDS = histogram(
    "fetchproxy_store_request_seconds",
    "Seconds for each operation of the remote storage, by name",
    "operation",
    buckets=STORE_SECONDS,
)
REMOTE_LOG_READER_FETCH_TIME_MS = histogram(
    f"{_RSM}_remotelogreaderfetchrateandtimems",
    "Milliseconds of each remote read, with its retries (RemoteLogReaderFetchRateAndTimeMs)",
    buckets=_READ_MS,
)
METADATA_REFRESH_SECONDS = histogram(
    "fetchproxy_metadata_refresh_seconds",
    "Seconds for each refresh of the view of a partition's archive",
    buckets=STORE_SECONDS,
)

# Budgets, rates and the event loop's time.

ARCHIVE_THROTTLE_SECONDS = counter(
    "fetchproxy_archive_throttle_seconds",
    "Seconds that partitions have waited for archive.copy_bytes_per_s_max (Kafka's "
    "remote-copy-throttle-time)",
)
CLIENT_THROTTLES = counter(
    "fetchproxy_client_throttles",
    "Fetches of the archive that remote_fetch.client_bytes_per_s_max delayed (Kafka's "
    "remote-fetch-throttle-time)",
)
CLIENT_THROTTLE_SECONDS = counter(
    "fetchproxy_client_throttle_seconds", "Total seconds that clients were told to wait"
)
CLIENT_PAUSES = counter(
    "fetchproxy_client_pauses",
    "Pauses of librdkafka clients whose queue was full (fetch.queue.backoff.ms)",
)
PACED_RESPONSES = counter(
    "fetchproxy_paced_answers",
    "Fetches of librdkafka clients that were delayed so that the client's queue does not fill "
    "(pace_by_appetite)",
)
PACED_SECONDS = counter(
    "fetchproxy_paced_seconds",
    "Total seconds of these delays",
)
READERS_WAITING = gauge(
    "fetchproxy_remote_readers_waiting",
    "Clients with reads that wait for a free fetcher; they are served in turn",
)
TIMESTAMP_SEARCHES = counter(
    "fetchproxy_timestamp_searches",
    "Long batches that were searched for a timestamp, one batch at a time",
)
TIMESTAMP_SEARCHES_WAITING = gauge(
    "fetchproxy_timestamp_searches_waiting",
    "Lookups by time that wait for such a search; their clients are served in turn",
)
REMOTE_RESPONSE_BYTES = gauge(
    "fetchproxy_remote_answer_bytes", "Bytes of archived records that are being sent to clients"
)
REMOTE_RESPONSES_WAITING = gauge(
    "fetchproxy_remote_answers_waiting",
    "Fetches that wait for their turn to get archived records (remote_answer_turns_max)",
)
MEMORY_BUDGET_BYTES = gauge(
    "fetchproxy_memory_budget_bytes",
    "Bytes that each part of process.memory_bytes_max may take, by configuration key",
    "part",
)
MEMORY_USED_BYTES = gauge(
    "fetchproxy_memory_used_bytes",
    "Bytes that each of these parts takes now, by configuration key",
    "part",
)
CONNECTION_BUFFERS_BYTES = MEMORY_USED_BYTES.labels("gateway.connection_buffers_bytes_max")
INFLIGHT_BYTES = MEMORY_USED_BYTES.labels("remote_fetch.inflight_bytes_max")
INDEX_CACHE_BYTES = MEMORY_USED_BYTES.labels("remote_fetch.index_cache_bytes_max")
CHUNKS_BYTES = MEMORY_USED_BYTES.labels("remote_fetch.chunk_cache_bytes_max")
RESPONSES_BYTES = MEMORY_USED_BYTES.labels("gateway.remote_answers_bytes_max")
EVENT_LOOP_LONGEST_SECONDS = gauge(
    "fetchproxy_event_loop_longest_seconds", "The longest turn of the event loop in the last minute"
)
EVENT_LOOP_CPU_LONGEST_SECONDS = gauge(
    "fetchproxy_event_loop_cpu_longest_seconds",
    "The most CPU seconds of one turn of the event loop (of 1 ms or more) in the last minute, "
    "without the CPU time of other threads and processes",
)
EVENT_LOOP_BUSY_SECONDS = counter(
    "fetchproxy_event_loop_busy_seconds",
    "Seconds that the event loop was busy; a rate of 1 means that it uses a whole core",
)
EVENT_LOOP_TURNS = counter("fetchproxy_event_loop_turns", "Turns of the event loop")


# Caught offsets, and readers that wait or skip lost offsets.

CATCHES = counter(
    "fetchproxy_catches",
    "OffsetOutOfRange responses that the proxy has received from brokers",
    "topic",
)
CATCH_OUTCOMES = counter(
    "fetchproxy_catch_outcomes",
    "What the proxy did after a broker's OffsetOutOfRange, for each partition: remote (served it "
    "from the archive), local (the broker has the offset again), passed_on (passed the error on "
    "to the client), held_stale (made the client wait, because the view of the archive was old "
    "or the offset is not archived yet), lost (neither tier has the offset, so the reader skips "
    "it)",
    "outcome",
)
READERS_LED_ON = counter(
    "fetchproxy_readers_led_on",
    "Responses that made a reader skip offsets that were lost before they could be archived",
    "topic",
)
OFFSETS_SKIPPED = counter(
    "fetchproxy_offsets_skipped",
    "Lost offsets that readers have skipped, counted for each reader",
    "topic",
)
HELD_PARTITIONS = gauge(
    "fetchproxy_held_partitions",
    "Partitions with a reader that waits at an offset that the brokers have deleted and the "
    "archive does not have yet",
)


# Brokers and archivers, as this process sees them.

BROKERS_KNOWN = gauge(
    "fetchproxy_brokers_known",
    "Brokers of the cluster in the last hour; before the first response, the bootstrap addresses",
)
BROKERS_REACHABLE = gauge(
    "fetchproxy_brokers_reachable",
    "Known brokers that respond; at 0, clients are not served and archiving stops",
)
CLUSTER_AUTHENTICATION_REFUSALS = counter(
    "fetchproxy_cluster_authentication_refusals",
    "Times that brokers or a token endpoint refused the proxy's own credentials",
)
ARCHIVERS_HEARD = gauge(
    "fetchproxy_archivers_heard", "Archivers that are running, in this process and in others"
)
ARCHIVERS_SILENT = gauge(
    "fetchproxy_archivers_silent",
    "Archivers that were killed or cannot write to the store, if no other archiver has taken "
    "over their partitions; alert above 0",
)
ARCHIVER_DISK_FAILING = gauge(
    "fetchproxy_archiver_disk_failing",
    "Partitions that are not archived because this archiver's disk is failing or full; alert "
    "above 0",
)


# Local copies of the archive's indexes.

LOCAL_INDEX_BYTES = gauge(
    "fetchproxy_local_index_bytes", "Bytes of local index files, for partitions opened so far"
)
LOCAL_INDEX_FILES = gauge(
    "fetchproxy_local_index_files", "Local index files, for partitions opened so far"
)
LOCAL_INDEX_REBUILDS = counter(
    "fetchproxy_local_index_rebuilds",
    "Times that damaged local index files were removed and fetched again",
)
LOCAL_INDEX_READS = counter(
    "fetchproxy_local_index_reads",
    "Lookups of a segment in a local index: hit (no request to the store); absent, damaged or "
    "failed (the disk): the index was read from the store",
    "outcome",
)


# Reading ahead, disk cache and hedged reads.

READ_AHEAD_CHUNKS = counter(
    "fetchproxy_read_ahead_chunks", "Chunks that were read before a client asked for them"
)
READ_AHEAD_UNUSED = counter(
    "fetchproxy_read_ahead_chunks_unused", "Chunks that were read ahead and left the cache unused"
)
DISK_CACHE_BYTES = gauge("fetchproxy_disk_cache_bytes", "Bytes of files in the disk cache")
DISK_CACHE_HITS = counter("fetchproxy_disk_cache_hits", "Chunks read from the disk cache")
DISK_CACHE_MISSES = counter(
    "fetchproxy_disk_cache_misses", "Chunks that were missing or damaged in the disk cache"
)
DISK_CACHE_EVICTIONS = counter(
    "fetchproxy_disk_cache_evictions", "Chunks removed from the disk cache to make room"
)
DISK_CACHE_NOT_WRITTEN = counter(
    "fetchproxy_disk_cache_not_written",
    "Chunks that were not written to the disk cache: busy (8 wait already), full (the file system "
    "is full, or the chunk is too large), failed (the disk)",
    "reason",
)
DISK_CACHE_ERRORS = counter(
    "fetchproxy_disk_cache_errors",
    "Files of the disk cache that could not be used: damaged (read again from the store), failed "
    "(the disk)",
    "kind",
)
HEDGED_READS = counter(
    "fetchproxy_hedged_reads",
    "Slow range reads by the outcome of their second request: won (it was faster), lost, refused "
    "(no room in the budget), limited (hedged_reads_share_max)",
    "outcome",
)


# Deletions, in both tiers.


REMOTE_DELETE_REQUESTS = counter(
    f"{_BTM}_remotedeleterequests",
    "Segment deletions that were started (RemoteDeleteRequests)",
    "topic",
)
REMOTE_DELETE_ERRORS = counter(
    f"{_BTM}_remotedeleteerrors", "Segment deletions that failed (RemoteDeleteErrors)", "topic"
)
REMOTE_DELETE_LAG_BYTES = gauge(
    f"{_BTM}_remotedeletelagbytes",
    "Bytes of segments that are to be deleted and are still stored (RemoteDeleteLagBytes)",
    *_PARTITION,
)
REMOTE_DELETE_LAG_SEGMENTS = gauge(
    f"{_BTM}_remotedeletelagsegments",
    "Segments that are to be deleted and are still stored (RemoteDeleteLagSegments)",
    *_PARTITION,
)
REMOTE_LOG_SIZE_BYTES = gauge(
    f"{_BTM}_remotelogsizebytes",
    "Bytes of finished segments from the archive's log start offset on (RemoteLogSizeBytes)",
    *_PARTITION,
)
REMOTE_LOG_METADATA_COUNT = gauge(
    f"{_BTM}_remotelogmetadatacount",
    "Segments that have metadata, in any state (RemoteLogMetadataCount)",
    *_PARTITION,
)
ORPHAN_OBJECTS_DELETED = counter(
    "fetchproxy_orphan_objects_deleted", "Objects deleted because no metadata named them", "topic"
)
LOCAL_LOG_TRIMMED = counter(
    "fetchproxy_local_log_trimmed",
    "Times that local retention deleted archived records from the brokers",
    "topic",
)
LOCAL_TRIMMING_REFUSED = gauge(
    "fetchproxy_local_trimming_refused",
    "Topics that local retention skips because of their own settings; the log says why",
)
DELETED_PARTITIONS = counter("fetchproxy_deleted_partitions", "Partitions deleted with their topic")


# How the store answers.


STORE_UP = gauge(
    "fetchproxy_store_up",
    "1 if the last request of the operation (list, read, write, delete) succeeded, 0 if it failed",
    "operation",
)
KEYS_WAITING = gauge(
    "fetchproxy_keys_waiting",
    "Reads that wait for their turn to get a segment's key from the key service",
)
KEY_SERVICE_UP = gauge(
    "fetchproxy_key_service_up",
    "1 if the last request to the key service succeeded, 0 if it failed",
    "service",
)
STORE_FAILING_SECONDS = gauge(
    "fetchproxy_store_failing_seconds",
    "Seconds since requests of the operation started to fail; 0 while they succeed",
    "operation",
)
STORE_REQUESTS_PER_S_MAX = gauge(
    "fetchproxy_store_requests_per_s_max",
    "Limit of requests per second after the store has refused some because there were too many; "
    "0: no limit",
    "operation",
)
for _operation in ("list", "read", "write", "delete"):
    STORE_UP.labels(_operation).set(1)
    STORE_REQUESTS_PER_S_MAX.labels(_operation).set(0)
    STORE_FAILING_SECONDS.labels(_operation).set(0)
STORE_REQUEST_ERRORS = counter(
    "fetchproxy_store_request_errors",
    "Operations of the remote storage that failed, by name and error",
    "operation",
    "error",
)


# If Kafka has a metric, the name is Kafka's (KIP-405 and KIP-963, as a JMX exporter spells it:
# domain, type, name, without the rate suffix), so that existing alerts go on working. Other names
# begin with `fetchproxy_`. Modules only count here and never read a metric: no decision may depend
# on one. Labels have bounded sets of values, or are topic and partition as in Kafka; never a client
# or an offset. Hot paths use bound children, as `labels()` costs a lookup.


# --- Kafka's own: reading the archive -------------------------------------------------------------
REMOTE_FETCH_BYTES = counter(
    f"{_BTM}_remotefetchbytes", "Bytes read from the store for fetches (RemoteFetchBytes)", "topic"
)
REMOTE_FETCH_REQUESTS = counter(
    f"{_BTM}_remotefetchrequests", "Remote reads that were started (RemoteFetchRequests)", "topic"
)
REMOTE_FETCH_ERRORS = counter(
    f"{_BTM}_remotefetcherrors", "Remote reads that failed (RemoteFetchErrors)", "topic"
)
REMOTE_LOG_READER_TASK_QUEUE_SIZE = gauge(
    f"{_RSM}_remotelogreadertaskqueuesize",
    "Remote reads that wait for a free fetcher (RemoteLogReaderTaskQueueSize)",
)
REMOTE_READS_IN_FLIGHT = gauge(
    "fetchproxy_remote_reads_in_flight", "Range reads without a response from the store yet"
)
DELAYED_REMOTE_FETCH_EXPIRES = counter(
    "kafka_server_delayedremotefetchmetrics_expires",
    "Waiting fetches that reached their deadline (DelayedRemoteFetchMetrics ExpiresPerSec)",
)

# --- Kafka's own: writing the archive -------------------------------------------------------------
REMOTE_COPY_BYTES = counter(
    f"{_BTM}_remotecopybytes", "Bytes of segments copied to the store (RemoteCopyBytes)", "topic"
)
REMOTE_COPY_REQUESTS = counter(
    f"{_BTM}_remotecopyrequests", "Segment copies that were started (RemoteCopyRequests)", "topic"
)
REMOTE_COPY_ERRORS = counter(
    f"{_BTM}_remotecopyerrors", "Segment copies that failed (RemoteCopyErrors)", "topic"
)
REMOTE_COPY_LAG_BYTES = gauge(
    f"{_BTM}_remotecopylagbytes",
    "Bytes that were accumulated and are not copied yet (RemoteCopyLagBytes)",
    *_PARTITION,
)
REMOTE_COPY_LAG_SEGMENTS = gauge(
    f"{_BTM}_remotecopylagsegments",
    "Closed segments that are not copied yet (RemoteCopyLagSegments)",
    *_PARTITION,
)

# --- The gateway ----------------------------------------------------------------------------------
CONNECTIONS = gauge("fetchproxy_connections", "Client connections that are open")
CONNECTIONS_REFUSED = counter(
    "fetchproxy_connections_refused",
    "Client connections that were closed at once: limit or broker_unreachable",
    "reason",
    values=("limit", "broker_unreachable"),
)
RELAYED_BYTES = TalliedCounter(
    "fetchproxy_relayed_bytes",
    "Bytes relayed: to_broker or to_client",
    ("direction",),
    registry=REGISTRY,
)
_declare(RELAYED_BYTES, ("direction",))
RELAYED_BYTES_TO_BROKER = RELAYED_BYTES.tally(direction="to_broker")
RELAYED_BYTES_TO_CLIENT = RELAYED_BYTES.tally(direction="to_client")
SPLICED_BYTES = counter(
    "fetchproxy_spliced_bytes", "Bytes relayed to clients without a copy in this process"
)
WIRE_ERRORS = counter(
    "fetchproxy_wire_errors",
    "Connections closed for bytes that are not Kafka's protocol, by kind of fault",
    "kind",
)
LIMITS_REACHED = counter(
    "fetchproxy_limits_reached",
    "Times that a limit was reached, by its name",
    "limit",
)

# --- TLS ------------------------------------------------------------------------------------------
TLS_HANDSHAKES_FAILED = counter(
    "fetchproxy_tls_handshakes_failed",
    "Client connections that failed within the handshake: plaintext, version, no_certificate, "
    "certificate, certificate_refused, server_name, timeout, too_many, closed or other",
    "reason",
    values=(
        "plaintext",
        "version",
        "no_certificate",
        "certificate",
        "certificate_refused",
        "server_name",
        "timeout",
        "too_many",
        "closed",
        "other",
    ),
)
TLS_CERTIFICATE_EXPIRY = gauge(
    "fetchproxy_tls_certificate_expiry_timestamp_seconds",
    "When the proxy's own certificate in use expires, in epoch seconds; place: listener or "
    "upstream",
    "place",
)
TLS_FILES_UNUSABLE = gauge(
    "fetchproxy_tls_files_unusable",
    "1 (an alarm) if changed files could not be loaded and the old ones are still in use",
    "place",
)
TLS_RELOADS = counter(
    "fetchproxy_tls_reloads", "Times that changed files were loaded without a restart", "place"
)

# --- RemoteFetchPurgatory and the fetcher pool ----------------------------------------------------
PURGATORY_ENTRIES = gauge("fetchproxy_purgatory_entries", "Fetches that wait for remote data")
PURGATORY_COMPLETED = counter(
    "fetchproxy_purgatory_completed",
    "Waiting fetches that ended, by reason: data, error, deadline or cancelled (the client left)",
    "reason",
    values=("data", "error", "deadline", "cancelled"),
)
BACKOFFS = counter("fetchproxy_backoffs", "Pauses after a storage error")
CORRUPT_CHUNKS = counter(
    "fetchproxy_corrupt_chunks", "Chunks whose bytes did not match their CRC-32C; alert on each"
)

# --- The chunk cache ------------------------------------------------------------------------------
CHUNK_CACHE_BYTES = gauge("fetchproxy_chunk_cache_bytes", "Bytes in the chunk cache")
CHUNK_CACHE_HITS = counter("fetchproxy_chunk_cache_hits", "Chunks found in the chunk cache")
CHUNK_CACHE_HIT_BYTES = counter(
    "fetchproxy_chunk_cache_hit_bytes", "Bytes of the chunks that were found in the chunk cache"
)
CHUNK_CACHE_MISSES = counter(
    "fetchproxy_chunk_cache_misses", "Chunks that were read from disk cache or store"
)
CHUNK_CACHE_EVICTIONS = counter(
    "fetchproxy_chunk_cache_evictions", "Chunks removed from the chunk cache to make room"
)

# --- The archive's ranges -------------------------------------------------------------------------
ARCHIVE_START_OFFSET = gauge(
    "fetchproxy_archive_start_offset", "First archived offset", *_PARTITION
)
ARCHIVE_END_OFFSET = gauge(
    "fetchproxy_archive_end_offset", "One past the last archived offset", *_PARTITION
)
ARCHIVE_LAG_OFFSETS = gauge(
    "fetchproxy_archive_lag_offsets",
    "Offsets up to the high watermark that are not archived yet",
    *_PARTITION,
)
ARCHIVE_MARGIN_OFFSETS = gauge(
    "fetchproxy_archive_margin_offsets",
    "Archive end minus the broker's log start offset; below 0, records were lost before they "
    "were copied. For a topic: the lowest of its partitions",
    *_PARTITION,
    sum_of_topic=min,
)
ARCHIVE_GAPS = counter(
    "fetchproxy_archive_gaps",
    "Ranges of offsets that the broker deleted before they were copied",
    *_PARTITION,
)
ARCHIVE_REFUSED_TOPICS = gauge(
    "fetchproxy_archive_refused_topics",
    "Topics that match archive.topics but cannot be archived; the log says why",
)
COMPACTED_COPIES = counter(
    "fetchproxy_archive_compacted_copies",
    "Whole copies of compacted logs that the archiver has made from the log's beginning, by why: "
    "first, late, trimmed, grown, pieces, old",
    "topic",
    "why",
)
COMPACTED_COPIES_GIVEN_UP = counter(
    "fetchproxy_archive_compacted_copies_given_up",
    "Copies of compacted logs that the archiver gave up and began again",
    "topic",
)
COMPACTED_COPY_AGE_SECONDS = gauge(
    "fetchproxy_archive_compacted_copy_age_seconds",
    "Time since the archive last had all of a compacted log, of the oldest of a topic's partitions",
    *_PARTITION,
    sum_of_topic=max,
)
CONDITIONS = gauge(
    "fetchproxy_conditions",
    "Current conditions, by their name in the log, /api/status, verify and segments. Each "
    "process counts the conditions of the whole archive, so use the maximum of the processes",
    "kind",
    "level",
)
CONDITION_OFFSETS = gauge(
    "fetchproxy_condition_offsets",
    "Offsets that the conditions affect (lost, missing, put aside or announced); 0 if none",
    "kind",
)
ARCHIVE_TRUNCATED_OFFSETS = counter(
    "fetchproxy_archive_truncated_offsets",
    "Archived offsets that an unclean leader election removed from the log, and the archiver "
    "then from the archive; alert on each",
    *_PARTITION,
)
WORKER_RESTARTS = counter(
    "fetchproxy_worker_restarts",
    "Times that a worker exited and was restarted (`process.workers`)",
)
ARCHIVER_RESTARTS = counter(
    "fetchproxy_archiver_restarts", "Times that the whole archiver failed and was restarted"
)

# --- Leadership, turns and the margin -------------------------------------------------------------
ARCHIVE_LEADER_PARTITIONS = gauge(
    "fetchproxy_archive_leader_partitions", "Partitions that this archiver leads"
)
ARCHIVE_GROUP_STABLE = gauge(
    "fetchproxy_archive_group_stable",
    "1 if this archiver is a member of its consumer group and has its partitions; otherwise 0",
)
ARCHIVE_GROUP_REBALANCES = counter(
    "fetchproxy_archive_group_rebalances", "Times that this archiver was assigned its partitions"
)
ARCHIVE_GROUP_LOST = counter(
    "fetchproxy_archive_group_lost",
    "Times that this archiver lost its place in the group and its partitions: expired, fenced or "
    "error",
    "reason",
    values=("expired", "fenced", "error"),
)
ARCHIVE_OLDEST_COPY_SECONDS = gauge(
    "fetchproxy_archive_oldest_copy_seconds",
    "Age of the oldest copy in progress; 0: there is none",
)
ARCHIVE_STALLED_COPIES = gauge(
    "fetchproxy_archive_stalled_copies",
    "Copies that have used up half of archive.copy_max_ms; when a copy has used all of it, the "
    "archiver gives it up",
)
ARCHIVE_TURNS_ENDED = counter(
    "fetchproxy_archive_turns_ended",
    "Times that the archiver gave up its work on a partition because it took over 5 minutes, not "
    "counting copies",
)
RECOVERY_POINT_AGE_SECONDS = gauge(
    "fetchproxy_recovery_point_age_seconds",
    "Age of the oldest records that would be lost if brokers and archiver were lost now "
    "(archive.recovery_point_ms)",
)
RECOVERY_POINT_RECORDS = gauge(
    "fetchproxy_recovery_point_records",
    "Number of records that would be lost if brokers and archiver were lost now",
)
JOURNAL_OBJECTS = gauge(
    "fetchproxy_journal_objects", "Number of this archiver's journal objects in the store"
)
JOURNAL_BYTES = counter(
    "fetchproxy_journal_bytes", "Bytes of records that this archiver has written into its journal"
)
ARCHIVE_RETENTION_USED_SHARE = gauge(
    "fetchproxy_archive_retention_used_share",
    "Share of the broker's retention that the oldest unarchived record has used up; at 1 the "
    "broker deletes it before it is copied. For a topic: the highest of its partitions",
    *_PARTITION,
    sum_of_topic=max,
)

# --- Metadata -------------------------------------------------------------------------------------
METADATA_REFRESH_ERRORS = counter(
    "fetchproxy_metadata_refresh_errors", "Refreshes that failed; the old view stays in use"
)
METADATA_UNREADABLE = counter(
    "fetchproxy_metadata_unreadable",
    "Segment metadata objects that could not be read, counted once for each version; alert on each",
)
METADATA_EVENTS_READ = counter(
    "fetchproxy_metadata_events_read", "Events that this process has read from the metadata topic"
)
METADATA_EVENTS_WRITTEN = counter(
    "fetchproxy_metadata_events_written",
    "Events that this process has written to the metadata topic",
)
METADATA_EVENTS_REFUSED = counter(
    "fetchproxy_metadata_events_refused",
    "Events of the metadata topic without effect: repeated, or overtaken by another process's",
)
METADATA_LAG = gauge(
    "fetchproxy_metadata_lag_events",
    "Events of the metadata topic that this process has not read yet, by the topic's partition",
    "partition",
)

# --- Archive-only mode ----------------------------------------------------------------------------
ARCHIVE_ONLY_REQUESTS = counter(
    "fetchproxy_archive_only_requests", "Requests served without a cluster, by API", "api"
)
ARCHIVE_ONLY_REFUSED = counter(
    "fetchproxy_archive_only_refused",
    "Requests that an archive-only node does not support, by API key",
    "api",
)
ARCHIVE_ONLY_LOGINS = counter(
    "fetchproxy_archive_only_logins",
    "Logins of users of archive_only.users_file: accepted or refused",
    "result",
    values=("accepted", "refused"),
)
ARCHIVE_ONLY_LOGINS_WAITING = gauge(
    "fetchproxy_archive_only_logins_waiting",
    "Logins that have to wait because others with the same name or address failed",
)
ARCHIVE_ONLY_TOPICS = gauge(
    "fetchproxy_archive_only_topics", "Topics that archive-only mode serves"
)
ARCHIVE_ONLY_GROUPS = gauge(
    "fetchproxy_archive_only_groups", "Groups with members, or with a member about to join"
)

# Who reads history. A client has series of its own while it is among those that read most; what all
# the rest does counts with the address "other".

READER_STORE_REQUESTS = counter(
    "fetchproxy_reader_store_requests",
    "Requests to the store, by the client for which they were started; request: get, list or "
    'put. The address "this process" stands for what the process did for itself, "other" for all '
    "clients without their own series",
    *_READER,
    "request",
)
READER_STORE_BYTES = counter(
    "fetchproxy_reader_store_bytes",
    "Bytes that the store sent for these requests",
    *_READER,
)
READER_SERVED_BYTES = counter(
    "fetchproxy_reader_served_bytes",
    "Archived bytes that the client got, including those from memory and from the local disk",
    *_READER,
)
READER_THROTTLE_SECONDS = counter(
    "fetchproxy_reader_throttle_seconds",
    "Seconds that the client was told to wait (remote_fetch.client_bytes_per_s_max)",
    *_READER,
)

# --- The process ----------------------------------------------------------------------------------
BUILD_INFO = gauge(
    "fetchproxy_build_info",
    "1; the labels are the versions of fetchproxy and of Python",
    "version",
    "python",
)
BUILD_INFO.labels(__version__, platform.python_version()).set(1)
LAST_SUCCESS_AGE_SECONDS = gauge(
    "fetchproxy_last_success_age_seconds",
    "Seconds since this process last succeeded: copy (of a segment), metadata_write (of a "
    "segment), trim (a check of a partition with local retention). After a restart, the first "
    "two are derived from the archive's timestamps",
    "activity",
)
MEMORY_AVAILABLE_BYTES = gauge(
    "fetchproxy_available_memory_bytes",
    "Bytes of memory that this process may use: the lowest limit of its control groups, or the "
    "machine's memory",
)
CPU_CORES_AVAILABLE = gauge(
    "fetchproxy_available_cpu_cores",
    "Cores that this process may use: the lowest quota of its control groups, or the cores that "
    "it may run on. The event loop uses at most one",
)
LOG_MESSAGES = counter(
    "fetchproxy_log_messages",
    "Log lines by level and event; an event that is not on the page of log events counts as other",
    "level",
    "event",
)
HEAP_FREED_BYTES = gauge(
    "fetchproxy_heap_freed_bytes",
    "Free bytes in the C library's heap, including those already returned to the system",
)
HEAP_TRIMS = counter("fetchproxy_heap_trims", "Times that freed memory was returned to the system")


# A topic's series go with the topic, as Kafka's do (BrokerTopicStats.removeMetrics).


def series_of(metric: Counter | Gauge | Histogram) -> Collection[Sequence[str]]:
    """The label values of each series. The library tells them only with the samples of all series
    (`collect`), at 5 µs each: so this is its private table.
    """
    return metric._metrics


def values_of(metric: Counter | Gauge) -> Iterator[tuple[Sequence[str], float]]:
    """The label values and the value of each series, from the same table."""
    series: dict[Sequence[str], Any] = dict(metric._metrics)
    for labels, one in series.items():
        yield labels, one._value.get()


def series_by_topic() -> Iterator[tuple[Callable[..., None], list[Sequence[str]]]]:
    """Of each metric with topics: how to remove a series, and the label values of all. The topic is
    the first of these values.
    """
    for metric, labels in _DECLARED.items():
        if labels[:1] == _TOPIC:
            yield metric.remove, list(series_of(metric))


def forget_counts(topic: str, partitions: Iterable[int]) -> None:
    """The cluster has deleted the topic: one that is made again under its name counts from 0. Parts
    withdraw their gauges themselves, because these show what is now.
    """
    partitions = list(partitions)
    for metric, labels in _DECLARED.items():
        if isinstance(metric, Counter) and labels == _TOPIC:
            metric.remove(topic)
        elif isinstance(metric, Counter) and labels == _PARTITION:
            for number in partitions:
                metric.remove(topic, number)


def table() -> str:
    """A Markdown table of every metric: name as scraped, kind, labels, meaning."""
    rows = ["| metric | kind | labels | meaning |", "|---|---|---|---|"]
    for metric, labels in _DECLARED.items():
        for family in metric.describe():
            name = family.name + ("_total" if family.type == "counter" else "")
            label_words = "topic (partition)" if labels == _PARTITION else ", ".join(labels) or "–"
            rows.append(f"| `{name}` | {family.type} | {label_words} | {family.documentation} |")
    return "\n".join(rows) + "\n"
