"""`spark.read.format("remotelog")`: the archive as Spark's own Kafka source shows the topic.

    spark.read.format("remotelog").option("store", "s3://…").option("topics", "orders").load()

Spark finds it by the package `pyspark_remotelog`. Planning happens on the driver and reads metadata
alone; each task reads its ranges of segments from the store itself. A schema of the user's says
which columns are built: Spark has no other way to say so to a Python data source.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import structlog
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader
from pyspark.sql.types import StructType

from fetchproxy.errors import ConfigError
from fetchproxy.pipeline.source.archive_reading import Spans, Views, plan_input
from fetchproxy.pipeline.source.kafka_options import is_not_needed
from fetchproxy.pipeline.source.options import SourceOptions, parse_options
from fetchproxy.pipeline.source.planning import OffsetSpan, ReadTask, plan_tasks
from fetchproxy.pipeline.source.pushed_filters import PushedFilters
from fetchproxy.pipeline.source.spark_errors import SentenceFirst
from fetchproxy.pipeline.source.spark_partition import RemoteLogPartition
from fetchproxy.pipeline.source.spark_versions import check_batch, check_stream
from fetchproxy.pipeline.source.stream_source import RemoteLogStreamReader
from fetchproxy.pipeline.source.task_progress import logged
from fetchproxy.pipeline.source.task_reader import RowFilter, read_task
from fetchproxy.pipeline.worker_process import keep_what_is_loaded

log = structlog.get_logger(__name__)

NAME = "remotelog"

# As Spark's KafkaRecordToRowConverter has them.
_COLUMN_TYPES = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
    "headers": "array<struct<key:string,value:binary>>",
}


class RemoteLogDataSource(DataSource):  # type: ignore[misc]  # pyspark has no types here
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        keep_what_is_loaded()  # Spark makes it in workers that plan, one task a query

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        with SentenceFirst():
            headers = parse_options(dict(self.options), streaming=True).include_headers
        return all_columns(headers=headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        with SentenceFirst():
            options = parse_options(dict(self.options))
            check_batch(options)
            columns = chosen_columns(schema)
        self._log_what_has_no_use()
        kind = FilteringReader if options.push_filters else RemoteLogReader
        return kind(options, columns)

    def streamReader(self, schema: StructType) -> RemoteLogStreamReader:
        with SentenceFirst():
            options = parse_options(dict(self.options), streaming=True)
            check_stream(options)
            columns = chosen_columns(schema)
        self._log_what_has_no_use()
        return RemoteLogStreamReader(options, columns)

    def _log_what_has_no_use(self) -> None:
        names = sorted(name for name in self.options if is_not_needed(name))
        if names:
            log.info("options_not_needed", reason="no broker is asked", names=names)


def register_source(spark: SparkSession) -> None:
    """PySpark 4.0 refuses a format that it has found by itself, in `pyspark_remotelog`."""
    try:
        spark.dataSource.register(RemoteLogDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def all_columns(*, headers: bool) -> str:
    return schema_of(name for name in _COLUMN_TYPES if headers or name != "headers")


def schema_of(columns: Iterable[str]) -> str:
    """For `.schema(…)`: these columns alone are built. Raises ConfigError."""
    names = tuple(columns)
    for name in names:
        _check_column(name)
    return ", ".join(f"{name} {_COLUMN_TYPES[name]}" for name in names)


def chosen_columns(schema: StructType) -> tuple[str, ...]:
    """Raises ConfigError where the user's schema has a column that there is not, or of another
    type."""
    for column in schema.fields:
        expected = _check_column(column.name)
        if column.dataType.simpleString() != expected:
            raise ConfigError(
                f"remotelog: column {column.name} is {expected}, "
                f"not {column.dataType.simpleString()}"
            )
    return tuple(column.name for column in schema.fields)


def _check_column(name: str) -> str:
    """Its type."""
    if name not in _COLUMN_TYPES:
        known = ", ".join(_COLUMN_TYPES)
        raise ConfigError(f"remotelog: no column {name!r}; there are {known}")
    return _COLUMN_TYPES[name]


class RemoteLogReader(DataSourceReader):  # type: ignore[misc]
    """Has no `pushFilters`: with it PySpark reads nothing unless a setting is on, and then keeps
    what one query has pushed for every other query of the same DataFrame or view."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._filters = PushedFilters()

    def partitions(self) -> Sequence[RemoteLogPartition]:
        with SentenceFirst():
            views, spans = plan_input(self._options)
            tasks = tasks_of(self._options, views, spans, self._filters)
        return [RemoteLogPartition(task) for task in tasks] or [RemoteLogPartition(None)]

    def read(self, partition: RemoteLogPartition) -> Iterator[Any]:
        if partition.task is not None:
            times = self._filters.timestamp
            rows = RowFilter(times.least, times.most)
            with SentenceFirst():
                batches = read_task(self._options, partition.task, self._columns, rows)
                yield from logged(partition.task, batches)
        keep_what_is_loaded()


class FilteringReader(RemoteLogReader):
    """For the option `pushFilters`: of a DataFrame that one query alone uses."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        """Those that Spark has to apply itself."""
        self._filters = PushedFilters()
        return iter(self._filters.push(filters))


def tasks_of(
    options: SourceOptions, views: Views, spans: Spans, filters: PushedFilters | None = None
) -> list[ReadTask]:
    """What of `spans` the filters leave, as tasks. Pure."""
    wanted = filters or PushedFilters()
    chosen: Mapping[Any, OffsetSpan] = {
        tip: OffsetSpan(max(span.start, wanted.offset.least), min(span.end, wanted.offset.most + 1))
        for tip, span in spans.items()
        if wanted.takes_partition(tip.topic, tip.partition)
    }
    return plan_tasks(
        views,
        chosen,
        partition_bytes_max=options.partition_bytes_max,
        partitions_min=options.partitions_min,
        records_max=options.partition_records_max,
    )
