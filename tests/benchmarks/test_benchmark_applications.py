"""The benchmark of applications: its crowd reads at once; its figures are what they are called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.applications import UNPACED, Found, note, rows_of
from benchmarks.contestants import FETCHPROXY

PROJECT = Path(__file__).parents[2]


def test_figures_of_a_crowd() -> None:
    found: Found = {}
    note(found, UNPACED, [10.0, 10.0, 12.0, 8.0])
    note(found, FETCHPROXY, [5.0, 5.0, 5.5, 4.5])
    values = {row.name: (row.value, row.met) for row in rows_of(found)}
    assert values["4 at once: median: paced / not paced"] == (0.5, True)
    assert values["4 at once: the last: paced / not paced"] == (0.4583, True)
    assert values[f"4 at once: furthest from the mean: {UNPACED}"] == (0.2, False)
    assert values[f"4 at once: furthest from the mean: {FETCHPROXY}"] == (0.1, True)


def test_slower_with_pacing_is_missed() -> None:
    rows = rows_of({("naps", UNPACED): [1.0, 1.0], ("naps", FETCHPROXY): [1.1, 1.02]})
    assert [(row.value, row.met) for row in rows if row.goal] == [(1.06, False)]


@pytest.mark.kafka
def test_crowd_reads_all(tmp_path: Path) -> None:
    results = tmp_path / "applications.json"
    command = [sys.executable, "-m", "benchmarks.applications", "--quick", "--what", "crowd"]
    subprocess.run([*command, "--results", results], cwd=PROJECT, check=True, timeout=300)
    rows = json.loads(results.read_text(encoding="utf-8"))["rows"]
    for way in (UNPACED, FETCHPROXY):
        [seconds] = [row["value"] for row in rows if row["name"] == f"4 at once: median: {way}"]
        assert seconds > 0
