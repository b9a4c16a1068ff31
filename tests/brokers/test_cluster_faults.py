"""What brokers do wrong, and leaders that move: the caller gets a response or one clear error."""

from __future__ import annotations

import asyncio
import struct
from contextlib import suppress

import pytest
from scripted_broker import TOPIC, TOPIC_ID, ScriptedBroker, serving

from fetchproxy.brokers.cluster import Cluster, FetchedPartition
from fetchproxy.config.schema import ClusterConfig
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.model import IsolationLevel, TopicIdPartition

TP = TopicIdPartition(TOPIC_ID, TOPIC, 0)


def config(bootstrap: str, request_max_ms: int = 5_000) -> ClusterConfig:
    return ClusterConfig(
        bootstrap=bootstrap,
        request_max_ms=request_max_ms,
        frame_bytes_max=4_096,
    )


async def fetch(cluster: Cluster) -> FetchedPartition:
    return await cluster.fetch(
        TP, 0, bytes_max=1_000, wait_max_ms=0, isolation=IsolationLevel.READ_COMMITTED
    )


async def fetch_in_the_end(cluster: Cluster) -> FetchedPartition:
    """A busy machine may need longer for one fetch than `request_max_ms` allows."""
    async with asyncio.timeout(20):
        while True:
            with suppress(ClusterUnavailable):
                return await fetch(cluster)


@pytest.mark.parametrize("error_code", [3, 6, 56, 74, 75, 78, 100, 103])
async def test_a_moved_leader_is_found(error_code: int) -> None:
    old, new = ScriptedBroker(node_id=1, fetch_error=error_code), ScriptedBroker(node_id=2)
    async with serving(old) as bootstrap, serving(new), Cluster(config(bootstrap)) as cluster:
        old.peers = {2: new.port}
        new.peers = {1: old.port}
        await cluster.topic_by_id(TOPIC_ID)  # it still says that node 1 leads
        old.leader = new.leader = 2
        assert (await fetch(cluster)).high_watermark == 102
        assert old.requests.count(1) == 1


async def test_an_election_that_takes_a_while() -> None:
    broker = ScriptedBroker(leader=-1)
    async with serving(broker) as bootstrap, Cluster(config(bootstrap, 5_000)) as cluster:
        async with asyncio.TaskGroup() as group:
            fetching = group.create_task(fetch(cluster))
            await asyncio.sleep(0.2)
            broker.leader = 1
        assert fetching.result().high_watermark == 101


async def test_a_leader_that_never_comes() -> None:
    broker = ScriptedBroker(fetch_error=6)
    async with serving(broker) as bootstrap, Cluster(config(bootstrap, 5_000)) as cluster:
        with pytest.raises(ClusterError) as raised:
            await fetch(cluster)
        assert raised.value.error_code == 6
        assert broker.requests.count(1) > 1


async def test_a_refusal_is_not_retried() -> None:
    broker = ScriptedBroker(fetch_error=29)  # TOPIC_AUTHORIZATION_FAILED
    async with serving(broker) as bootstrap, Cluster(config(bootstrap)) as cluster:
        with pytest.raises(ClusterError) as raised:
            await fetch(cluster)
        assert raised.value.error_code == 29
        assert broker.requests.count(1) == 1


FAULTS = {
    "silence": lambda *_: b"",
    "half a frame": lambda key, version, correlation_id: struct.pack(">ii", 100, correlation_id),
    "2 GiB": lambda key, version, correlation_id: struct.pack(">ii", 2**31 - 1, correlation_id),
    "above the limit": lambda key, version, correlation_id: struct.pack(
        ">ii", 4_097, correlation_id
    ),
    "negative size": lambda key, version, correlation_id: struct.pack(">ii", -1, correlation_id),
    "no room for an id": lambda key, version, correlation_id: struct.pack(">ih", 2, 0),
    "another id": lambda key, version, correlation_id: struct.pack(">ii", 4, correlation_id + 1),
    "garbage": lambda key, version, correlation_id: (
        struct.pack(">ii", 24, correlation_id) + b"\xff" * 20
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("api_key", [18, 3, 1])
async def test_a_broken_answer_is_an_error_in_time(fault: str, api_key: int) -> None:
    broker = ScriptedBroker()
    broken = True

    def override(key: int, version: int, correlation_id: int) -> bytes | None:
        return FAULTS[fault](key, version, correlation_id) if broken and key == api_key else None

    broker.override = override
    async with serving(broker) as bootstrap, Cluster(config(bootstrap, 200)) as cluster:
        with pytest.raises(ClusterError):
            async with asyncio.timeout(20):
                await fetch(cluster)
        broken = False
        assert (await fetch_in_the_end(cluster)).high_watermark == 101


async def test_a_broker_that_closes_every_connection() -> None:
    broker = ScriptedBroker()

    def hang_up(key: int, version: int, correlation_id: int) -> bytes:
        raise ConnectionError

    broker.override = hang_up
    async with serving(broker) as bootstrap, Cluster(config(bootstrap, 30_000)) as cluster:
        with pytest.raises(ClusterUnavailable):
            await cluster.brokers()
        broker.override = None
        assert sorted(await cluster.brokers()) == [1]


async def test_many_callers_ask_once() -> None:
    broker = ScriptedBroker()
    async with serving(broker) as bootstrap, Cluster(config(bootstrap)) as cluster:
        async with asyncio.TaskGroup() as group:
            for _ in range(50):
                group.create_task(cluster.log_offsets(TP))
        assert broker.requests.count(3) == 1
        assert broker.requests.count(2) == 3  # log start, last stable offset, high watermark
        assert broker.requests.count(18) == 1  # one connection


async def test_edges_that_were_asked_for_too_early_do_not_count() -> None:
    """`not_older_than` is about when the request left, not about when its response came."""
    broker = ScriptedBroker()
    loop = asyncio.get_running_loop()
    async with serving(broker) as bootstrap, Cluster(config(bootstrap)) as cluster:
        async with asyncio.TaskGroup() as group:
            group.create_task(cluster.log_offsets(TP))
            while not broker.requests.count(2):  # noqa: ASYNC110 - its requests are under way
                await asyncio.sleep(0)
            group.create_task(cluster.log_offsets(TP, not_older_than=loop.time()))
        assert broker.requests.count(2) == 6
