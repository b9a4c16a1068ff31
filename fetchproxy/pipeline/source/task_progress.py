"""What a task of the data source has read, as a line in the worker's log.

Spark's own page shows rows, and bytes that crossed the pipe; a Python source can add no figure of
its own there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import structlog

from fetchproxy.pipeline.source.planning import ReadTask

log = structlog.get_logger(__name__)


def logged(task: ReadTask, batches: Iterator[Any]) -> Iterator[Any]:
    """`batches`, of which rows are counted; a task that fails says so itself."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        yield batch
    start, end = task.offsets
    log.info(
        "archive_task_read",
        partition=str(task.tip),
        offsets=f"{start} to {end - 1}",
        rows=rows,
        segments=len({part.segment_id for part in task.parts}),
        stored_bytes_max=task.size_bytes,
    )
