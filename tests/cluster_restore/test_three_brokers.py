"""Restores into three real brokers, which are also controllers, with a hundred partitions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from folder_fixture import folder_fixture
from restore_process import RestoreProcess, config_of, group, order_of, topic
from test_cluster_restore import STEPS, assert_no_phantom, consumed, ends, produced, restored

from fetchproxy.archive import open_cluster
from fetchproxy.cluster_restore.controller import ActiveController
from fetchproxy.cluster_restore.new_cluster import read_placements
from fetchproxy.cluster_restore.plan import LostPartition, LostTopic
from fetchproxy.cluster_restore.raised_epochs import raise_epochs
from fetchproxy.config.values import parse_bootstrap
from lab.kafka_cluster import KafkaCluster

pytestmark = pytest.mark.kafka

BROKERS = {1, 2, 3}


@folder_fixture
def three_new_brokers(find_part: Callable[..., None]) -> Iterator[KafkaCluster]:
    """A test that kills one starts it again."""
    cluster = KafkaCluster()
    try:
        find_part("kafka", cluster.start)
        yield cluster
    finally:
        cluster.stop()


async def test_a_hundred_partitions_begin_at_their_offsets_on_all_replicas(
    three_new_brokers: KafkaCluster, tmp_path: Path
) -> None:
    bootstrap, name = three_new_brokers.bootstrap, "hundred"
    starts = [7_000_000_000 * n + 1 for n in range(100)]
    committed = {(name, n): start for n, start in enumerate(starts)}
    topics = [topic(name, starts, replicas=3, epoch=3, min_insync_replicas="2")]
    groups = [group("readers", committed, epoch=3)]

    report = await restored(bootstrap, order_of(tmp_path / "job", topics, groups))

    assert report.is_whole, list(report.lines())
    assert ends(bootstrap, name, 100) == [(start, start) for start in starts]
    partitions = three_new_brokers.partitions(name)
    assert all(one.in_sync == BROKERS for one in partitions.values())
    assert {one.leader for one in partitions.values()} == BROKERS
    assert produced(bootstrap, name, 57, b"next") == starts[57]
    records = consumed(bootstrap, name, "readers")
    assert next(records) == (57, starts[57], b"next")
    records.close()
    assert_no_phantom(bootstrap, BROKERS)


async def test_epochs_are_raised_with_a_clients_rights(three_new_brokers: KafkaCluster) -> None:
    """By elections among the brokers themselves, as a restore by padding does it."""
    bootstrap, name = three_new_brokers.bootstrap, "raised"
    three_new_brokers.create_topic(name, [[1, 2, 3], [2, 3, 1], [3, 1, 2], [1, 2, 3]])
    epochs = (7, 3, 0, 1)
    lost = LostTopic(name, 3, tuple(LostPartition(10, epoch, epoch) for epoch in epochs))
    config = config_of(bootstrap)
    addresses = parse_bootstrap(bootstrap)
    async with open_cluster(config) as cluster, ActiveController(config, addresses) as brokers:
        assert await raise_epochs(cluster, brokers, [lost]) == {}
        [present] = (await read_placements(cluster, [name])).topics.values()
    reached = [present.partitions[n].leader_epoch for n in range(4)]
    assert [max(*pair) for pair in zip(reached, epochs, strict=True)] == reached
    assert reached[2] == 0  # it needed none
    assert {frozenset(one.replicas) for one in present.partitions.values()} == {frozenset(BROKERS)}


def test_a_broker_that_is_killed_meanwhile_comes_back_and_the_restore_ends_right(
    three_new_brokers: KafkaCluster, tmp_path: Path
) -> None:
    bootstrap, name = three_new_brokers.bootstrap, "broker-killed"
    starts = [1_000_000 + n for n in range(10)]
    job = tmp_path / "job"
    process = RestoreProcess(bootstrap, job, name, starts, replicas=3)
    killed = three_new_brokers.nodes[3]
    for line in process.steps():
        if line == "step: place":
            killed.kill()
            break
    process.kill()
    killed.start()
    three_new_brokers.wait_for_brokers(BROKERS)

    assert RestoreProcess(bootstrap, job, name, starts, replicas=3).wait() == 0

    three_new_brokers.wait_for_in_sync(name)
    assert ends(bootstrap, name, 10) == [(start, start) for start in starts]
    assert_no_phantom(bootstrap, BROKERS)
    # The killed one leads from the same offset.
    three_new_brokers.move_leaders(name, {0: 3})
    assert ends(bootstrap, name, 1) == [(starts[0], starts[0])]


def until_step(process: RestoreProcess, step: str) -> None:
    for line in process.steps():
        if line == f"step: {step}":
            return
    pytest.fail(f"the restore has no step {step}")


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
def test_killed_at_any_step_it_goes_on_with_three_brokers(
    three_new_brokers: KafkaCluster, tmp_path: Path, step: str
) -> None:
    bootstrap, name = three_new_brokers.bootstrap, f"step-{step.replace(' ', '-')}"
    starts = [(1 << 33) + n for n in range(12)]
    process = RestoreProcess(bootstrap, tmp_path / "job", name, starts, replicas=3, epoch=4)
    until_step(process, step)
    process.kill()

    again = RestoreProcess(bootstrap, tmp_path / "job", name, starts, replicas=3, epoch=4)
    assert again.wait() == 0

    three_new_brokers.wait_for_in_sync(name)
    assert ends(bootstrap, name, 12) == [(start, start) for start in starts]
    assert_no_phantom(bootstrap, BROKERS)


@pytest.mark.slow
@pytest.mark.parametrize("step", ["create", "raise", "place", "hand over", "leave"])
@pytest.mark.parametrize("node", sorted(BROKERS))
def test_each_broker_is_killed_while_the_restore_goes_on(
    three_new_brokers: KafkaCluster, tmp_path: Path, node: int, step: str
) -> None:
    """One of them is the active controller, and one passes clients of the phantoms on."""
    bootstrap, name = three_new_brokers.bootstrap, f"lost-{node}-{step.replace(' ', '-')}"
    starts = [(1 << 34) + n for n in range(12)]
    job = tmp_path / "job"
    process = RestoreProcess(bootstrap, job, name, starts, replicas=3, epoch=2)
    until_step(process, step)
    broker = three_new_brokers.nodes[node]
    broker.kill()
    broker.start()

    if process.wait():  # it may have ended with an error that says to run it again
        three_new_brokers.wait_for_brokers(BROKERS)
        assert RestoreProcess(bootstrap, job, name, starts, replicas=3, epoch=2).wait() == 0

    three_new_brokers.wait_for_brokers(BROKERS)
    three_new_brokers.wait_for_in_sync(name)
    assert ends(bootstrap, name, 12) == [(start, start) for start in starts]
    assert_no_phantom(bootstrap, BROKERS)
    # The killed one leads from the same offset.
    three_new_brokers.move_leaders(name, {0: node})
    assert ends(bootstrap, name, 1) == [(starts[0], starts[0])]
