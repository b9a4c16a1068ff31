"""Of which days a partition's records are archived, on the brokers, or lost. Pure.

Metadata has the largest timestamp of each segment. Between these, the date of an offset is an
estimate: as if records had come at an even pace. A segment whose timestamps cannot be (none, or in
the future) has the date of its copy instead.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby

from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import LogOffsets, RemoteLogSegmentMetadata

# More have no place on a page; between these, dates are estimated like others.
_ANCHORS_MAX = 500
# For one of very many partitions.
FEW_ANCHORS = 20
# The narrowest that a page of many partitions tells apart, as a part of all time from the first.
_NARROWEST = 1 / 500
_Anchor = tuple[int, int]  # an offset and its date (epoch ms)


class SpanKind(StrEnum):
    ARCHIVED = "archived"
    BROKERS = "brokers"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class TimelineSpan:
    """`kind`: archived, brokers or lost. The times are epoch times, as estimated from the segments'
    timestamps. The offsets are inclusive. For a topic, they are null, and `partitions` counts.
    """

    kind: str
    from_ms: int
    until_ms: int
    first_offset: int | None = None
    last_offset: int | None = None
    partitions: int = 1


def timeline(
    view: PartitionView | None,
    log_offsets: LogOffsets | None,
    now_ms: int,
    anchors_max: int = _ANCHORS_MAX,
) -> tuple[TimelineSpan, ...]:
    """The spans of a partition by kind, each kind by offset."""
    if view is None or view.log_start_offset is None or view.log_end_offset is None:
        return ()
    first, end, gaps = view.log_start_offset, view.log_end_offset, view.gaps()
    anchors = _anchors(view.segments, log_offsets, now_ms, anchors_max)

    def span(kind: SpanKind, first: int, last: int) -> TimelineSpan:
        return TimelineSpan(kind, date_of(first, anchors), date_of(last, anchors), first, last)

    firsts = [first, *(last + 1 for _, last in gaps)]
    lasts = [*(first - 1 for first, _ in gaps), end - 1]
    spans = [span(SpanKind.ARCHIVED, *offsets) for offsets in zip(firsts, lasts, strict=True)]
    if log_offsets is not None and log_offsets.high_watermark > log_offsets.log_start_offset:
        spans.append(
            span(SpanKind.BROKERS, log_offsets.log_start_offset, log_offsets.high_watermark - 1)
        )
    spans += [span(SpanKind.LOST, *gap) for gap in gaps]
    kept_from = max(end, view.raised_log_start)  # below it, records were deleted on purpose
    if log_offsets is not None and log_offsets.log_start_offset > kept_from:
        spans.append(span(SpanKind.LOST, kept_from, log_offsets.log_start_offset - 1))
    return tuple(spans)


def _anchors(
    segments: Sequence[RemoteLogSegmentMetadata],
    log_offsets: LogOffsets | None,
    now_ms: int,
    anchors_max: int,
) -> list[_Anchor]:
    """Offsets with a date, both rising: of some segments' ends, and the log's end, which is now."""
    step = max(len(segments) // anchors_max, 1)
    indexes = [*range(0, len(segments), step), len(segments) - 1]
    anchors = [_anchor(segments[index], now_ms) for index in sorted(set(indexes))]
    before = anchors[0][1]
    if len(anchors) > 1:  # the first segment lasted as long as the others, by their offsets
        (first_end, first_ms), (last_end, last_ms) = anchors[0], anchors[-1]
        pace = (last_ms - first_ms) / max(last_end - first_end, 1)
        length = first_end - segments[0].start_offset + 1
        before = round(first_ms - max(pace, 0) * length)
    anchors.insert(0, (segments[0].start_offset, before))
    if log_offsets is not None and log_offsets.high_watermark - 1 > anchors[-1][0]:
        anchors.append((log_offsets.high_watermark - 1, now_ms))
    rising: list[_Anchor] = []
    for offset, at_ms in anchors:
        at_ms = max(at_ms, rising[-1][1]) if rising else at_ms
        rising.append((offset, at_ms))
    return rising


def _anchor(segment: RemoteLogSegmentMetadata, now_ms: int) -> _Anchor:
    at_ms = segment.max_timestamp_ms
    return segment.end_offset, at_ms if 0 < at_ms <= now_ms else segment.event_timestamp_ms


def date_of(offset: int, anchors: Sequence[_Anchor]) -> int:
    """Between two anchors, by the offset; outside, that of the nearest one."""
    index = bisect_left(anchors, offset, key=lambda anchor: anchor[0])
    if index == 0:
        return anchors[0][1]
    if index == len(anchors):
        return anchors[-1][1]
    (low, low_ms), (high, high_ms) = anchors[index - 1], anchors[index]
    return low_ms + round((high_ms - low_ms) * (offset - low) / max(high - low, 1))


def coarse_spans(spans: Sequence[TimelineSpan]) -> tuple[TimelineSpan, ...]:
    """As `merged_spans`, but a bounded number of spans, however many partitions there are."""
    first = min((span.from_ms for span in spans), default=0)
    last = max((span.until_ms for span in spans), default=0)
    return merged_spans(spans, round((last - first) * _NARROWEST))


def merged_spans(spans: Iterable[TimelineSpan], within_ms: int = 0) -> tuple[TimelineSpan, ...]:
    """Spans of several partitions: those of one kind that meet are one, or nearly do."""
    order = list(SpanKind)
    by_kind = sorted(spans, key=lambda span: (order.index(SpanKind(span.kind)), span.from_ms))
    spans_of_kind = groupby(by_kind, key=lambda span: span.kind)
    return tuple(merged for _, alike in spans_of_kind for merged in _merge_near(alike, within_ms))


def _merge_near(rising: Iterable[TimelineSpan], within_ms: int) -> Iterator[TimelineSpan]:
    open_span: TimelineSpan | None = None
    for one in rising:
        if open_span is None or one.from_ms > open_span.until_ms + within_ms:
            if open_span is not None:
                yield open_span
            open_span = replace(one, first_offset=None, last_offset=None)
        else:
            until_ms = max(open_span.until_ms, one.until_ms)
            partitions = open_span.partitions + one.partitions
            open_span = TimelineSpan(one.kind, open_span.from_ms, until_ms, partitions=partitions)
    if open_span is not None:
        yield open_span
