"""`spark.read.format("remotelog")` and `readStream`.

The source shows the archive as Spark's own Kafka source shows a topic.

In Spark, an error of fetchproxy begins with its sentence and has none of fetchproxy's frames.

Spark shows a Python source's error as the traceback that Python prints. Python first prints the
exception's cause, so the cause is the sentence, without a traceback. With
FETCHPROXY_LOG_LEVEL=debug the traceback is in the worker's log.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pyspark
import structlog
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from fetchproxy.errors import ConfigError, FetchProxyError
from fetchproxy.remotelog.archive_reading import (
    FollowedArchive,
    StreamOffset,
    plan_input,
    tasks_of,
)
from fetchproxy.remotelog.decoder.record_rows import RowLimits
from fetchproxy.remotelog.options import SourceOptions, is_not_needed, parse_options
from fetchproxy.remotelog.planning import OffsetSpan, ReadTask, Selection
from fetchproxy.remotelog.pushed_filters import PushedFilters
from fetchproxy.remotelog.session import freeze_loaded_modules
from fetchproxy.remotelog.task_reader import logged, read_task

# The installed PySpark's abilities. 4.0 and 4.1 ask a stream only for its latest offset; from 4.2
# on, PySpark passes the start offset and a limit.
try:
    from pyspark.sql.streaming import datasource as limits
except ImportError:
    limits = None

ADMITS = limits is not None
# The base class of streams that know availableNow.
EndsWithWhatIsThere: Any = limits.SupportsTriggerAvailableNow if ADMITS else object


log = structlog.get_logger(__name__)
PUSHES_FILTERS = hasattr(DataSourceReader, "pushFilters")
NAME = "remotelog"
# As in Spark's KafkaRecordToRowConverter.
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


class ReadingFailed(Exception):
    """Always raised from the error that gives the reason.

    Spark removes an exception's cause when it shortens a traceback. This exception keeps it.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "__cause__":
            super().__setattr__(name, value)


@contextmanager
def sentence_first() -> Iterator[None]:
    """Errors that are not fetchproxy's pass unchanged."""
    try:
        yield
    except FetchProxyError as error:
        if os.environ.get("FETCHPROXY_LOG_LEVEL") == "debug":
            log.debug("archive_read_failed", exc_info=error)
        error.__traceback__ = error.__cause__ = error.__context__ = None
        raise ReadingFailed("the first line says why") from error


def _partitions_of(tasks: Iterable[ReadTask]) -> list[InputPartition]:
    """One for each task. If there is nothing to read, one of None."""
    return [InputPartition(task) for task in tasks] or [InputPartition(None)]


def rows_of(
    task: ReadTask | None, options: SourceOptions, columns: Sequence[str], rows: RowLimits
) -> Iterator[Any]:
    """Runs in a worker."""
    if task is not None:
        with sentence_first():
            yield from logged(task, read_task(options, task, columns, rows))
    freeze_loaded_modules()


def check_stream(options: SourceOptions) -> None:
    """Raises ConfigError for limits with which this PySpark would end a query too early."""
    if options.trigger.names and not ADMITS:
        raise ConfigError(
            f"remotelog: {options.trigger.names[0]}: needs PySpark 4.2 or newer, this is "
            f"{pyspark.__version__}, which does not tell a source that a query is availableNow: "
            "with a limit the query would end too early without an error"
        )


def check_batch(options: SourceOptions) -> None:
    """Raises ConfigError."""
    if options.push_filters and not PUSHES_FILTERS:
        raise ConfigError(
            f"remotelog: pushFilters: needs PySpark 4.1 or newer, this is {pyspark.__version__}"
        )


class RemoteLogStreamReader(DataSourceStreamReader, EndsWithWhatIsThere):  # type: ignore[misc]
    """Lives in one process on the driver. `read` runs on executors, which keep no other state.

    Spark keeps the offsets in the query's checkpoint; `archive_reading` gives their meaning.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._followed: FollowedArchive | None = None
        self._repeated = False
        self._knows_latest = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_followed": None}

    def initialOffset(self) -> StreamOffset:
        with sentence_first():
            return self._archive().initial()

    def getDefaultReadLimit(self) -> Any:
        """The limit that Spark shows, and passes back unless the query's trigger says "all"."""
        trigger = self._options.trigger
        if trigger.offsets_max:
            return limits.ReadMaxRows(trigger.offsets_max)
        if trigger.bytes_max:
            return limits.ReadMaxBytes(trigger.bytes_max)
        if trigger.offsets_min:
            return limits.ReadMinRows(trigger.offsets_min)
        return limits.ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        with sentence_first():
            self._archive().stop_at_current_ends()

    def latestOffset(self, start: StreamOffset | None = None, limit: Any = None) -> StreamOffset:
        """PySpark 4.0 and 4.1 pass no arguments."""
        self._knows_latest = True
        apply_limit = (
            ADMITS and limit is not None and not isinstance(limit, limits.ReadAllAvailable)
        )
        with sentence_first():
            return self._archive().latest(start, apply_batch_limits=apply_limit)

    def reportLatestOffset(self) -> StreamOffset:
        """The archive's ends; the query's progress shows the lag from the last batch to them."""
        return self._archive().ends_at_last_read()

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[InputPartition]:
        with sentence_first():
            tasks = self._archive().tasks(start, end)
        self._repeated = self._repeated or (start != end and not self._knows_latest)
        return _partitions_of(tasks)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return rows_of(partition.value, self._options, self._columns, RowLimits())

    def stop(self) -> None:
        if self._followed is not None:
            if self._repeated and not self._knows_latest:
                # PySpark 4.0 and 4.1 with availableNow, without `register` of `fetchproxy.spark`.
                log.warning(
                    "stream_ended_after_repeated_batch", hint="run the query again to get the rest"
                )
            self._followed.close()
            self._followed = None

    def _archive(self) -> FollowedArchive:
        if self._followed is None:
            self._followed = FollowedArchive(self._options)
        return self._followed


# Spark finds the format by the package `pyspark_remotelog`. The user's schema chooses the columns
# to build: Spark has no other way to tell a Python data source.


class RemoteLogDataSource(DataSource):  # type: ignore[misc]  # pyspark has no types here
    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        freeze_loaded_modules()  # Spark makes the source in planning workers, one task a query

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        with sentence_first():
            headers = parse_options(dict(self.options), streaming=True).include_headers
        return all_columns(headers=headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        with sentence_first():
            options = parse_options(dict(self.options))
            check_batch(options)
            columns = chosen_columns(schema)
        self._log_what_has_no_use()
        reader_class = FilteringReader if options.push_filters else RemoteLogReader
        return reader_class(options, columns)

    def streamReader(self, schema: StructType) -> RemoteLogStreamReader:
        with sentence_first():
            options = parse_options(dict(self.options), streaming=True)
            check_stream(options)
            columns = chosen_columns(schema)
        self._log_what_has_no_use()
        return RemoteLogStreamReader(options, columns)

    def _log_what_has_no_use(self) -> None:
        names = sorted(name for name in self.options if is_not_needed(name))
        if names:
            log.info("options_not_needed", reason="no broker is used", names=names)


def register_source(spark: SparkSession) -> None:
    """PySpark 4.0 refuses a format that it has found itself, in `pyspark_remotelog`."""
    try:
        spark.dataSource.register(RemoteLogDataSource)
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def all_columns(*, headers: bool) -> str:
    return schema_of(name for name in _COLUMN_TYPES if headers or name != "headers")


def schema_of(columns: Iterable[str]) -> str:
    """For `.schema(…)`: the source builds only these columns. Raises ConfigError."""
    names = tuple(columns)
    for name in names:
        _check_column(name)
    return ", ".join(f"{name} {_COLUMN_TYPES[name]}" for name in names)


def chosen_columns(schema: StructType) -> tuple[str, ...]:
    """Raises ConfigError if a column of the user's schema is unknown or has another type."""
    for column in schema.fields:
        expected = _check_column(column.name)
        if column.dataType.simpleString() != expected:
            raise ConfigError(
                f"remotelog: column {column.name} is {expected}, "
                f"not {column.dataType.simpleString()}"
            )
    return tuple(column.name for column in schema.fields)


def _check_column(name: str) -> str:
    """Returns the column's type."""
    if name not in _COLUMN_TYPES:
        column_names = ", ".join(_COLUMN_TYPES)
        raise ConfigError(f"remotelog: no column {name!r}; there are {column_names}")
    return _COLUMN_TYPES[name]


class RemoteLogReader(DataSourceReader):  # type: ignore[misc]
    """Has no `pushFilters`: with it PySpark reads nothing unless a setting is on.

    With the setting on, PySpark keeps one query's filters for every other query of the same
    DataFrame or view.
    """

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._filters = PushedFilters()

    def partitions(self) -> Sequence[InputPartition]:
        with sentence_first():
            return _partitions_of(tasks_of(self._options, self._filtered_selections()))

    def _filtered_selections(self) -> list[Selection]:
        filters = self._filters
        least, end = filters.offset.least, filters.offset.greatest + 1
        return [
            (view, OffsetSpan(max(span.start, least), min(span.end, end)))
            for view, span in plan_input(self._options)
            if filters.takes_partition(view.tp.topic, view.tp.partition)
        ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        times = self._filters.timestamp
        rows = RowLimits(timestamp_min=times.least, timestamp_max=times.greatest)
        return rows_of(partition.value, self._options, self._columns, rows)


class FilteringReader(RemoteLogReader):
    """For the option `pushFilters`: only one query may use the DataFrame."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:
        """Returns the filters that Spark has to apply itself."""
        self._filters = PushedFilters()
        return iter(self._filters.push(filters))
