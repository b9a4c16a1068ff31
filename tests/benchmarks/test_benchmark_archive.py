"""The archiving benchmark runs from end to end, and its figures are computed as its table says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.archive import (
    BARE,
    CONSUMER,
    CONSUMER_UNPAUSED,
    DIRECTORY,
    MAIN,
    OTHERS,
    S3,
    Run,
    Runs,
    rows_of,
)
from lab.kafka_versions import kafka_jars
from lab.s3 import versitygw_executable
from tests.conftest import FindPart

PROJECT = Path(__file__).parents[2]


def runs(*mb_per_s: float, mib_max: float | None = None) -> list[Run]:
    return [Run(speed, 2.0, mib_max) for speed in mb_per_s]


def test_the_goal_is_of_the_local_directory_against_the_plain_consumer() -> None:
    found: Runs = {
        (MAIN, CONSUMER): runs(200.0, 100.0, 400.0),
        (MAIN, CONSUMER_UNPAUSED): runs(400.0, 400.0, 400.0),
        (MAIN, DIRECTORY): runs(160.0, 90.0, 200.0, mib_max=150.0),
        (MAIN, S3): runs(100.0, 50.0, 200.0, mib_max=300.0),
        (MAIN, BARE): runs(400.0, 100.0, 400.0),
    }
    rows = {each.name: each for each in rows_of(found)}
    line = rows["archiving : a plain consumer reading the same topic to nowhere"]
    assert (line.value, line.min, line.max, line.met) == (0.8, 0.5, 0.9, True)
    assert rows["archiving to S3 server : plain consumer, 1 KiB records"].value == 0.5
    other = rows["archiving to local directory : consumer that never pauses, 1 KiB records"]
    assert other.value == 0.4
    assert rows[f"archiving to S3 server : {BARE}, 1 KiB records"].value == 0.5
    assert rows["memory at most, S3 server, 1 KiB records"].value == 300.0
    assert "memory at most, plain consumer, 1 KiB records" not in rows


def test_without_an_s3_server_the_rest_is_told() -> None:
    found: Runs = {(MAIN, name): runs(100.0) for name in (CONSUMER, CONSUMER_UNPAUSED, DIRECTORY)}
    assert not [each.name for each in rows_of(found) if "S3" in each.name]


@pytest.mark.kafka
@pytest.mark.slow
def test_the_benchmark_runs(find_part: FindPart[Path], tmp_path: Path) -> None:
    find_part("kafka", kafka_jars)
    find_part("s3", versitygw_executable)
    results = tmp_path / "archive.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.archive", "--quick", "--results", str(results)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {each["name"]: each for each in json.loads(results.read_text())["rows"]}
    for shape in (MAIN, *OTHERS):
        for store in (DIRECTORY, S3):
            assert rows[f"throughput, {store}, {shape} records"]["value"] > 0
            assert rows[f"CPU, {store}, {shape} records"]["value"] > 0
            assert rows[f"memory at most, {store}, {shape} records"]["value"] > 20
