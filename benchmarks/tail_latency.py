"""The delay of a record through each way, in three forms of the same probe.

*In turn*: one record after the other goes every way, so that other load on the machine affects all
alike, and each proxy sleeps during the turns of the others. *Alone*: each way gets its records
without the others in between, like a consumer that reads one topic. *In pairs*: in turn, but only
directly and through fetchproxy, and many more records, for the ratio of the p99s.

Of 300 records the p99 is the third largest, and its ratio to another one varied fourfold between
rounds of the same code. So the records of POOLED_ROUNDS rounds count as one: of 4,500 the p99 is
the 45th largest.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from rich.console import Console

from benchmarks import goals
from benchmarks.contestants import DIRECT, FETCHPROXY, KROXYLICIOUS, Contestant
from benchmarks.frame import child, in_turn
from benchmarks.report import Row, goal_rows, percentile, ratios, row
from lab.kafka import KafkaServer

IN_TURN, ALONE, IN_PAIRS = "in turn", "alone", "in pairs"
FORMS = (IN_TURN, ALONE, IN_PAIRS)
PAIR = (DIRECT, FETCHPROXY)
POOLED_ROUNDS = 3

# Milliseconds by form and way: one list of samples a round.
Latencies = dict[tuple[str, str], list[list[float]]]


def latency_topic(name: str) -> str:
    return f"benchmark-latency-{name}"


def latency_rounds(
    kafka: KafkaServer,
    ways: Sequence[Contestant],
    rounds: int,
    samples: int,
    samples_alone: int,
    samples_in_pairs: int,
    console: Console,
) -> Latencies:
    latencies: Latencies = {(form, way.name): [] for form in (IN_TURN, ALONE) for way in ways}
    latencies |= {(IN_PAIRS, name): [] for name in PAIR}
    for number in range(rounds + 1):  # round 0 warms up: Java's compiler
        ordered = in_turn(ways, number)
        took = {(IN_TURN, name): ms for name, ms in _probe(kafka, ordered, samples).items()}
        for way in ordered:
            took[ALONE, way.name] = _probe(kafka, [way], samples_alone)[way.name]
        pair = in_turn([way for way in ways if way.name in PAIR], number)
        took |= {(IN_PAIRS, name): ms for name, ms in _probe(kafka, pair, samples_in_pairs).items()}
        p50s = (f"{name} {form} {percentile(ms, 50):.2f}" for (form, name), ms in took.items())
        label = f"round {number} of {rounds}" if number else "warm-up"
        console.print(f"latencies, {label}: p50 ms {', '.join(p50s)}")
        for key, each in took.items() if number else ():
            latencies[key].append(each)
    return latencies


def _probe(kafka: KafkaServer, ways: Sequence[Contestant], samples: int) -> dict[str, list[float]]:
    described = json.dumps([(way.name, way.bootstrap, latency_topic(way.name)) for way in ways])
    latencies: dict[str, list[float]] = child(
        "benchmarks.latency_probe", kafka.bootstrap, str(samples), described
    )
    return latencies


def added(latencies: Latencies, form: str, name: str, percent: int) -> list[float]:
    """By round: the added time, compared with the direct way."""
    through = percentiles(latencies[form, name], percent)
    without = percentiles(latencies[form, DIRECT], percent)
    return [a - b for a, b in zip(through, without, strict=True)]


def percentiles(rounds: Sequence[Sequence[float]], percent: int) -> list[float]:
    return [percentile(samples, percent) for samples in rounds]


def pooled(rounds: Sequence[Sequence[float]]) -> list[list[float]]:
    """The samples of POOLED_ROUNDS rounds each; of the last ones, as many as there are more."""
    count = max(len(rounds) // POOLED_ROUNDS, 1)
    first = [number * POOLED_ROUNDS for number in range(count)]
    after = [*first[1:], len(rounds)]
    return [
        [ms for each in rounds[start:end] for ms in each]
        for start, end in zip(first, after, strict=True)
    ]


def goals_met(latencies: Latencies) -> list[Row]:
    """The lines of the table of goals. Goals relative to Kroxylicious need its measurement."""
    p99s = (percentiles(pooled(latencies[IN_PAIRS, name]), 99) for name in (FETCHPROXY, DIRECT))
    added_ms = added(latencies, IN_TURN, FETCHPROXY, 50)
    rows = goal_rows(goals.TAIL_LATENCY, added_ms, ratios(*p99s))
    for form, goal in ((IN_TURN, goals.TAIL_LATENCY_IN_TURN), (ALONE, goals.TAIL_LATENCY_ALONE)):
        if (form, KROXYLICIOUS) in latencies:
            compared = added_ratios(latencies, form, FETCHPROXY, KROXYLICIOUS)
            rows += goal_rows(goal, compared) if compared else []
    return rows


def added_ratios(latencies: Latencies, form: str, way: str, baseline: str) -> list[float]:
    """Ratios of the added medians, by round. Rounds in which `theirs` adds nothing are left out."""
    pairs = zip(added(latencies, form, way, 50), added(latencies, form, baseline, 50), strict=True)
    return [a / b for a, b in pairs if b > 0]


def latency_rows(latencies: Latencies) -> list[Row]:
    rows = []
    for percent in (50, 99):
        for (form, name), rounds in latencies.items():
            label = f"latency p{percent}, {form}, {name}"
            rows.append(row(label, "ms", percentiles(rounds, percent)))
    for percent in (50, 99):
        for form, name in latencies:
            if name != DIRECT:
                label = f"latency p{percent} added, {form}, {name}"
                rows.append(row(label, "ms", added(latencies, form, name, percent)))
    return rows
