"""`python -m benchmarks.pipeline_planning FOLDER`: plans once from an archiver's cache files.

With `store` after FOLDER, it plans from the store alone, an archive in that folder. With `collect`
it plans nothing, but collects the metadata into the archive, as a proxy does.

It is a process of its own, as Spark's planner is. Prints JSON.
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

import structlog

from benchmarks.metadata import segments_of
from benchmarks.process_usage import resident_mib
from fetchproxy.config.schema import MetadataConfig
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.remotelog.archive_reading import plan_input
from fetchproxy.remotelog.options import parse_options
from fetchproxy.remotelog.planning import plan_tasks
from fetchproxy.segments.description import encode_segment
from fetchproxy.segments.object_keys import (
    LAYOUT_OBJECT,
    SegmentFile,
    layout_text,
    partition_folder,
    segment_key,
)
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.stores.filesystem import FilesystemObjectStore


async def _make_store(folder: Path) -> None:
    async with RemoteStorage(FilesystemObjectStore(folder, create=True)) as storage:
        await storage.identity.check_to_put()


def write_store(folder: Path, partitions: int, segments: int, topics: int = 1) -> None:
    """Writes an archive of `segments` in equal parts. Only the metadata objects have content."""
    source = random.Random(1)
    folder.mkdir()
    (folder / LAYOUT_OBJECT).write_bytes(layout_text())
    for number in range(partitions):
        topic = 1 + number % topics
        tp = TopicIdPartition(UUID(int=topic), f"topic-{topic}", number // topics)
        (folder / partition_folder("", tp)).mkdir(parents=True)
        for segment in segments_of(tp, segments // partitions, source):
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


async def _collect(folder: Path) -> None:
    """Collects the metadata of each topic, as `serve` does."""
    async with (
        RemoteStorage(FilesystemObjectStore(folder)) as storage,
        StoreBackedRemoteLogMetadataManager(storage, MetadataConfig(), collects=True) as rlmm,
    ):
        for _, topic_id in await storage.objects.list_topics():
            await rlmm.refresh_topic(topic_id, asyncio.get_running_loop().time())
            while await storage.objects.get_collected_metadata(topic_id) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.1)  # it is collected in the background


def measure_store(folder: Path) -> dict[str, float]:
    """Plans from the store. The CPU time includes the helper processes."""
    figures = _planned({"store": folder.as_uri(), "topicPattern": ".*"})
    helped = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = figures["planning_cpu_s"] + helped.ru_utime + helped.ru_stime
    a_million = 1_000_000 / figures["segments"]
    name = "collected" if any(folder.glob("collected-metadata/*")) else "stored"
    return {
        f"{name}_segments": figures["segments"],
        f"{name}_million_s": figures["planning_s"] * a_million,
        f"{name}_million_cpu_s": cpu * a_million,
    }


def _planned(raw_options: dict[str, str]) -> dict[str, float]:
    options = parse_options(raw_options)
    resident = resident_mib(os.getpid())
    began, cpu = time.perf_counter(), time.process_time()
    plan_of_input = plan_input(options)
    tasks = plan_tasks(plan_of_input, partition_bytes_max=options.partition_bytes_max)
    planned, cpu = time.perf_counter(), time.process_time() - cpu
    size = sum(len(pickle.dumps(task)) for task in tasks)
    pickled = time.perf_counter()
    return {
        "segments": sum(len(view.segments) for view, _ in plan_of_input),
        "tasks": len(tasks),
        "planning_s": planned - began,
        "planning_cpu_s": cpu,
        "pickling_s": pickled - planned,
        "pickled_mib": size / 2**20,
        "memory_mib": resident_mib(os.getpid()) - resident,
    }


if __name__ == "__main__":
    source_folder, what = Path(sys.argv[1]), sys.argv[2:]
    if what == ["collect"]:
        structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
        asyncio.run(_collect(source_folder))
        print("{}")
    else:
        print(json.dumps((measure_store if what == ["store"] else measure)(source_folder)))
