"""What a restore by padding does with each topic, and how long it takes. Pure.

Padding moves the end of a log on, so the end says how far an earlier run has come. A partition is
padded if nothing but padding is below the offset at which its new log begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fetchproxy.cluster_restore.plan import (
    FoundPartition,
    FoundTopic,
    LostTopic,
    Place,
    PlannedTopic,
    RestorePlan,
    TopicAction,
    is_where_it_belongs,
)

# Offsets that one partition gains in a second, for a plan. See the page of the restore.
ASSUMED_OFFSETS_PER_S = 3_000_000
# What an offset costs on the disk of each replica until the brokers remove the padding.
BYTES_AN_OFFSET = 0.4
# Settings with which brokers refuse padding, or make it dear; and the values while it is written.
WHILE_PADDING: Mapping[str, str] = {
    "cleanup.policy": "delete",  # else empty keys and DeleteRecords are refused
    "compression.type": "producer",  # else brokers pack each batch anew
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str((1 << 63) - 1),
    "message.timestamp.difference.max.ms": str((1 << 63) - 1),  # Kafka before 4.0
    "remote.storage.enable": "false",  # else padding is copied into the tier
}
_MINUTE_S, _HOUR_S = 60, 3_600
_MB = 1_000_000


class FirstRecord(NamedTuple):
    """The first record that is not padding."""

    offset: int
    timestamp_ms: int


def plan_padding(
    archived: Sequence[LostTopic],
    present: Mapping[str, FoundTopic],
    first_records: Mapping[Place, FirstRecord | None],
    brokers: int,
) -> RestorePlan:
    """`first_records`: of the partitions that end above 0. `brokers`: how many are alive."""
    return RestorePlan(
        tuple(_plan_topic(one, present.get(one.name), first_records, brokers) for one in archived)
    )


def _plan_topic(
    archived: LostTopic,
    present: FoundTopic | None,
    first_records: Mapping[Place, FirstRecord | None],
    brokers: int,
) -> PlannedTopic:
    needed = max(archived.replication_factor, 1)
    if archived.why_not:
        return PlannedTopic(archived, TopicAction.REFUSE, why=archived.why_not)
    count = len(archived.partitions)
    if present is None:
        if needed > brokers:
            why = f"it had {needed} replicas, but the new cluster has {brokers} live brokers"
            return PlannedTopic(archived, TopicAction.REFUSE, why=why)
        return PlannedTopic(archived, TopicAction.CREATE, log_ends=(0,) * count)
    if set(present.partitions) != set(range(count)):
        why = f"it exists with {len(present.partitions)} partitions, but {count} were archived"
        return PlannedTopic(archived, TopicAction.REFUSE, why=why)
    if archived.is_continued and all(
        is_where_it_belongs(archived, n, present.partitions[n]) for n in range(count)
    ):
        return PlannedTopic(archived, TopicAction.KEEP, log_ends=_log_ends(present))
    for number, one in enumerate(archived.partitions):
        first = first_records.get((archived.name, number))
        if (
            fault := why_not_padded(number, one.end_offset, present.partitions[number], first)
        ) != "":
            return PlannedTopic(archived, TopicAction.REFUSE, why=f"it exists, and {fault}")
    placed = all(
        present.partitions[n].log_start_offset == one.end_offset
        for n, one in enumerate(archived.partitions)
    )
    action = TopicAction.KEEP if placed else TopicAction.TAKE
    return PlannedTopic(archived, action, log_ends=_log_ends(present))


def _log_ends(present: FoundTopic) -> tuple[int, ...]:
    return tuple(present.partitions[n].log_end_offset or 0 for n in sorted(present.partitions))


def why_not_padded(
    number: int, start_offset: int, present: FoundPartition, first: FirstRecord | None
) -> str:
    """Why a partition cannot be padded up to `start_offset`; "": it can, or is there already."""
    start, end = present.log_start_offset, present.log_end_offset
    if start is None or end is None:
        return f"partition {number} has no leader, so it is not known what it has"
    if start == start_offset:
        return ""
    if start > start_offset:
        return f"partition {number} begins at {start}, above {start_offset}"
    if first is not None and first.offset < start_offset:
        return (
            f"partition {number} has other records from offset {first.offset} on, but must begin "
            f"at {start_offset}"
        )
    if end > start_offset and (first is None or first.offset > start_offset):
        return (
            f"partition {number} ends at {end}, but has no records at {start_offset}, where it "
            "must begin: delete the topic"
        )
    return ""


def configs_while_padding(topic: LostTopic) -> dict[str, str]:
    """The archived settings, with other values where padding needs them."""
    return {name: WHILE_PADDING.get(name, value) for name, value in topic.configs}


def configs_to_pad(topic: PlannedTopic) -> dict[str, str | None]:
    """The settings of an existing topic that its archived ones would stand in the way of."""
    archived = dict(topic.archived.configs)
    while_padding = configs_while_padding(topic.archived)
    return {name: value for name, value in while_padding.items() if archived[name] != value}


def configs_afterwards(topic: PlannedTopic) -> dict[str, str | None]:
    """What the topic must be given when it is padded: all of it, if the topic was not made here."""
    archived = dict(topic.archived.configs)
    if topic.action is TopicAction.TAKE:
        return {**archived}
    return {name: archived[name] for name in configs_to_pad(topic)}


# --- in words -------------------------------------------------------------------------------------


def offsets_to_pad(topic: PlannedTopic) -> list[int]:
    """Of each partition."""
    return [
        max(one.end_offset - end, 0)
        for one, end in zip(topic.archived.partitions, topic.log_ends, strict=True)
    ]


def padding_text(topic: PlannedTopic, number: int) -> str:
    """What happens to a partition, for the plan."""
    start, offsets = topic.archived.partitions[number].end_offset, offsets_to_pad(topic)[number]
    return f"begins at {start}, {cost_text(offsets)}"


def cost_text(offsets: int, offsets_per_s: float = ASSUMED_OFFSETS_PER_S) -> str:
    megabytes = offsets * BYTES_AN_OFFSET / _MB
    return (
        f"{offsets:,} offsets of padding: {duration_text(offsets / offsets_per_s)} at "
        f"{offsets_per_s:,.0f} a second, temporarily {megabytes:,.1f} MB on each replica"
    )


def duration_text(seconds: float) -> str:
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    if seconds < _HOUR_S:
        return f"{seconds / _MINUTE_S:.0f} min"
    return f"{seconds / _HOUR_S:.1f} h"
