"""A driver whose writes are all counted, to be killed between them: `python killed_driver.py JSON`.

It writes to `killing:` (lab/clients/killing_file_system). Ends with 0 when its query is at its end.
Not a test.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import fetchproxy.spark


def session(folder: Path, class_path: str, only: str) -> SparkSession:
    settings = {
        "spark.driver.extraClassPath": class_path,
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
        "spark.hadoop.fs.killing.impl": "KillingFileSystem",
        "spark.hadoop.fs.killing.steps": str(folder / "steps"),
        "spark.hadoop.fs.killing.group": str(os.getpgid(0)),
        "spark.hadoop.fs.killing.only": only,
    }
    builder = SparkSession.builder.master("local[2,2]").appName("killed")
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
    fetchproxy.spark.register(spark)
    if mode == "batch":
        frame = spark.read.format("remotelog").options(**options).load()
        frame.write.mode("overwrite").parquet(f"{place}/out")
    elif mode == "archive_then_live":
        at = f"{place}/crossing.json"
        frame = fetchproxy.spark.archive_then_live(spark, options, crossing_at=at)
        finish(frame, place, available_now=False)
    else:
        frame = spark.readStream.format("remotelog").options(**options).load()
        finish(frame, place, available_now=mode == "availableNow")


def main(asked: dict[str, Any]) -> None:
    folder = Path(asked["folder"])
    spark = session(folder, asked["class_path"], asked["only"])
    run(asked["mode"], spark, asked["options"], f"killing://{folder}/killing")
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
