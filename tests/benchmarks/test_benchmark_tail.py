"""The tail benchmark runs from end to end, and its figures are computed as its table says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import goals
from benchmarks.contestants import BARE_RELAY, DIRECT, FETCHPROXY, KROXYLICIOUS
from benchmarks.drain import STOCK, UNPAUSED
from benchmarks.report import percentile, row
from benchmarks.tail import Drain, Measured, rows_of
from benchmarks.tail_latency import ALONE, FORMS, IN_TURN, Latencies, goals_met, latency_rows
from lab.kafka_versions import kafka_jars
from tests.conftest import FindPart

PROJECT = Path(__file__).parents[2]


def test_percentiles_are_samples() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 50) == 2.0
    assert percentile([3.0, 1.0, 2.0, 4.0], 99) == 4.0
    assert percentile([7.0], 50) == 7.0


def test_a_row_says_whether_its_goal_is_met() -> None:
    assert row("r", "x", [0.9, 1.0, 1.2], at_least=1.0).met is True
    assert row("r", "x", [0.9, 0.99, 1.2], at_least=1.0).met is False
    assert row("r", "ms", [0.3, 0.1, 0.2], at_most=0.2).met is True
    assert row("r", "ms", [0.3, 0.1, 0.3], at_most=0.2).met is False
    found = row("r", "ms", [0.3, 0.1, 0.2])
    assert (found.value, found.min, found.max, found.goal, found.met) == (0.2, 0.1, 0.3, None, None)


def drains(*mb_per_s: float, proxy_cpu: float | None) -> list[Drain]:
    return [Drain(speed, 1.0, 0.5, proxy_cpu) for speed in mb_per_s]


def test_ratios_are_taken_within_a_round() -> None:
    measured = Measured(
        drains={
            (consumer, name): each
            for consumer in (STOCK, UNPAUSED)
            for name, each in (
                (DIRECT, drains(100.0, 400.0, proxy_cpu=None)),
                (FETCHPROXY, drains(110.0, 360.0, proxy_cpu=0.25)),
            )
        },
        latencies={
            (form, name): rounds
            for form in FORMS
            for name, rounds in (
                (DIRECT, [[1.0, 2.0], [4.0, 5.0]]),
                (FETCHPROXY, [[1.5, 2.5], [4.1, 5.1]]),
            )
        },
        resident_mib={FETCHPROXY: 70.0},
    )
    rows = {each.name: each for each in rows_of(measured, mib=1000)}
    ratio = rows["throughput, stock consumer, fetchproxy / direct"]
    assert (ratio.value, ratio.min, ratio.max) == (1.0, 0.9, 1.1)
    added = rows[goals.TAIL_LATENCY.words]
    assert (added.value, added.min, added.max) == (0.3, 0.1, 0.5)
    assert added.met is False
    assert rows[f"{goals.TAIL_LATENCY.words}: p99 ratio to direct"].value == 1.135
    cpu = rows["CPU of the proxy, unpaused consumer, fetchproxy"]
    assert cpu.value == pytest.approx(0.25 / 1.048576, abs=1e-4)
    # Without Kroxylicious nothing is said of what is relative to it.
    assert not any(KROXYLICIOUS in name for name in rows)
    assert goals.TAIL_THROUGHPUT.words not in rows
    assert goals.TAIL_CPU.words not in rows


def test_throughput_is_compared_with_the_better_of_the_others() -> None:
    measured = Measured(
        drains={
            (consumer, name): each
            for consumer in (STOCK, UNPAUSED)
            for name, each in (
                (DIRECT, drains(900.0, 100.0, proxy_cpu=None)),  # the greater median, and ratio
                (KROXYLICIOUS, drains(400.0, 300.0, proxy_cpu=1.5)),
                (FETCHPROXY, drains(400.0, 360.0, proxy_cpu=0.3)),
            )
        },
        latencies={
            (form, name): [[took_ms]]
            for form in FORMS
            for name, took_ms in ((DIRECT, 1.0), (FETCHPROXY, 1.05))
        },
    )
    rows = {each.name: each for each in rows_of(measured, mib=1000)}
    line = rows[goals.TAIL_THROUGHPUT.words]
    assert (line.value, line.min, line.max, line.met) == (1.1, 1.0, 1.2, True)
    assert rows[goals.TAIL_CPU.words].value == 0.2
    assert rows[goals.TAIL_LATENCY.words].met is True


def test_what_is_added_is_compared_within_each_round_and_in_both_forms() -> None:
    # In the last round the peer is not later than the direct way: nothing to compare with.
    latencies: Latencies = {
        (IN_TURN, DIRECT): [[1.0], [2.0], [3.0]],
        (IN_TURN, KROXYLICIOUS): [[1.5], [2.25], [2.9]],
        (IN_TURN, FETCHPROXY): [[1.25], [2.25], [3.5]],
        (ALONE, DIRECT): [[1.0], [1.0], [1.0]],
        (ALONE, KROXYLICIOUS): [[1.5], [2.0], [1.25]],
        (ALONE, FETCHPROXY): [[1.25], [1.25], [1.25]],
        (IN_TURN, BARE_RELAY): [[1.0], [2.1], [3.1]],
        (ALONE, BARE_RELAY): [[1.0], [1.1], [1.2]],
    }
    rows = {each.name: each for each in goals_met(latencies)}
    in_turn = rows[goals.TAIL_LATENCY_IN_TURN.words]
    assert (in_turn.value, in_turn.min, in_turn.max, in_turn.met) == (0.75, 0.5, 1.0, True)
    alone = rows[goals.TAIL_LATENCY_ALONE.words]
    assert (alone.value, alone.min, alone.max, alone.met) == (0.5, 0.25, 1.0, True)
    shown = {each.name: each for each in latency_rows(latencies)}
    assert shown[f"latency p50 added, alone, {BARE_RELAY}"].value == 0.1
    assert shown[f"latency p50, in turn, {DIRECT}"].value == 2.0
    assert f"latency p50 added, alone, {DIRECT}" not in shown


@pytest.mark.kafka
def test_the_benchmark_runs(find_part: FindPart[Path], tmp_path: Path) -> None:
    find_part("kafka", kafka_jars)
    results = tmp_path / "tail.json"
    arguments = ["--quick", "--without", KROXYLICIOUS, "--results", str(results)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.tail", *arguments],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(results.read_text())
    rows = {each["name"]: each for each in document["rows"]}
    assert rows["throughput, stock consumer, fetchproxy"]["value"] > 0
    assert rows["CPU of the proxy, unpaused consumer, fetchproxy"]["value"] > 0
    assert rows[goals.TAIL_LATENCY.words]["goal"] == goals.TAIL_LATENCY.text
    assert goals.TAIL_LATENCY_IN_TURN.words not in rows  # it compares with what was left out
    for form in FORMS:
        assert rows[f"latency p50, {form}, {BARE_RELAY}"]["value"] > 0
    assert document["left_out"] == [f"{KROXYLICIOUS}: left out as asked"]
    assert document["not_compared"] == []
    assert set(rows["memory at most, fetchproxy"]) == {
        *("name", "value", "unit", "goal", "met", "min", "max")
    }
