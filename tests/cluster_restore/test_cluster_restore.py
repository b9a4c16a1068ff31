"""Restores into real brokers, seen by stock clients."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from proxy_process import wait_for
from restore_process import RestoreProcess, config_of, group, order_of, topic

from fetchproxy.cluster_restore.plan import LostTopic, TopicAction
from fetchproxy.cluster_restore.report import RestoreReport
from fetchproxy.cluster_restore.restore import ClusterRestore, RestoreOrder
from fetchproxy.cluster_restore.state_file import RestoreStep, read_restore_job
from fetchproxy.cluster_state.state import AclState, QuotaState
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

# Every step at which a restore of a new topic may be killed.
STEPS = (
    "register",
    "create",
    "continue",
    "raise",
    "place",
    "hand over",
    "leave",
    "prove",
    "groups",
    "rights",
)


async def restored(bootstrap: str, order: RestoreOrder) -> RestoreReport:
    return await ClusterRestore(config_of(bootstrap), order, lambda _: None).run()


def ends(bootstrap: str, name: str, partitions: int) -> list[tuple[int, int]]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "nobody"})
    try:
        return [
            consumer.get_watermark_offsets(TopicPartition(name, n), timeout=30)
            for n in range(partitions)
        ]
    finally:
        consumer.close()


def produced(bootstrap: str, name: str, partition: int, value: bytes) -> int:
    """The offset of a new record, by an idempotent producer."""
    offsets: list[int] = []
    producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
    producer.produce(
        name, value, partition=partition, on_delivery=lambda _, m: offsets.append(m.offset())
    )
    assert producer.flush(60) == 0
    return offsets[0]


def consumed(
    bootstrap: str, name: str, group_id: str
) -> Generator[tuple[int, int, bytes], None, None]:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group_id, "auto.offset.reset": "error"}
    )
    consumer.subscribe([name])
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None
            assert message.error() is None, message.error()
            yield message.partition(), message.offset(), message.value()
    finally:
        consumer.close()


def assert_no_phantom(bootstrap: str, brokers: set[int]) -> None:
    metadata = AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=30)
    assert set(metadata.brokers) == brokers
    for topic_metadata in metadata.topics.values():
        for partition in topic_metadata.partitions.values():
            assert set(partition.replicas) <= brokers, (topic_metadata.topic, partition.id)
            assert set(partition.isrs) <= brokers


async def test_a_producer_and_a_group_go_on_where_they_were(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    bootstrap, name = kafka_server.bootstrap, "goes-on"
    topics = [topic(name, [5_000_000_000, 77, 0], epoch=5, retention_ms="123456789")]
    groups = [group("readers", {(name, 0): 5_000_000_000, (name, 1): 77, (name, 2): 0}, epoch=5)]

    report = await restored(bootstrap, order_of(tmp_path / "job", topics, groups))

    assert report.is_whole, list(report.lines())
    assert not report.differences
    assert ends(bootstrap, name, 3) == [(5_000_000_000,) * 2, (77, 77), (0, 0)]
    assert produced(bootstrap, name, 0, b"next") == 5_000_000_000
    assert produced(bootstrap, name, 1, b"other") == 77
    records_read = consumed(bootstrap, name, "readers")
    records = {next(records_read), next(records_read)}
    records_read.close()
    assert records == {(0, 5_000_000_000, b"next"), (1, 77, b"other")}
    assert_no_phantom(bootstrap, {1})
    job = read_restore_job(tmp_path / "job")
    assert job is not None
    assert job.step is RestoreStep.DONE


async def test_what_a_group_loses_is_named_with_numbers(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    name = "named-losses"
    groups = [group("ahead", {(name, 0): 130}), group("behind", {(name, 0): 90})]
    order = order_of(tmp_path / "job", [topic(name, [100])], groups)
    lost_end = order_of(tmp_path / "job", [topic(name, [120])], groups).state

    report = await restored(
        kafka_server.bootstrap,
        RestoreOrder(
            state=lost_end,
            topics=order.topics,
            listen=order.listen,
            advertise=None,
            controllers=(),
            state_file=order.state_file,
        ),
    )

    differences = {one.group: one for one in report.differences}
    ahead, behind = differences["ahead"], differences["behind"]
    assert (ahead.new_offset, ahead.skipped, ahead.archived, ahead.set_back) == (100, 0, 0, 30)
    assert (behind.new_offset, behind.skipped, behind.archived) == (90, 20, 10)
    assert (ahead.repeated_max, behind.repeated_max) == (0, 10)
    text = "\n".join(report.lines())
    assert "groups: their offsets are of 1970-01-01T00:00:01Z. The archive has no" in text
    assert "repeats up to 10 records, if it committed later" in text
    [lost] = report.lost
    assert (lost.first_offset, lost.end_offset) == (100, 120)


async def test_an_empty_topic_is_taken_and_one_with_records_is_refused(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    bootstrap = kafka_server.bootstrap
    kafka_server.create_topic("is-empty", 2)
    kafka_server.create_topic("has-records", 1)
    assert produced(bootstrap, "has-records", 0, b"mine") == 0
    topics = [topic("is-empty", [1_000, 2_000], epoch=4), topic("has-records", [500])]
    order = order_of(tmp_path / "job", topics)

    plan = await ClusterRestore(config_of(bootstrap), order, lambda _: None).plan()
    assert [one.action for one in plan.topics] == [TopicAction.TAKE, TopicAction.REFUSE]
    report = await restored(bootstrap, order)

    assert not report.is_whole
    assert list(report.refused) == ["has-records"]
    assert "partition 0 from 0 to 1" in report.refused["has-records"]
    assert ends(bootstrap, "is-empty", 2) == [(1_000, 1_000), (2_000, 2_000)]
    assert ends(bootstrap, "has-records", 1) == [(0, 1)]
    assert_no_phantom(bootstrap, {1})


async def test_a_restore_that_is_done_changes_nothing_again(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    bootstrap, name = kafka_server.bootstrap, "twice"
    order = order_of(tmp_path / "job", [topic(name, [42])])
    await restored(bootstrap, order)
    produced(bootstrap, name, 0, b"after")

    report = await restored(bootstrap, order)

    assert report.is_whole
    assert ends(bootstrap, name, 1) == [(42, 43)]


async def test_quotas_are_set_and_acls_without_an_authorizer_are_a_fault(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    acl = AclState("TOPIC", "orders", "LITERAL", "User:ann", "*", "READ", "ALLOW")
    quota = QuotaState((("user", "ann"),), "producer_byte_rate", 1024.0)
    no_topics: list[LostTopic] = []
    order = order_of(
        tmp_path / "job", no_topics, acls=(acl,), quotas=(quota,), scram_users=("ann",)
    )

    report = await restored(kafka_server.bootstrap, order)

    assert [fault for fault in report.faults if "authorizer" in fault]
    assert [work for work in report.by_hand if "SCRAM" in work]


@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_goes_on(
    kafka_server: KafkaServer, tmp_path: Path, step: str
) -> None:
    bootstrap, name = kafka_server.bootstrap, f"killed-{step.replace(' ', '-')}"
    starts = [10_000 + n for n in range(6)]
    process = RestoreProcess(bootstrap, tmp_path / "job", name, starts, epoch=4)
    for line in process.steps():
        if line == f"step: {step}":
            break
    else:
        pytest.fail(f"the restore has no step {step}")
    process.kill()

    assert RestoreProcess(bootstrap, tmp_path / "job", name, starts, epoch=4).wait() == 0

    assert ends(bootstrap, name, 6) == [(start, start) for start in starts]
    assert_no_phantom(bootstrap, {1})


async def test_another_cluster_needs_another_file(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    order = order_of(tmp_path / "job", [topic("other-file", [1])])
    await restored(kafka_server.bootstrap, order)
    job = read_restore_job(tmp_path / "job")
    assert job is not None
    text = (tmp_path / "job").read_text().replace(job.cluster_id, "another")
    (tmp_path / "job").write_text(text)

    with pytest.raises(Exception, match="belongs to the restore of cluster another"):
        await asyncio.wait_for(restored(kafka_server.bootstrap, order), 60)


async def test_phantoms_that_the_controller_has_taken_for_dead_lead_all_the_same(
    own_kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """The command stood still for longer than a broker's session."""
    bootstrap, name = own_kafka_server.bootstrap, "stood-still"
    brokers = AdminClient({"bootstrap.servers": bootstrap})

    def stand_still(line: str) -> None:
        if line == "step: create":  # blocks the loop in which heartbeats are sent
            wait_for("the end", lambda: set(brokers.list_topics(timeout=30).brokers) == {1})

    order = order_of(tmp_path / "job", [topic(name, [1_000, 2_000])])
    report = await ClusterRestore(config_of(bootstrap), order, stand_still).run()

    assert report.is_whole, list(report.lines())
    assert ends(bootstrap, name, 2) == [(1_000, 1_000), (2_000, 2_000)]
    assert_no_phantom(bootstrap, {1})


async def test_clients_and_new_topics_meet_no_phantom(
    own_kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """While a phantom is alive, the controller gives it partitions of new topics, and clients
    connect to it as to any broker."""
    bootstrap, name = own_kafka_server.bootstrap, "meanwhile"
    starts = list(range(1_000, 1_040))  # so many that the phantoms are there for a while
    created: list[asyncio.Future[None]] = []

    def create() -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap})
        new = NewTopic("stray", 6, 1)
        admin.create_topics([new], operation_timeout=30)["stray"].result(timeout=300)

    def create_meanwhile(line: str) -> None:
        """In a thread: the request may come by way of the phantoms, which are in this loop."""
        if line == "step: place" and not created:
            created.append(asyncio.get_running_loop().run_in_executor(None, create))

    order = order_of(tmp_path / "job", [topic(name, starts)])
    report = await ClusterRestore(config_of(bootstrap), order, create_meanwhile).run()
    [topic_created] = created
    await topic_created

    assert report.is_whole, list(report.lines())
    assert ends(bootstrap, "stray", 6) == [(0, 0)] * 6
    assert ends(bootstrap, name, len(starts)) == [(start, start) for start in starts]
    assert_no_phantom(bootstrap, {1})
    assert produced(bootstrap, "stray", 3, b"first") == 0
