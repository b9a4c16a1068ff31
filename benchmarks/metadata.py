"""`python -m benchmarks.metadata`: the cost of the metadata of 2.6 million segments.

The benchmark writes real cache files for one segment a second over 30 days, in 10,000 partitions.
In each round, a process loads them all, as after a restart, reports the memory they take and looks
segments up. The files are in the page cache, so the figures show the work and not a disk.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

from rich.console import Console

from benchmarks.frame import Outcome, Part, Size, child
from benchmarks.report import Row, row
from fetchproxy.metadata.flat_files import SegmentMetadataCache
from fetchproxy.model import (
    EpochStart,
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)

PARTITIONS_A_TOPIC = 100

# The goals for metadata at this scale.
BYTES_A_SEGMENT_MAX = 100
COLD_LOAD_S_MAX = 10
LOOK_UP_US_MAX = 5


def segments_of(
    tp: TopicIdPartition, count: int, source: random.Random
) -> list[RemoteLogSegmentMetadata]:
    """Realistic segments: sizes and times vary, leaders change now and then, few have aborts."""
    segments = []
    offset, now_ms, epochs = 0, 1_700_000_000_000 + source.randrange(10**9), [0]
    for _ in range(count):
        end = offset + source.randint(50_000, 150_000)
        now_ms += source.randint(9_000_000, 11_000_000)
        starts = [EpochStart(epochs[-1], offset)]
        if source.random() < 0.02:
            epochs.append(epochs[-1] + 1)
            starts.append(EpochStart(epochs[-1], source.randint(offset + 1, end)))
        segments.append(
            RemoteLogSegmentMetadata(
                segment_id=RemoteLogSegmentId(tp, UUID(int=source.getrandbits(128))),
                start_offset=offset,
                end_offset=end,
                max_timestamp_ms=now_ms - source.randrange(60_000),
                event_timestamp_ms=now_ms,
                segment_leader_epochs=tuple(starts),
                segment_size_bytes=source.randint(60, 68) << 20,
                state=RemoteLogSegmentState.COPY_SEGMENT_FINISHED,
                has_aborted_txns=source.random() < 0.01,
            )
        )
        offset = end + 1
    return segments


def write_cache(folder: Path, partitions: int, segments: int) -> int:
    """Writes cache files of `segments` in equal parts and returns their size in bytes."""
    source = random.Random(1)
    size = 0
    with SegmentMetadataCache(folder) as cache:
        for number in range(partitions):
            topic = number // PARTITIONS_A_TOPIC
            tp = TopicIdPartition(UUID(int=topic + 1), f"topic-{topic:03}", number)
            file = cache.file(tp)
            file.load()
            file.append(segments_of(tp, segments // partitions, source), number)
            size += file.path.stat().st_size
    return size


def rows_of(rounds: Sequence[dict[str, float]], large: dict[str, float], size: int) -> list[Row]:
    """`rounds`: figures of each cold start. `large`: those of one partition. `size`: bytes."""

    def row_of(name: str, unit: str, field: str, at_most: float | None = None) -> Row:
        return row(name, unit, [each[field] for each in rounds], at_most=at_most)

    segments = int(rounds[0]["segments"])
    return [
        row("segments", "", [segments]),
        row_of("memory", "bytes/segment", "bytes_a_segment", BYTES_A_SEGMENT_MAX),
        row("cache files", "bytes/segment", [size / segments]),
        # The load has one thread. On an idle machine this time is also the wall time.
        row_of("cold load, time of one core", "s", "load_cpu_s", COLD_LOAD_S_MAX),
        row_of("cold load, time on the wall", "s", "load_s"),
        row_of("look-up by partition and offset", "µs", "find_offset_us", LOOK_UP_US_MAX),
        row_of("look-up by partition and timestamp", "µs", "find_time_us", LOOK_UP_US_MAX),
        row_of("look-up by offset, and a value of the segment", "µs", "take_offset_us"),
        row_of("look-up by timestamp, and a value of the segment", "µs", "take_time_us"),
        row_of("put", "µs", "put_us"),
        row(f"put, {large['segments']:.0f} segments in the partition", "µs", [large["put_us"]]),
    ]


def _cold_start(folder: Path, samples: int) -> dict[str, float]:
    measured: dict[str, float] = child("benchmarks.metadata_load", str(folder), str(samples))
    return measured


def measure(options: argparse.Namespace, console: Console) -> Outcome:
    samples = 2000 if options.quick else 50_000
    with tempfile.TemporaryDirectory(prefix="fetchproxy-metadata-") as folder:
        console.print(f"writing {options.segments} segments of {options.partitions} partitions")
        size = write_cache(Path(folder, "all"), options.partitions, options.segments)
        write_cache(Path(folder, "large"), 1, options.large)
        rounds = []
        for number in range(options.rounds):
            rounds.append(_cold_start(Path(folder, "all"), samples))
            console.print(f"round {number + 1} of {options.rounds}: {rounds[-1]['load_s']:.1f} s")
        large = _cold_start(Path(folder, "large"), 100)
    return Outcome(rows_of(rounds, large, size))


PART = Part(
    "metadata",
    "Metadata: medians of the rounds",
    __doc__,
    [
        Size("rounds", 5, 1, "cold starts"),
        Size("segments", 2_600_000, 2600, "in all"),
        Size("partitions", 10_000, 10, "that they belong to"),
        Size("large", 100_000, 1000, "segments of one large partition"),
    ],
    measure,
)

if __name__ == "__main__":
    sys.exit(PART.main())
