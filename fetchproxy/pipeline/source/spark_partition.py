"""What Spark carries from the planner to a task."""

from __future__ import annotations

from pyspark.sql.datasource import InputPartition

from fetchproxy.pipeline.source.planning import ReadTask


class RemoteLogPartition(InputPartition):  # type: ignore[misc]  # pyspark has no types here
    """One task; None: there is nothing to read."""

    def __init__(self, task: ReadTask | None) -> None:
        super().__init__(task)
        self.task = task
