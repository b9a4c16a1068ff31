"""`python -m benchmarks.pipeline_spark QUESTION ANSWER`: times queries of one Spark session.

benchmarks.pipeline runs this program, because only the lab's cache has PySpark. Both sources answer
the same query in turn. If their responses differ, it writes no result.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from fetchproxy.jobs.backfill import backfill
from fetchproxy.jobs.runner import OnSpark
from fetchproxy.remotelog.source import register_source

# The query reads every column and would notice if two records' bytes were exchanged.
ALL_COLUMNS = (
    "count(*)",
    "sum(length(key))",
    "sum(length(value))",
    "count(DISTINCT topic)",
    "sum(partition)",
    "sum(offset)",
    "max(timestamp)",
    "sum(timestampType)",
)
QUERIES = {  # (expressions, schema with the columns to read)
    "all": (ALL_COLUMNS, None),
    "value": (("sum(length(value))",), "value binary"),
    "offset": (("count(*)", "sum(offset)"), "offset bigint"),
}


class WorkerMemory(threading.Thread):
    """Watches the Python children of this process and keeps the peak memory of each, in MiB."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peaks: dict[int, float] = {}

    def run(self) -> None:
        while True:
            for pid in _descendants(os.getpid()):
                peak = _peak_mib(pid)
                if peak is not None:
                    self.peaks[pid] = max(peak, self.peaks.get(pid, 0.0))
            time.sleep(0.2)


def _descendants(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += (task / "children").read_text().split()
    except OSError:
        return []
    children_ids = sorted({int(child) for child in children})
    return children_ids + [each for child in children_ids for each in _descendants(child)]


def _peak_mib(pid: int) -> float | None:
    """The peak memory of a Python worker. None for other processes."""
    try:
        if b"pyspark" not in Path(f"/proc/{pid}/cmdline").read_bytes():
            return None
        if b"java" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0]:
            return None
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    except OSError:
        pass
    return None


class Contest:
    def __init__(self, spark: SparkSession, question: dict[str, Any]) -> None:
        self._spark = spark
        self._question = question

    def kafka(self, topics: list[str], schema: str | None) -> DataFrame:
        """Ignores `schema`: Spark's Kafka source cannot leave columns out."""
        del schema
        options = {
            "kafka.bootstrap.servers": self._question["bootstrap"],
            "subscribe": ",".join(topics),
        }
        return self._spark.read.format("kafka").options(**options).load()

    def remotelog(self, topics: list[str], schema: str | None) -> DataFrame:
        options = {"store": self._question["store"], "topics": ",".join(topics)}
        reader = self._spark.read.format("remotelog").options(**options)
        return (reader.schema(schema) if schema else reader).load()

    def seconds(self, size: str, columns: str) -> dict[str, list[float]]:
        topics = self._question["topics"][size]
        expressions, schema = QUERIES[columns]
        taken: dict[str, list[float]] = {"kafka": [], "remotelog": []}
        sources = [("kafka", self.kafka), ("remotelog", self.remotelog)]
        for number in range(self._question["rounds"]):
            responses = []
            for name, source in sources[:: -1 if number % 2 else 1]:
                began = time.perf_counter()
                responses.append(source(topics, schema).selectExpr(*expressions).collect())
                taken[name].append(time.perf_counter() - began)
            if responses[0] != responses[1]:
                raise RuntimeError(f"{size} B: the sources differ: {responses}")
            if columns == "all" and responses[0][0][0] != self._question["counts"][size]:
                raise RuntimeError(f"{size} B: {responses[0][0][0]} rows")
        return taken

    def backfill_seconds(self, size: str) -> dict[str, list[float]]:
        """Writes all columns as Parquet. Spark writes one folder, the job one for each date."""
        topics = self._question["topics"][size]
        taken: dict[str, list[float]] = {"kafka": [], "backfill": []}
        writers = [("kafka", self._written_by_spark), ("backfill", self._backfilled)]
        for number in range(self._question["rounds"]):
            responses = {}
            for name, write in writers[:: -1 if number % 2 else 1]:
                out = f"{self._question['folder']}/parquet"
                shutil.rmtree(out, ignore_errors=True)
                began = time.perf_counter()
                write(topics, out)
                taken[name].append(time.perf_counter() - began)
                responses[name] = self._spark.read.parquet(out).selectExpr(*ALL_COLUMNS).collect()
            if responses["kafka"] != responses["backfill"]:
                raise RuntimeError(f"{size} B: the files differ: {responses}")
        shutil.rmtree(out, ignore_errors=True)
        return taken

    def _written_by_spark(self, topics: list[str], out: str) -> None:
        self.kafka(topics, None).write.parquet(out)

    def _backfilled(self, topics: list[str], out: str) -> None:
        source = {"store": self._question["store"], "topics": ",".join(topics)}
        outcome, _ = backfill(OnSpark(self._spark), source, out)
        if outcome.failures:
            raise RuntimeError(f"not backfilled: {outcome.failures}")


def main(question_file: str, response: str) -> None:
    question = json.loads(Path(question_file).read_text())
    settings = {
        "spark.driver.extraClassPath": question["jars"],
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": f"{question['folder']}/local",
        "spark.sql.shuffle.partitions": "2",
    }
    builder = SparkSession.builder.master(f"local[{os.cpu_count()}]").appName("benchmark")
    spark = builder.config(map=settings).getOrCreate()
    register_source(spark)
    contest = Contest(spark, question)
    memory = WorkerMemory()
    memory.start()
    for source in (contest.kafka, contest.remotelog):  # warms up classes, workers and compiled code
        source(question["topics"]["100"][:1], None).limit(1000).count()
    seconds = {
        f"{size} {columns}": contest.seconds(size, columns)
        for size in question["topics"]
        for columns in QUERIES
    }
    backfills = {size: contest.backfill_seconds(size) for size in question["topics"]}
    results = {
        "backfills": backfills,
        "seconds": seconds,
        "worker_mib": sorted(memory.peaks.values())[-1:] or [0.0],
    }
    Path(response).write_text(json.dumps(results))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
