"""What is known of one partition from its objects in the store: read objects, and a view of them.

Lists and reads nothing itself: see `store_backed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

import structlog

from fetchproxy.errors import CorruptSegment, DamagedObject, RemoteStorageError
from fetchproxy.metadata.api import MetadataProblem
from fetchproxy.metadata.collected_metadata import NOTHING, Collected, Read, collected_segment
from fetchproxy.metadata.log_history_json import decode_log_history
from fetchproxy.metadata.partition_view import PartitionView, build_view
from fetchproxy.metadata.segment_json import decode_segment
from fetchproxy.model import (
    FIRST_HISTORY,
    LogHistory,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.observability.metrics import METADATA_UNREADABLE
from fetchproxy.storage.api import StoredObject
from fetchproxy.storage.partition_objects import (
    LogStartObject,
    PartitionNoteObject,
    SegmentMetadataObject,
    Standing,
)

log = structlog.get_logger(__name__)

# By key: the version that was read, and what it said.
Content = RemoteLogSegmentMetadata | MetadataProblem | LogHistory
Contents = dict[str, tuple[str, Content]]
Readable = SegmentMetadataObject | PartitionNoteObject


@dataclass(slots=True)
class StoredPartition:
    """`objects` is what was last listed, as far as it was read."""

    objects: Contents = field(default_factory=dict)
    segments: dict[UUID, RemoteLogSegmentMetadata] = field(default_factory=dict)
    problems: tuple[MetadataProblem, ...] = ()
    # What was put lately, with its loop time: a listing begun before may have missed it.
    puts: dict[UUID, tuple[float, RemoteLogSegmentMetadata]] = field(default_factory=dict)
    put_at: float = float("-inf")  # loop time of the last put
    built_at: float = float("-inf")  # loop time at which the listing began that `segments` are of
    # `objects` have changed since: a read that failed, or is under way, got some of them.
    is_behind: bool = False
    log_starts: tuple[LogStartObject, ...] = ()  # as last listed
    # By the history they are of; none falls, so that a listing that began too early does no harm.
    raised_log_starts: dict[int, int] = field(default_factory=dict)
    history: LogHistory = FIRST_HISTORY

    @property
    def raised_log_start(self) -> int:
        return self.raised_log_starts.get(self.history.after_epoch, 0)

    @property
    def was_built(self) -> bool:
        return self.built_at != float("-inf")

    def raise_log_start(self, offset: int, after_epoch: int) -> None:
        known = self.raised_log_starts.get(after_epoch, 0)
        self.raised_log_starts[after_epoch] = max(known, offset)

    def put(self, metadata: RemoteLogSegmentMetadata, now: float, keep_s: float) -> None:
        """`keep_s`: no listing takes longer."""
        self._apply(metadata)
        self.put_at = now
        self.puts = {key: put for key, put in self.puts.items() if put[0] >= now - keep_s}
        self.puts[metadata.segment_id.id] = (now, metadata)

    def _apply(self, metadata: RemoteLogSegmentMetadata) -> None:
        if metadata.state is RemoteLogSegmentState.DELETE_SEGMENT_FINISHED:
            self.segments.pop(metadata.segment_id.id, None)
        else:
            self.segments[metadata.segment_id.id] = metadata

    def has_read(self, stored: StoredObject) -> bool:
        """This version was read and understood; a damaged read may have been damaged on the way."""
        version, content = self.objects.get(stored.key, ("", None))
        return version == stored.version and not isinstance(content, MetadataProblem)

    def note(self, stored: StoredObject, content: Content) -> None:
        self.objects[stored.key] = (stored.version, content)
        self.is_behind = True

    def forget(self, stored: StoredObject) -> None:
        """It is not there any more."""
        if self.objects.pop(stored.key, None) is not None:
            self.is_behind = True

    def note_content(self, entry: Readable, raw: bytes | DamagedObject) -> None:
        """Raises RemoteStorageError where the log's history cannot be read.

        Then nobody knows which segments count, and none may be deleted.
        """
        if isinstance(entry, PartitionNoteObject):
            self.note(entry.stored, _decode_history(raw, entry))
            return
        if isinstance(raw, DamagedObject):
            content: Content = MetadataProblem(entry.stored.key, entry.base_offset, str(raw))
        else:
            content = _decode(raw, entry)
        if isinstance(content, MetadataProblem):
            self._report(content, entry)
        self.note(entry.stored, content)

    def _report(self, problem: MetadataProblem, entry: SegmentMetadataObject) -> None:
        """Once for each unreadable version of an object, however often it is read again."""
        known = self.objects.get(problem.key)
        if known is not None and known[0] == entry.stored.version:
            return
        METADATA_UNREADABLE.inc()
        tip = entry.segment_id.topic_id_partition
        log.error(
            "segment_metadata_unreadable",
            topic=tip.topic,
            partition=tip.partition,
            segment_id=str(entry.segment_id.id),
            base_offset=entry.base_offset,
            error=problem.what,
        )

    def build(self, contents: Contents, began_at: float) -> None:
        """Stand on `contents`, as a listing that began then found them."""
        self.built_at, self.is_behind = began_at, False
        self.objects = contents
        found = [content for _, content in contents.values()]
        self.problems = tuple(c for c in found if isinstance(c, MetadataProblem))
        self.history = next((c for c in found if isinstance(c, LogHistory)), FIRST_HISTORY)
        self.segments = {}
        put_since = [metadata for at, metadata in self.puts.values() if at >= began_at]
        for metadata in (*found, *put_since):
            if isinstance(metadata, RemoteLogSegmentMetadata):
                self._apply(metadata)

    def view(self, tip: TopicIdPartition, read_at: float) -> PartitionView:
        unreadable = {problem.base_offset for problem in self.problems}
        return build_view(
            tip,
            self.segments.values(),
            read_at,
            unreadable,
            self.raised_log_start,
            self.history,
        )


class PartitionRead:
    """One listing of a partition on its way to a view; others of the same may be under way.

    `add` what is listed; then `begin`, `read` each of what it gives, and `land`.
    """

    def __init__(self, tip: TopicIdPartition, partition: StoredPartition, began_at: float) -> None:
        self.tip = tip
        self.partition = partition
        self._began_at = began_at
        self._listed: list[Readable] = []
        self._log_starts: list[LogStartObject] = []
        self._contents: Contents = {}
        self._unchanged_since = partition.built_at
        self._some_gone = False  # that were there when it was listed last

    def add(self, found: Standing) -> None:
        if isinstance(found, LogStartObject):
            self._log_starts.append(found)
        else:
            self._listed.append(found)

    def begin(self, collected: Collected = NOTHING) -> list[Readable]:
        """The objects that have to be read: the others are known, or were collected."""
        partition = self.partition
        partition.log_starts = tuple(self._log_starts)
        for found in self._log_starts:
            partition.raise_log_start(found.offset, found.after_epoch)
        waiting: list[Readable] = []
        for entry in self._listed:
            if partition.has_read(entry.stored):
                # Kept here too: a read that lands meanwhile may have listed too early for it.
                self._contents[entry.stored.key] = partition.objects[entry.stored.key]
            elif (said := _collected(collected, entry)) is not None:
                partition.note(entry.stored, said)
                self._contents[entry.stored.key] = (entry.stored.version, said)
            else:
                waiting.append(entry)
        self._unchanged_since = partition.built_at
        self._some_gone = len(self._listed) - len(waiting) < len(partition.objects)
        return waiting

    def read(self, entry: Readable, raw: bytes | DamagedObject | None) -> None:
        """None: it was deleted since it was listed."""
        key = entry.stored.key
        if raw is None:
            self.partition.forget(entry.stored)
        else:
            # Into the partition too: where this read fails, the next one is shorter.
            self.partition.note_content(entry, raw)
            self._contents[key] = self.partition.objects[key]

    def land(self, shown: tuple[float, PartitionView] | None) -> PartitionView:
        """The view after it; `shown` is the last one, with the loop time its listing began."""
        partition = self.partition
        if shown is not None and shown[0] > self._began_at:
            return shown[1]  # somebody who looked later was faster
        # Making thousands of segments anew holds the loop, and mostly nothing has changed.
        if (
            shown is not None
            and not (self._some_gone or partition.is_behind)
            and self._unchanged_since == partition.built_at
            and partition.put_at < partition.built_at
            and shown[1].raised_log_start == partition.raised_log_start
        ):
            return replace(shown[1], read_at=self._began_at)
        # From here on nothing waits: no put can come between reading and showing.
        partition.build(self._contents, self._began_at)
        return partition.view(self.tip, self._began_at)


def segments_in(partitions: Sequence[StoredPartition]) -> Iterator[Read]:
    """Each segment's metadata that was read: its key, its version, and the metadata."""
    for partition in partitions:
        for key, (version, content) in list(partition.objects.items()):
            if isinstance(content, RemoteLogSegmentMetadata):
                yield key, version, content


def _collected(collected: Collected, entry: Readable) -> RemoteLogSegmentMetadata | None:
    if not collected or isinstance(entry, PartitionNoteObject):
        return None
    return collected_segment(collected, entry)


def _decode_history(raw: bytes | DamagedObject, entry: PartitionNoteObject) -> LogHistory:
    if isinstance(raw, DamagedObject):
        raise raw
    try:
        return decode_log_history(raw, entry.stored.key)
    except CorruptSegment as error:
        raise RemoteStorageError(str(error)) from None


def _decode(raw: bytes, entry: SegmentMetadataObject) -> RemoteLogSegmentMetadata | MetadataProblem:
    key = entry.stored.key
    try:
        metadata = decode_segment(raw, key)
        if (metadata.segment_id, metadata.start_offset) != (entry.segment_id, entry.base_offset):
            raise CorruptSegment(
                f"{key}: holds the metadata of segment {metadata.segment_id.id} of "
                f"{metadata.topic_id_partition} at {metadata.start_offset}"
            )
        return metadata
    except CorruptSegment as error:
        return MetadataProblem(key, entry.base_offset, str(error))
