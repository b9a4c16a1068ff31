"""The data source as the Python part of each PySpark 4 asks it: fast, as no JVM takes part."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from made_batches import Record, made_batch
from spark_versions import VERSIONS, check_set_up
from written_archive import WrittenArchive

from fetchproxy.model import TopicIdPartition
from lab.parts import PYSPARKS
from lab.spark import pyspark

pytestmark = pytest.mark.spark

PROGRAM = Path(__file__).with_name("interface_program.py")
PROJECT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", VERSIONS)
def test_it_is_read_and_followed_as_this_pyspark_asks(
    part: str, find_part: Callable[..., None], tmp_path: Path
) -> None:
    find_part(part, lambda: check_set_up(part))
    archive = WrittenArchive(tmp_path / "archive")
    for partition, segments in ((0, 6), (1, 2)):
        tp = TopicIdPartition(UUID(int=1), "orders", partition)
        for base in range(0, 10 * segments, 10):
            archive.add([made_batch(base, [Record(value=bytes(1000))] * 10)], tp=tp)
    path = os.pathsep.join([str(pyspark(PYSPARKS[part])), str(PROJECT)])
    result = subprocess.run(
        [sys.executable, str(PROGRAM), archive.url],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    results: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    assert results["rows"] == results["stream"] == 80
    assert not results["pushes"]  # or every batch fails with the settings that Spark has by itself
    if PYSPARKS[part] < "4.2":
        for name, warning in results["limits"].items():
            assert f"remotelog: {name}: needs PySpark 4.2 or newer" in warning
        return
    assert results["limits"] == {
        "maxBytesPerTrigger": [20, 20, 20, 20],
        "maxOffsetsPerTrigger": [25, 25, 25, 5],
        "minOffsetsPerTrigger": [80],
        "maxTriggerDelay": [80],
    }
