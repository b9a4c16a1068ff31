"""The goals of the benchmarks: one `Goal` for each line of the table of goals, in its words.

The words are also the names of the rows, so each line can be found in every result. This module
measures nothing.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Goal:
    """One line of the table. It has one limit, a floor or a ceiling. If the line has several
    figures, the others are in `also`, and the goal is met only if all of them are met."""

    words: str
    unit: str
    text: str  # the limit as in the table; the first number in it is this figure's own
    at_least: float | None = None
    at_most: float | None = None
    also: tuple[Goal, ...] = ()

    def met_by(self, value: float) -> bool:
        if self.at_least is not None:
            return value >= self.at_least
        return self.at_most is not None and value <= self.at_most


def at_least(words: str, unit: str, limit: float, text: str = "", *also: Goal) -> Goal:
    return Goal(words, unit, text or f"≥ {limit:g}", at_least=limit, also=also)


def at_most(words: str, unit: str, limit: float, text: str = "", *also: Goal) -> Goal:
    return Goal(words, unit, text or f"≤ {limit:g}", at_most=limit, also=also)


TAIL_THROUGHPUT = at_least(
    "tail throughput, librdkafka, 1 KiB records, ≥ 600 MiB a run, through the proxy : the better "
    "of direct and Kroxylicious",
    "x", 1.0, "≥ 1.0",
)  # fmt: skip
TAIL_CPU = at_most(
    "proxy CPU seconds per GB on the tail : Kroxylicious's (1.3–1.6 measured)", "x", 0.4
)
TAIL_LATENCY = at_most(
    "tail produce→consume p50 added",
    "ms", 0.10, "≤ 0.10 ms; p99 ratio to direct ≤ 1.1 with 5 runs",
    at_most("p99 ratio to direct", "x", 1.1),
)  # fmt: skip
TAIL_LATENCY_IN_TURN = at_most(
    "tail produce→consume p50 added, record by record in turn : what Kroxylicious adds", "x", 0.9
)
TAIL_LATENCY_ALONE = at_most(
    "tail produce→consume p50 added, each way for itself : what Kroxylicious adds", "x", 0.9
)
REPLAY_LIBRDKAFKA = at_least(
    "replay from a local-directory store, one librdkafka consumer (itself the limit near "
    "430 MB/s) : Kafka's own tiered storage",
    "x", 1.0, "≥ 1.0",
)  # fmt: skip
REPLAY_RAW = at_least(
    "the same with a raw fetch client that only counts bytes, 1 and 8 connections : Kafka's own "
    "tiered storage",
    "x", 1.5, "≥ 1.5",
    at_least("8 connections", "x", 1.5),
)  # fmt: skip
REPLAY_CPU = at_most(
    "replay CPU (proxy) per GB : broker CPU per GB in Kafka's tiered storage", "x", 0.7
)
REPLAY_S3 = at_least(
    "replay from an S3 server with 50 ms injected latency per request : the best raw parallel "
    "range read of the same object",
    "x", 0.85,
)  # fmt: skip
FIRST_RECORD = at_most(
    "first record after a cold seek with 50 ms latency",
    "round trips", 2, "≤ 2 round trips; warm ≤ 5 ms",
    at_most("warm", "ms", 5, "≤ 5 ms"),
)  # fmt: skip
TAIL_IN_OUTAGE = at_most("tail p99 while the store hangs : without", "x", 1.1)
TAIL_BESIDE_REPLAY = at_most(
    "tail p99 while 16 consumers replay : the same tail beside the same 16 consumers that replay "
    "from Kafka's own tiered storage",
    "x", 1.0, "≤ 1.0",
)  # fmt: skip
FAN_IN = at_most(
    "100 consumers replaying the same 1 GiB: bytes read from the store", "GiB", 1.1, "≤ 1.1 GiB"
)
ARCHIVING = at_least("archiving : a plain consumer reading the same topic to nowhere", "x", 0.8)
# It joins the table with the next results.
ARCHIVE_BEGINNINGS = at_most(
    "beginnings of archiving: `archive --once` of 10,000 partitions with one small segment each, "
    "to an S3 server : its puts bare",
    "x", 1.3, "≤ 1.3",
)  # fmt: skip
IDLE_CONNECTIONS = at_most(
    "idle connections: memory each", "KiB", 30, "≤ 30 KiB at 10,000"
)  # fmt: skip
# "Flat": the share of a rate that remains when its load is spread wider.
SPREAD = at_least(
    "requests/s of small fetches over 1,000 connections, throughput at 10 × the partitions",
    "x", 0.85, "flat within 15 %",
    at_least("throughput at 10 × the partitions", "x", 0.85, "flat within 15 %"),
)  # fmt: skip
# The worst ratio of all questions, of archived topics and of others.
LOOK_UPS = at_most(
    "beginning_offsets, end_offsets, offsets_for_times of 2,000 partitions, store 40 ms away : "
    "direct",
    "x", 1.5, "warm ≤ 1.5, cold ≤ 15",
    at_most("cold", "x", 15, "≤ 15"),
)  # fmt: skip
TAIL_BESIDE_HOSTILE = at_most(
    "tail p99 beside 50 connections without credentials that do their worst : without them",
    "x", 1.5, "≤ 1.5; memory within its plan",
    at_most("most memory of the proxy : its plan", "x", 1.0),
)  # fmt: skip
IDLE_TLS_CONNECTIONS = at_most("idle TLS connections: memory each", "KiB", 70)
WORKERS_TAIL = at_least(
    "two workers : one process, TLS, client and broker leave the cores free, tail",
    "x", 1.7, "≥ 1.7",
    at_least("replay", "x", 1.7),
)  # fmt: skip
SMALL_FETCHES = at_least("small fetches over 1,000 connections : direct", "x", 0.45)
SMALL_FETCH_CPU = at_most("CPU of a small fetch over 1,000 connections", "µs", 75)
DIFFERENT_FETCH_CPU = at_most(
    "CPU of a small fetch unlike the one before, over 1,000 connections", "µs", 130
)

TABLE: tuple[Goal, ...] = (
    TAIL_THROUGHPUT,
    TAIL_CPU,
    TAIL_LATENCY,
    TAIL_LATENCY_IN_TURN,
    TAIL_LATENCY_ALONE,
    REPLAY_LIBRDKAFKA,
    REPLAY_RAW,
    REPLAY_CPU,
    REPLAY_S3,
    FIRST_RECORD,
    TAIL_IN_OUTAGE,
    TAIL_BESIDE_REPLAY,
    FAN_IN,
    ARCHIVING,
    IDLE_CONNECTIONS,
    IDLE_TLS_CONNECTIONS,
    SPREAD,
    LOOK_UPS,
    SMALL_FETCHES,
    SMALL_FETCH_CPU,
    DIFFERENT_FETCH_CPU,
    TAIL_BESIDE_HOSTILE,
    WORKERS_TAIL,
)
