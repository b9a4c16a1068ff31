"""Restores by padding into real brokers, seen by stock clients."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    OffsetSpec,
    ResourceType,
)
from proxy_process import wait_for
from restore_process import RestoreProcess, config_of, group, order_of, topic
from test_cluster_restore import consumed, ends, produced

from fetchproxy.archive import open_cluster
from fetchproxy.cluster_restore import controller, padding_requests
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.padding import Padding
from fetchproxy.cluster_restore.padding_batch import PADDING_RECORDS_MAX, padding_batch
from fetchproxy.cluster_restore.padding_plan import padding_text
from fetchproxy.cluster_restore.plan import (
    LostPartition,
    LostTopic,
    RestoreBy,
    TopicAction,
    diff_lines,
)
from fetchproxy.cluster_restore.raised_epochs import raise_epochs
from fetchproxy.cluster_restore.report import RestoreReport
from fetchproxy.cluster_restore.restore import ClusterRestore
from fetchproxy.cluster_state.state import GroupWithOffsets, QuotaState
from fetchproxy.config.values import HostPort, parse_host_port
from fetchproxy.errors import ClusterUnavailable
from fetchproxy.model import TopicIdPartition
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

PADDING = RestoreBy.PADDING


def restore_of(
    bootstrap: str,
    state_file: Path,
    topics: Sequence[LostTopic],
    groups: Sequence[GroupWithOffsets] = (),
    say: Callable[[str], None] = lambda _: None,
    **parts: object,
) -> ClusterRestore:
    order = order_of(state_file, topics, groups, PADDING, **parts)
    return ClusterRestore(config_of(bootstrap), order, say)


async def padded(
    bootstrap: str,
    state_file: Path,
    topics: Sequence[LostTopic],
    groups: Sequence[GroupWithOffsets] = (),
) -> RestoreReport:
    return await restore_of(bootstrap, state_file, topics, groups).run()


def config_values(bootstrap: str, name: str) -> Mapping[str, str]:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    resource = ConfigResource(ResourceType.TOPIC, name)
    entries = admin.describe_configs([resource])[resource].result(timeout=60)
    return {key: entry.value for key, entry in entries.items()}


def offset_at(bootstrap: str, name: str, timestamp_ms: int) -> int:
    """Of partition 0, at this time or later; -1: there is none."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(name, 0)
    spec = OffsetSpec.for_timestamp(timestamp_ms)
    return int(admin.list_offsets({place: spec})[place].result(timeout=60).offset)


async def test_a_producer_and_a_group_go_on_where_they_were(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    bootstrap, name = kafka_server.bootstrap, "padded"
    starts = [5 * PADDING_RECORDS_MAX + 7, 77, 0]
    topics = [topic(name, starts, epoch=5, retention_ms="123456789")]
    groups = [group("padded-readers", {(name, n): start for n, start in enumerate(starts)}, 5)]

    report = await padded(bootstrap, tmp_path / "job", topics, groups)

    assert report.is_whole, list(report.lines())
    assert not report.differences
    assert ends(bootstrap, name, 3) == [(start, start) for start in starts]
    assert config_values(bootstrap, name)["retention.ms"] == "123456789"
    assert produced(bootstrap, name, 0, b"next") == starts[0]
    records = consumed(bootstrap, name, "padded-readers")
    assert next(records) == (0, starts[0], b"next")
    records.close()
    assert offset_at(bootstrap, name, 1) == starts[0]


async def test_the_plan_says_how_long_each_partition_takes(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    work = restore_of(kafka_server.bootstrap, tmp_path / "job", [topic("planned", [3_000_000_000])])
    plan = await work.plan()
    lines = list(diff_lines(plan, partition_text=padding_text))
    assert lines[0] == "+ topic planned: 1 partition, new"
    assert "partition 0: begins at 3000000000, 3,000,000,000 offsets of padding: 17 min" in lines[1]
    assert any("nobody else may write" in line for line in lines)
    assert any("balancer" in line for line in lines)
    assert not (tmp_path / "job").exists()


async def test_a_log_whose_epochs_cannot_be_raised_does_not_go_on(
    kafka_server: KafkaServer,
) -> None:
    """Nobody else could be elected."""
    bootstrap = kafka_server.bootstrap
    for name in ("low-epochs", "same-epochs", "many-epochs"):
        kafka_server.create_topic(name, 1)
    topics = [
        LostTopic(name, 1, (LostPartition(10, epoch, epoch),))
        for name, epoch in {"low-epochs": 3, "same-epochs": 0, "many-epochs": 1_001}.items()
    ]
    config = config_of(bootstrap)
    addresses = [parse_host_port(bootstrap)]
    async with open_cluster(config) as cluster, ActiveController(config, addresses) as brokers:
        why = await raise_epochs(cluster, brokers, topics)
    assert sorted(why) == ["low-epochs", "many-epochs"]
    assert "one replica" in why["low-epochs"]
    assert "above 1,000" in why["many-epochs"]


async def test_compacted_topics_become_so_again(kafka_server: KafkaServer, tmp_path: Path) -> None:
    bootstrap, name = kafka_server.bootstrap, "was-compacted"
    topics = [topic(name, [1_234], cleanup_policy="compact", compression_type="lz4")]
    report = await padded(bootstrap, tmp_path / "job", topics)
    assert report.is_whole, list(report.lines())
    assert ends(bootstrap, name, 1) == [(1_234, 1_234)]
    values = config_values(bootstrap, name)
    assert (values["cleanup.policy"], values["compression.type"]) == ("compact", "lz4")


async def test_small_batches_are_written_where_the_topic_takes_no_larger_ones(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    bootstrap, name = kafka_server.bootstrap, "small-batches"
    assert len(padding_batch(PADDING_RECORDS_MAX)) > 5_000
    topics = [topic(name, [PADDING_RECORDS_MAX + 1], max_message_bytes="5000")]
    report = await padded(bootstrap, tmp_path / "job", topics)
    assert report.is_whole, list(report.lines())
    assert ends(bootstrap, name, 1) == [(PADDING_RECORDS_MAX + 1, PADDING_RECORDS_MAX + 1)]


async def test_an_empty_topic_is_taken_and_one_with_records_is_refused(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    bootstrap = kafka_server.bootstrap
    kafka_server.create_topic("padded-empty", 2)
    kafka_server.create_topic("padded-records", 1)
    produced(bootstrap, "padded-records", 0, b"mine")
    topics = [topic("padded-empty", [1_000, 2_000]), topic("padded-records", [500])]
    work = restore_of(bootstrap, tmp_path / "job", topics)

    plan = await work.plan()
    assert [one.action for one in plan.topics] == [TopicAction.TAKE, TopicAction.REFUSE]
    report = await work.run()

    assert "other records from offset 0" in report.refused["padded-records"]
    assert ends(bootstrap, "padded-empty", 2) == [(1_000, 1_000), (2_000, 2_000)]
    assert ends(bootstrap, "padded-records", 1) == [(0, 1)]


def writes_once(bootstrap: str, name: str, *, idempotent: bool) -> Callable[[str], None]:
    """Writes a record when the padding has said for the first time how long it takes."""
    offsets: list[int] = []

    def write() -> None:
        producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": idempotent})
        producer.produce(
            name, b"in between", partition=0, on_delivery=lambda _, m: offsets.append(m.offset())
        )
        assert producer.flush(60) == 0

    def say(line: str) -> None:
        if "offsets a second" in line and not offsets:
            thread = threading.Thread(target=write)
            thread.start()
            thread.join()

    return say


@pytest.mark.parametrize("idempotent", [True, False])
async def test_a_producer_that_wrote_in_between_is_named_and_its_records_stay(
    kafka_server: KafkaServer, tmp_path: Path, idempotent: bool
) -> None:
    bootstrap, name = kafka_server.bootstrap, f"in-between-{idempotent}"
    start, other = 100 * PADDING_RECORDS_MAX, f"beside-{idempotent}"
    say = writes_once(bootstrap, name, idempotent=idempotent)
    topics = [topic(name, [start]), topic(other, [50])]

    report = await restore_of(bootstrap, tmp_path / "job", topics, (), say).run()

    [fault] = report.faults
    [(first, end)] = ends(bootstrap, name, 1)
    assert first == 0
    written_at = offset_at(bootstrap, name, 1)
    assert 0 < written_at < end < start
    assert fault.startswith(f"{name}-0: somebody else has written from offset {written_at} on")
    assert ("by producer id" in fault) == idempotent
    assert ends(bootstrap, other, 1) == [(50, 50)]
    again = await restore_of(bootstrap, tmp_path / "job", topics, (), say).run()
    assert f"other records from offset {written_at}" in again.refused[name]


def test_killed_while_it_pads_it_goes_on(kafka_server: KafkaServer, tmp_path: Path) -> None:
    bootstrap, name, starts = (
        kafka_server.bootstrap,
        "padding-killed",
        [100 * PADDING_RECORDS_MAX, 9],
    )
    process = RestoreProcess(bootstrap, tmp_path / "job", name, starts, by="padding")
    for line in process.steps():
        if "offsets a second" in line:
            break
    else:
        pytest.fail("the restore does not say how long it takes")
    process.kill()
    [(_, end), _] = ends(bootstrap, name, 2)
    assert 0 < end < starts[0]

    assert RestoreProcess(bootstrap, tmp_path / "job", name, starts, by="padding").wait() == 0

    assert ends(bootstrap, name, 2) == [(start, start) for start in starts]


async def test_a_broker_that_is_killed_meanwhile_comes_back_and_it_ends_right(
    own_kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bootstrap, name, start = own_kafka_server.bootstrap, "broker-killed", 60 * PADDING_RECORDS_MAX
    append, appended = padding_requests.append, itertools.count(1)

    async def append_to_a_broker_that_is_killed(*arguments: Any) -> Any:
        if next(appended) == 20:
            own_kafka_server.kill()
            restarts.create_task(asyncio.to_thread(own_kafka_server.start))
        return await append(*arguments)

    monkeypatch.setattr(padding_requests, "append", append_to_a_broker_that_is_killed)
    async with asyncio.TaskGroup() as restarts:
        report = await padded(bootstrap, tmp_path / "job", [topic(name, [start])])

    assert report.is_whole, list(report.lines())
    assert ends(bootstrap, name, 1) == [(start, start)]
    assert next(appended) > 60


async def test_a_log_start_that_a_crash_has_undone_is_set_again(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """As after a crash of all replicas before they have noted it: padded, not deleted, and in
    use."""
    bootstrap, name, start = kafka_server.bootstrap, "start-undone", 1_500
    kafka_server.create_topic(name)
    async with open_cluster(config_of(bootstrap)) as cluster:
        info = await cluster.topic_by_name(name)
        tp = TopicIdPartition(info.topic_id, name, 0)
        await padding_requests.append(cluster, tp, padding_batch(start))
        assert await padding_requests.first_records(cluster, [tp]) == {tp: None}
        await asyncio.to_thread(produced, bootstrap, name, 0, b"new")
        [first] = (await padding_requests.first_records(cluster, [tp])).values()
        assert first is not None
        assert first.offset == start

    report = await padded(bootstrap, tmp_path / "job", [topic(name, [start])])

    assert report.is_whole, list(report.lines())
    assert ends(bootstrap, name, 1) == [(start, start + 1)]


async def test_a_quota_slows_it_down_and_is_named(
    own_kafka_server: KafkaServer, tmp_path: Path
) -> None:
    bootstrap, name, start = own_kafka_server.bootstrap, "with-a-quota", 30 * PADDING_RECORDS_MAX
    quota = QuotaState((("client-id", None),), "producer_byte_rate", 100_000.0)
    await restore_of(bootstrap, tmp_path / "quota", [], quotas=(quota,)).run()
    lines: list[str] = []

    work = restore_of(bootstrap, tmp_path / "job", [topic(name, [start])], (), lines.append)
    report = await work.run()

    assert report.is_whole, list(report.lines())
    assert ends(bootstrap, name, 1) == [(start, start)]
    assert any("quotas delayed it" in line for line in lines)


@pytest.fixture
def looking_kafka(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    """Its retention looks often."""
    often = {"log.retention.check.interval.ms": "200", "log.initial.task.delay.ms": "100"}
    yield from serve_part("kafka", KafkaServer(often))


async def test_the_padding_goes_with_the_first_new_record(
    looking_kafka: KafkaServer, tmp_path: Path
) -> None:
    """It is of 1970, so the new record begins another segment, and retention removes the old one;
    then no look-up by time meets it either."""
    bootstrap, name, start = looking_kafka.bootstrap, "gone", 3 * PADDING_RECORDS_MAX
    report = await padded(bootstrap, tmp_path / "job", [topic(name, [start])])
    assert report.is_whole, list(report.lines())
    assert produced(bootstrap, name, 0, b"new") == start

    folder = looking_kafka.data_dir / f"{name}-0"

    def only_the_new_segment() -> bool:
        return [one.name for one in folder.glob("*.log")] == [f"{start:020}.log"]

    await asyncio.to_thread(wait_for, "the end of the padding", only_the_new_segment)
    assert offset_at(bootstrap, name, 0) == start
    assert offset_at(bootstrap, name, 1) == start


async def test_a_consumer_from_the_beginning_sees_no_padding(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    bootstrap, name, start = kafka_server.bootstrap, "from-the-beginning", 2_000
    await padded(bootstrap, tmp_path / "job", [topic(name, [start])])
    produced(bootstrap, name, 0, b"first")
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "new", "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([name])
    message = consumer.poll(60)
    consumer.close()
    assert message is not None
    assert (message.offset(), message.value()) == (start, b"first")


async def test_many_partitions_take_few_requests_each(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    bootstrap, name = kafka_server.bootstrap, "many-padded"
    starts = [100 + n for n in range(100)]
    report = await padded(bootstrap, tmp_path / "job", [topic(name, starts)])
    assert report.is_whole, list(report.lines())
    assert ends(bootstrap, name, len(starts)) == [(start, start) for start in starts]


async def test_controllers_out_of_reach_point_at_padding(
    kafka_server: KafkaServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(controller, "CONTROLLER_WAIT_MAX_S", 0.0)
    order = replace(
        order_of(tmp_path / "job", [topic("out-of-reach", [5])]),
        controllers=[HostPort("127.0.0.1", 1)],
    )
    with pytest.raises(ClusterUnavailable, match="Or restore with --by padding"):
        await ClusterRestore(config_of(kafka_server.bootstrap), order, lambda _: None).run()
    assert not (tmp_path / "job").exists()


async def test_nothing_to_pad_changes_nothing(kafka_server: KafkaServer, tmp_path: Path) -> None:
    async with open_cluster(config_of(kafka_server.bootstrap)) as cluster:
        assert await Padding(cluster, print).pad({}, 1) == {}
