"""The pipeline benchmark runs from end to end, and its goals are those of its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.pipeline import payloads, rows_of
from lab.spark import kafka_connector

PROJECT = Path(__file__).parents[2]
PLANS = {
    "segments": [1000.0],
    "planning_s": [21.0],
    "planning_cpu_s": [11.0],
    "pickling_s": [2.0],
    "memory_mib": [500.0],
    "stored_segments": [1000.0],
    "stored_million_s": [90.0],
    "stored_million_cpu_s": [180.0],
    "collected_million_s": [61.0],
    "collected_million_cpu_s": [90.0],
}


def test_goals() -> None:
    seconds = {
        "100 all": {"kafka": [20.0, 26.0, 30.0], "remotelog": [10.0, 10.0, 10.0]},
        "100 value": {"kafka": [20.0, 26.0, 20.0], "remotelog": [10.0, 10.0, 10.0]},
        "100 offset": {"kafka": [31.0], "remotelog": [10.0]},
        "1024 all": {"kafka": [20.0], "remotelog": [10.0]},
        "1024 value": {"kafka": [20.0], "remotelog": [10.0]},
        "1024 offset": {"kafka": [40.0], "remotelog": [10.0]},
    }
    backfills = {
        "100": {"kafka": [39.0], "backfill": [10.0]},
        "1024": {"kafka": [30.0], "backfill": [10.0]},
    }
    figures = {"seconds": seconds, "backfills": backfills, "worker_mib": [300.0]}
    rows = {each.name: each for each in rows_of(figures, PLANS, {100: 1000, 1024: 100})}
    ratio = rows["100 B, all columns: remotelog / Kafka source"]
    assert (ratio.value, ratio.min, ratio.max) == (2.6, 2.0, 3.0)
    assert ratio.met is True
    assert rows["100 B, value: remotelog / Kafka source"].met is False
    assert rows["100 B, offset: remotelog / Kafka source"].met is True
    assert rows["1024 B, all columns: remotelog / Kafka source"].met is True
    assert rows["1024 B, value: remotelog / Kafka source"].met is False
    assert rows["1024 B, offset: remotelog / Kafka source"].met is True
    assert rows["100 B to Parquet: backfill / Kafka source"].met is False
    assert rows["1024 B to Parquet: backfill / Kafka source"].met is True
    assert rows["1024 B to Parquet: backfill"].value == 10.0
    assert rows["100 B, all columns: remotelog"].value == 100.0
    assert rows["planning, cache files to tasks"].met is False
    assert rows["planning from the store alone, for a million"].met is False
    assert rows["a Python worker's memory, at its most"].met is True


@pytest.mark.parametrize("size", [100, 1024])
def test_payloads_are_lines_of_one_size(size: int) -> None:
    made = payloads(size, 50)
    assert {len(line) for line in made} == {size}
    assert len(set(made)) == 50
    assert not any("\n" in line for line in made)


def test_planning_is_measured(tmp_path: Path) -> None:
    from benchmarks.pipeline import planning

    found = planning(tmp_path / "made", 300, 200, 1)
    assert found["segments"] == [300]
    assert found["tasks"][0] >= 150
    assert found["planning_cpu_s"][0] > 0
    assert found["stored_segments"] == [200]
    assert found["stored_million_cpu_s"][0] > found["planning_cpu_s"][0]
    assert found["collected_segments"] == [200]
    assert found["collected_million_cpu_s"][0] > found["planning_cpu_s"][0]


@pytest.mark.kafka
@pytest.mark.slow
def test_it_runs_and_writes_its_results(
    tmp_path: Path, find_part: Callable[[str, Callable[[], list[Path]]], list[Path]]
) -> None:
    find_part("spark", kafka_connector)
    results = tmp_path / "pipeline.json"
    command = [sys.executable, "-m", "benchmarks.pipeline", "--quick", "--results", str(results)]
    subprocess.run(command, check=True, cwd=PROJECT)
    written = json.loads(results.read_text())
    rows = {row["name"]: row for row in written["rows"]}
    assert rows["100 B, all columns: remotelog"]["value"] > 0
    assert rows["1024 B, offset: kafka"]["value"] > 0
    assert rows["a Python worker's memory, at its most"]["value"] > 20
    assert set(rows["planning: segments"]) == {
        "name", "value", "unit", "goal", "met", "min", "max"
    }  # fmt: skip
