"""`python -m benchmarks.pipeline_planning FOLDER`: one planning from an archiver's cache files;
with `store` behind it, of an archive in that folder, from the store alone.

In a process of its own, as Spark's planner is one. Prints JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

from benchmarks.metadata import segments_of
from benchmarks.process_usage import resident_mib
from fetchproxy.metadata.segment_json import encode_segment
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.pipeline.source.archive_reading import plan_input
from fetchproxy.pipeline.source.options import parse_options
from fetchproxy.pipeline.source.planning import plan_tasks
from fetchproxy.storage.filesystem import FilesystemObjectStore
from fetchproxy.storage.layout import (
    LAYOUT_OBJECT,
    SegmentFile,
    layout_text,
    partition_folder,
    segment_key,
)
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager


async def _make_store(folder: Path) -> None:
    async with RemoteStorageManager(FilesystemObjectStore(folder, create=True)) as rsm:
        await rsm.identity.check_to_put()


def write_store(folder: Path, partitions: int, segments: int) -> None:
    """An archive of `segments` in equal parts; of their objects only the metadata have content."""
    source = random.Random(1)
    folder.mkdir()
    (folder / LAYOUT_OBJECT).write_bytes(layout_text())
    for number in range(partitions):
        tip = TopicIdPartition(UUID(int=1), "topic", number)
        (folder / partition_folder("", tip)).mkdir(parents=True)
        for segment in segments_of(tip, segments // partitions, source):
            for file in (SegmentFile.LOG, SegmentFile.INDEX, SegmentFile.EPOCHS):
                (folder / _key(segment, file)).touch()
            (folder / _key(segment, SegmentFile.METADATA)).write_bytes(encode_segment(segment))


def _key(segment: RemoteLogSegmentMetadata, file: SegmentFile) -> str:
    return segment_key("", segment.segment_id, segment.start_offset, file)


def measure(cache: Path) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as store:
        asyncio.run(_make_store(Path(store)))
        url = Path(store).as_uri()
        return _planned({"store": url, "topicPattern": ".*", "metadataCacheDir": str(cache)})


def measure_store(folder: Path) -> dict[str, float]:
    """The time of one core has that of the processes that help, too."""
    found = _planned({"store": folder.as_uri(), "topicPattern": ".*"})
    helped = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = found["planning_cpu_s"] + helped.ru_utime + helped.ru_stime
    a_million = 1_000_000 / found["segments"]
    return {
        "stored_segments": found["segments"],
        "stored_million_s": found["planning_s"] * a_million,
        "stored_million_cpu_s": cpu * a_million,
    }


def _planned(given: dict[str, str]) -> dict[str, float]:
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
    of_store = sys.argv[2:] == ["store"]
    print(json.dumps((measure_store if of_store else measure)(Path(sys.argv[1]))))
