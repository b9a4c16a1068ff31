"""The figures of the outage part and the rows made from them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.contestants import DIRECT, FETCHPROXY
from benchmarks.goals import TAIL_BESIDE_REPLAY, TAIL_IN_OUTAGE
from benchmarks.report import Row, goal_rows, percentile, ratios, row

CALM = "without"
HANGING = "while the store hangs"
# Both read from folders of one disk, so the ways are compared and not the stores.
REPLAYING = "while 16 consumers replay through fetchproxy"
TIERED = "while 16 consumers replay from Kafka's tiered storage"
# The S3 server uses the same cores as the proxy; the other ways need no such server.
REPLAYING_S3 = "while 16 consumers replay through fetchproxy from S3"
REPLAYS = (REPLAYING, TIERED, REPLAYING_S3)
PHASES = (CALM, HANGING, *REPLAYS)
UNDER_LOAD = "under load, before the faults"

# If the tail continues, every record arrives sooner than this, whatever happens to the store.
LONGEST_MS_MAX = 1000.0

Latencies = Mapping[str, list[float]]  # milliseconds, by way


@dataclass(frozen=True, slots=True)
class Recovery:
    """The tail during a fault, how long the fault lasted, and when archived reads were back."""

    latencies_ms: Latencies
    lasted_s: float
    back_s: float


@dataclass(slots=True)
class Measured:
    """`latencies_ms`, `replayed_mb_per_s`: by phase, one entry a round.

    `longest_turns_ms`: the longest turn of the proxy's event loop while 16 consumers replayed.
    `cpu_longest_turns_ms`: the most CPU time in one turn. `recoveries`: by the store's fault.
    """

    latencies_ms: dict[str, list[Latencies]] = field(default_factory=dict)
    replayed_mb_per_s: dict[str, list[float]] = field(default_factory=dict)
    longest_turns_ms: list[float] = field(default_factory=list)
    cpu_longest_turns_ms: list[float] = field(default_factory=list)
    recoveries: dict[str, Recovery] = field(default_factory=dict)
    corrupt_chunks: float = 0
    checked: int = 0  # archived records read during and after the faults
    archived_meanwhile: int = 0

    def add(self, phase: str, latencies: Latencies) -> None:
        self.latencies_ms.setdefault(phase, []).append(latencies)

    def percentiles(self, phase: str, way: str, percent: int) -> list[float]:
        return [percentile(each[way], percent) for each in self.latencies_ms[phase]]


def rows_of(measured: Measured) -> list[Row]:
    def hanging(way: str) -> list[float]:
        return ratios(measured.percentiles(HANGING, way, 99), measured.percentiles(CALM, way, 99))

    def beside_replay(phase: str, percent: int) -> list[float]:
        # With fetchproxy, readers also read the tail through it. With tiered storage there is no
        # proxy.
        percentiles = measured.percentiles(phase, FETCHPROXY, percent)
        return ratios(percentiles, measured.percentiles(TIERED, DIRECT, percent))

    rows = [
        *goal_rows(TAIL_IN_OUTAGE, hanging(FETCHPROXY)),
        *goal_rows(TAIL_BESIDE_REPLAY, beside_replay(REPLAYING, 99)),
        row(f"the same p50: {REPLAYING}", "x", beside_replay(REPLAYING, 50)),
        row(f"the same p99: {REPLAYING_S3}", "x", beside_replay(REPLAYING_S3, 99)),
        row(f"{DIRECT}, what the machine makes of it: {HANGING}", "x", hanging(DIRECT)),
    ]
    for phase, speeds in measured.replayed_mb_per_s.items():
        rows.append(row(f"what they replay {phase}", "MB/s", speeds))
    longest = "longest turn of the proxy's event loop, within a minute"
    rows.append(row(longest, "ms", measured.longest_turns_ms))
    longest = "most CPU time of the proxy in a turn of its event loop, within a minute"
    rows.append(row(longest, "ms", measured.cpu_longest_turns_ms))
    for phase in measured.latencies_ms:
        for percent in (50, 99):
            for way in (DIRECT, FETCHPROXY):
                values = measured.percentiles(phase, way, percent)
                rows.append(row(f"tail p{percent} {phase}, {way}", "ms", values))
    for name, recovery in measured.recoveries.items():
        rows += _fault_rows(name, recovery)
    counts = {
        "chunks found corrupt, and not given to anyone": measured.corrupt_chunks,
        "archived records read during the faults and after, each checked": measured.checked,
        "records archived meanwhile, all that were produced": measured.archived_meanwhile,
    }
    return rows + [row(name, "", [count]) for name, count in counts.items()]


def _fault_rows(name: str, recovery: Recovery) -> list[Row]:
    latencies = recovery.latencies_ms[FETCHPROXY]
    return [
        row(f"tail p99 while the store is {name}", "ms", [percentile(latencies, 99)]),
        row(
            f"longest wait while the store is {name}",
            "ms",
            [max(latencies)],
            at_most=LONGEST_MS_MAX,
        ),
        row(f"archived reads back after the store was {name}", "s", [recovery.back_s]),
    ]
