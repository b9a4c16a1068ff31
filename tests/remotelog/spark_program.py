"""A Spark session in a process of its own, asked by lines of JSON: `python spark_program.py JARS`.

PySpark is in the lab's cache alone, so no test imports it. A request is [verb, arguments…], its
response {"found": …} or {"error": …}. Rows come as `as_row` makes them. Not a test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).parents[2]


class SparkProgram:
    """The test's side. Raises PartMissing where the lab has no Spark.

    `version`: of PySpark, by default the lab's first; `kafka`: with Spark's Kafka source.
    """

    def __init__(self, version: str | None = None, *, kafka: bool = True) -> None:
        from lab.spark import SPARK_VERSION, kafka_connector, spark_environment

        self.version = version or SPARK_VERSION
        self.environment = {**os.environ, **spark_environment(self.version)}
        environment = self.environment
        environment["PYTHONPATH"] = f"{PROJECT}:{environment['PYTHONPATH']}"
        jars = ":".join(map(str, kafka_connector(self.version))) if kafka else ""
        self._folder = tempfile.TemporaryDirectory(prefix="pipeline-spark-")
        self.log = Path(self._folder.name, "spark.log")
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, __file__, self._folder.name, jars],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=self._folder.name,
                text=True,
            )

    def ask(self, *request: Any, timeout_s: float = 1800.0) -> Any:
        """What the verb has found; AssertionError with what Spark said where it failed."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        limit = threading.Timer(timeout_s, self._process.kill)
        limit.start()
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        finally:
            limit.cancel()
        assert line, f"Spark has ended\n{self.log.read_text(errors='replace')[-3000:]}"
        response = json.loads(line)
        if "error" in response:
            raise SparkSays(response["error"])
        return response["found"]

    def rows(self, source: str, options: Mapping[str, str], schema: str | None = None) -> list[Any]:
        rows_read: list[Any] = self.ask("rows", source, options, schema)
        return rows_read

    def close(self) -> None:
        try:
            self._process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
        self._folder.cleanup()


class SparkSays(Exception):
    """What a query failed with."""


# --- the other process ---


class Verbs:
    def __init__(self, folder: Path, jars: str) -> None:
        from pyspark.sql import SparkSession

        settings = {
            "spark.driver.extraClassPath": jars,
            "spark.driver.memory": "768m",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.ui.enabled": "false",
            "spark.local.dir": str(folder / "local"),
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.sql.shuffle.partitions": "1",
            "spark.sql.session.timeZone": "UTC",
        }
        # Two threads; a task that fails may be run once more.
        builder = SparkSession.builder.master("local[2,2]").appName("pipeline")
        self.spark = builder.config(map=settings).getOrCreate()
        self._streams = 0
        self._frames: dict[str, Any] = {}
        self._folder = folder

    def rows(self, source: str, options: dict[str, str], schema: str | None) -> list[Any]:
        reader = self.spark.read.format(source).options(**options)
        return _rows((reader.schema(schema) if schema else reader).load())

    def exact_rows(self, source: str, options: dict[str, str]) -> list[Any]:
        """As `rows`, but headers' keys as the bytes of their text, also from Parquet files."""
        reader = self.spark.read.format(source).options(**options)
        headers = "transform(headers, h -> array(hex(h.key), hex(h.value)))"
        us = "unix_micros(timestamp)"
        frame = reader.load().selectExpr(
            *("hex(key)", "hex(value)", "string(topic) AS topic", "partition", "offset"),
            *(us, "timestampType", headers),
        )
        return [list(row) for row in frame.orderBy("topic", "partition", "offset").collect()]

    def schema(self, source: str, options: dict[str, str]) -> Any:
        return json.loads(self.spark.read.format(source).options(**options).load().schema.json())

    def produce(self, options: dict[str, str], rows: list[list[Any]]) -> None:
        """Rows of key, value, partition and headers, as Spark's Kafka sink (a Java producer)
        writes them; bytes as latin-1."""
        made = [
            (
                None if key is None else key.encode("latin-1"),
                None if value is None else value.encode("latin-1"),
                partition,
                [(k, None if v is None else v.encode("latin-1")) for k, v in headers] or None,
            )
            for key, value, partition, headers in rows
        ]
        schema = (
            "key binary, value binary, partition int, "
            "headers array<struct<key:string,value:binary>>"
        )
        frame = self.spark.createDataFrame(made, schema).coalesce(1)
        frame.write.format("kafka").options(includeHeaders="true", **options).save()

    def keep(self, name: str, options: dict[str, str]) -> None:
        """A DataFrame that later requests ask by its name."""
        self._frames[name] = self.spark.read.format("remotelog").options(**options).load()

    def kept_rows(self, name: str, condition: str | None = None) -> list[Any]:
        frame = self._frames[name]
        return _rows(frame.where(condition) if condition else frame)

    def task_count(self, source: str, options: dict[str, str]) -> int:
        frame = self.spark.read.format(source).options(**options).load()
        return int(frame.rdd.getNumPartitions())

    def set(self, name: str, value: str) -> None:
        self.spark.conf.set(name, value)

    def ease(self, store: str, topics: str, columns: list[str]) -> list[Any]:
        """By `fetchproxy.spark`."""
        import fetchproxy.spark

        frame = fetchproxy.spark.read_archive(self.spark, store, topics, columns=columns)
        return [[_hex(field) for field in row] for row in frame.collect()]

    def verify_job(self, store: str) -> list[Any]:
        """The faults that the job finds."""
        from fetchproxy.config.load import Setting, load_config
        from fetchproxy.jobs.runner import OnSpark
        from fetchproxy.jobs.verify import verify

        config = load_config(None, {}, [Setting("store.url", store, "here")])
        return [list(row) for row in verify(OnSpark(self.spark), config).faults.collect()]

    def available_now(
        self, options: dict[str, str], checkpoint: str, fail_in_batch: int = -1
    ) -> dict[str, Any]:
        """The rows of a run that ends with what is there; the sink of the batch of that number
        fails after it has seen its rows, as a driver that dies before it commits."""
        import fetchproxy.spark

        fetchproxy.spark.register(self.spark)
        batches: list[list[Any]] = []

        def take(frame: Any, number: int) -> None:
            rows = _rows(frame)
            if number == fail_in_batch:
                raise RuntimeError("the sink fails, as the test says")
            batches.append(rows)

        reader = self.spark.readStream.format("remotelog").options(**options)
        writer = reader.load().writeStream.foreachBatch(take)
        writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
        while True:
            query, failed = writer.start(), ""
            try:
                query.awaitTermination()
            except Exception as error:  # noqa: BLE001 - the asker is told
                failed = str(error)
            # Spark gives a Python process ten seconds to start, also on a busy machine.
            if "failed to connect back" not in failed:
                break
        latest = [each["sources"][0].get("latestOffset") for each in query.recentProgress]
        return {"batches": batches, "failed": failed, "latest": latest}

    def stream(self, options: dict[str, str], checkpoint: str) -> list[Any]:
        """What a query of `remotelog` adds to what the checkpoint has seen."""
        return self._run(self.spark.readStream.format("remotelog").options(**options), checkpoint)

    def tier_boundary(self, options: dict[str, str]) -> list[Any]:
        from fetchproxy.remotelog.archive_then_live import archive_then_live

        return _rows(archive_then_live(self.spark, options))

    def tier_boundary_stream(self, options: dict[str, str], checkpoint: str) -> list[Any]:
        from fetchproxy.remotelog.archive_then_live import archive_then_live

        at = f"{checkpoint}-crossing.json"
        return self._finish(archive_then_live(self.spark, options, tier_boundary_at=at), checkpoint)

    def sql(self, view: str, options: dict[str, str], query: str) -> list[Any]:
        frame = self.spark.read.format("remotelog").options(**options).load()
        frame.createOrReplaceTempView(view)
        return [list(row) for row in self.spark.sql(query).collect()]

    def statements(self, statements: list[str]) -> list[Any]:
        """The rows of the last one."""
        frame = [self.spark.sql(each) for each in statements][-1]
        return [[_as_json_value(field) for field in row] for row in frame.collect()]

    def rows_with_a_killed_worker(self, options: dict[str, str], signal_number: int) -> Any:
        """As `rows`, but the worker that has read the first task's rows is killed then, once."""
        from fetchproxy.remotelog.source import RemoteLogDataSource, RemoteLogReader

        killed = Path(self._folder, "killed")
        killed.unlink(missing_ok=True)

        class DyingReader(RemoteLogReader):
            def read(self, partition: Any) -> Any:
                for batch in super().read(partition):
                    yield batch
                    try:
                        os.close(os.open(killed, os.O_CREAT | os.O_EXCL))
                    except FileExistsError:
                        continue
                    os.kill(os.getpid(), signal_number)

        class DyingSource(RemoteLogDataSource):
            @classmethod
            def name(cls) -> str:
                return "dying"

            def reader(self, schema: Any) -> Any:
                made = super().reader(schema)
                return DyingReader(made._options, made._columns)

        self.spark.dataSource.register(DyingSource)
        rows = _rows(self.spark.read.format("dying").options(**options).load())
        return {"rows": rows, "killed": int(killed.exists())}

    def worker_memory(self, options: dict[str, str]) -> list[int]:
        """What a Python worker has before it reads one task, and at most until Spark has all of
        it, in bytes. The rows do not reach this process.
        """
        from fetchproxy.remotelog.source import RemoteLogDataSource, RemoteLogReader

        memory_file = Path(self._folder, "worker-memory.json")

        class MeasuredReader(RemoteLogReader):
            def read(self, partition: Any) -> Any:
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins now
                before = _of_status("VmRSS")
                yield from super().read(partition)
                memory_file.write_text(json.dumps([before, _of_status("VmHWM")]))

        class MeasuredSource(RemoteLogDataSource):
            @classmethod
            def name(cls) -> str:
                return "measured"

            def reader(self, schema: Any) -> Any:
                made = super().reader(schema)
                return MeasuredReader(made._options, made._columns)

        self.spark.dataSource.register(MeasuredSource)
        frame = self.spark.read.format("measured").options(**options).load()
        frame.selectExpr("sum(length(value))").collect()
        return list(json.loads(memory_file.read_text()))

    def _run(self, reader: Any, checkpoint: str) -> list[Any]:
        return self._finish(reader.load(), checkpoint)

    def _finish(self, frame: Any, checkpoint: str) -> list[Any]:
        """One pass over what is there now; the checkpoint keeps how far it came."""
        self._streams += 1
        folder = f"{checkpoint}-rows-{self._streams}"
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", checkpoint)
            .option("path", folder)
            .trigger(processingTime="1 second")
            .start()
        )
        try:
            query.processAllAvailable()
        finally:
            query.stop()
        if not any(Path(folder).glob("*.parquet")):
            return []
        return _rows(self.spark.read.parquet(str(Path(folder, "*.parquet"))))


def _of_status(name: str) -> int:
    """Bytes, of Linux."""
    status = Path("/proc/self/status").read_text()
    [kib] = [line.split()[1] for line in status.splitlines() if line.startswith(f"{name}:")]
    return int(kib) * 1024


def as_row(row: Any) -> list[Any]:
    """Key, value, topic, partition, offset, timestamp in µs, its type, headers; bytes as hex."""
    headers = row["headers"]
    return [
        _hex(row["key"]),
        _hex(row["value"]),
        row["topic"],
        row["partition"],
        row["offset"],
        row["us"],
        row["timestampType"],
        headers and [[each["key"], _hex(each["value"])] for each in headers],
    ]


def _hex(field: Any) -> Any:
    return field.hex() if isinstance(field, bytes | bytearray) else field


def _as_json_value(field: Any) -> Any:
    return field.isoformat() if isinstance(field, datetime) else _hex(field)


def _rows(frame: Any) -> list[Any]:
    """In the order of partitions and offsets; as they come where a schema has left columns out."""
    if "headers" not in frame.columns:
        return [[_hex(field) for field in row] for row in frame.collect()]
    timed = frame.selectExpr("*", "unix_micros(timestamp) AS us")
    return [as_row(row) for row in timed.orderBy("topic", "partition", "offset").collect()]


def main(folder: str, jars: str) -> None:
    # Whatever else of this process writes to stdout goes to stderr: stdout has answers only.
    with os.fdopen(os.dup(1), "w") as responses:
        os.dup2(2, 1)
        verbs = Verbs(Path(folder), jars)
        for line in sys.stdin:
            verb, *arguments = json.loads(line)
            try:
                response: dict[str, Any] = {"found": getattr(verbs, verb)(*arguments)}
            except Exception as error:  # noqa: BLE001 - the asker is told
                response = {"error": f"{type(error).__name__}: {error}"}
            responses.write(json.dumps(response) + "\n")
            responses.flush()
        verbs.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
