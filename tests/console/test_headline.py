"""What is wrong, in an operator's words: every kind of condition, what it means, until when."""

from __future__ import annotations

from uuid import UUID

import pytest

from fetchproxy.console.headline import LeastTimesLeft, Moment, Outlook, Problem, outlook, problems
from fetchproxy.console.status import PartitionQuery, PartitionRows, PartitionStatus
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import (
    Condition,
    Kind,
    of_partition,
    of_topic,
    worst_first,
)

NOON = Moment(1_000.0, 1_790_000_000_000)  # 2026-09-21 14:13:20 UTC
HOUR = 3600.0
NONE, SOON = LeastTimesLeft(), LeastTimesLeft(900, 900, 900)


def tp(topic: str, partition: int) -> TopicIdPartition:
    return TopicIdPartition(UUID(int=1), topic, partition)


def said_of(*conditions: Condition, tail: bool = True) -> tuple[Problem, ...]:
    return problems(worst_first(conditions), NOON, tail=tail)


@pytest.mark.parametrize("kind", Kind)
def test_each_kind_has_words_of_its_own(kind: Kind) -> None:
    subject = "read" if kind == Kind.STORE_FAILING else "orders-1"
    [one] = said_of(Condition(kind, "what a part says", subject, "orders", 1))
    assert one.says
    assert "{" not in one.says + one.readers + one.until
    assert not one.says.startswith("A newer")
    assert one.readers.endswith(".")
    assert (one.kind, one.what) == (kind, "what a part says")
    assert len(one.says) <= 70, "it is read at first sight"


def test_a_kind_of_a_newer_version_is_told_too() -> None:
    [one] = said_of(Condition("brand_new", "it is new", "somewhere"))
    assert one.says == "A newer fetchproxy reports: somewhere"
    assert outlook([Condition("brand_new", "it is new")], NONE, NOON, archives=True) == Outlook()


@pytest.mark.parametrize(
    ("about", "who"),
    [
        ([("orders", 1)], "orders-1"),
        ([("orders", 1), ("orders", 2)], "2 partitions of orders"),
        ([("orders", 1), ("audit", 2)], "2 partitions in 2 topics"),
        ([("orders", number) for number in range(20_000)], "20,000 partitions of orders"),
    ],
)
def test_who_it_is_about(about: list[tuple[str, int]], who: str) -> None:
    every = [of_partition(Kind.PARTITION_STOPPED, tp(*place), "it begins again") for place in about]
    [one] = said_of(*every)
    assert one.says == f"Archiving has stopped for {who}"
    assert one.count == len(about)


def test_topics_are_named_or_counted() -> None:
    [one] = said_of(of_topic(Kind.TOPIC_REFUSED, "keys", "compacted"))
    assert one.says == "Not archived: keys"
    [one] = said_of(*(of_topic(Kind.TOPIC_REFUSED, name, "compacted") for name in "abc"))
    assert one.says == "Not archived: 3 topics"


@pytest.mark.parametrize(
    ("operations", "says"),
    [
        (["read"], "The store cannot be read"),
        (["write"], "The store accepts no writes"),
        (["delete"], "The store refuses deletions"),
        (["delete", "list"], "The store cannot be listed"),
        (["read", "write", "delete"], "The store is failing"),
    ],
)
def test_which_operations_of_the_store_fail(operations: list[str], says: str) -> None:
    every = [Condition(Kind.STORE_FAILING, f"{each} fails", each) for each in operations]
    [one] = said_of(*every)
    assert one.says == says


def test_without_brokers_nobody_reads_new_records() -> None:
    failing = Condition(Kind.STORE_FAILING, "it fails", "read")
    [one] = said_of(failing)
    assert "new records continue" in one.readers
    [one] = said_of(failing, tail=False)
    assert one.readers == "Readers wait and keep their position."


def test_the_worst_problem_comes_first_and_the_most_urgent_of_a_kind_speaks() -> None:
    small = [
        of_partition(Kind.ARCHIVE_MARGIN_SMALL, tp("a", n), f"a-{n}", since=990.0 - n, until=until)
        for n, until in enumerate((9_000.0, 5_000.0, 7_000.0))
    ]
    gap = of_partition(Kind.ARCHIVE_GAP, tp("a", 9), "lost")
    stopped = Condition(Kind.STORE_FAILING, "it fails", "write")
    conditions = said_of(gap, *small, stopped)
    assert [one.kind for one in conditions] == [
        "store_failing",
        "archive_margin_small",
        "archive_gap",
    ]
    assert (conditions[1].what, conditions[1].since_s) == ("a-1", 12.0)


@pytest.mark.parametrize(
    ("left_s", "when"),
    [
        (2 * HOUR + 600, "16:20 UTC (in 2 h 10 min)"),
        (1_500, "14:38 UTC (in 25 min)"),
        (50 * HOUR, "2026-09-23 16:10 UTC (in 2 d 2 h)"),
    ],
)
def test_when_records_are_lost(left_s: float, when: str) -> None:
    """Never later than it is."""
    until = NOON.now + left_s
    failing = Condition(Kind.STORE_FAILING, "it fails", "write", until=until)
    current_outlook = outlook([failing], NONE, NOON, archives=True)
    assert current_outlook.says == (
        f"Nothing is archived now. If this continues, records are lost from about {when} on."
    )
    assert current_outlook.lost_in_seconds == left_s
    by_lag = outlook([failing], LeastTimesLeft(led=60), NOON, archives=True)
    assert by_lag.lost_in_seconds == 60, "a partition is nearer to it"


def test_what_is_known_of_no_time_and_of_no_threat() -> None:
    failing = Condition(Kind.STORE_FAILING, "it fails", "write")
    assert outlook([], SOON, NOON, archives=True) == Outlook(), "all is archived in time"
    assert outlook([failing], SOON, NOON, archives=False) == Outlook(), "others archive"
    assert "not known when" in outlook([failing], NONE, NOON, archives=True).says
    deletes = Condition(Kind.STORE_FAILING, "it fails", "delete")
    assert outlook([deletes], SOON, NOON, archives=True) == Outlook()
    announced = of_partition(Kind.RETENTION_STEP_ANNOUNCED, tp("a", 1), "82 %", until=2_000.0)
    assert outlook([announced], NONE, NOON, archives=True) == Outlook()
    assert said_of(announced)[0].until == "It deletes them at 14:30 UTC (in 16 min)."
    silent = Condition(Kind.ARCHIVER_SILENT, "not heard of", "host-a")
    assert outlook([silent], SOON, NOON, archives=False).lost_in_seconds == 900


def test_a_loss_that_goes_on_comes_before_all_that_may_come() -> None:
    failing = Condition(Kind.STORE_FAILING, "it fails", "write", until=9_000.0)
    lost = of_partition(Kind.UNARCHIVED_RECORDS_DELETED, tp("a", 1), "gone", (5, 9))
    current_outlook = outlook([failing, lost], LeastTimesLeft(9_000), NOON, archives=True)
    assert current_outlook.lost_in_seconds == 0
    assert "Records are being lost" in current_outlook.says
    over = Condition(Kind.STORE_FAILING, "it fails", "write", until=NOON.now - 5)
    assert "at any moment" in outlook([over], NONE, NOON, archives=True).says


def test_a_healthy_partition_with_little_time_threatens_nobody() -> None:
    times = LeastTimesLeft(led=60, elsewhere=7_000, faulty=9_000)
    failing = of_partition(Kind.PARTITION_FAILING, tp("a", 1), "it fails")
    silent = Condition(Kind.ARCHIVER_SILENT, "not heard of", "host-a")
    store = Condition(Kind.STORE_FAILING, "it fails", "write")
    assert outlook([failing], times, NOON, archives=True).lost_in_seconds == 9_000
    assert outlook([failing, silent], times, NOON, archives=True).lost_in_seconds == 7_000
    assert outlook([failing, store], times, NOON, archives=True).lost_in_seconds == 60


def test_the_table_knows_whose_time_is_least() -> None:
    failing = of_partition(Kind.PARTITION_FAILING, tp("a", 1), "it fails")
    table = PartitionRows(PartitionQuery(rows_max=0), [failing])
    for number, (role, seconds) in enumerate(
        [("leader", 70), ("leader", 90), ("follower", 80), (None, 50), (None, None)]
    ):
        table.add(PartitionStatus("a", number, role=role, deleted_in_seconds=seconds))
    assert table.least_times == LeastTimesLeft(led=70, elsewhere=50, faulty=90)
    assert table.totals().deleted_in_seconds == 50
