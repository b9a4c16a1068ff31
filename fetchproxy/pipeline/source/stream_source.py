"""`spark.readStream.format("remotelog")`: follows the archive as it grows.

Its offsets are kept by Spark in the query's checkpoint; what they mean: `followed_archive`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSourceStreamReader

from fetchproxy.pipeline.source.followed_archive import FollowedArchive, StreamOffset
from fetchproxy.pipeline.source.options import SourceOptions
from fetchproxy.pipeline.source.spark_partition import RemoteLogPartition
from fetchproxy.pipeline.source.task_reader import read_task
from fetchproxy.pipeline.worker_process import keep_what_is_loaded


class RemoteLogStreamReader(DataSourceStreamReader):  # type: ignore[misc]
    """Lives in one process on the driver; `read` runs on executors, where nothing else is kept."""

    def __init__(self, options: SourceOptions, columns: Sequence[str]) -> None:
        self._options = options
        self._columns = columns
        self._followed: FollowedArchive | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_followed": None}

    def initialOffset(self) -> StreamOffset:
        return self._archive().initial()

    def latestOffset(self) -> StreamOffset:
        return self._archive().latest()

    def partitions(self, start: StreamOffset, end: StreamOffset) -> Sequence[RemoteLogPartition]:
        tasks = self._archive().tasks(start, end)
        return [RemoteLogPartition(task) for task in tasks] or [RemoteLogPartition(None)]

    def read(self, partition: RemoteLogPartition) -> Iterator[Any]:
        if partition.task is not None:
            yield from read_task(self._options, partition.task, self._columns)
        keep_what_is_loaded()

    def commit(self, end: StreamOffset) -> None:
        """Nothing to do: the archive is not the stream's to trim."""

    def stop(self) -> None:
        if self._followed is not None:
            self._followed.close()
            self._followed = None

    def _archive(self) -> FollowedArchive:
        if self._followed is None:
            self._followed = FollowedArchive(self._options)
        return self._followed
