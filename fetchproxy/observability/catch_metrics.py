"""Metrics of caught offsets, and of readers that wait or are led on; `metrics` names them too."""

from __future__ import annotations

from fetchproxy.observability.registry import counter, gauge

CATCHES = counter(
    "fetchproxy_catches", "OffsetOutOfRange answers of brokers that the scan has seen", "topic"
)
CATCH_OUTCOMES = counter(
    "fetchproxy_catch_outcomes",
    "What a caught partition was judged to be: remote (served from the archive), local (the broker "
    "has it again), passed_on (the error went to the client), held_stale (kept back: the view of "
    "the archive was not fresh, or the offset is not archived yet), lost (neither tier will have "
    "it: the reader was led on behind it)",
    "outcome",
)
READERS_LED_ON = counter(
    "fetchproxy_readers_led_on",
    "Answers that led a reader behind offsets that were lost before they could be archived",
    "topic",
)
OFFSETS_SKIPPED = counter(
    "fetchproxy_offsets_skipped",
    "Lost offsets that readers were led behind, counted for each reader",
    "topic",
)
HELD_PARTITIONS = gauge(
    "fetchproxy_held_partitions",
    "Partitions with a reader at an offset that the brokers have no more and the archive has not "
    "yet; it waits where it is",
)
