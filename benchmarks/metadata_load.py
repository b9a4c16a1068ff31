"""`python -m benchmarks.metadata_load FOLDER SAMPLES`: one cold start from cache files.

It is a process of its own, so the kernel reports the memory that it takes. Prints JSON.
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median
from uuid import UUID

from benchmarks.process_usage import resident_mib
from fetchproxy.metadata.catalogue import PartitionTable
from fetchproxy.metadata.flat_files import SegmentMetadataCache
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

PUTS = 200


def measure(folder: Path, samples: int) -> dict[str, float]:
    with SegmentMetadataCache(folder) as cache:
        tps = cache.partitions()
        resident = resident_mib(os.getpid())
        wall, cpu = time.perf_counter(), time.process_time()
        # Loads everything that a metadata manager keeps of each partition.
        files, tables, views = [], [], {}
        for tp in tps:
            file = cache.file(tp)
            table = PartitionTable.load(tp, file.load().entries)
            files.append(file)
            tables.append(table)
            views[tp] = table.view(0.0)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    gc.collect()
    resident = resident_mib(os.getpid()) - resident
    segments = sum(len(view.segments) for view in views.values())
    return {
        "segments": segments,
        "load_s": wall,
        "load_cpu_s": cpu,
        "bytes_a_segment": resident * 2**20 / segments,
        **_look_ups(views, samples),
        "put_us": _put_us(tables[0]),
    }


def _look_ups(views: dict[TopicIdPartition, PartitionView], samples: int) -> dict[str, float]:
    """Looks up partitions and offsets in random order, so nothing is in the processor's caches."""
    source = random.Random(2)
    tps = list(views)
    by_offset, by_time = [], []
    for _ in range(samples):
        tp = source.choice(tps)
        segments = views[tp].segments
        by_offset.append((tp, source.randrange(segments.end_offset(len(segments) - 1))))
        first, last = segments[0].max_timestamp_ms, segments[-1].max_timestamp_ms
        by_time.append((tp, source.randint(first, last)))

    def find_time(tp: TopicIdPartition, timestamp_ms: int) -> bool:
        return views[tp].index_at_or_after_timestamp(timestamp_ms) is not None

    def take_time(tp: TopicIdPartition, timestamp_ms: int) -> RemoteLogSegmentMetadata:
        index = views[tp].index_at_or_after_timestamp(timestamp_ms)
        assert index is not None
        return views[tp].segments[index]

    return {
        "find_offset_us": _median_us(lambda tp, at: views[tp].covers(at), by_offset),
        "find_time_us": _median_us(find_time, by_time),
        "take_offset_us": _median_us(lambda tp, at: views[tp].segment_at_or_after(at), by_offset),
        "take_time_us": _median_us(take_time, by_time),
    }


def _median_us(
    ask: Callable[[TopicIdPartition, int], object], questions: list[tuple[TopicIdPartition, int]]
) -> float:
    clock = time.perf_counter_ns
    taken = []
    for tp, at in questions:
        began = clock()
        segment_ref = ask(tp, at)
        taken.append(clock() - began)
        assert segment_ref
    return median(taken) / 1000


def _put_us(table: PartitionTable) -> float:
    """The median time to apply a state of a new segment and to show it in a view. Half of the
    states are STARTED, half FINISHED."""
    clock = time.perf_counter_ns
    taken = []
    last = table.view(0.0).segments[-1]
    for number in range(PUTS):
        start = last.end_offset + 1
        last = replace(
            last,
            segment_id=RemoteLogSegmentId(table.tp, UUID(int=number)),
            start_offset=start,
            end_offset=start + 999,
        )
        spent = 0
        for state in (
            RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
        ):
            event = last.with_state(state, last.event_timestamp_ms)
            began = clock()
            assert table.apply(event)
            view = table.view(0.0)
            spent += clock() - began
        assert view.log_end_offset == last.end_offset + 1
        taken.append(spent / 2)
    return median(taken) / 1000


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]), int(sys.argv[2]))))
