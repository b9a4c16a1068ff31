"""Plans the offset ranges that a backfill still has to write, and finds missing offsets."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple
from uuid import UUID

from fetchproxy.errors import ConfigError, CorruptSegment, RemoteStorageError
from fetchproxy.jobs.runner import ItemFailure, not_listed
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.topic_descriptions import TopicDescriptions
from fetchproxy.remotelog.archive_reading import ArchiveReading
from fetchproxy.remotelog.file_names import file_stem
from fetchproxy.remotelog.options import EARLIEST, LATEST, BoundKind, SourceOptions, TopicPartition
from fetchproxy.remotelog.planning import SKIPPED_RECORDS, OffsetSpan, Selection
from fetchproxy.remotelog.planning_processes import Failing
from fetchproxy.remotelog.rate_limits import Views
from fetchproxy.storage.listings import Unlisted
from fetchproxy.storage.stores.retries import each_object_alone
from fetchproxy.writing.completeness_records import uncovered

# The spans to write, and the partitions that are left out because some offsets are missing. A
# partition that is left out does not stop others.
BackfillInput = tuple[list[Selection], tuple[ItemFailure, ...]]
VERSION = 2  # outputs with 1 have other folders


async def backfill_input(options: SourceOptions) -> BackfillInput:
    """Raises ConfigError for a topic that the archive does not have; RemoteStorageError if the
    store fails. An object that fails alone is its partition's failure.
    """
    with each_object_alone():
        return await _input(options)


async def _input(options: SourceOptions) -> BackfillInput:
    failing: Failing = {}
    unlisted: Unlisted = {}
    async with ArchiveReading(replace(options, fail_on_data_loss=False), once=True) as reading:
        views = await reading.views(failing, unlisted)
        topic_names = options.topics.names or set(options.topics.assigned or ())
        if missing := sorted(topic_names - {topic for topic, _ in views}):
            descriptions = await TopicDescriptions(reading.storage.objects).refresh()
            archived_names = {topic for topic, _ in await reading.storage.objects.list_topics()}
            archived_names |= {description.topic for description in descriptions.values()}
            for topic in missing:
                if topic not in archived_names:
                    raise ConfigError(f"topic {topic} is not in the archive at {options.store}")
        reading.check_bounds(views)
        selections, failures = await _spans(reading, views)
        failures += [
            ItemFailure(str(tp), str(error), True) for tp, error in sorted(failing.items())
        ]
        topics = options.topics
        chosen_views = [
            topic
            for topic in unlisted
            if topic in (topics.assigned or ()) or topics.includes(topic, -1)
        ]
        failures += not_listed({topic: unlisted[topic] for topic in chosen_views})
        if not options.fail_on_data_loss:
            return selections, tuple(failures)
        losses = {view.tp: loss for view, _ in selections if (loss := _outside(options, view))}
        sound = [(view, span) for view, span in selections if view.tp not in losses]
        losses |= await reading.holes((view, reading.to_check(span)) for view, span in sound)
    failures += [
        ItemFailure(str(tp), f"{loss}; {SKIPPED_RECORDS}", False)
        for tp, loss in sorted(losses.items())
    ]
    return [(view, span) for view, span in sound if view.tp not in losses], tuple(failures)


async def described_partitions(options: SourceOptions, topic_id: UUID) -> int | None:
    """How many partitions the topic has; None: the archive does not say. Raises
    RemoteStorageError.
    """
    async with ArchiveReading(options, once=True) as reading:
        descriptions = await TopicDescriptions(reading.storage.objects).refresh()
    return descriptions[topic_id].partitions if topic_id in descriptions else None


async def _spans(
    reading: ArchiveReading, views: Views
) -> tuple[list[Selection], list[ItemFailure]]:
    """The spans to write. A partition that cannot be searched by timestamp stops no other."""
    selections: list[Selection] = []
    failures: list[ItemFailure] = []
    for view in views.values():
        try:
            selections.append((view, await reading.span_of(view)))
        except (RemoteStorageError, CorruptSegment) as error:
            failures.append(ItemFailure(str(view.tp), str(error), error.retriable))
    return selections, failures


def _outside(options: SourceOptions, view: PartitionView) -> str | None:
    """The error in the offsets that are given for the partition. None: no error."""
    first, end = view.log_start_offset or 0, view.log_end_offset or 0
    for bound in (options.starting, options.ending):
        bound_offset = bound.by_partition.get((view.tp.topic, view.tp.partition), LATEST)
        is_named = bound.kind is BoundKind.OFFSETS and bound_offset not in (EARLIEST, LATEST)
        if is_named and not first <= bound_offset <= end:
            return f"offset {bound_offset} is not in the archive, which has {first} to {end - 1}"
    return None


# A range's name has topic, partition and offsets. Its files have the same name, so a task that
# writes the range again replaces them. Ranges of one output never overlap: a later plan covers only
# offsets that no earlier plan has, even if segments have been merged since.


class BackfillRange(NamedTuple):
    """`first`: first offset. `end`: exclusive end offset. `topic_id`: the topic's id as text."""

    topic: str
    topic_id: str
    partition: int
    first: int
    end: int

    @property
    def name(self) -> str:
        """For people, and for files."""
        stem = file_stem(self.topic)
        return f"{stem}-{self.partition}-{self.first:020d}-{self.end - 1:020d}"


@dataclass(frozen=True, slots=True)
class Plan:
    """`settings`: settings that must be the same in every run into one output."""

    settings: Mapping[str, str]
    ranges: tuple[BackfillRange, ...]

    def encode(self) -> bytes:
        document = {"version": VERSION, "settings": dict(self.settings), "ranges": self.ranges}
        return json.dumps(document).encode()

    @classmethod
    def decode(cls, raw: bytes, path: str) -> Plan:
        """Raises ConfigError, naming `path`."""
        try:
            document = json.loads(raw)
            if document["version"] != VERSION:
                raise ConfigError(
                    f"{path} has version {document['version']}, not {VERSION}: another version of "
                    "fetchproxy wrote this output; write into another one"
                )
            ranges = tuple(BackfillRange(*entry) for entry in document["ranges"])
            return cls(dict(document["settings"]), ranges)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"{path} is not a backfill plan: {error!r}") from None


def of_other_topics(
    ranges: Iterable[BackfillRange], selections: Iterable[Selection]
) -> list[ItemFailure]:
    """The partitions for which the output has ranges of another topic of the same name."""
    ids: dict[str, set[str]] = {}
    for range_ in ranges:
        ids.setdefault(range_.topic, set()).add(range_.topic_id)
    return [
        ItemFailure(
            str(view.tp),
            f"the output has records of another topic {view.tp.topic}, with the id {min(others)}; "
            f"the id of this topic is {view.tp.topic_id}: it was deleted and recreated, and needs "
            "a separate output",
            False,
        )
        for view, _ in selections
        if (others := ids.get(view.tp.topic, set()) - {str(view.tp.topic_id)})
    ]


def next_plan(
    last: Plan | None,
    whole_ranges: Iterable[BackfillRange],
    selections: Iterable[Selection],
    settings: Mapping[str, str],
    *,
    bytes_max: int,
    begun_ranges: Iterable[BackfillRange] = (),
) -> Plan:
    """The planned ranges that are not done, and new ranges for offsets of `selections` that no plan
    has.

    `begun_ranges`: ranges that are written but lack records that were passed over.

    Raises ConfigError if the output was begun with other settings.
    """
    if last is not None and dict(last.settings) != dict(settings):
        raise ConfigError(
            f"the output was begun with {_text(last.settings)}, this run has {_text(settings)}"
        )
    finished_ranges = set(whole_ranges)
    planned_ranges = dict.fromkeys((*(last.ranges if last else ()), *begun_ranges))
    waiting = [r for r in planned_ranges if r not in finished_ranges]
    ranges_by_location: dict[TopicPartition, list[BackfillRange]] = {}
    for backfill_range in (*finished_ranges, *waiting):
        ranges_by_location.setdefault((backfill_range.topic, backfill_range.partition), []).append(
            backfill_range
        )
    ranges = waiting
    for view, span in selections:
        before = ranges_by_location.get((view.tp.topic, view.tp.partition), [])
        written_spans = sorted(
            (range_before.first, range_before.end - 1) for range_before in before
        )
        for first, end in uncovered(span.start, span.end - 1, written_spans):
            ranges += _ranges(view, OffsetSpan(first, end + 1), bytes_max)
    return Plan(settings, tuple(sorted(ranges)))


def _ranges(view: PartitionView, span: OffsetSpan, bytes_max: int) -> Iterator[BackfillRange]:
    partition_fields = (view.tp.topic, str(view.tp.topic_id), view.tp.partition)
    first: int | None = None
    size = end = 0
    for piece, piece_bytes in _pieces(view, span, bytes_max):
        # A range has no hole, so offsets that are repaired later can still be planned.
        if first is not None and (size + piece_bytes > bytes_max or piece.start > end):
            yield BackfillRange(*partition_fields, first, end)
            first, size = None, 0
        if first is None:
            first = piece.start
        size += piece_bytes
        end = piece.end
    if first is not None:
        yield BackfillRange(*partition_fields, first, end)


def _pieces(
    view: PartitionView, span: OffsetSpan, bytes_max: int
) -> Iterator[tuple[OffsetSpan, int]]:
    """Segments, or parts of large segments, with their estimated bytes, as if all records had the
    same size. Each offset occurs once, in order.
    """
    at = max(span.start, view.raised_log_start)
    for segment, end_offset in view.segments.refs(view.segments.index_at_or_after(at)):
        if segment.start_offset >= span.end:
            return
        start, end = max(segment.start_offset, at), min(end_offset + 1, span.end)
        if start >= end:
            continue
        offsets = segment.stored_end_offset - segment.start_offset + 1
        size = segment.segment_size_bytes
        count = min(-(-size * (end - start) // (offsets * bytes_max)) or 1, end - start)
        borders = [start + (end - start) * number // count for number in range(count + 1)]
        for start, end in pairwise(borders):
            yield OffsetSpan(start, end), size * (end - start) // offsets
        at = end


def _text(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(settings.items()))
