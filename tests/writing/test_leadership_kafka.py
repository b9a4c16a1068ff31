"""Archivers in a real consumer group: they share partitions, take over, and move few of them."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from archive_harness import (
    Archive,
    archived_up_to,
    broker_batches,
    open_archive,
    running_archiver,
    tps,
    until,
    until_true,
)
from confluent_kafka.admin import AdminClient, NewPartitions
from two_archivers import OVERTAKEN_TOO_LATE, SMALL, archiver_process, meet, produce, readable

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.observability.metrics import ARCHIVE_GROUP_STABLE
from fetchproxy.writing.remote_log_manager import RemoteLogManager
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

PARTITIONS = 6
COUNT = 200


@pytest.fixture(scope="module")
def kafka(serve_part: Callable[..., Iterator[KafkaServer]]) -> Iterator[KafkaServer]:
    """A broker that allows short sessions."""
    yield from serve_part(
        "kafka", KafkaServer({"group.min.session.timeout.ms": "1000"}, heap="384m")
    )


def group(topic: str, **changes: Any) -> dict[str, Any]:
    """A busy machine may stall a member for seconds, and it must not lose its session by that."""
    return {
        **SMALL,
        "group_id": f"archivers-of-{topic}",
        "group_session_timeout_ms": 12_000,
        "remote_refresh_interval_ms": 0,
        **changes,
    }


def led(manager: RemoteLogManager) -> set[int]:
    return {status.tp.partition for status in manager.status() if status.leads}


def parts_of_members(kafka: KafkaServer, topic: str) -> list[set[int]]:
    """Each member's partitions, as the brokers' own tools show them."""
    name = group(topic)["group_id"]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    described = admin.describe_consumer_groups([name])[name].result(30)
    return [{p.partition for p in m.assignment.topic_partitions} for m in described.members]


async def start(
    exits: AsyncExitStack, kafka: KafkaServer, topic: str, archive: Archive, **changes: Any
) -> tuple[RemoteLogManager, Cluster]:
    return await exits.enter_async_context(
        running_archiver(kafka.bootstrap, archive, topic, **group(topic, **changes))
    )


async def test_two_share_the_partitions_and_one_takes_over_from_the_killed(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    topic = kafka.create_topic("shared", PARTITIONS)
    everything = set(range(PARTITIONS))
    settings = group(topic)
    async with (
        open_archive(tmp_path / "store") as archive,
        running_archiver(kafka.bootstrap, archive, topic, **settings) as (manager, cluster),
    ):
        await until_true(lambda: led(manager) == everything)
        assert (manager.leadership_state.kind, manager.leadership_state.members) == ("group", 1)
        with archiver_process(kafka.bootstrap, tmp_path, topic, **settings) as other:
            await until_true(lambda: len(led(manager)) == PARTITIONS // 2)
            await until_true(lambda: manager.leadership_state.members == 2)
            led_before = led(manager)
            await asyncio.to_thread(produce, kafka.bootstrap, topic, PARTITIONS, COUNT)
            # It also knows the archive of followed partitions, from the other archiver's copies.
            await until(manager, archived_up_to(topic, dict.fromkeys(everything, COUNT)))
            assert led(manager) == led_before
            assert manager.leadership_state.state == "stable"
            assert ARCHIVE_GROUP_STABLE._value.get() == 1
            assert led_before in await asyncio.to_thread(parts_of_members, kafka, topic)
            other.send(signal.SIGKILL)
            await until_true(lambda: led(manager) == everything)
            await asyncio.to_thread(produce, kafka.bootstrap, topic, PARTITIONS, COUNT)
            await until(manager, archived_up_to(topic, dict.fromkeys(everything, 2 * COUNT)))
        for tp in await tps(cluster, topic):
            expected = await broker_batches(cluster, tp, 0, 2 * COUNT)
            assert await readable(archive, tp) == expected


@pytest.mark.slow
async def test_a_restart_moves_little(kafka: KafkaServer, tmp_path: Path) -> None:
    """A static member that is back in time gets its old partitions; any other gets a new share."""
    topic = kafka.create_topic("restarted", PARTITIONS)
    half = PARTITIONS // 2
    led_sets: list[set[int]] = []
    async with open_archive(tmp_path / "store") as archive, AsyncExitStack() as exits:
        first, _ = await start(exits, kafka, topic, archive, group_session_timeout_ms=15_000)

        async def life(**changes: Any) -> tuple[set[int], set[int]]:
            """The partitions that the second and the first lead while both run."""
            async with AsyncExitStack() as second_exits:
                changes = {"group_session_timeout_ms": 15_000, **changes}
                second, _ = await start(second_exits, kafka, topic, archive, **changes)
                await until_true(lambda: len(led(second)) == half)
                await until_true(lambda: len(led(first)) == half)
                on_change = first._leadership.on_change
                first._leadership.on_change = lambda: (on_change(), led_sets.append(led(first)))
                return led(second), led(first)

        await until_true(lambda: len(led(first)) == PARTITIONS)
        led_by_second, led_by_first = await life(group_instance_id="second")
        led_sets.clear()
        assert await life(group_instance_id="second") == (led_by_second, led_by_first)
        assert led_sets == [], "a static member's restart has moved something"
        await until_true(lambda: len(led(first)) == PARTITIONS)  # its session has ended
        led_by_second, led_by_first = await life()
        await until_true(lambda: len(led(first)) == PARTITIONS)  # it left the group: at once
        led_sets.clear()
        theirs_again, ours_again = await life()
        assert theirs_again | ours_again == set(range(PARTITIONS))
        assert all(len(now) >= half for now in led_sets), "the one that stayed lost more than half"


async def test_topics_and_partitions_that_come_are_shared_out(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    kafka.create_topic("grows-a", 2)
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    async with open_archive(tmp_path / "store") as archive, AsyncExitStack() as exits:
        one, _ = await start(exits, kafka, "grows-.*", archive)
        two, _ = await start(exits, kafka, "grows-.*", archive)

        def shared() -> list[tuple[str, int]]:
            both = [s for manager in (one, two) for s in manager.status() if s.leads]
            return sorted((s.tp.topic, s.tp.partition) for s in both)

        await until_true(lambda: shared() == [("grows-a", 0), ("grows-a", 1)])
        await asyncio.to_thread(kafka.create_topic, "grows-b", 1)
        await until_true(lambda: ("grows-b", 0) in shared())
        grown = admin.create_partitions([NewPartitions("grows-a", 5)])["grows-a"]
        await asyncio.to_thread(grown.result, 30)
        expected = [*(("grows-a", number) for number in range(5)), ("grows-b", 0)]
        await until_true(lambda: shared() == expected)
        await until_true(lambda: all(len(led_all(m)) == 3 for m in (one, two)))


def led_all(manager: RemoteLogManager) -> set[tuple[str, int]]:
    return {(s.tp.topic, s.tp.partition) for s in manager.status() if s.leads}


async def test_the_same_instance_id_twice(kafka: KafkaServer, tmp_path: Path) -> None:
    """The later one wins; the earlier one leads nothing any more and stays out of the group."""
    topic = kafka.create_topic("fenced", 2)
    async with open_archive(tmp_path / "store") as archive, AsyncExitStack() as exits:
        me: dict[str, Any] = {"group_instance_id": "me", "group_session_timeout_ms": 9_000}
        early, _ = await start(exits, kafka, topic, archive, **me)
        await until_true(lambda: len(led(early)) == 2)
        late, _ = await start(exits, kafka, topic, archive, **me)
        await until_true(lambda: len(led(late)) == 2)
        await until_true(lambda: led(early) == set())
        await until_true(lambda: "instance id 'me'" in (early.leadership_state.error or ""))
        await asyncio.sleep(10)  # longer than a session
        await until_true(lambda: len(led(late)) == 2)  # a busy machine may have stalled it
        assert led(early) == set()


async def test_a_broker_that_is_paused(kafka: KafkaServer, tmp_path: Path) -> None:
    """Without a coordinator no member leads longer than a session; with it, leading resumes."""
    topic = kafka.create_topic("paused", 2)
    async with open_archive(tmp_path / "store") as archive, AsyncExitStack() as exits:
        manager, _ = await start(exits, kafka, topic, archive, group_session_timeout_ms=3_000)
        await until_true(lambda: len(led(manager)) == 2)
        kafka.pause()
        try:
            await until_true(lambda: led(manager) == set())
        finally:
            kafka.resume()
        await until_true(lambda: len(led(manager)) == 2)
        await asyncio.to_thread(produce, kafka.bootstrap, topic, 2, COUNT)
        await until(manager, archived_up_to(topic, {0: COUNT, 1: COUNT}))
        # A busy machine may stall this loop for a session; it then loses the lead, and recovers.
        await until_true(lambda: manager.leadership_state.error is None)


async def test_one_that_was_replaced_in_its_group(kafka: KafkaServer, tmp_path: Path) -> None:
    topic = kafka.create_topic("replaced", 4)
    finished, visible = await meet(
        kafka.bootstrap,
        topic,
        4,
        tmp_path,
        OVERTAKEN_TOO_LATE,
        **group(topic, group_session_timeout_ms=3_000),  # the stopped one is to lose it
    )
    assert finished > visible, "no range was copied twice: this run has shown nothing"
