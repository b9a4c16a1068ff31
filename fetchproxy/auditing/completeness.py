"""Checks that all archived offsets of a partition are still there. It reads no log.

It reads the records in the store, and the metadata topic if there is one. It reads the expected
content before the actual content, so a copy or deletion in progress is not a fault.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fetchproxy.auditing.reports import VerifyReport
from fetchproxy.errors import ObjectNotReadable, RemoteStorageError, StorageUnavailable
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.model import RemoteLogSegmentMetadata, TopicIdPartition
from fetchproxy.observability.health import Condition, Kind, Offsets, of_object, of_partition
from fetchproxy.segments.description import FinishedOffsets
from fetchproxy.storage.archive_objects import ArchiveObjects
from fetchproxy.writing.archive_health import (
    OffsetsCheckResult,
    in_no_segment,
    look_at_offsets,
    metadata_in_words,
    offsets_in_words,
)
from fetchproxy.writing.completeness_records import uncovered


@dataclass(eq=False, repr=False)
class CompletenessCheck:
    """The check of a partition. `topic`: the metadata topic's manager; None: there is no topic."""

    objects: ArchiveObjects
    stored: StoreBackedRemoteLogMetadataManager
    tp: TopicIdPartition
    topic: RemoteLogMetadataManager | None = None

    async def check(self, lost: Sequence[Offsets] = ()) -> VerifyReport:
        """`lost`: offsets of segments that lack only metadata. Raises RemoteStorageError."""
        report, tp, records = VerifyReport(), self.tp, self.objects
        topic_segments = await self._segments_in_metadata_topic(report)

        def reported_holes() -> list[Offsets]:
            archived_offsets = self.segments_not_in_store(topic_segments or ())
            return [*lost, *((s.start_offset, s.end_offset) for s in archived_offsets)]

        result = await look_at_offsets(
            records, self.stored, tp, lambda: refreshed(self.stored, tp), reported_holes
        )
        finished_offsets = result.finished_offsets
        if result.damaged is not None:
            retriable, message = result.damaged.retriable, str(result.damaged)
            if not isinstance(result.damaged, ObjectNotReadable):
                message += "; the archiver writes it again with its next segment"
            key = records.finished_offsets_key(tp)
            damage = of_object(Kind.SEGMENT_DAMAGED, tp, key, message, retriable=retriable)
            (report.unread if retriable else report.faults).append(damage)
        folder = records.folder(tp)
        for first, last in result.not_held.missing:
            kind, message = Kind.ARCHIVED_OFFSETS_MISSING, in_no_segment(first, last)
            report.faults.append(of_object(kind, tp, folder, message, first))
        if finished_offsets is not None and finished_offsets.log_start_offset > self._log_start(
            self.stored
        ):
            message = (
                f"the log start was raised to {finished_offsets.log_start_offset}, but is lower now"
            )
            report.faults.append(of_object(Kind.SEGMENT_DAMAGED, tp, folder, message))
        report.faults += self._older_end(finished_offsets)
        report.not_known += self._unknown(result)
        report.published_conditions += offsets_in_words(tp, result.not_held)
        report.published_conditions += metadata_in_words(self.stored, tp)
        if topic_segments is not None:
            report.faults += await self._compare_with_topic(topic_segments)
        return report

    def _log_start(self, manager: RemoteLogMetadataManager | None) -> int:
        view = None if manager is None else manager.view(self.tp)
        return 0 if view is None else view.raised_log_start

    # --- the records in the store ---
    def _older_end(self, finished_offsets: FinishedOffsets | None) -> list[Condition]:
        """A fault if the stated end is in a segment, but all segments have older leader epochs."""
        if finished_offsets is None or finished_offsets.end_offset < self._log_start(self.stored):
            return []
        segments = finished(self.stored.list_remote_log_segments(self.tp))
        epochs = [e.epoch for s in segments for e in s.segment_leader_epochs]
        at_end = [
            s for s in segments if s.start_offset <= finished_offsets.end_offset <= s.end_offset
        ]
        if not at_end or max(epochs, default=-1) >= finished_offsets.leader_epoch:
            return []
        key = self.objects.segment_metadata_key(at_end[-1])
        end, epoch = finished_offsets.end_offset, finished_offsets.leader_epoch
        message = f"offset {end} was archived in leader epoch {epoch}, not in this one"
        return [of_object(Kind.SEGMENT_DAMAGED, self.tp, key, message, end)]

    def _unknown(self, result: OffsetsCheckResult) -> list[Condition]:
        unknowns = [
            f"whether offsets {first} to {last}, which are in no segment, were archived"
            for first, last in result.not_held.not_known
        ]
        segments = finished(self.stored.list_remote_log_segments(self.tp))
        if result.finished_offsets is None:
            unknowns.append("at which offsets the archive began and ended")
        elif any(s.start_offset < result.finished_offsets.recorded_from for s in segments):
            unknowns.append(f"whether the archive began below offset {segments[0].start_offset}")
        return [
            of_partition(Kind.ARCHIVED_OFFSETS_NOT_KNOWN, self.tp, message) for message in unknowns
        ]

    # --- the metadata topic ---
    async def _segments_in_metadata_topic(
        self, report: VerifyReport
    ) -> Sequence[RemoteLogSegmentMetadata] | None:
        """The partition's segments in the metadata topic. None: no topic, or a fault was added."""
        if self.topic is None:
            return None
        try:
            await self.topic.refresh(self.tp, asyncio.get_running_loop().time())
        except RemoteStorageError as error:
            if error.retriable:
                raise
            kind, folder = Kind.ARCHIVE_LISTING_FAILING, self.objects.folder(self.tp)
            report.faults.append(of_object(kind, self.tp, folder, str(error)))
            return None
        return self.topic.list_remote_log_segments(self.tp)

    def segments_not_in_store(
        self, topic_segments: Iterable[RemoteLogSegmentMetadata]
    ) -> list[RemoteLogSegmentMetadata]:
        """Finished segments that the topic has and that have no metadata in the store."""
        ids = {s.segment_id for s in self.stored.list_remote_log_segments(self.tp)}
        not_in_store = [s for s in finished(topic_segments) if s.segment_id not in ids]
        log_start = self._log_start(self.topic)
        return [s for s in not_in_store if s.end_offset >= log_start]

    async def _compare_with_topic(
        self, before: Sequence[RemoteLogSegmentMetadata]
    ) -> list[Condition]:
        """`before`: the topic's segments, read before the store. Reads the topic again after it."""
        now = await self._segments_in_metadata_topic(VerifyReport()) or ()
        topic_segments_by_id = {s.segment_id: s for s in now}
        unchanged = [s for s in before if topic_segments_by_id.get(s.segment_id) == s]
        stored = {s.segment_id: s for s in self.stored.list_remote_log_segments(self.tp)}
        problem_keys = {problem.object_key for problem in self.stored.problems(self.tp)}
        faults: list[Condition] = []

        def fault(segment: RemoteLogSegmentMetadata, message: str) -> None:
            key = self.objects.segment_metadata_key(segment)
            if key not in problem_keys:
                kind, start = Kind.SEGMENT_METADATA_UNREADABLE, segment.start_offset
                faults.append(of_object(kind, self.tp, key, message, start))

        for segment in self.segments_not_in_store(unchanged):
            message = (
                f"the metadata topic has offsets {segment.start_offset} to {segment.end_offset}"
            )
            fault(segment, f"{message} here, the store has no metadata of it")
        for segment in finished(unchanged):
            other = stored.get(segment.segment_id)
            if other is not None and _state_text(other) != _state_text(segment):
                fault(
                    other, f"says {_state_text(other)}, the metadata topic {_state_text(segment)}"
                )
        offsets_in_topic = [(s.start_offset, s.end_offset) for s in finished(now)]
        log_start = self._log_start(self.topic)
        for segment in finished(stored.values()):
            first = max(segment.start_offset, log_start)
            if segment.segment_id not in topic_segments_by_id and not in_offsets(
                first, segment.end_offset, offsets_in_topic
            ):
                fault(segment, "it is not in the metadata topic: no reader sees it")
        return faults


async def refreshed(
    stored: StoreBackedRemoteLogMetadataManager, tp: TopicIdPartition
) -> PartitionView:
    """The current view. Repeats a timed-out read while it progresses. Raises RemoteStorageError."""
    while True:
        cached_objects = stored.objects_known(tp)
        try:
            return await stored.refresh(tp, asyncio.get_running_loop().time())
        except StorageUnavailable:
            if stored.objects_known(tp) == cached_objects:
                raise


def finished(segments: Iterable[RemoteLogSegmentMetadata]) -> list[RemoteLogSegmentMetadata]:
    return [segment for segment in segments if segment.is_finished]


def _state_text(segment: RemoteLogSegmentMetadata) -> str:
    return (
        f"{segment.state.name} up to offset {segment.end_offset} in "
        f"{segment.segment_size_bytes} bytes"
    )


def in_offsets(first: int, last: int, offsets: Iterable[Offsets]) -> bool:
    """Whether each offset from `first` to `last`, both inclusive, is in one of `offsets`."""
    return not any(uncovered(first, last, sorted(offsets)))
