"""Spark's own Kafka source and sink, used as a user would, for the matrix of clients.

One session serves many requests, because starting a session takes longer than using it. A request
is a line of JSON on stdin, [verb, bootstrap, topic, …]. Its answer is a line of JSON on stdout,
{"found": …} or {"error": …}. The program ends when stdin ends. Verbs:
  batch ISOLATION         every record, as [partition, offset, key, value]
  stream ISOLATION        the same, by a streaming query that ends at the current end
  produce COUNT           writes records k0:v0, k1:v1 … to partition 0
  times PARTITION TIME    the first offset of a batch read from this time (epoch ms), or -1
If offsets are missing, a read always fails (failOnDataLoss).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

OFFSETS_PER_TRIGGER = "300"  # so that a streaming query takes several micro-batches


def session(folder: Path, jars: str) -> SparkSession:
    settings = {
        "spark.driver.extraClassPath": jars,
        "spark.driver.memory": "512m",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.sql.shuffle.partitions": "1",
    }
    builder = SparkSession.builder.master("local[1]").appName("lab")
    return builder.config(map=settings).getOrCreate()


class KafkaSource:
    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._streams = 0

    def batch(self, bootstrap: str, topic: str, level: str) -> list[list[object]]:
        options = self._options(bootstrap, level) | {"subscribe": topic}
        return _records(self._spark.read.format("kafka").options(**options).load())

    def stream(self, bootstrap: str, topic: str, level: str) -> list[list[object]]:
        options = self._options(bootstrap, level) | {"subscribe": topic}
        options["maxOffsetsPerTrigger"] = OFFSETS_PER_TRIGGER
        frame = self._spark.readStream.format("kafka").options(**options).load()
        self._streams += 1
        table = f"stream{self._streams}"
        query = frame.writeStream.format("memory").queryName(table).trigger(availableNow=True)
        running = query.start()
        running.awaitTermination()
        batches = sum(progress["numInputRows"] > 0 for progress in running.recentProgress)
        if batches < 2:
            raise RuntimeError(f"{batches} micro-batches: nothing was read on from a checkpoint")
        return _records(self._spark.table(table))

    def produce(self, bootstrap: str, topic: str, count: int) -> None:
        numbers = self._spark.range(0, count, 1, 1)
        rows = numbers.selectExpr(
            "concat('k', id) AS key", "concat('v', id) AS value", "0 AS partition"
        )
        options = {"kafka.bootstrap.servers": bootstrap, "kafka.enable.idempotence": "true"}
        rows.write.format("kafka").options(**options, topic=topic).save()

    def times(self, bootstrap: str, topic: str, partition: int, timestamp_ms: int) -> int:
        options = self._options(bootstrap, "read_uncommitted") | {
            "assign": json.dumps({topic: [partition]}),
            "startingOffsetsByTimestamp": json.dumps({topic: {str(partition): timestamp_ms}}),
            "startingOffsetsByTimestampStrategy": "latest",
        }
        frame = self._spark.read.format("kafka").options(**options).load()
        first = frame.selectExpr("min(offset)").collect()[0][0]
        return -1 if first is None else int(first)

    def _options(self, bootstrap: str, level: str) -> dict[str, str]:
        return {
            "kafka.bootstrap.servers": bootstrap,
            "kafka.isolation.level": level,
            "startingOffsets": "earliest",
            "failOnDataLoss": "true",
        }


def _records(frame: DataFrame) -> list[list[object]]:
    columns = ("partition", "offset", "CAST(key AS STRING)", "CAST(value AS STRING)")
    return [list(row) for row in frame.selectExpr(*columns).collect()]


def main(folder: str, jars: str) -> None:
    # All other output of this process goes to stderr, because stdout has only answers.
    with os.fdopen(os.dup(1), "w") as responses:
        os.dup2(2, 1)
        source = KafkaSource(session(Path(folder), jars))
        verbs = {name: getattr(source, name) for name in ("batch", "stream", "produce", "times")}
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            try:
                response = {"found": verbs[verb](*arguments)}
            except Exception as error:  # noqa: BLE001 (told to whoever has asked)
                response = {"error": f"{type(error).__name__}: {error}"[:3000]}
            responses.write(json.dumps(response) + "\n")
            responses.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
