"""Segments made up by seed, and what a local index of them must answer, worked out naively."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from segment_values import segment as segment_metadata

from fetchproxy.model import RemoteLogSegmentMetadata
from fetchproxy.segments.remote_log_index import (
    IndexSpan,
    RemoteLogIndex,
    RemoteLogIndexEntry,
    encode_index_entry,
    read_entry,
)
from fetchproxy.storage.index_files import LocalRemoteLogIndex

FILE_BYTES = 2_000  # some segments to a set
AGE_MS = 10_000


@dataclass(frozen=True)
class MadeSegment:
    """`raw`: its `.index` object; `entries`: the same, one by one."""

    segment: RemoteLogSegmentMetadata
    raw: bytes
    entries: tuple[RemoteLogIndexEntry, ...]

    @property
    def last_offset(self) -> int:
        return self.entries[-1].span.last_offset


def key(segment: RemoteLogSegmentMetadata) -> str:
    return f"archive/weather-AAAAAAAAAAAAAAAAAAAAAA/0/{segment.segment_id.id.int:042d}.log"


def make_segment(
    rng: Random, start_offset: int, number: int, *, entries: int = 0, copied_at_ms: int = 0
) -> MadeSegment:
    segment = replace(
        segment_metadata(number, start_offset, start_offset), event_timestamp_ms=copied_at_ms
    )
    offset, position, raw = start_offset, 0, b""
    for _ in range(entries or rng.randint(1, 9)):
        offset += rng.choice([0, 0, 0, 3])
        last = offset + rng.randint(0, 30)
        length = rng.choice([1, 900, 70_000])
        first_ts, latest = rng.randint(-1, 5_000), rng.randint(-1, 5_000)
        span = IndexSpan(position, length, offset, last, first_ts, latest)
        raw += encode_index_entry(key(segment), span)
        position += length
        offset = last + 1
    made, at = [], 0
    while at < len(raw):
        made.append(read_entry(raw, at))
        at += made[-1].size_bytes
    return MadeSegment(replace(segment, segment_size_bytes=position), raw, tuple(made))


def make_log(rng: Random, count: int, first_number: int = 0, start: int = 0) -> list[MadeSegment]:
    """Segments behind one another, now and then with a gap between them."""
    made: list[MadeSegment] = []
    for number in range(first_number, first_number + count):
        made.append(make_segment(rng, start, number, copied_at_ms=rng.randint(0, 2 * AGE_MS)))
        start = made[-1].last_offset + 1 + rng.choice([0, 0, 0, 25])
    return made


def open_index(folder: Path, file_bytes_max: int = FILE_BYTES) -> LocalRemoteLogIndex:
    return LocalRemoteLogIndex(folder, key, file_bytes_max=file_bytes_max, file_age_max_ms=AGE_MS)


def bring_up(index: LocalRemoteLogIndex, log: list[MadeSegment]) -> int:
    """What `LocalIndexRefresher` does; how many segments had to be appended."""
    kept_count = index.keep([made.segment for made in log])
    for made in log[kept_count:]:
        index.append(made.segment, made.raw)
    return len(log) - kept_count


def check_responses(index: LocalRemoteLogIndex, log: list[MadeSegment]) -> None:
    """Every segment, entry by entry."""
    for made in log:
        segment_index = index.segment_index(made.segment)
        assert segment_index is not None
        segment_index.check_covers(made.last_offset, made.segment.segment_size_bytes)
        assert list(segment_index.spans()) == [entry.span for entry in made.entries]
        assert segment_index.object_key == key(made.segment)


def held_segments(index: LocalRemoteLogIndex, log: list[MadeSegment]) -> list[RemoteLogIndex]:
    segment_indexes = (index.segment_index(made.segment) for made in log)
    return [one for one in segment_indexes if one is not None]


def files_in(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
