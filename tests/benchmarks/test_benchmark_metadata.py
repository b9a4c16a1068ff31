"""The metadata benchmark runs from end to end, and its goals are those of its figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.metadata import rows_of

PROJECT = Path(__file__).parents[2]
ROUND = {
    "segments": 100,
    "load_s": 12.0,
    "load_cpu_s": 9.0,
    "bytes_a_segment": 80.0,
    "find_offset_us": 1.0,
    "find_time_us": 6.0,
    "take_offset_us": 5.0,
    "take_time_us": 9.0,
    "put_us": 30.0,
}


def test_goals() -> None:
    worse = {**ROUND, "bytes_a_segment": 101.0, "load_cpu_s": 11.0}
    rows = {each.name: each for each in rows_of([ROUND, worse, worse], ROUND, 8900)}
    assert rows["memory"].met is False
    assert (rows["memory"].min, rows["memory"].max) == (80.0, 101.0)
    assert rows["cold load, time of one core"].met is False
    assert rows["cold load, time on the wall"].met is None
    assert rows["look-up by partition and offset"].met is True
    assert rows["look-up by partition and timestamp"].met is False
    assert rows["cache files"].value == 89.0


@pytest.mark.slow
def test_it_runs_and_writes_its_results(tmp_path: Path) -> None:
    results = tmp_path / "metadata.json"
    arguments = ["--quick", "--segments", "300", "--partitions", "3", "--results", str(results)]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.metadata", *arguments], check=True, cwd=PROJECT
    )
    written = json.loads(results.read_text())
    rows = {row["name"]: row for row in written["rows"]}
    assert rows["segments"]["value"] == 300
    assert set(rows["memory"]) == {"name", "value", "unit", "goal", "met", "min", "max"}
    assert rows["look-up by partition and offset"]["value"] > 0
    assert rows["put, 1000 segments in the partition"]["value"] > 0
    assert written["machine"]["cores"] > 0
