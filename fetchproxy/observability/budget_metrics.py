"""Metrics of budgets, rates and the event loop's time; declared here, found in `metrics`."""

from __future__ import annotations

from prometheus_client import Histogram

from fetchproxy.observability.registry import REGISTRY, counter, gauge

ARCHIVE_THROTTLE_SECONDS = counter(
    "fetchproxy_archive_throttle_seconds",
    "Seconds that partitions have waited for archive.copy_bytes_per_s_max (Kafka's "
    "remote-copy-throttle-time)",
)
CLIENT_THROTTLES = counter(
    "fetchproxy_client_throttles",
    "Fetches of the archive that remote_fetch.client_bytes_per_s_max made wait (Kafka's "
    "remote-fetch-throttle-time)",
)
CLIENT_THROTTLE_SECONDS = counter(
    "fetchproxy_client_throttle_seconds", "Seconds for which clients were told to wait, in all"
)
READERS_WAITING = gauge(
    "fetchproxy_remote_readers_waiting",
    "Clients whose reads wait for a free fetcher, each served in turn",
)
REMOTE_ANSWER_BYTES = gauge(
    "fetchproxy_remote_answer_bytes", "Archived records on their way to clients that take them"
)
REMOTE_ANSWERS_WAITING = gauge(
    "fetchproxy_remote_answers_waiting",
    "Fetches that wait for their turn to be given archived records (remote_answer_turns_max)",
)
MEMORY_BUDGET_BYTES = gauge(
    "fetchproxy_memory_budget_bytes",
    "What each part of process.memory_bytes_max may take, by configuration key",
    "part",
)
MEMORY_USED_BYTES = gauge(
    "fetchproxy_memory_used_bytes",
    "What these parts take now, by configuration key",
    "part",
)
CONNECTION_BUFFERS_BYTES = MEMORY_USED_BYTES.labels("gateway.connection_buffers_bytes_max")
INFLIGHT_BYTES = MEMORY_USED_BYTES.labels("remote_fetch.inflight_bytes_max")
INDEX_CACHE_BYTES = MEMORY_USED_BYTES.labels("remote_fetch.index_cache_bytes_max")
CHUNKS_BYTES = MEMORY_USED_BYTES.labels("remote_fetch.chunk_cache_bytes_max")
ANSWERS_BYTES = MEMORY_USED_BYTES.labels("gateway.remote_answers_bytes_max")
EVENT_LOOP_HELD_SECONDS = Histogram(
    "fetchproxy_event_loop_held_seconds",
    "Seconds of each turn of the event loop that took 1 ms or more: all else waited for it",
    registry=REGISTRY,
    buckets=(0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
EVENT_LOOP_LONGEST_SECONDS = gauge(
    "fetchproxy_event_loop_longest_seconds", "The longest turn of the event loop in the last minute"
)
EVENT_LOOP_CPU_SECONDS = gauge(
    "fetchproxy_event_loop_cpu_longest_seconds",
    "The most CPU time that a turn of the event loop took in the last minute, of turns of 1 ms or "
    "more: its own work, without what other processes and threads had meanwhile",
)
EVENT_LOOP_BUSY_SECONDS = counter(
    "fetchproxy_event_loop_busy_seconds",
    "Seconds that the event loop has run something; 1 a second is a core that is full",
)
EVENT_LOOP_TURNS = counter("fetchproxy_event_loop_turns", "Turns of the event loop")
