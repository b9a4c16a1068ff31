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

from lab.spark import kafka_connector, killing_file_system, quick_java_options, spark_environment

PROJECT = Path(__file__).parents[2]
_PROGRAM = Path(__file__).with_name("killed_driver.py")
_RUNS_MAX = 100
_RUN_S_MAX = 900  # a driver that comes to no step and to no end
# Faults of Spark's own: it gives a Python process ten seconds to start, also on a busy machine; and
# it may serialize a task while a map of it changes (docs/upstream/spark-shared-environment.md).
_SPARKS_OWN = ("failed to connect back", "java.io.OptionalDataException")


class KilledDrivers:
    """Queries in `folder`, begun again by a new driver after each kill."""

    def __init__(self, version: str, folder: Path, *, kafka: bool) -> None:
        folder.mkdir()
        self._folder = folder
        connector = kafka_connector(version) if kafka else []
        class_path = ":".join(map(str, [killing_file_system(), *connector]))
        java_options = quick_java_options(version, class_path)
        self._task = {
            "folder": str(folder), "class_path": class_path, "java_options": java_options
        }  # fmt: skip
        self._environment = {**os.environ, **spark_environment(version)}
        path = self._environment["PYTHONPATH"]
        self._environment["PYTHONPATH"] = f"{PROJECT}:{path}"

    def run(self, mode: str, queries: Mapping[str, Mapping[str, str]], only: str = "") -> None:
        """Each of `queries`, by name with its options, to its end; killed before each of its steps
        (`only`: of those that the expression finds)."""
        options = {query: dict(query_options) for query, query_options in queries.items()}
        task = {**self._task, "mode": mode, "queries": options, "only": only}
        for _ in range(_RUNS_MAX):
            before = {query: len(self.steps(query)) for query in queries}
            result = subprocess.run(
                [sys.executable, str(_PROGRAM), json.dumps(task)],
                env=self._environment,
                cwd=self._folder,
                capture_output=True,
                text=True,
                check=False,
                start_new_session=True,
                timeout=_RUN_S_MAX,
            )
            failed = "".join(each.read_text() for each in self._folder.glob("*.failed"))
            if any(fault in failed + result.stderr for fault in _SPARKS_OWN):
                for each in self._folder.glob("*.failed"):
                    each.unlink()
                continue
            assert not failed, failed
            if result.returncode == 0:
                return
            more = {query: len(self.steps(query)) - before[query] for query in queries}
            assert set(more.values()) <= {0, 1}, more
            assert any(more.values()), result.stderr[-3000:]
        raise AssertionError(f"not at its end, killed before {before}")

    def steps(self, query: str) -> list[str]:
        """Before which a driver was killed."""
        steps = self._folder / f"{query}.steps"
        return steps.read_text().splitlines() if steps.exists() else []

    def rows(self, query: str) -> list[list[Any]]:
        """As `spark_program.as_row` makes them, in the order of partitions and offsets: of a stream
        the files that its log names, of a batch those that are there."""
        out = self._folder / "killing" / query / "out"
        logs = sorted(out.glob("_spark_metadata/[0-9]*"), key=lambda path: int(path.stem))
        files = _named_in(logs) if logs else sorted(out.glob("*.parquet"))
        rows = [as_row(row) for file in files for row in pq.read_table(file).to_pylist()]
        return sorted(rows, key=lambda row: row[2:5])


def _named_in(logs: list[Path]) -> list[Path]:
    documents = [json.loads(line) for log in logs for line in log.read_text().splitlines()[1:]]
    return [Path(urlsplit(each["path"]).path) for each in documents if each["action"] == "add"]


def as_row(row: Mapping[str, Any]) -> list[Any]:
    time = pa.scalar(row["timestamp"], pa.timestamp("us", "UTC")).value
    headers = row["headers"] and [[one["key"], _hex(one["value"])] for one in row["headers"]]
    key, value = _hex(row["key"]), _hex(row["value"])
    place = [row["topic"], row["partition"], row["offset"]]
    return [key, value, *place, time, row["timestampType"], headers]


def _hex(content: bytes | None) -> str | None:
    return None if content is None else content.hex()
