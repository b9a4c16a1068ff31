"""The drill's checks see each kind of loss: without that, a green drill says nothing."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from rehearsal import checks
from rehearsal.checks import Check, NamedGroups
from rehearsal.inventory import PAYMENTS, SCHEMAS, planned_inventory
from rehearsal.ledger import Ledger, number_of, value_of
from rehearsal.processes import ShownPoint

PLACE = ("drill-000", 0)
KEY = ("readers", PLACE)
# The kill is at 100 s; up to 98 s all records are safe.
KILLED_AT, POINT = 100.0, ShownPoint(99.9, 98.0, 20)


def failures(results: Iterable[Check]) -> list[str]:
    return [check.what for check in results if check.ok is False]


def ledger(times: dict[int, float]) -> Ledger:
    """Offset n has number n; `times`: when it was acknowledged."""
    made = Ledger()
    for offset, at in times.items():
        made.acknowledge(PLACE, offset, offset, at)
    return made


def judged(made: Ledger, archived: dict[int, int]) -> list[str]:
    return failures(checks.record_checks(made, {PLACE: archived}, POINT, KILLED_AT))


def test_records_above_the_shown_point_may_be_lost() -> None:
    made = ledger({0: 90.0, 1: 98.5, 2: 99.9})
    assert judged(made, {0: 0}) == []
    assert judged(made, {0: 0, 1: 1, 2: 2}) == []


def test_a_record_below_it_may_not() -> None:
    made = ledger({0: 90.0, 1: 96.9})
    assert judged(made, {0: 0}) == [
        "acknowledged records lost below the shown recovery point",
        "age of the recovery point at the kill",
    ]


def test_a_record_at_another_offset_or_there_twice() -> None:
    made = ledger({0: 90.0, 1: 90.0})
    twice = ["records that are there twice"]
    assert judged(made, {0: 0, 1: 1, 2: 1}) == twice
    assert "records at another offset than was told" in judged(made, {0: 1, 1: 0})


def test_an_aborted_record_that_a_reader_gets() -> None:
    made = ledger({0: 90.0})
    made.aborted.add(7)
    assert judged(made, {0: 0, 1: 7}) == ["records of aborted transactions that a reader gets"]


def test_without_a_shown_point_nothing_is_proven() -> None:
    results = checks.record_checks(ledger({}), {}, None, KILLED_AT)
    assert failures(results) == ["the archiver showed a recovery point"]


def test_a_log_that_begins_too_early_or_has_records() -> None:
    assert failures(checks.start_checks({PLACE: (3, 3)}, {PLACE: {2: 2}}, [PLACE])) == []
    assert failures(checks.start_checks({PLACE: (2, 2)}, {PLACE: {2: 2}}, [PLACE])) == [
        "new logs that begin below the end of the archive"
    ]
    assert failures(checks.start_checks({PLACE: (3, 4)}, {}, [PLACE])) == [
        "new logs that are not empty"
    ]


def test_the_first_new_record_is_at_the_start() -> None:
    assert failures(checks.written_checks({PLACE: (3, 3)}, {PLACE: [4, 3]})) == []
    assert failures(checks.written_checks({PLACE: (3, 3)}, {PLACE: [0]})) != []
    assert failures(checks.written_checks({PLACE: (3, 3)}, {})) != []
    assert failures(checks.written_checks({PLACE: (3, 3)}, {PLACE: [4]})) != []
    aborted_before = {(PAYMENTS, 0): [24]}
    assert failures(checks.written_checks({(PAYMENTS, 0): (3, 3)}, aborted_before)) == []


def test_groups_that_are_elsewhere_gone_or_not_named() -> None:
    starts = {PLACE: (10, 10)}

    def judge(
        state: int, restored: dict[tuple[str, tuple[str, int]], int], named: tuple[int, int] | None
    ) -> list[str]:
        in_report = NamedGroups({} if named is None else {KEY: named}, {}, ())
        results = checks.group_checks({KEY: state}, {KEY: state}, starts, restored, in_report)
        return failures(results)

    assert judge(8, {KEY: 8}, None) == []
    assert judge(14, {KEY: 10}, (10, 4)) == []
    assert judge(14, {KEY: 10}, None) == ["offsets beyond the archive, each named with its numbers"]
    assert judge(14, {KEY: 10}, (10, 3)) != []
    assert judge(14, {KEY: 14}, (10, 4)) == ["offsets of groups in their place"]
    assert judge(8, {}, None) == [
        "offsets of groups in their place",
        "groups that are gone",
    ]


def test_commits_after_the_state_are_named_where_records_repeat_or_a_group_began() -> None:
    """The group had read up to 14 when the cluster was lost, and the archive ends at 10."""
    starts, other = {PLACE: (10, 10), ("drill-000", 1): (10, 10)}, ("readers", ("drill-000", 1))
    last = {KEY: 14, other: 3}

    def judge(
        repeated_max: dict[tuple[str, tuple[str, int]], int], *uncertain: checks.CommitKey
    ) -> list[str]:
        named = NamedGroups({}, repeated_max, uncertain)
        return failures(checks.group_checks({KEY: 7}, last, starts, {KEY: 7}, named))

    repeats = "groups' places that repeat records, each named with as many at least"
    begun = "places where a group committed first after the state was read, each named"
    assert judge({KEY: 3}, other) == []
    assert judge({KEY: 2}, other) == [repeats]
    assert judge({}, other) == [repeats]
    assert judge({KEY: 3}) == [begun]


def test_what_else_a_cluster_has() -> None:
    planned = planned_inventory(60)
    assert sum(planned.topics.values()) == 60
    assert failures(checks.inventory_checks(planned, planned)) == []
    topics = {name: count for name, count in planned.topics.items() if name != SCHEMAS}
    configs = {name: {**values, "retention.ms": "1"} for name, values in planned.configs.items()}
    for changed, what in (
        (replace(planned, topics=topics), "topics with their partitions"),
        (replace(planned, configs=configs), "settings of topics"),
        (replace(planned, acls=frozenset(list(planned.acls)[1:])), "ACLs"),
        (replace(planned, quotas={}), "quotas"),
    ):
        assert failures(checks.inventory_checks(planned, changed)) == [what]


def test_the_first_record_has_a_time_limit_and_no_group_stays_without() -> None:
    assert failures(checks.first_record_checks(10.0, {"a": 69.0, "b": 90.0}, 60.0)) == []
    assert failures(checks.first_record_checks(10.0, {"a": 71.0}, 60.0)) == [
        "first record of a group, after the empty cluster answered"
    ]
    assert failures(checks.first_record_checks(10.0, {"a": 11.0, "b": None}, 60.0)) == [
        "groups that get no record"
    ]
    assert failures([checks.phantom_check(["replica 9999 of a-0"])]) != []


def test_a_value_has_its_number() -> None:
    assert number_of(value_of(1_234_567)) == 1_234_567
    assert [len(value_of(number)) for number in (0, 10**9)] == [200, 200]
