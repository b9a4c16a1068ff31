"""The figures of one partition of the archive, and a forecast of its size."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fetchproxy_protocol.apis import WireError
from fetchproxy_protocol.record_batch import (
    HEADER_BYTES,
    SEARCHED_BYTES_MAX,
    CompressionType,
    TooLargeToUnpack,
    decompress,
    walk,
)

from fetchproxy.errors import CorruptSegment, ObjectNotFound, RangeNotSatisfiable
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.model import ByteRange, RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.remote_storage_manager import RemoteStorageManager
from fetchproxy.storage.stores.object_store import Content
from fetchproxy.writing.archive_health import look_at_offsets
from fetchproxy.writing.deletion.retention import (
    Retention,
    counted_bytes,
    newest_timestamp_ms,
    retained_from,
    segments_kept,
    stopped_by,
)

DAY_MS = 86_400_000
# The job decompresses the first batches of at most this many segments, spread evenly over the
# partition. That is enough to see producers with different compression, and takes seconds at most.
SAMPLED_SEGMENTS_MAX = 16
SAMPLE_BYTES = 256 * 1024
RATE_DAYS = 28  # four of each day of the week
# A history of hours, such as one import or a night, cannot predict a year.
HISTORY_DAYS_MIN = 2
HORIZON_DAYS = (30, 90, 365)
_TIMESTAMP_MAX_MS = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SegmentFigures:
    """A segment's figures, without offsets that an earlier segment has. `newest_ms`: epoch ms."""

    newest_ms: int
    size_bytes: int
    records: int


@dataclass(frozen=True, slots=True)
class Day:
    """The figures of all segments with their newest record on that day (UTC). `day`: days since
    1970.
    """

    day: int
    size_bytes: int
    records: int
    segments: int

    def plus(self, other: Day) -> Day:
        """The sum of both, with this day."""
        size, records = self.size_bytes + other.size_bytes, self.records + other.records
        return Day(self.day, size, records, self.segments + other.segments)


@dataclass(frozen=True, slots=True)
class CodecFigures:
    """Figures of the sampled batches. `unpacked_bytes`: size of their decompressed records."""

    codec: str
    batches: int
    packed_bytes: int
    unpacked_bytes: int


# The forecast: records keep arriving at the mean rate of the last weeks. Retention by time deletes
# existing segments. Retention by bytes limits the rest.


@dataclass(frozen=True, slots=True)
class Forecast:
    """`history_days`: the rate is the mean of this many days: RATE_DAYS, or the time since the
    first records if that is shorter. `size_bytes`: the size after each of HORIZON_DAYS. With fewer
    days than HISTORY_DAYS_MIN, `bytes_per_day` and `size_bytes` are None.

    `next_deletion_ms`: when (epoch ms) retention by time deletes the oldest segment. None: no
    retention by time, only the newest segment is left, or the time is beyond Kafka's timestamps.
    """

    history_days: float
    bytes_per_day: int | None
    size_bytes: tuple[int, ...] | None
    next_deletion_ms: int | None


@dataclass(frozen=True, slots=True)
class PartitionFigures:
    """Records are counted by offsets, so transaction markers are included.

    `newest_ms`: timestamp of the newest record. `oldest_ms`: timestamp of the newest record in the
    first segment.
    """

    tp: TopicIdPartition
    log_start_offset: int | None
    log_end_offset: int | None  # exclusive
    gap_offsets: int  # lost before they could be copied, as recorded by the archiver
    missing_offsets: int  # archived once, but no longer in a segment: a fault
    not_known_offsets: int  # in no segment, and it is not known if they ever were
    archived: tuple[SegmentFigures, ...]
    codecs: tuple[CodecFigures, ...]
    samples_unreadable: int
    forecast: Forecast
    samples_too_large: int = 0  # batches
    held_up: int = 0  # 1: a timestamp in the future has stopped retention by time

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self.archived)

    @property
    def records(self) -> int:
        return sum(segment.records for segment in self.archived)

    @property
    def oldest_ms(self) -> int | None:
        return self.archived[0].newest_ms if self.archived else None

    @property
    def newest_ms(self) -> int | None:
        return max((segment.newest_ms for segment in self.archived), default=None)


async def measure_partition(
    storage: RemoteStorage,
    rlmm: RemoteLogMetadataManager,
    tp: TopicIdPartition,
    retention: Retention,
    now_ms: int,
) -> PartitionFigures:
    """Raises RemoteStorageError."""
    look = await look_at_offsets(storage.objects, rlmm, tp)
    view = await rlmm.refresh(tp, float("-inf"))
    codecs, unreadable, too_large = await _sample_segments(storage.rsm, view)
    segments = figures_of(view)
    kept_segments = segments_kept(view, retained_from(view, retention, now_ms))
    held_up = stopped_by(kept_segments, retention.remote_ms, now_ms)
    return PartitionFigures(
        tp=tp,
        log_start_offset=view.log_start_offset,
        log_end_offset=view.log_end_offset,
        gap_offsets=_count(look.not_held.gaps),
        missing_offsets=_count(look.not_held.missing),
        not_known_offsets=_count(look.not_held.not_known),
        archived=segments,
        codecs=codecs,
        samples_unreadable=unreadable,
        samples_too_large=too_large,
        forecast=forecast(segments, retention, now_ms),
        held_up=int(held_up is not None),
    )


def _count(holes: Iterable[tuple[int, int]]) -> int:
    return sum(last - first + 1 for first, last in holes)


def figures_of(view: PartitionView) -> tuple[SegmentFigures, ...]:
    """The figures by segment. Each offset counts once, as in retention by bytes."""
    figures: list[SegmentFigures] = []
    counted_to = view.raised_log_start
    for segment, size in counted_bytes(view):
        records = segment.end_offset - max(segment.start_offset, counted_to) + 1
        figures.append(SegmentFigures(newest_timestamp_ms(segment), size, records))
        counted_to = segment.end_offset + 1
    return tuple(figures)


def figures_by_day(segments: Iterable[SegmentFigures]) -> tuple[Day, ...]:
    """The figures by day, in order, without empty days."""
    days: dict[int, Day] = {}
    for segment in segments:
        day = segment.newest_ms // DAY_MS
        days[day] = days.get(day, Day(day, 0, 0, 0)).plus(
            Day(day, segment.size_bytes, segment.records, 1)
        )
    return tuple(days[day] for day in sorted(days))


def add_codecs(every: Iterable[CodecFigures]) -> tuple[CodecFigures, ...]:
    """The sums by codec, ordered by name."""
    sums: dict[str, tuple[int, int, int]] = {}
    for f in every:
        batches, packed_bytes, unpacked_bytes = sums.get(f.codec, (0, 0, 0))
        sums[f.codec] = (
            batches + f.batches,
            packed_bytes + f.packed_bytes,
            unpacked_bytes + f.unpacked_bytes,
        )
    return tuple(CodecFigures(codec, *numbers) for codec, numbers in sorted(sums.items()))


def spread_evenly(count: int, count_max: int) -> Sequence[int]:
    """At most `count_max` of the numbers below `count`, including the first and the last."""
    if count <= count_max:
        return range(count)
    return sorted({i * (count - 1) // (count_max - 1) for i in range(count_max)})


def sample_codecs(data: bytes | bytearray) -> tuple[tuple[CodecFigures, ...], int]:
    """Figures of the whole batches in `data`, and the number of batches that are left out, as they
    are too large to unpack here: above what a search by time unpacks. Raises WireError for a batch
    that cannot be read.
    """
    figures: list[CodecFigures] = []
    too_large = 0
    for header in walk(data):
        records = memoryview(data)[header.position + HEADER_BYTES : header.end]
        is_compressed = header.compression and header.records_count  # nothing is not compressed
        unpacked_bytes = len(records)
        if is_compressed:
            try:
                unpacked_bytes = len(decompress(header.compression, records, SEARCHED_BYTES_MAX))
            except TooLargeToUnpack:
                too_large += 1
                continue
        codec = CompressionType(header.compression).name.lower()
        figures.append(CodecFigures(codec, 1, len(records), unpacked_bytes))
    return add_codecs(figures), too_large


async def _sample_segments(
    rsm: RemoteStorageManager, view: PartitionView
) -> tuple[tuple[CodecFigures, ...], int, int]:
    """The figures, the number of sampled segments that could not be read, and that of batches too
    large to unpack.
    """
    sampled: list[CodecFigures] = []
    unreadable = too_large = 0
    for i in spread_evenly(len(view.segments), SAMPLED_SEGMENTS_MAX):
        try:
            figures, larger = sample_codecs(await _beginning(rsm, view.segments[i]))
        except (CorruptSegment, ObjectNotFound, RangeNotSatisfiable, WireError, ValueError):
            unreadable += 1  # `verify` reports the fault
        else:
            sampled += figures
            too_large += larger
    return add_codecs(sampled), unreadable, too_large


async def _beginning(rsm: RemoteStorageManager, segment: RemoteLogSegmentMetadata) -> Content:
    end = min(SAMPLE_BYTES, max(segment.segment_size_bytes, 1))
    return await rsm.fetch_log_segment(segment, ByteRange(0, end))


def forecast(segments: Sequence[SegmentFigures], retention: Retention, now_ms: int) -> Forecast:
    """The forecast of one partition. `segments`: its segments in offset order."""
    since_ms = min((segment.newest_ms for segment in segments), default=now_ms)
    days = min(max(now_ms - since_ms, 0) / DAY_MS, float(RATE_DAYS))
    deletion = _next_deletion_ms(segments, retention)
    if days < HISTORY_DAYS_MIN:
        return Forecast(days, None, None, deletion)
    recent = sum(
        segment.size_bytes for segment in segments if segment.newest_ms >= now_ms - days * DAY_MS
    )
    rate = round(recent / days)
    sizes = [_size_after(segments, retention, now_ms, rate, ahead) for ahead in HORIZON_DAYS]
    return Forecast(days, rate, tuple(sizes), deletion)


def _size_after(
    segments: Sequence[SegmentFigures], retention: Retention, now_ms: int, rate: int, days: int
) -> int:
    remaining_segments, grown_days = list(segments), float(days)
    if retention.remote_ms >= 0:
        oldest_ms = now_ms + days * DAY_MS - retention.remote_ms
        remaining_segments = [segment for segment in segments if segment.newest_ms >= oldest_ms]
        grown_days = min(grown_days, retention.remote_ms / DAY_MS)
    size = sum(segment.size_bytes for segment in remaining_segments) + round(rate * grown_days)
    return size if retention.remote_bytes < 0 else min(size, retention.remote_bytes)


def _next_deletion_ms(segments: Sequence[SegmentFigures], retention: Retention) -> int | None:
    if retention.remote_ms < 0 or len(segments) < 2:  # the newest segment always stays
        return None
    at_ms = segments[0].newest_ms + retention.remote_ms
    return at_ms if at_ms <= _TIMESTAMP_MAX_MS else None
