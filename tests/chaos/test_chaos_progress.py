"""When a reader that stands is wrong, and when a fault explains it."""

from __future__ import annotations

import time

import pytest

from chaos.ledger import Log
from chaos.plan import Act, Kind
from chaos.progress import (
    AT_THE_TAIL_RECORDS,
    GETS_OVER_S,
    STANDS_S_MAX,
    Faults,
    Progress,
    _Place,
    explains,
)
from chaos.readers import Follower


def follower(log: Log, name: str = "one", proxy: str = "proxy 1") -> Follower:
    return Follower(name, [log], "", reset="earliest", committed_only=True, proxy=proxy)


def log_of(records: int) -> Log:
    log = Log("chaos-plain", 0)
    log.written = {offset: log.next_value() for offset in range(records)}
    return log


def reports_of(log: Log, followers: list[Follower], acts: list[Act], seconds: float) -> list[str]:
    place = _Place("one", log, followers)
    complaints = [place.look(1.0, acts) for _ in range(int(seconds) + 2)]
    return [each for each in complaints if each]


def test_who_stands_with_more_to_read_is_told_once() -> None:
    log = log_of(20)
    reader = follower(log)
    reader.courses[log.name].position = 5
    assert not reports_of(log, [reader], [], STANDS_S_MAX - 2)
    [complaint] = reports_of(log, [reader], [], 3 * STANDS_S_MAX)
    assert complaint.startswith("one, chaos-plain-0: stands at 5, 15 behind")


def test_who_has_read_all_or_gets_on_stands_nowhere() -> None:
    log = log_of(20)
    reader = follower(log)
    reader.courses[log.name].position = 20
    assert not reports_of(log, [reader], [], 2 * STANDS_S_MAX)
    place = _Place("one", log_of(1_000), [reader])
    for position in range(200):
        reader.courses[log.name].position = position
        assert place.look(1.0, []) is None


def test_of_a_group_the_one_that_is_furthest_counts() -> None:
    log = log_of(20)
    members = [follower(log, "one"), follower(log, "two", "proxy 2")]
    members[1].courses[log.name].position = 20
    assert not reports_of(log, members, [], 2 * STANDS_S_MAX)


@pytest.mark.parametrize(
    ("kind", "target", "at_the_tail", "in_the_archive"),
    [
        (Kind.KILL, "broker 2", True, True),
        (Kind.REPLACE_DISK, "broker 1", True, True),
        (Kind.PAUSE, "proxy 1", True, True),
        (Kind.PAUSE, "proxy 2", False, False),
        (Kind.CUT, "proxy 1", False, True),
        (Kind.KILL, "store", False, True),
        (Kind.KILL, "archiver 1", False, True),
        (Kind.CUT, "proxy 2", False, False),
    ],
)
def test_each_act_explains_only_the_stand_still_that_it_causes(
    kind: Kind, target: str, at_the_tail: bool, in_the_archive: bool
) -> None:
    act = Act(0.0, kind, target, 5.0)
    assert explains(act, ["proxy 1"], needs_archive=False) is at_the_tail
    assert explains(act, ["proxy 1"], needs_archive=True) is in_the_archive
    for records, is_explained in ((20, at_the_tail), (AT_THE_TAIL_RECORDS + 2, in_the_archive)):
        log = log_of(records)
        assert bool(reports_of(log, [follower(log)], [act], 2 * STANDS_S_MAX)) is not is_explained


def test_a_fault_explains_for_a_while_after_its_end() -> None:
    now = [100.0]
    faults = Faults(lambda: now[0])
    act = Act(0.0, Kind.KILL, "broker 1", 5.0)
    with faults.during(act):
        now[0] += 60.0
        assert faults.now() == [act]
    now[0] += GETS_OVER_S - 1
    assert faults.now() == [act]
    now[0] += 2
    assert faults.now() == []


def test_it_is_looked_at_while_acts_are_played(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("chaos.progress.STANDS_S_MAX", 0.0)
    log = log_of(20)
    progress = Progress([[follower(log)]])
    with progress.watched():
        while not progress.reports:
            time.sleep(0.05)
    assert "stands at 0, 20 behind" in progress.reports[0]
