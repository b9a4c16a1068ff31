"""What a restore has done, what differs from before, and what is left to do by hand. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from fetchproxy.cluster_restore.group_plan import GroupDifference, UncertainStart


@dataclass(frozen=True, slots=True)
class LostRecords:
    """Records of the lost cluster that were not archived: their offsets go to new records."""

    topic: str
    partition: int
    first_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class LocalRecords:
    """What a partition's brokers have of the archive: offsets from `first_offset` up to, but not
    including, `end_offset`. `why_less`: why it is not all that was ordered.
    """

    topic: str
    partition: int
    first_offset: int
    end_offset: int
    why_less: str = ""


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """`refused`: topics by name, and why. `faults`: what is not as it should be. `producer_id_max`:
    no new producer gets an id up to this one; -1: any. `beyond_state`: what of the archive is later
    than the chosen state, and no part of the new log. `archive`: whose it is now, as a
    sentence; "": it was not touched. `commits_until_ms`: epoch ms at which the offsets of groups
    were read; no later commit is known.
    """

    topics: int
    partitions: int
    groups: int
    acls: int
    quotas: int
    refused: dict[str, str]
    lost: tuple[LostRecords, ...]
    differences: tuple[GroupDifference, ...]
    by_hand: tuple[str, ...]
    faults: tuple[str, ...]
    seconds: float
    local: tuple[LocalRecords, ...] = ()
    producer_id_max: int = -1
    beyond_state: tuple[str, ...] = ()
    archive: str = ""
    commits_until_ms: int = 0
    uncertain_starts: tuple[UncertainStart, ...] = ()

    @property
    def is_whole(self) -> bool:
        return not self.refused and not self.faults

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        yield (
            f"restored in {self.seconds:.1f} s: topics {self.topics}, partitions "
            f"{self.partitions}, groups {self.groups}, ACLs {self.acls}, quotas {self.quotas}"
        )
        if self.archive:
            yield f"archive: {self.archive}"
        for name, why in self.refused.items():
            yield f"refused: topic {name}: {why}"
        for one in self.lost:
            yield (
                f"not archived: {one.topic}-{one.partition}: offsets {one.first_offset} to "
                f"{one.end_offset - 1} are lost, and new records get them"
            )
        for records in self.local:
            yield _local_text(records)
        if self.producer_id_max >= 0:
            yield f"producer ids: new producers get ids above {self.producer_id_max}"
        for text in self.beyond_state:
            yield f"not in the new log: {text}"
        yield (
            f"groups: their offsets are of {_utc_text(self.commits_until_ms)}. The archive has no "
            "later commits, and no groups that first committed after that"
        )
        for difference in self.differences:
            yield _difference_text(difference)
        for start in self.uncertain_starts:
            yield (
                f"group {start.group} at {start.topic}-{start.partition}: no commit is known, so "
                "its clients' auto.offset.reset decides where it begins; if it committed later, it "
                f"skips or repeats up to {start.records_max} records"
            )
        for fault in self.faults:
            yield f"fault: {fault}"
        for work in self.by_hand:
            yield f"by hand: {work}"


def _utc_text(at_ms: int) -> str:
    try:
        return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms since 1970"


def _difference_text(one: GroupDifference) -> str:
    parts = []
    if one.skipped:
        parts.append(f"skips {one.skipped} records that it had not read")
    if one.archived:
        parts.append(f"still has {one.archived} records to read, which only the archive has")
    if one.set_back:
        parts.append(f"had committed {one.committed_offset}, {one.set_back} offsets further")
    if one.repeated_max:
        parts.append(f"repeats up to {one.repeated_max} records, if it committed later")
    return (
        f"group {one.group} at {one.topic}-{one.partition}: continues at {one.new_offset}; "
        f"{' and '.join(parts)}"
    )


def _local_text(one: LocalRecords) -> str:
    place = f"local history: {one.topic}-{one.partition}"
    why = f" ({one.why_less})" if one.why_less else ""
    if one.first_offset == one.end_offset:
        return f"{place}: none, its log begins at {one.end_offset}{why}"
    return f"{place}: offsets {one.first_offset} to {one.end_offset - 1}{why}"
