"""Decides which segments retention deletes, which settings count, and if the clock is right. Pure.

Outside the brokers a topic's `retention.ms` is short because there is an archive. So the archive
has settings of its own. The topic's settings count only if the operator says so
(`archive.follow_topic_retention`), and only those that have the same meaning:

    setting                 1. first override   2. the topic's own, if followed     3. otherwise
    remote_log_retention_*  that names it       retention.*, if remote.storage      archive.*
    local_retention_*       that names it       local.retention.*, unless the same  archive.*
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, takewhile
from uuid import UUID

import structlog

from fetchproxy.config.schema import ArchiveConfig
from fetchproxy.config.values import RetentionOverride, parse_retention_overrides
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import (
    LogHistory,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentState,
    TopicIdPartition,
)
from fetchproxy.writing.compaction import is_compacted
from fetchproxy.writing.deletion.orphans import Segments, spare_copies, stand_ins
from fetchproxy.writing.deletion.segment_deletion import is_hidden

UNLIMITED = -1
_AS_THE_WHOLE_LOG = -2  # Kafka's default of local.retention.*: no setting of its own
_SETTINGS = (
    "remote_log_retention_ms",
    "remote_log_retention_bytes",
    "local_retention_ms",
    "local_retention_bytes",
)
# A store tells its time to about a second, in a response that may take minutes.
STORE_AHEAD_MAX_MS = 3_600_000
# A weekend and a holiday may pass without a record. A wrong clock may be off by more or by less.
RECORDS_AHEAD_MAX_MS = 7 * 86_400_000
# Kafka's default of message.timestamp.after.max.ms (KIP-937): what is further ahead of the clock is
# a producer's mistake. It says nothing about the clock.
FUTURE_MIN_MS = 3_600_000
# Segments of one partition that are searched for one with a sane timestamp.
_SEARCHED_MAX = 1_000
# Time synchronisation without a jump changes far less than this between two looks.
JUMP_MIN_MS = 10_000
_State = RemoteLogSegmentState

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Retention:
    """As `_SETTINGS`: milliseconds, and bytes per partition. UNLIMITED: no limit of this kind."""

    remote_ms: int = UNLIMITED
    remote_bytes: int = UNLIMITED
    local_ms: int = UNLIMITED
    local_bytes: int = UNLIMITED

    @property
    def trims_locally(self) -> bool:
        return self.local_ms >= 0 or self.local_bytes >= 0


def effective_retention(
    config: ArchiveConfig, topic: str, topic_config: Mapping[str, str] | None
) -> Retention:
    """`topic_config`: the brokers' response. None: not known. If the topic's own settings count and
    are not known, they are taken as unlimited: nothing is deleted on a guess. A compacted topic has
    no retention in the archive: what the brokers delete is missing in its next copy.
    """
    if topic_config is not None and is_compacted(topic_config):
        return Retention()
    overrides = parse_retention_overrides(config.retention_overrides or "")
    override = next((o for o in overrides if o.matches(topic)), RetentionOverride(""))
    topic_retention = _topic_retention(topic_config) if config.follow_topic_retention else {}

    def setting(name: str) -> int:
        override_value: int | None = getattr(override, name)
        default: int = getattr(config, name)
        return topic_retention.get(name, default) if override_value is None else override_value

    return Retention(*map(setting, _SETTINGS))


def trimming_refusal(topic_config: Mapping[str, str] | None) -> str | None:
    """Why the archiver cannot own the topic's local retention, for the operator. None: it can."""
    if not topic_config:
        return (
            "its configuration cannot be read, so the brokers may delete records before they "
            "are archived"
        )
    if _is_tiered(topic_config):
        return (
            "it has remote.storage.enable=true: its brokers trim the log themselves, and "
            "DeleteRecords would also delete from their remote tier"
        )
    limits = [
        f"{key}={topic_config.get(key, 'unknown')}"
        for key in ("retention.ms", "retention.bytes")
        if topic_config.get(key) != "-1"
    ]
    if limits:
        return (
            f"it has {' and '.join(limits)}, so its brokers may delete records before they are "
            "archived; set retention.ms=-1 and retention.bytes=-1 on the topic"
        )
    return None


def _topic_retention(topic_config: Mapping[str, str] | None) -> Mapping[str, int]:
    """The topic's settings by our settings' names, without those that the topic does not set."""
    if topic_config is None:
        return dict.fromkeys(_SETTINGS, UNLIMITED)
    tier, kafka_prefix = ("remote_log", "") if _is_tiered(topic_config) else ("local", "local.")
    settings = {
        f"{tier}_retention_{unit}": int(
            topic_config.get(f"{kafka_prefix}retention.{unit}", _AS_THE_WHOLE_LOG)
        )
        for unit in ("ms", "bytes")
    }
    return {name: value for name, value in settings.items() if value != _AS_THE_WHOLE_LOG}


def _is_tiered(topic_config: Mapping[str, str]) -> bool:
    return topic_config.get("remote.storage.enable") == "true"


@dataclass(frozen=True, slots=True)
class Doubt:
    """`sure`: the clock is wrong. Otherwise it may be wrong."""

    what: str
    sure: bool


class ClockWitness:
    """Checks the wall clock against the store's time and the producers' timestamps. Pure: the
    caller passes the views and the time.

    `SteadyClock` notices a clock that jumps; a clock that was wrong from the start runs evenly. A
    store that tells its own time settles the matter. Otherwise only the timestamps of records are
    left. They prove little, because an old one may only mean that no client writes.
    """

    def __init__(self) -> None:
        self._first_seen_ms: dict[TopicIdPartition, int] = {}
        self._newest_ms = -1  # of all records seen
        self._newest_written_ms = -1  # of partitions that got records meanwhile
        self._all_in_future = False  # of a partition, as far as it was searched

    def note(self, view: PartitionView, now_ms: int) -> None:
        """Note the newest record of a partition's archive that is not in the future."""
        newest_ms = -1
        for number in range(1, min(len(view.segments), _SEARCHED_MAX) + 1):
            newest_ms = view.segments[-number].max_timestamp_ms
            if newest_ms - now_ms <= FUTURE_MIN_MS:
                break
        else:
            self._all_in_future = self._all_in_future or newest_ms >= 0
            newest_ms = -1
        self._newest_ms = max(self._newest_ms, newest_ms)
        if newest_ms > self._first_seen_ms.setdefault(view.tp, newest_ms):
            self._newest_written_ms = max(self._newest_written_ms, newest_ms)

    def forget(self, tp: TopicIdPartition) -> None:
        """Another archiver, or none, manages the partition from now on."""
        self._first_seen_ms.pop(tp, None)

    def doubt(self, now_ms: int, store_ms: int | None) -> Doubt | None:
        """The doubt about `now_ms`, if any. `store_ms`: the store's time. None: not known."""
        if store_ms is not None:
            return _clock_doubt(
                now_ms - store_ms, STORE_AHEAD_MAX_MS, "the store's clock", sure=True
            )
        if self._newest_written_ms >= 0:
            subject = "the newest record, and records were written while it ran"
            return _clock_doubt(
                now_ms - self._newest_written_ms, RECORDS_AHEAD_MAX_MS, subject, sure=True
            )
        if self._newest_ms < 0 and self._all_in_future:
            return Doubt("every record is ahead of this machine's clock", sure=False)
        if self._newest_ms < 0:
            return None  # records without timestamps prove nothing
        subject = "the newest record"
        return _clock_doubt(now_ms - self._newest_ms, RECORDS_AHEAD_MAX_MS, subject, sure=False)


def _clock_doubt(ahead_ms: int, limit_ms: int, of: str, *, sure: bool) -> Doubt | None:
    if ahead_ms <= limit_ms:
        return None
    hours = round(ahead_ms / 3_600_000)
    return Doubt(f"this machine's clock is {hours} hours ahead of {of}", sure)


class SteadyClock:
    """Compares the wall clock with the loop's clock, which cannot be set. `settle_ms`: how long
    both must have run evenly before the wall clock is trusted; 0: it is trusted at once.
    """

    def __init__(self, wall_clock_ms: Callable[[], int], settle_ms: int) -> None:
        self._wall_clock_ms = wall_clock_ms
        self._settle_s = settle_ms / 1000
        self._even: tuple[float, float] | None = None  # (difference in ms, since loop time s)

    def now_ms(self, loop_s: float) -> int | None:
        """Epoch ms. None: the clock has jumped, or was not watched for long enough."""
        now_ms = self._wall_clock_ms()
        ahead_ms = now_ms - 1000 * loop_s
        if self._even is None:
            self._even = (ahead_ms, loop_s)
        elif abs(jumped_ms := ahead_ms - self._even[0]) >= JUMP_MIN_MS:
            log.warning(
                "clock_jumped",
                jumped_ms=round(jumped_ms),
                retention_waits_s=self._settle_s,
                hint="if it happens again, correct this machine's time synchronisation",
            )
            self._even = (ahead_ms, loop_s)
        return now_ms if loop_s - self._even[1] >= self._settle_s else None


# As Kafka's RemoteLogManager (RetentionSizeData, RetentionTimeData): deletes the oldest segments
# first and stops at the first one that stays, by its newest record's timestamp and by the bytes
# above the limit. Offsets that two finished segments hold count once.


def retained_from(view: PartitionView, retention: Retention, now_ms: int) -> int | None:
    """The first offset that retention keeps. None: it deletes nothing. The newest segment stays,
    like Kafka's active one: the archive goes on at its end, and no clock empties the archive. A
    segment with unreadable metadata stays, and all above it, because its content is unknown.
    """
    if not view.segments or (retention.remote_ms < 0 and retention.remote_bytes < 0):
        return None
    first_to_stay = min([view.segments[-1].end_offset, *view.unreadable[:1]])
    surplus = 0
    if retention.remote_bytes >= 0:
        surplus = sum(size for _, size in counted_bytes(view)) - retention.remote_bytes
    may_go = takewhile(lambda each: each[0].end_offset < first_to_stay, counted_bytes(view))
    return passed_up_to(may_go, retention.remote_ms, surplus, now_ms)


def passed_up_to(
    sized: Iterable[tuple[RemoteLogSegmentMetadata, int]],
    age_max_ms: int,
    surplus: int,
    now_ms: int,
) -> int | None:
    """The offset after the last segment that is too old or in the `surplus` bytes. None: the first
    one stays. `sized`: oldest first, each with its bytes.
    """
    end = None
    for segment, size in sized:
        passed = 0 <= age_max_ms <= now_ms - newest_timestamp_ms(segment)
        if not passed and not 0 < size <= surplus:
            break
        surplus -= size
        end = segment.end_offset + 1
    return end


def stopped_by(
    oldest_first: Iterable[RemoteLogSegmentMetadata], age_max_ms: int, now_ms: int
) -> RemoteLogSegmentMetadata | None:
    """The first segment, if its timestamp lies in the future and so keeps retention by time from
    older segments behind it. None: it does not. `oldest_first`: the segments that retention keeps.
    """
    segments = iter(oldest_first)
    first = next(segments, None)
    if first is None or age_max_ms < 0 or newest_timestamp_ms(first) - now_ms <= FUTURE_MIN_MS:
        return None
    later_segments = islice(segments, _SEARCHED_MAX)
    passed = any(age_max_ms <= now_ms - newest_timestamp_ms(segment) for segment in later_segments)
    return first if passed else None


def segments_kept(view: PartitionView, start: int | None) -> Iterator[RemoteLogSegmentMetadata]:
    """The segments from `start` on (None: all) except the newest, which retention never deletes."""
    first = 0 if start is None else view.segments.index_at_or_after(start)
    return (view.segments[number] for number in range(first, len(view.segments) - 1))


def newest_timestamp_ms(segment: RemoteLogSegmentMetadata) -> int:
    """The newest timestamp of its records, else the time of its copy. (Kafka takes the file's.)"""
    if segment.max_timestamp_ms >= 0:
        return segment.max_timestamp_ms
    return segment.event_timestamp_ms


def counted_bytes(view: PartitionView) -> Iterator[tuple[RemoteLogSegmentMetadata, int]]:
    """Every segment of the view with the bytes that no segment before it has. If a segment
    overlaps, or was cut by an election, its share by offsets counts.
    """
    counted_to = view.raised_log_start
    for segment in view.segments:
        last = segment.end_offset
        first = max(segment.start_offset, counted_to)
        stored_offsets = segment.stored_end_offset - segment.start_offset + 1
        yield segment, segment.segment_size_bytes * (last - first + 1) // stored_offsets
        counted_to = last + 1


@dataclass(frozen=True, slots=True)
class Removals:
    """Oldest first. `replacements`: for each redundant segment to delete, the segments that have
    the same offsets. These must be intact. None: there are none, so the segment must not go unless
    it is damaged.
    """

    hide: tuple[RemoteLogSegmentMetadata, ...]  # to become DELETE_SEGMENT_STARTED
    delete: tuple[RemoteLogSegmentMetadata, ...]  # hidden; their objects may be deleted
    waiting: tuple[RemoteLogSegmentMetadata, ...]  # hidden; in the grace time of current readers
    next_at_ms: int | None  # when (epoch ms) the next one is due; None: none waits
    replacements: Mapping[UUID, Segments | None]


def plan_removals(
    segments: Iterable[RemoteLogSegmentMetadata],
    view: PartitionView,
    *,
    now_ms: int,
    grace_ms: int,
    attempt_age_max_ms: int,
) -> Removals:
    """Plans to hide segments below the log start; attempts older than `attempt_age_max_ms`, because
    no archiver works on them any more; copies of that age whose offsets others hold (two archivers
    were active at once); and what a newer copy of a compacted log has replaced. `segments`: all
    that the metadata name, in any state, read with `view`.
    """
    # Segments of another history of the log stay until an operator decides (`LogHistory`).
    segments = tuple(segments)
    hide = [s for s in segments if s.is_finished and _is_replaced(s, view.history)]
    segments = tuple(s for s in segments if not s.is_finished or view.history.shows(s))
    spare = spare_copies(segments, view, now_ms - attempt_age_max_ms)
    delete: list[RemoteLogSegmentMetadata] = []
    waiting: list[RemoteLogSegmentMetadata] = []
    later: list[int] = []
    for segment in segments:
        hidden = is_hidden(segment)
        due_ms = segment.event_timestamp_ms + (grace_ms if hidden else attempt_age_max_ms)
        if hidden:
            (delete if due_ms <= now_ms else waiting).append(segment)
        elif segment.state is _State.COPY_SEGMENT_STARTED:
            if due_ms <= now_ms:
                hide.append(segment)
        elif segment.end_offset < view.raised_log_start or segment.segment_id.id in spare:
            hide.append(segment)
        if now_ms < due_ms and not segment.is_finished:
            later.append(due_ms)
    standing = {
        s.segment_id.id: spare.get(s.segment_id.id) or stand_ins(s, view)
        for s in (*hide, *delete)
        # The newer copy of a compacted log was seen to be whole before it replaced the other.
        if s.end_offset >= view.raised_log_start and view.history.is_of_copy(s)
    }
    next_at_ms = min(later, default=None)
    return Removals(tuple(hide), tuple(delete), tuple(waiting), next_at_ms, standing)


def _is_replaced(segment: RemoteLogSegmentMetadata, history: LogHistory) -> bool:
    """Whether a newer copy of the compacted log counts. A copy that was begun after that one may be
    in the making.
    """
    copy = history.compacted
    return copy is not None and segment.segment_id.id.int >> 64 < copy.number
