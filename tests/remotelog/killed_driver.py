"""A driver whose writes are all counted, to be killed between them: `python killed_driver.py JSON`.

Its queries run beside each other and write to `killing:` (lab/clients/killing_file_system). Ends
with 0 when all are at their ends. Not a test.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import fetchproxy.spark


def session(task: dict[str, Any], queries: list[str]) -> SparkSession:
    folder = task["folder"]
    settings = {
        "spark.driver.extraClassPath": task["class_path"],
        "spark.driver.extraJavaOptions": task["java_options"],
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": f"{folder}/local",
        "spark.sql.warehouse.dir": f"{folder}/warehouse",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        # See docs/upstream/spark-checkpoint-not-empty.md; Spark before 4.1 does not know it.
        "spark.sql.streaming.verifyCheckpointDirectoryEmptyOnStart": "false",
        "spark.hadoop.fs.killing.impl": "KillingFileSystem",
        "spark.hadoop.fs.killing.folder": folder,
        "spark.hadoop.fs.killing.queries": ",".join(queries),
        "spark.hadoop.fs.killing.group": str(os.getpgid(0)),
        "spark.hadoop.fs.killing.only": task["only"],
    }
    # A task that waits to be killed leaves the other queries theirs.
    builder = SparkSession.builder.master(f"local[{2 * len(queries)},2]").appName("killed")
    return builder.config(map=settings).getOrCreate()


def finish(frame: DataFrame, place: str, *, available_now: bool) -> None:
    writer = frame.writeStream.format("parquet").option("path", f"{place}/out")
    writer = writer.option("checkpointLocation", f"{place}/checkpoint")
    if available_now:
        writer.trigger(availableNow=True).start().awaitTermination()
        return
    query = writer.trigger(processingTime="0 seconds").start()
    query.processAllAvailable()
    query.stop()


def run(mode: str, spark: SparkSession, options: dict[str, str], place: str) -> None:
    if mode == "batch":
        frame = spark.read.format("remotelog").options(**options).load()
        frame.write.mode("overwrite").parquet(f"{place}/out")
    elif mode == "archive_then_live":
        at = f"{place}/crossing.json"
        frame = fetchproxy.spark.archive_then_live(spark, options, tier_boundary_at=at)
        finish(frame, place, available_now=False)
    else:
        frame = spark.readStream.format("remotelog").options(**options).load()
        finish(frame, place, available_now=mode == "availableNow")


def main(task: dict[str, Any]) -> None:
    folder = Path(task["folder"])
    queries_left = [query for query in task["queries"] if not (folder / f"{query}.done").exists()]
    spark = session(task, queries_left)
    fetchproxy.spark.register(spark)

    def to_its_end(query: str) -> None:
        try:
            place = f"killing://{folder}/killing/{query}"
            run(task["mode"], spark, task["queries"][query], place)
            (folder / f"{query}.done").touch()
        except BaseException:  # noqa: BLE001, the process ends
            (folder / f"{query}.failed").write_text(traceback.format_exc())
            os.killpg(0, signal.SIGKILL)

    with ThreadPoolExecutor(len(queries_left)) as running:
        list(running.map(to_its_end, queries_left))
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
