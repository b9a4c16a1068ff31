"""`make drill-cluster` in its short form, and as it is typed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lab.kafka_versions import KAFKA_3_9, KAFKA_NEWEST, KAFKA_VERSION, kafka_jars
from rehearsal.checks import FIRST_RECORD_MAX_S
from rehearsal.drill import Drill, Rehearsal

pytestmark = [pytest.mark.slow, pytest.mark.kafka]

ROOT = Path(__file__).parents[2]
# Of the machine, not of the product: it may be busy.
SPEED = f"goal {FIRST_RECORD_MAX_S:.0f} s"


@pytest.mark.parametrize(
    ("part", "version"), [("kafka-3.9", KAFKA_3_9), ("kafka-newest", KAFKA_NEWEST)]
)
def test_nothing_is_lost_that_was_shown_as_safe(
    part: str,
    version: str,
    find_part: Callable[[str, Callable[[], Any]], Any],
    tmp_path: Path,
) -> None:
    find_part(part, lambda: kafka_jars(version))
    drill = Drill(partitions=30, groups=4, version=version, seed=7, seconds=5.0, records_per_s=300)
    results = Rehearsal(drill, tmp_path, print).play()
    assert [one.line() for one in results if one.ok is False and SPEED not in one.figure] == []


def test_the_command_prints_all_checks(
    find_part: Callable[[str, Callable[[], Any]], Any], tmp_path: Path
) -> None:
    find_part("kafka", lambda: kafka_jars(KAFKA_VERSION))
    words = ["--partitions", "12", "--groups", "2", "--seconds", "2", "--seed", "3"]
    result = subprocess.run(
        [sys.executable, "-m", "rehearsal", *words, "--folder", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ},
        capture_output=True,
        text=True,
        check=False,
    )
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAIL")]
    assert [line for line in failed if SPEED not in line] == [], result.stdout
    assert result.returncode == bool(failed)
    assert "phantoms left in replicas, placements and metadata: 0" in result.stdout
    assert "seed 3" in result.stdout
