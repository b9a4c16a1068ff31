"""The nouns of KIP-405 as plain values. Every module may import this; it imports none of ours.

Offsets are int64 log offsets. The names of ranges say whether the end is included.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

ZERO_UUID = UUID(int=0)
# The last offset that a record can have: the next offset must fit into an int64 too.
OFFSET_MAX = 2**63 - 2
# The largest log of a segment: eight times the largest that Kafka makes.
SEGMENT_BYTES_MAX = 16 * 1024**3
_COPY_NUMBER_MORE_BITS = 16  # of a `CompactedCopy.number`, below its time
END_UNKNOWN = -1  # a `SegmentRef.stored_end_offset`
_TOPIC_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}", re.ASCII)


def is_topic_name(text: str) -> bool:
    """Whether `text` is a valid topic name (Kafka's Topic.validate)."""
    return _TOPIC_NAME.fullmatch(text) is not None and text not in (".", "..")


class TopicIdPartition(NamedTuple):
    """One partition of one *incarnation* of a topic: a re-created topic has another id."""

    topic_id: UUID
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def logged(self) -> dict[str, object]:
        """The fields that identify it in the log."""
        return {"topic": self.topic, "partition": self.partition}

    def order(self) -> tuple[int, str, int]:
        """A sort key with the order of `<`, which would be slow for thousands of UUIDs."""
        return self.topic_id.int, self.topic, self.partition


class RemoteLogSegmentState(IntEnum):
    """Kafka's RemoteLogSegmentState; legal transitions: `fetchproxy.segments.description`."""

    COPY_SEGMENT_STARTED = 0
    COPY_SEGMENT_FINISHED = 1
    DELETE_SEGMENT_STARTED = 2
    DELETE_SEGMENT_FINISHED = 3


class RemotePartitionDeleteState(IntEnum):
    """Kafka's RemotePartitionDeleteState: how far the deletion of a topic's partition has come."""

    DELETE_PARTITION_MARKED = 0
    DELETE_PARTITION_STARTED = 1
    DELETE_PARTITION_FINISHED = 2


@dataclass(frozen=True, slots=True)
class RemotePartitionDeleteMetadata:
    """`epoch`: the partition's last leader epoch that the writer knew, or -1."""

    topic_id_partition: TopicIdPartition
    state: RemotePartitionDeleteState
    event_timestamp_ms: int
    epoch: int = -1


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentId:
    """A new id for every copy attempt, also for the same offsets (KIP-405)."""

    topic_id_partition: TopicIdPartition
    id: UUID


class SegmentRef(NamedTuple):
    """Which segment, which offsets its objects hold, and how they are read.

    `stored_end_offset`: inclusive. END_UNKNOWN: no metadata say it, as the segment is known only by
    its objects; its size may then be that of its `.log` object. A tuple of plain values, because a
    planner makes and sends millions.
    """

    tp: TopicIdPartition
    raw_id: bytes
    start_offset: int
    stored_end_offset: int
    segment_size_bytes: int
    has_aborted_txns: bool
    packed: bool

    @property
    def segment_id(self) -> RemoteLogSegmentId:
        return RemoteLogSegmentId(self.tp, UUID(bytes=self.raw_id))

    def as_listed(self) -> SegmentRef:
        """The same, known only by its objects: it is never compared with the metadata that it was
        encrypted with.
        """
        return self._replace(stored_end_offset=END_UNKNOWN)


@dataclass(frozen=True, slots=True)
class EpochStart:
    """A leader epoch and the first offset written in it."""

    epoch: int
    start_offset: int


class EpochEnd(NamedTuple):
    """A leader epoch, and the offset after its last record."""

    epoch: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class RemoteLogSegmentMetadata:
    """One copied segment.

    `start_offset`: the position from which the copier read. This is one past the end of the
    previous segment, even if the log itself has a hole there. So a `start_offset` above the
    previous segment's `end_offset + 1` is a *recorded gap*: data that was lost before it could be
    copied.
    """

    segment_id: RemoteLogSegmentId
    start_offset: int
    end_offset: int  # inclusive
    max_timestamp_ms: int
    event_timestamp_ms: int
    segment_leader_epochs: tuple[EpochStart, ...]  # see `segments.leader_epochs`
    segment_size_bytes: int
    state: RemoteLogSegmentState
    has_aborted_txns: bool  # False: no .txn object exists
    # Set if an unclean leader election has cut the log below the copied end. Then `end_offset`
    # is the last valid offset, and `copied_end_offset` is the last that the objects hold.
    copied_end_offset: int | None = None
    # True: the `.log` object holds pieces of the log that are compressed, encrypted or both. The
    # `.packing` object beside it says how.
    packed: bool = False

    @property
    def topic_id_partition(self) -> TopicIdPartition:
        return self.segment_id.topic_id_partition

    @property
    def logged(self) -> dict[str, object]:
        """The fields that identify it in the log."""
        place = self.topic_id_partition.logged
        return {**place, "segment_id": str(self.segment_id.id), "base_offset": self.start_offset}

    @property
    def ref(self) -> SegmentRef:
        return SegmentRef(
            self.topic_id_partition,
            self.segment_id.id.bytes,
            self.start_offset,
            self.stored_end_offset,
            self.segment_size_bytes,
            self.has_aborted_txns,
            self.packed,
        )

    @property
    def last_epoch(self) -> int:
        """The epoch of the leader that wrote its end. -1: its batches have none that counts."""
        return self.segment_leader_epochs[-1].epoch if self.segment_leader_epochs else -1

    @property
    def is_finished(self) -> bool:
        return self.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED

    @property
    def stored_end_offset(self) -> int:
        """The last offset that the objects hold, inclusive. Clients may read up to `end_offset`."""
        return self.end_offset if self.copied_end_offset is None else self.copied_end_offset

    def with_state(
        self, state: RemoteLogSegmentState, event_timestamp_ms: int
    ) -> RemoteLogSegmentMetadata:
        return replace(self, state=state, event_timestamp_ms=event_timestamp_ms)

    def clipped(self, end_offset: int) -> RemoteLogSegmentMetadata:
        """The segment with `end_offset` (inclusive, inside the segment) as its last offset."""
        if end_offset >= self.end_offset:
            return self
        epochs = tuple(e for e in self.segment_leader_epochs if e.start_offset <= end_offset)
        return replace(
            self,
            end_offset=end_offset,
            copied_end_offset=self.stored_end_offset,
            segment_leader_epochs=epochs,
        )


# How a store is asked for a segment. If it is encrypted, this is compared with its description.
AnySegment = RemoteLogSegmentMetadata | SegmentRef


@dataclass(frozen=True, slots=True)
class ByteRange:
    """Bytes `start` up to but not including `end` of an object; never empty."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"byte range [{self.start}, {self.end}) is empty or negative")

    @property
    def length(self) -> int:
        return self.end - self.start


@dataclass(frozen=True, slots=True, order=True)
class AbortedTxn:
    """Kafka's AbortedTxn (transaction index entry); all offsets inclusive."""

    first_offset: int
    last_offset: int
    producer_id: int
    last_stable_offset: int


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


@dataclass(frozen=True, slots=True)
class CompactedCopy:
    """Which copy of a compacted log the archive shows. Compaction changes the log below any offset,
    so such a log is copied anew from time to time, from its beginning.

    `number`: the upper 64 bits of the ids of its segments; they have the time at which the copy was
    begun. 0: no copy is whole yet. `made_to`: the copy was read in one go below this offset, and
    grew after that. `shown_to`: what it has from this offset on does not count yet, as it would
    lack values of keys; -1: all counts. `caught_up_ms`: epoch ms at which the copy had all of the
    log; -1: never.
    """

    number: int = 0
    made_to: int = 0
    shown_to: int = -1
    caught_up_ms: int = -1

    @classmethod
    def begun(cls, at_ms: int, more: UUID) -> CompactedCopy:
        """`more`: tells copies apart that were begun in the same millisecond."""
        return cls(at_ms << _COPY_NUMBER_MORE_BITS | more.int & (1 << _COPY_NUMBER_MORE_BITS) - 1)

    @property
    def begun_at_ms(self) -> int:
        return self.number >> _COPY_NUMBER_MORE_BITS

    def segment_id(self, more: UUID) -> UUID:
        """The id of a new segment of this copy."""
        return UUID(int=self.number << 64 | more.int & (1 << 64) - 1)

    def has(self, segment_id: RemoteLogSegmentId) -> bool:
        return segment_id.id.int >> 64 == self.number


@dataclass(frozen=True, slots=True)
class LogHistory:
    """What counts of the segments of a partition: an operator's decision about a log that began
    again (`fetchproxy resolve`), and the current copy of a compacted log.

    Only segments that reach an epoch above `after_epoch` belong to the history that is shown.
    Archived records below the offset `kept_below`, in epochs up to `kept_epoch`, are kept and
    shown, whatever the leader's log has there. `earlier`: the last epochs, rising, of the histories
    that were put aside before the history that ends with `after_epoch`. `compacted`: None if the
    log is not archived as a compacted one.
    """

    after_epoch: int = -1
    kept_below: int = 0
    kept_epoch: int = -1
    earlier: tuple[int, ...] = ()
    compacted: CompactedCopy | None = None

    def followed_by(self, after_epoch: int) -> LogHistory:
        """The history that begins after that epoch. The history shown so far is put aside."""
        before = () if self.after_epoch < 0 else (self.after_epoch,)
        earlier = (*self.earlier, *before)
        return LogHistory(after_epoch, earlier=earlier, compacted=self.compacted)

    def is_of_copy(self, segment: RemoteLogSegmentMetadata) -> bool:
        """False: the segment is of another copy of a compacted log than the one that counts, or
        does not count yet.
        """
        copy = self.compacted
        if copy is None:
            return True
        counts = copy.shown_to < 0 or segment.end_offset < copy.shown_to
        return counts and copy.has(segment.segment_id)

    def shows(self, segment: RemoteLogSegmentMetadata) -> bool:
        """Whether a finished segment belongs to this history. Others are kept, but not shown."""
        if not self.is_of_copy(segment):
            return False
        epochs = segment.segment_leader_epochs
        first, last = (epochs[0].epoch, epochs[-1].epoch) if epochs else (-1, -1)
        if self.after_epoch >= 0 and last <= self.after_epoch:
            return False
        return segment.end_offset >= self.kept_below or first <= self.kept_epoch

    def counts_from(self, segment: RemoteLogSegmentMetadata) -> int:
        """The first shown offset of `segment`. Below `kept_below`, another segment may count."""
        epochs = segment.segment_leader_epochs
        if epochs and epochs[0].epoch > self.kept_epoch:
            return max(segment.start_offset, self.kept_below)
        return segment.start_offset


FIRST_HISTORY = LogHistory()  # no operator has decided anything


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """The leader's last response about one partition's local log."""

    log_start_offset: int
    high_watermark: int
    last_stable_offset: int
    log_start_epoch: int = -1  # of the record at the log start, or the next one; -1: not known
    # Loop time (s) before the request left.
    read_at: float = field(default=float("-inf"), repr=False, compare=False)
