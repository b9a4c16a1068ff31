"""A step of retention that would hide much of a partition at once: announced first, done later.

A mistyped retention and a wrong clock look like any other, but for how much they would hide. So a
step of more than STEP_SHARE_MAX is announced, in the store too, and done once its grace is over. If
by then retention computed anew would not take it, it is taken back, and nothing was hidden. The
decision is pure; `RetentionBrake` keeps the announcement.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import structlog

from fetchproxy.errors import CorruptSegment
from fetchproxy.metadata.json_fields import INT64, Fields, decode_document
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.model import TopicIdPartition
from fetchproxy.remote_log.concerns import ArchiverConcerns, Concern
from fetchproxy.remote_log.retention.plan import counted_bytes
from fetchproxy.storage.retention_objects import RetentionObjects

log = structlog.get_logger(__name__)

# Retention that is as it was hides a segment or a few of many. What a typo or a clock weeks ahead
# hides is nearly all.
STEP_SHARE_MAX = 0.5
# Of a later time it says nothing: it was made by settings that nobody remembers. A weekly pass of
# `archive --once` finds its own again, with the default of a day.
FORGOTTEN_AFTER_GRACES = 30
VERSION = 1


@dataclass(frozen=True, slots=True)
class Announcement:
    """Retention was about to hide what is below `offset`, at `at_ms` (epoch ms)."""

    offset: int
    at_ms: int


@dataclass(frozen=True, slots=True)
class Step:
    """`raise_to`: the log start now; None: not yet, or not at all. `announced`: what waits."""

    raise_to: int | None
    announced: Announcement | None


def hidden_share(view: PartitionView, start: int) -> float:
    """The share of the partition's bytes in segments below `start`."""
    sizes = [(segment.end_offset < start, size) for segment, size in counted_bytes(view)]
    total = sum(size for _, size in sizes)
    return sum(size for below, size in sizes if below) / total if total > 0 else 0.0


def plan_step(
    view: PartitionView,
    start: int | None,
    announced: Announcement | None,
    now_ms: int,
    grace_ms: int,
    *,
    doubtful: bool = False,
) -> Step:
    """`start`: the first offset that retention, computed now, keeps; None: it deletes nothing.

    `doubtful`: the step is announced however small it is.
    """
    if start is None:
        return Step(None, None)
    small = hidden_share(view, start) <= STEP_SHARE_MAX and not doubtful
    if grace_ms == 0 or small:
        return Step(start, None)
    # One of the future: the clock was wrong.
    counts = announced is not None and 0 <= now_ms - announced.at_ms < (
        FORGOTTEN_AFTER_GRACES * grace_ms
    )
    if announced is None or not counts or announced.offset <= view.raised_log_start:
        return Step(None, Announcement(start, now_ms))
    announced = replace(announced, offset=min(announced.offset, start))
    if now_ms - announced.at_ms < grace_ms:
        return Step(None, announced)
    return Step(announced.offset, None)


class RetentionBrake:
    """One for all partitions. Each method raises RemoteStorageError."""

    def __init__(
        self, objects: RetentionObjects, concerns: ArchiverConcerns, grace_ms: int
    ) -> None:
        self._objects = objects
        self._concerns = concerns
        self._grace_ms = grace_ms
        # Only the partition's leader writes it, so what was read or written last is what is there.
        self._known: dict[TopicIdPartition, Announcement | None] = {}

    async def released(
        self,
        tip: TopicIdPartition,
        view: PartitionView,
        start: int | None,
        now_ms: int,
        *,
        doubtful: bool,
    ) -> int | None:
        """To where the log start may be raised now; None: it stays. `done` has to follow.

        As `plan_step`.
        """
        announced = await self._announced(tip)
        step = plan_step(view, start, announced, now_ms, self._grace_ms, doubtful=doubtful)
        if step.announced is not None:
            await self._announce(tip, view, step.announced)
        elif step.raise_to is None:
            await self.done(tip)
        return step.raise_to

    async def done(self, tip: TopicIdPartition) -> None:
        """The step was made, or is taken back: nothing is announced any more."""
        if self._known.get(tip) is not None:
            await self._objects.delete_retention_step(tip)
        self._known[tip] = None
        self._concerns.release(Concern.RETENTION_STEP_ANNOUNCED, tip)

    def forget(self, tip: TopicIdPartition) -> None:
        """Another archiver does it from now on, or nobody."""
        self._known.pop(tip, None)
        self._concerns.forget(tip, Concern.RETENTION_STEP_ANNOUNCED)

    async def _announced(self, tip: TopicIdPartition) -> Announcement | None:
        if tip not in self._known:
            raw = await self._objects.get_retention_step(tip)
            try:
                self._known[tip] = None if raw is None else decode_announcement(raw)
            except CorruptSegment as error:  # then it is announced anew
                log.warning("retention_step_unreadable", topic=tip.topic, error=str(error))
                self._known[tip] = None
        return self._known[tip]

    async def _announce(
        self, tip: TopicIdPartition, view: PartitionView, announced: Announcement
    ) -> None:
        if self._known.get(tip) != announced:
            await self._objects.put_retention_step(tip, encode_announcement(tip, announced))
            self._known[tip] = announced
        percent = round(100 * hidden_share(view, announced.offset))
        due = _utc(announced.at_ms + self._grace_ms)
        self._concerns.hold(
            Concern.RETENTION_STEP_ANNOUNCED,
            tip,
            f"{tip}: retention will hide {percent} % of the archive, all below offset "
            f"{announced.offset}, at {due}; to stop it, set the retention or the clock right "
            "before then",
            (view.log_start_offset or 0, announced.offset - 1),
            log_start_offset=announced.offset,
            percent=percent,
            due=due,
        )


def encode_announcement(tip: TopicIdPartition, announced: Announcement) -> bytes:
    """{"version": 1, "topic": "orders", "partition": 0, "offset": 100, "announced_at_ms": …}"""
    fields = {
        "version": VERSION,
        "topic": tip.topic,
        "partition": tip.partition,
        "offset": announced.offset,
        "announced_at_ms": announced.at_ms,
    }
    return json.dumps(fields, indent=1).encode() + b"\n"


def decode_announcement(raw: bytes) -> Announcement:
    """Raises CorruptSegment, which names the field; NewerMetadataVersion."""
    return decode_document(raw, "retention-step", VERSION, _announcement)


def _announcement(fields: Fields) -> Announcement:
    return Announcement(
        fields.integer("offset", 0, INT64), fields.integer("announced_at_ms", 0, INT64)
    )


def _utc(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms since 1970"
