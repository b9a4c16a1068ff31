"""`spark.readStream.format("remotelog")`: follows the archive as it grows.

Its offsets are kept by Spark in the query's checkpoint; what they mean: `followed_archive`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import structlog
from pyspark.sql.datasource import DataSourceStreamReader

from fetchproxy.pipeline.source.followed_archive import FollowedArchive, StreamOffset
from fetchproxy.pipeline.source.options import SourceOptions
from fetchproxy.pipeline.source.spark_errors import SentenceFirst
from fetchproxy.pipeline.source.spark_partition import RemoteLogPartition
from fetchproxy.pipeline.source.spark_versions import (
    EndsWithWhatIsThere,
    default_limit,
    is_limited,
)
from fetchproxy.pipeline.source.task_progress import logged
from fetchproxy.pipeline.source.task_reader import read_task
from fetchproxy.pipeline.worker_process import keep_what_is_loaded

log = structlog.get_logger(__name__)


class RemoteLogStreamReader(DataSourceStreamReader, EndsWithWhatIsThere):  # type: ignore[misc]
    """Lives in one process on the driver; `read` runs on executors, where nothing else is kept."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._followed: FollowedArchive | None = None
        self._repeated = False
        self._looked_for_new = False

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_followed": None}

    def initialOffset(self) -> StreamOffset:
        with SentenceFirst():
            return self._archive().initial()

    def getDefaultReadLimit(self) -> Any:
        return default_limit(self._options)

    def prepareForTriggerAvailableNow(self) -> None:
        with SentenceFirst():
            self._archive().end_with_what_is_there()

    def latestOffset(self, start: StreamOffset | None = None, limit: Any = None) -> StreamOffset:
        """PySpark 4.0 and 4.1 say neither."""
        self._looked_for_new = True
        with SentenceFirst():
            return self._archive().latest(start, limited=is_limited(limit))

    def reportLatestOffset(self) -> StreamOffset:
        """How far the archive is: with the end of the last batch the lag, in the progress."""
        return self._archive().last_seen()

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[RemoteLogPartition]:
        with SentenceFirst():
            tasks = self._archive().tasks(start, end)
        self._repeated = self._repeated or (start != end and not self._looked_for_new)
        return [RemoteLogPartition(task) for task in tasks] or [RemoteLogPartition(None)]

    def read(self, partition: RemoteLogPartition) -> Iterator[Any]:
        if partition.task is not None:
            with SentenceFirst():
                batches = read_task(self._options, partition.task, self._columns)
                yield from logged(partition.task, batches)
        keep_what_is_loaded()

    def commit(self, end: StreamOffset) -> None:
        """Nothing to do: the archive is not the stream's to trim."""

    def stop(self) -> None:
        if self._followed is not None:
            if self._repeated and not self._looked_for_new:
                # PySpark 4.0 and 4.1 with availableNow, but for `register` of `fetchproxy.spark`.
                log.warning("stream_ended_after_repeated_batch", hint="run it again for the rest")
            self._followed.close()
            self._followed = None

    def _archive(self) -> FollowedArchive:
        if self._followed is None:
            self._followed = FollowedArchive(self._options)
        return self._followed
