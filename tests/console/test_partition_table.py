"""Which of very many partitions a status shows, in which order, and what it says of the rest."""

from __future__ import annotations

from uuid import UUID

from fetchproxy.console.status import PartitionQuery, PartitionRows, PartitionStatus, TopicStatus
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Condition, Kind, of_partition, of_topic
from fetchproxy.writing.archive_health import NotHeld, offsets_in_words


def tp(topic: str, partition: int) -> TopicIdPartition:
    return TopicIdPartition(UUID(int=1), topic, partition)


CONDITIONS = (
    of_partition(Kind.PARTITION_STOPPED, tp("orders", 7), "it begins again"),
    of_partition(Kind.PARTITION_FAILING, tp("orders", 4_999), "the store is away"),
    *offsets_in_words(tp("orders", 3), NotHeld(gaps=((0, 9),))),  # on record: nobody has to act
)


def filled(query: PartitionQuery) -> PartitionRows:
    table = PartitionRows(query, CONDITIONS)
    for topic in ("audit", "orders"):
        for partition in range(5_000):
            table.add(PartitionStatus(topic, partition, lag_offsets=2, size_bytes=3))
    return table


def named(table: PartitionRows) -> list[str]:
    return [f"{row.topic}-{row.partition}" for row in table.rows()]


def test_faults_come_first_then_names_and_numbers() -> None:
    table = filled(PartitionQuery(rows_max=5))
    assert named(table) == ["orders-7", "orders-4999", "audit-0", "audit-1", "audit-2"]
    assert (table.total, table.matching) == (10_000, 10_000)
    assert len(filled(PartitionQuery()).rows()) == 10_000
    assert named(filled(PartitionQuery(rows_max=1))) == ["orders-7"]


def test_a_part_of_a_name_and_how_many_have_it() -> None:
    table = filled(PartitionQuery(rows_max=3, name_part="Audit-49"))
    assert named(table) == ["audit-49", "audit-490", "audit-491"]
    assert (table.total, table.matching) == (10_000, 111)


def test_all_by_topic_whatever_was_asked_for() -> None:
    table = filled(PartitionQuery(rows_max=0, name_part="nothing"))
    assert table.rows() == ()
    assert table.topics() == (
        TopicStatus("orders", 5_000, faulty=2, lag_offsets=10_000, size_bytes=15_000),
        TopicStatus("audit", 5_000, faulty=0, lag_offsets=10_000, size_bytes=15_000),
    )


def test_conditions_are_of_what_is_shown_and_one_of_each_kind() -> None:
    stopped, failing, gap = CONDITIONS
    process = Condition(Kind.TOPIC_DELETION_STOPPED, "the archive of another cluster")
    refused = of_topic(Kind.TOPIC_REFUSED, "audit", "it is compacted")
    another = of_partition(Kind.PARTITION_FAILING, tp("orders", 4_000), "the store is away")
    conditions = (process, refused, stopped, failing, another, gap)
    assert filled(PartitionQuery()).conditions_in_view(conditions) == conditions
    of_row = filled(PartitionQuery(rows_max=1, name_part="orders-7")).conditions_in_view(conditions)
    assert of_row == (process, refused, stopped, failing, gap)


def test_all_partitions_of_a_refused_topic_have_a_fault() -> None:
    table = PartitionRows(
        PartitionQuery(), [of_topic(Kind.TOPIC_REFUSED, "audit", "it is compacted")]
    )
    for topic in ("audit", "orders"):
        table.add(PartitionStatus(topic, 0))
    assert [(topic.topic, topic.faulty) for topic in table.topics()] == [
        ("audit", 1),
        ("orders", 0),
    ]
