"""Drivers that are killed before each of their writes in turn, and what they leave. Not a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.parquet as pq

from lab.spark import kafka_connector, killing_file_system, spark_environment

PROJECT = Path(__file__).parents[2]
_PROGRAM = Path(__file__).with_name("killed_driver.py")
_RUNS_MAX = 60
# Spark gives a Python process ten seconds to start, also on a busy machine.
_TOO_SLOW = "failed to connect back"


class KilledDrivers:
    """One query in `folder`, begun again by a new driver after each kill."""

    def __init__(self, version: str, folder: Path, *, kafka: bool) -> None:
        folder.mkdir()
        self._folder = folder
        connector = kafka_connector(version) if kafka else []
        self._class_path = ":".join(map(str, [killing_file_system(), *connector]))
        self._environment = {**os.environ, **spark_environment(version)}
        path = self._environment["PYTHONPATH"]
        self._environment["PYTHONPATH"] = f"{PROJECT}:{path}"

    def run(self, mode: str, options: Mapping[str, str], only: str = "") -> list[str]:
        """To the query's end; the steps before which a driver was killed (`only`: of those that the
        expression finds)."""
        asked = {
            "folder": str(self._folder),
            "class_path": self._class_path,
            "mode": mode,
            "options": dict(options),
            "only": only,
        }
        for _ in range(_RUNS_MAX):
            before = len(self._steps())
            done = subprocess.run(
                [sys.executable, str(_PROGRAM), json.dumps(asked)],
                env=self._environment,
                cwd=self._folder,
                capture_output=True,
                text=True,
                check=False,
                start_new_session=True,
            )
            if done.returncode == 0:
                return self._steps()
            if _TOO_SLOW not in done.stderr:
                assert len(self._steps()) == before + 1, done.stderr[-3000:]
        raise AssertionError(f"not at its end, killed before {self._steps()}")

    def _steps(self) -> list[str]:
        steps = self._folder / "steps"
        return steps.read_text().splitlines() if steps.exists() else []

    def rows(self) -> list[list[Any]]:
        """As `spark_program.as_row` makes them, in the order of partitions and offsets: of a stream
        the files that its log names, of a batch those that are there."""
        out = self._folder / "killing/out"
        logs = sorted(out.glob("_spark_metadata/[0-9]*"), key=lambda path: int(path.stem))
        files = _named_in(logs) if logs else sorted(out.glob("*.parquet"))
        rows = [as_row(row) for file in files for row in pq.read_table(file).to_pylist()]
        return sorted(rows, key=lambda row: row[2:5])


def _named_in(logs: list[Path]) -> list[Path]:
    said = [json.loads(line) for log in logs for line in log.read_text().splitlines()[1:]]
    return [Path(urlsplit(each["path"]).path) for each in said if each["action"] == "add"]


def as_row(row: Mapping[str, Any]) -> list[Any]:
    time = pa.scalar(row["timestamp"], pa.timestamp("us", "UTC")).value
    headers = row["headers"] and [[one["key"], _hex(one["value"])] for one in row["headers"]]
    key, value = _hex(row["key"]), _hex(row["value"])
    place = [row["topic"], row["partition"], row["offset"]]
    return [key, value, *place, time, row["timestampType"], headers]


def _hex(content: bytes | None) -> str | None:
    return None if content is None else content.hex()
