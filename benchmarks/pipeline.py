"""`python -m benchmarks.pipeline`: the archive on Spark, compared with Spark's Kafka source.

The same records, plain and zstd, of 100 B and of 1 KiB, are produced to a real broker and archived
to a folder. One Spark session reads them from both in turn, round after round: all columns, only
the value, and only the offset. It also writes all columns to Parquet; for the archive, the job
`backfill` does so. Broker, store and Spark share the machine's cores and its page cache. The
benchmark also measures the planning of a million segments and the memory of a Python worker.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.frame import Outcome, Part, Size, child
from benchmarks.metadata import write_cache
from benchmarks.pipeline_planning import write_store
from benchmarks.report import Row, row
from lab.kafka import KafkaServer, run_tool
from lab.spark import SPARK_VERSION, kafka_connector, spark_environment

_PROJECT = Path(__file__).parents[1]

PARTITIONS = 4
CODECS = ("none", "zstd")  # each has half of the records
PLANNED_PARTITIONS = 10_000

# The goals of reading.
RATIO_MIN = {
    (100, "all"): 2.5,
    (1024, "all"): 1.7,
    (100, "value"): 3.0,
    (100, "offset"): 3.0,
    # With 1 KiB the value is nearly the whole record, so leaving out the other columns saves
    # little.
    (1024, "value"): 3.0,
    (1024, "offset"): 3.0,
}
BACKFILL_MIN = {100: 4.0, 1024: 3.0}
PLANNING_S_MAX = 20.0
STORED_PLANNING_S_MAX = 60.0  # for a million segments, calculated from fewer
# The interpreter, pyarrow and numba take some 150 MiB. The rest is for ranges, the arena and Arrow
# batches; see docs/spark/planning.md.
WORKER_MIB_MAX = 400.0


def topic_of(size: int, codec: str) -> str:
    return f"bench-{size}-{codec}"


def payloads(size: int, count: int) -> list[str]:
    """Lines of JSON that compress about three to one, like logs and events."""
    dice = random.Random(size)
    made = []
    for number in range(count):
        line = (
            f'{{"id":{number},"user":{dice.randrange(10**6)},"page":"/items/{dice.randrange(999)}"'
        )
        while len(line) < size - 20:
            line += f',"f{dice.randrange(9)}":{dice.randrange(10**4)},"state":"delivered"'
        made.append((line + "}" * size)[:size])
    return made


def produce(kafka: KafkaServer, folder: Path, size: int, records: int) -> None:
    file = folder / f"payloads-{size}"
    file.write_text("\n".join(payloads(size, 20_000)))
    for codec in CODECS:
        kafka.create_topic(topic_of(size, codec), PARTITIONS)
        settings = ["batch.size=65536", "linger.ms=50", f"compression.type={codec}"]
        arguments = ["--topic", topic_of(size, codec), "--num-records", str(records // len(CODECS))]
        arguments += ["--payload-file", str(file), "--throughput", "-1"]
        properties = [f"bootstrap.servers={kafka.bootstrap}", "acks=1", *settings]
        run_tool(
            "org.apache.kafka.tools.ProducerPerformance",
            *arguments,
            "--producer-props",
            *properties,
            timeout_s=1800,
        )


def archive(kafka: KafkaServer, store: Path) -> None:
    store.mkdir()
    command = [sys.executable, "-m", "fetchproxy", "archive", "--once", "--archive", "bench-.*"]
    command += ["--bootstrap", kafka.bootstrap, "--store", store.as_uri()]
    subprocess.run(command, cwd=_PROJECT, check=True, stderr=subprocess.DEVNULL)


def spark_figures(question: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The figures of benchmarks.pipeline_spark. Raises PartMissing, CalledProcessError."""
    environment = {**os.environ, **spark_environment()}
    environment["PYTHONPATH"] = f"{_PROJECT}:{environment['PYTHONPATH']}"
    question_file, response = folder / "question.json", folder / "answer.json"
    jars = ":".join(map(str, kafka_connector()))
    question_file.write_text(json.dumps({**question, "folder": str(folder), "jars": jars}))
    command = [sys.executable, "-m", "benchmarks.pipeline_spark", str(question_file), str(response)]
    with (folder / "spark.log").open("wb") as log:
        result = subprocess.run(command, cwd=_PROJECT, env=environment, stderr=log, check=False)
    if result.returncode != 0:
        sys.stderr.write((folder / "spark.log").read_text(errors="replace")[-3000:])
        result.check_returncode()
    figures: dict[str, Any] = json.loads(response.read_text())
    return figures


def planning(folder: Path, segments: int, stored: int, rounds: int) -> dict[str, list[float]]:
    """Times planning from an archiver's cache files and from a store alone, in seconds.

    The store is measured as archivers leave it, and again after a proxy has collected its metadata.
    """
    folder.mkdir()
    cache, store = str(folder / "cache"), str(folder / "store")
    write_cache(Path(cache), _partitions(segments), segments)
    write_store(Path(store), _partitions(stored), stored)
    seconds: dict[str, list[float]] = {}
    every: list[tuple[str, ...]] = [(cache,), (store, "store")] * rounds
    every += [(store, "collect"), *[(store, "store")] * rounds]
    for arguments in every:
        for name, value in child("benchmarks.pipeline_planning", *arguments).items():
            seconds.setdefault(name, []).append(value)
    return seconds


def _partitions(segments: int) -> int:
    return max(1, min(PLANNED_PARTITIONS, segments // 100))


def rows_of(
    figures: Mapping[str, Any], plans: Mapping[str, list[float]], counts: Mapping[int, int]
) -> list[Row]:
    """Ratios first. `figures` has a list of seconds by size and columns, then by source."""
    rows: list[Row] = []
    rates: list[Row] = []
    for (size, columns), goal in RATIO_MIN.items():
        seconds = figures["seconds"][f"{size} {columns}"]
        ratios = [k / r for k, r in zip(seconds["kafka"], seconds["remotelog"], strict=True)]
        what = f"{size} B, {'all columns' if columns == 'all' else columns}"
        rows.append(row(f"{what}: remotelog / Kafka source", "x", ratios, at_least=goal))
        for source, taken in seconds.items():
            rates.append(row(f"{what}: {source}", "rows/s", [counts[size] / s for s in taken]))
    for size, count in counts.items():
        seconds = figures["backfills"][str(size)]
        ratios = [k / b for k, b in zip(seconds["kafka"], seconds["backfill"], strict=True)]
        what = f"{size} B to Parquet"
        rows.append(
            row(f"{what}: backfill / Kafka source", "x", ratios, at_least=BACKFILL_MIN[size])
        )
        for source, taken in seconds.items():
            rates.append(row(f"{what}: {source}", "rows/s", [count / each for each in taken]))
    memory = figures["worker_mib"]
    return [
        *rows,
        *rates,
        row("planning: segments", "", plans["segments"]),
        row("planning, cache files to tasks", "s", plans["planning_s"], at_most=PLANNING_S_MAX),
        # On an idle machine this time is also the wall time.
        row("planning, time of one core", "s", plans["planning_cpu_s"]),
        row("planning: tasks, pickled for Spark", "s", plans["pickling_s"]),
        row("planning: memory", "MiB", plans["memory_mib"]),
        row("planning from the store alone: segments", "", plans["stored_segments"]),
        row(
            "planning from the store alone, for a million",
            "s",
            plans["collected_million_s"],
            at_most=STORED_PLANNING_S_MAX,
        ),
        row(
            "planning from the store alone, for a million, time of one core",
            "s",
            plans["collected_million_cpu_s"],
        ),
        row("the same where nothing is collected", "s", plans["stored_million_s"]),
        row(
            "the same where nothing is collected, time of one core",
            "s",
            plans["stored_million_cpu_s"],
        ),
        row("a Python worker's memory, at its most", "MiB", memory, at_most=WORKER_MIB_MAX),
    ]


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    counts = {100: options.records_100, 1024: options.records_1024}
    with tempfile.TemporaryDirectory(prefix="fetchproxy-pipeline-") as name:
        folder = Path(name)
        plans = planning(
            folder / "metadata", options.segments, options.stored_segments, options.rounds
        )
        console.print(f"planned {options.segments} segments")
        with KafkaServer() as kafka:
            for size, count in counts.items():
                produce(kafka, folder, size, count)
                console.print(f"produced {count} records of {size} B")
            archive(kafka, folder / "store")
            console.print("archived them")
            question = {
                "bootstrap": kafka.bootstrap,
                "store": (folder / "store").as_uri(),
                "rounds": options.rounds,
                "topics": {size: [topic_of(size, codec) for codec in CODECS] for size in counts},
                "counts": counts,
            }
            figures = spark_figures(question, folder)
    facts = {"spark": SPARK_VERSION, "codecs": list(CODECS)}
    return Outcome(rows_of(figures, plans, counts), facts)


PART = Part(
    name="pipeline",
    title="The archive on Spark: medians of the rounds",
    description=str(__doc__),
    sizes=[
        Size("rounds", 5, 1, "times that each query is asked of both sources"),
        Size("records-100", 10_000_000, 20_000, "records of 100 B"),
        Size("records-1024", 1_500_000, 5_000, "records of 1 KiB"),
        Size("segments", 1_000_000, 1_000, "segments that are planned from cache files"),
        Size("stored-segments", 50_000, 1_000, "segments that are planned from a store alone"),
    ],
    measure=measure,
)


if __name__ == "__main__":
    sys.exit(PART.main())
