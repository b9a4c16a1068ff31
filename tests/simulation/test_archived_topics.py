"""How often the topics that clients read are looked up, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from random import Random
from uuid import UUID

import pytest
from broker import SimulatedCluster
from calm_replay import whole_logs
from memory_object_store import MemoryObjectStore
from network import Conditions, NetworkLoop, SimulatedNetwork
from virtual_loop import run_virtual

from fetchproxy.brokers.cluster import Cluster, TopicInfo
from fetchproxy.config.schema import ClusterConfig, MetadataConfig
from fetchproxy.errors import ClusterError
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.serving.gateway.served_archive import (
    LISTED_TOPICS_AT_ONCE,
    LOOK_UPS_A_CLIENT,
    LOOK_UPS_AT_ONCE,
    ArchivedKnowledge,
    ArchivedTopics,
    TopicName,
    TopicsOfConnection,
)
from fetchproxy.storage.continued_topics import ContinuedTopics
from fetchproxy.storage.remote_storage import RemoteStorage

LOOKS = 10


@asynccontextmanager
async def opened(
    loop: NetworkLoop,
    clock: Callable[[], float],
    max_age_s: float = 3_600,
    cluster_type: type[Cluster] = Cluster,
) -> AsyncIterator[ArchivedTopics]:
    """`run` is the caller's to call. The cluster has the topic `weather`."""
    loop.network = network = SimulatedNetwork(Random(1), Conditions())
    brokers = SimulatedCluster(network, Random(2), whole_logs(Random(7), 1, 1), nodes=1)
    storage = RemoteStorage(MemoryObjectStore())
    async with (
        brokers.serving(),
        cluster_type(ClusterConfig(bootstrap=brokers.bootstrap), Random(3)) as cluster,
        StoreBackedRemoteLogMetadataManager(storage, MetadataConfig()) as rlmm,
    ):
        knowledge = ArchivedKnowledge(
            rlmm, ContinuedTopics(), loop.time, SparingWarnings(loop.time)
        )
        yield ArchivedTopics(cluster, rlmm, knowledge, clock, max_age_s)


@pytest.mark.parametrize("max_age_s", [0.25, 0.3, 30.0])
def test_a_topic_is_looked_up_once_in_its_time(max_age_s: float) -> None:
    """As floats, 1000 + 0.3 - 1000 is less than 0.3: the loop must not spin over that remainder."""
    loops: list[NetworkLoop] = []
    looked_at: list[float] = []

    def new_loop() -> NetworkLoop:
        loops.append(NetworkLoop())
        return loops[-1]

    def clock() -> float:
        assert len(looked_at) <= 2 * LOOKS, "it goes round and round"
        looked_at.append(loops[-1].time())
        return looked_at[-1]

    async def main() -> None:
        async with opened(loops[-1], clock, max_age_s) as archived:
            TopicsOfConnection(archived).note({(b"weather", 0)}, by_id=False, only_these=True)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout((LOOKS - 0.5) * max_age_s):
                    await archived.run()

    run_virtual(main, new_loop)
    assert len(looked_at) == LOOKS
    waits = [later - before for before, later in itertools.pairwise(looked_at)]
    assert waits == pytest.approx([max_age_s] * (LOOKS - 1))


def test_clients_with_many_names_hold_up_nobody_and_leave_nothing() -> None:
    """Names are looked up some at a time, each client's in turn, and a join costs by its own."""
    requests: list[set[str | UUID]] = []

    class CountingCluster(Cluster):
        async def topics_of(
            self, keys: Collection[str | UUID], max_age_ms: int | None = None
        ) -> dict[str | UUID, TopicInfo | ClusterError]:
            requests.append(set(keys))
            return await super().topics_of(keys, max_age_ms)

    loop = NetworkLoop()

    async def main() -> None:
        async with (
            opened(loop, loop.time, cluster_type=CountingCluster) as archived,
            asyncio.TaskGroup() as tasks,
        ):
            clients = [TopicsOfConnection(archived) for _ in range(4)]
            for number, client in enumerate(clients):
                names = {(b"made-up-%d-%d" % (number, n), 0) for n in range(2_000)}
                client.note(names, by_id=False, only_these=True)
            running = tasks.create_task(archived.run())
            await asyncio.sleep(0)
            ordinary = TopicsOfConnection(archived)
            ordinary.note({(b"weather", 0)}, by_id=False, only_these=True)
            while sum(map(len, requests)) < 8_001:  # noqa: ASYNC110 - virtual time
                await asyncio.sleep(0.1)
            running.cancel()
            for client in (*clients, ordinary):
                client.leave()
            assert not archived._clients_of
            assert not archived._read_at
            assert not archived.starts

    run_virtual(main, lambda: loop)
    assert max(map(len, requests)) <= LOOK_UPS_AT_ONCE + LOOK_UPS_A_CLIENT
    assert any("weather" in names for names in requests[:2])
    assert sum(map(len, requests)) == 8_001, "each is looked up once"


def test_a_client_with_very_many_names_comes_and_leaves_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is done for all of its names in one turn, neither for its answers nor at its end."""
    forgotten: list[int] = []
    joined: list[int] = []
    forget, join = ArchivedTopics._forget, ArchivedTopics._join

    def counted_join(
        topics: ArchivedTopics, client: TopicsOfConnection, names: Sequence[TopicName]
    ) -> None:
        joined.append(len(names))
        join(topics, client, names)

    def counted(topics: ArchivedTopics, names: Sequence[TopicName]) -> None:
        forgotten.append(len(names))
        forget(topics, names)

    monkeypatch.setattr(ArchivedTopics, "_forget", counted)
    monkeypatch.setattr(ArchivedTopics, "_join", counted_join)
    loop = NetworkLoop()
    count = 2 * LISTED_TOPICS_AT_ONCE + 10

    async def main() -> None:
        async with opened(loop, loop.time) as archived:
            client, other = TopicsOfConnection(archived), TopicsOfConnection(archived)
            client.note({(b"made-up-%d" % n, 0) for n in range(count)}, False, only_these=True)
            other.note({(b"made-up-0", 0)}, by_id=False, only_these=True)
            archived.starts |= {(False, b"made-up-0"): None, (False, b"made-up-1"): lambda _: 7}
            starts = client.log_starts()
            assert starts is not None
            assert b"made-up-0" not in starts, "it has no archive"
            assert starts[b"made-up-1"](0) == 7
            assert starts[b"made-up-2"](0) == -1, "it is not known"
            assert b"weather" not in starts
            client.leave()
            assert not forgotten or max(forgotten) == 0, "the client's end itself costs nothing"
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(10):
                    await archived.run()
            assert set(archived._clients_of) == {(False, b"made-up-0")}
            assert set(archived.starts) <= {(False, b"made-up-0")}

    run_virtual(main, lambda: loop)
    assert sum(forgotten) == count
    assert max(forgotten) <= LISTED_TOPICS_AT_ONCE
    assert sum(joined) == count + 1
    assert max(joined) <= LISTED_TOPICS_AT_ONCE


def test_a_connection_that_names_no_topic_costs_no_look() -> None:
    looks = 0
    loop = NetworkLoop()

    def clock() -> float:
        nonlocal looks
        looks += 1
        return loop.time()

    async def main() -> None:
        async with opened(loop, clock) as archived, asyncio.TaskGroup() as tasks:
            running = tasks.create_task(archived.run())
            for _ in range(100):
                TopicsOfConnection(archived).leave()
                await asyncio.sleep(0.01)
            running.cancel()

    run_virtual(main, lambda: loop)
    assert looks == 1, "at its start"
