"""The drill's checks: they compare the responses that clients got with the restored cluster. Pure.

A record that is in no archive is lost, and that is what the shown recovery point announces: only
one that was acknowledged before that point is a fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rehearsal.inventory import PAYMENTS, Inventory
from rehearsal.ledger import Ledger, Place
from rehearsal.processes import ShownPoint

# "True within a second" (a look, its response, and the thread that hears of an acknowledgement).
POINT_TOLERANCE_S = 1.0
FIRST_RECORD_MAX_S = 60.0
_NAMED_MAX = 3

Read = Mapping[Place, Mapping[int, int]]  # numbers by place and offset
CommitKey = tuple[str, Place]  # group, place


@dataclass(frozen=True, slots=True)
class NamedGroups:
    """What the restore's report says of groups. `set_back`: the new offset, and how far it is below
    the committed one. `repeated_max`: records. `uncertain`: no commit is known there.
    """

    set_back: Mapping[CommitKey, tuple[int, int]]
    repeated_max: Mapping[CommitKey, int]
    uncertain: Collection[CommitKey]


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the result. `ok` None: a figure for people, which fails nothing."""

    what: str
    figure: str
    ok: bool | None = None

    def line(self) -> str:
        sign = {True: "ok  ", False: "FAIL", None: "    "}[self.ok]
        return f"{sign} {self.what}: {self.figure}"


def lost_times(ledger: Ledger, archived: Read) -> list[float]:
    """When the acknowledged records were told that no reader gets, in order (monotonic, s)."""
    return sorted(
        one.at
        for place, of_place in ledger.records.items()
        for offset, one in of_place.items()
        if archived.get(place, {}).get(offset) != one.number
    )


def ages(lost: Sequence[float], point: ShownPoint, killed_at: float) -> tuple[float, float]:
    """Of the recovery point at the kill, in s: as it was shown, and as the kill has proven."""
    true_at = lost[0] if lost else killed_at
    return killed_at - point.at, killed_at - true_at


def record_checks(
    ledger: Ledger, archived: Read, point: ShownPoint | None, killed_at: float
) -> Iterator[Check]:
    """`archived`: all that a reader with read_committed gets of the lost cluster. `point`: the last
    one that was shown before the kill."""
    lost = lost_times(ledger, archived)
    if point is None:
        yield Check("the archiver showed a recovery point", "none", ok=False)
        return
    below = sum(at < point.at - POINT_TOLERANCE_S for at in lost)
    yield Check(
        "acknowledged records lost below the shown recovery point", f"{below:,}", ok=below == 0
    )
    shown_s, true_s = ages(lost, point, killed_at)
    yield Check(
        "age of the recovery point at the kill",
        f"shown {shown_s:.2f} s, true {true_s:.2f} s",
        ok=true_s <= shown_s + POINT_TOLERANCE_S,
    )
    yield Check(
        "acknowledged records above it that are lost",
        f"{len(lost):,} of {ledger.count:,}; shown were {point.records:,}",
    )
    yield _changed(ledger, archived)
    yield _doubled(archived)
    numbers = {number for of_place in archived.values() for number in of_place.values()}
    forbidden = len(numbers & ledger.aborted)
    yield Check(
        "records of aborted transactions that a reader gets", f"{forbidden:,}", ok=not forbidden
    )


def _changed(ledger: Ledger, archived: Read) -> Check:
    changed = sum(
        offset in archived.get(place, {}) and archived[place][offset] != one.number
        for place, of_place in ledger.records.items()
        for offset, one in of_place.items()
    )
    return Check("records at another offset than was told", f"{changed:,}", ok=not changed)


def _doubled(archived: Read) -> Check:
    counts = Counter(number for of_place in archived.values() for number in of_place.values())
    doubled = sum(count > 1 for count in counts.values())
    return Check("records that are there twice", f"{doubled:,}", ok=not doubled)


def start_checks(
    starts: Mapping[Place, tuple[int, int]], archived: Read, places: Sequence[Place]
) -> Iterator[Check]:
    """`starts`: of the new logs, with their ends, before anybody writes to them."""
    wrong = [place for place in places if starts[place][0] != starts[place][1]]
    yield _of_places("new logs that are not empty", wrong)
    lasts = {place: max(archived.get(place, ()), default=-1) for place in places}
    behind = [place for place, last in lasts.items() if starts[place][0] <= last]
    yield _of_places("new logs that begin below the end of the archive", behind)


def _of_places(what: str, places: Sequence[Place]) -> Check:
    names = ", ".join(f"{topic}-{number}" for topic, number in places[:_NAMED_MAX])
    more = "" if len(places) <= _NAMED_MAX else ", …"
    return Check(what, f"{len(places)}{f' ({names}{more})' if names else ''}", ok=not places)


def written_checks(
    starts: Mapping[Place, tuple[int, int]], after: Mapping[Place, Iterable[int]]
) -> Iterator[Check]:
    """`after`: the offsets of new records that producers were told. A transaction that was aborted
    may be before the first of them.
    """
    firsts = {place: min(offsets) for place, offsets in after.items()}
    early = [place for place, first in firsts.items() if first < starts[place][0]]
    late = [
        place
        for place, first in firsts.items()
        if first > starts[place][0] and place[0] != PAYMENTS
    ]
    yield Check("partitions that producers write to again", f"{len(firsts):,}", ok=bool(firsts))
    yield _of_places("partitions whose first new record is below the start", early)
    yield _of_places("partitions whose first new record is behind the start", late)


def group_checks(
    of_state: Mapping[CommitKey, int],
    last: Mapping[CommitKey, int],
    starts: Mapping[Place, tuple[int, int]],
    restored: Mapping[CommitKey, int],
    named: NamedGroups,
) -> Iterator[Check]:
    """`of_state`: offsets in the archive's newest state. `last`: the last that groups were told.
    `restored`: those that the new cluster tells. `named`: by the restore's report.
    """
    expected = {key: min(offset, starts[key[1]][0]) for key, offset in of_state.items()}
    wrong = [key for key, offset in expected.items() if restored.get(key) != offset]
    groups = {group for group, _ in expected}
    yield Check(
        "offsets of groups in their place",
        f"{len(expected) - len(wrong):,} of {len(expected):,}, {len(groups)} groups",
        ok=not wrong and bool(groups),
    )
    gone = {group for group, _ in last} - {group for group, _ in restored}
    yield Check("groups that are gone", f"{len(gone)}", ok=not gone)
    beyond = {key: offset - expected[key] for key, offset in of_state.items()}
    beyond = {key: offsets for key, offsets in beyond.items() if offsets}
    beyond_archive = {key: (expected[key], offsets) for key, offsets in beyond.items()}
    unnamed = [key for key, one in beyond_archive.items() if named.set_back.get(key) != one]
    yield Check(
        "offsets beyond the archive, each named with its numbers",
        f"{len(beyond) - len(unnamed):,} of {len(beyond):,}",
        ok=not unnamed,
    )
    yield from _later_commits(of_state, last, starts, named)


def _later_commits(
    of_state: Mapping[CommitKey, int],
    last: Mapping[CommitKey, int],
    starts: Mapping[Place, tuple[int, int]],
    named: NamedGroups,
) -> Iterator[Check]:
    """No state has them, so each place where a group may repeat or skip must be in the report."""
    repeats = {
        key: min(last[key], starts[key[1]][0]) - offset
        for key, offset in of_state.items()
        if key in last
    }
    repeats = {key: records for key, records in repeats.items() if records > 0}
    unnamed = [key for key, records in repeats.items() if named.repeated_max.get(key, 0) < records]
    yield Check(
        "groups' places that repeat records, each named with as many at least",
        f"{len(repeats) - len(unnamed):,} of {len(repeats):,} ({sum(repeats.values()):,} records)",
        ok=not unnamed,
    )
    topics = {(group, place[0]) for group, place in of_state}
    later = [key for key in last if key not in of_state and (key[0], key[1][0]) in topics]
    unknown = [key for key in later if key not in named.uncertain]
    yield Check(
        "places where a group committed first after the state was read, each named",
        f"{len(later) - len(unknown):,} of {len(later):,}",
        ok=not unknown,
    )


def inventory_checks(expected: Inventory, restored: Inventory) -> Iterator[Check]:
    for what, before, now in (
        ("topics with their partitions", expected.topics.items(), restored.topics.items()),
        ("settings of topics", _flat(expected.configs), _flat(restored.configs)),
        ("ACLs", expected.acls, restored.acls),
        ("quotas", expected.quotas.items(), restored.quotas.items()),
    ):
        there = set(before) & set(now)
        yield Check(what, f"{len(there):,} of {len(before):,}", ok=set(before) == set(now))


def _flat(configs: Mapping[str, Mapping[str, str]]) -> set[tuple[str, str, str]]:
    return {
        (topic, name, value) for topic, values in configs.items() for name, value in values.items()
    }


def first_record_checks(
    answered_at: float, firsts: Mapping[str, float | None], limit_s: float
) -> Iterator[Check]:
    """`answered_at`: when the empty cluster did. `firsts`: when each group got a record."""
    times = sorted(at - answered_at for at in firsts.values() if at is not None)
    without = len(firsts) - len(times)
    yield Check("groups that get no record", f"{without} of {len(firsts)}", ok=not without)
    if times:
        yield Check(
            "first record of a group, after the empty cluster answered",
            f"{times[0]:.1f} s (the last group {times[-1]:.1f} s; goal {limit_s:.0f} s)",
            ok=times[0] <= limit_s,
        )


def phantom_check(places: Sequence[str]) -> Check:
    text = f" ({'; '.join(places[:_NAMED_MAX])})" if places else ""
    return Check(
        "phantoms left in replicas, placements and metadata", f"{len(places)}{text}", ok=not places
    )
