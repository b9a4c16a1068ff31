"""`python -m benchmarks.pipeline_planning FOLDER`: one planning from an archiver's cache files.

In a process of its own, as Spark's planner is one. Prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.process_usage import resident_mib
from fetchproxy.pipeline.source.archive_reading import plan_input
from fetchproxy.pipeline.source.options import parse_options
from fetchproxy.pipeline.source.planning import plan_tasks
from fetchproxy.storage.filesystem import FilesystemObjectStore
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager


async def _make_store(folder: Path) -> None:
    async with RemoteStorageManager(FilesystemObjectStore(folder, create=True)) as rsm:
        await rsm.identity.check_to_put()


def measure(cache: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as store:
        asyncio.run(_make_store(Path(store)))
        given = {
            "store": Path(store).as_uri(),
            "topicPattern": ".*",
            "metadataCacheDir": str(cache),
        }
        options = parse_options(given)
        resident = resident_mib(os.getpid())
        began, cpu = time.perf_counter(), time.process_time()
        views, spans = plan_input(options)
        tasks = plan_tasks(views, spans, partition_bytes_max=options.partition_bytes_max)
        planned, cpu = time.perf_counter(), time.process_time() - cpu
        size = sum(len(pickle.dumps(task)) for task in tasks)
        pickled = time.perf_counter()
    return {
        "segments": sum(len(view.segments) for view in views.values()),
        "tasks": len(tasks),
        "planning_s": planned - began,
        "planning_cpu_s": cpu,
        "pickling_s": pickled - planned,
        "pickled_mib": size / 2**20,
        "memory_mib": resident_mib(os.getpid()) - resident,
    }


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
