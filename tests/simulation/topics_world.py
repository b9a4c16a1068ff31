"""Topics and clients come and go, of a process that serves and archives and one that only serves.

Whole processes, in virtual time. Not a test. `census` counts what they hold: objects by type, and
lines of `/metrics`.
"""

from __future__ import annotations

import asyncio
import gc
import heapq
import io
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import _lru_cache_wrapper
from itertools import count
from pathlib import Path
from random import Random
from types import FrameType, TracebackType
from typing import Any, cast
from uuid import uuid4

import pytest
from broker import SimulatedCluster
from broker_log import SimulatedLog
from cachetools import Cache
from client_connection import (
    FETCH_RESPONSE,
    ClientConnection,
    ClientFetchSession,
    FetchEntry,
    metadata_request,
)
from generated_archive import make_batch, random_uuid
from kafka.protocol.consumer.offsets import ListOffsetsRequest, ListOffsetsResponse
from memory_metadata_log import MemoryMetadataLog
from memory_object_store import MemoryObjectStore
from network import Conditions, NetworkLoop, SimulatedNetwork
from prometheus_client import generate_latest
from virtual_loop import START_S, run_virtual

from fetchproxy import app
from fetchproxy.app import LIMITS, Parts, serve
from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import Config, LogConfig, MetadataConfig
from fetchproxy.console.collect import StatusCollector, StatusSources
from fetchproxy.metadata import forgetting
from fetchproxy.metadata.remote_log_metadata_manager import RemoteLogMetadataManager as Rlmm
from fetchproxy.metadata.store_backed import StoreBackedRemoteLogMetadataManager
from fetchproxy.metadata.topic_based import TopicBasedRemoteLogMetadataManager
from fetchproxy.model import TopicIdPartition
from fetchproxy.observability.health import Health
from fetchproxy.observability.logs import RECENT_EVENTS, configure_logging
from fetchproxy.observability.metrics import REGISTRY
from fetchproxy.storage import reader_accounts
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.writing.limits import WritingLimits
from fetchproxy.writing.own_archive import OwnArchive

ARCHIVING, SERVING = ("127.0.0.1", 9192), ("127.0.0.1", 9292)  # gateways
BATCHES, BATCH_OFFSETS, BATCH_BYTES = 3, 10, 200
END = BATCHES * BATCH_OFFSETS
START_MS = 1_700_000_000_000
FETCH_VERSION = 12
CLIENTS_AT_ONCE = 50
WAIT_MAX_S = 600  # virtual
FORGET_INTERVAL_S = 20.0
WRITING = WritingLimits(
    discovery_interval_ms=20_000,
    rlm_process_interval_ms=60_000,
    retention_clock_settle_ms=0,
    topic_deletion_check_interval_ms=20_000,
)


def wall_clock_ms() -> int:
    return START_MS + int((asyncio.get_running_loop().time() - START_S) * 1000)


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(WAIT_MAX_S):
        if condition():
            return
        await asyncio.sleep(1)
    pytest.fail("it does not come about")


def earliest_request(tp: TopicIdPartition) -> tuple[Any, Any, int]:
    of_topic = ListOffsetsRequest.ListOffsetsTopic
    partition = of_topic.ListOffsetsPartition(
        partition_index=tp.partition, current_leader_epoch=-1, timestamp=-2
    )
    topics = [of_topic(name=tp.topic, partitions=[partition])]
    return (
        ListOffsetsRequest(replica_id=-1, isolation_level=0, topics=topics),
        ListOffsetsResponse,
        5,
    )


@dataclass
class TopicsWorld:
    brokers: SimulatedCluster
    store: MemoryObjectStore
    parts: Parts  # of the process that archives
    rng: Random
    numbers: Iterator[int] = field(default_factory=lambda: count(1))  # of the clients

    def make(self, topics: Sequence[str], partitions: int) -> list[SimulatedLog]:
        """Topics with records, on the brokers."""
        made = []
        for topic in topics:
            topic_id = random_uuid(self.rng)
            for partition in range(partitions):
                batches = [
                    make_batch(
                        BATCH_OFFSETS * i,
                        BATCH_OFFSETS,
                        self.rng.randbytes(BATCH_BYTES - 61),
                        timestamp_ms=wall_clock_ms(),
                    )
                    for i in range(BATCHES)
                ]
                tp = TopicIdPartition(topic_id, topic, partition)
                log = SimulatedLog(tp, batches, (), [END] * (BATCHES + 1))
                log.write(BATCHES)
                log.replicate(asyncio.get_running_loop().time())
                self.brokers.add(log)
                made.append(log)
        return made

    async def archived(self, logs: Sequence[SimulatedLog]) -> None:
        """All of it is in the archive, and no longer on the brokers."""

        def are_archived() -> bool:
            statuses = [self.parts.work(log.tp) for log in logs]
            return all(s is not None and s.archive_end == END for s in statuses)

        await until(are_archived)
        # `PartitionDeletion` has to see that the cluster has them.
        await asyncio.sleep(2 * WRITING.topic_deletion_check_interval_ms / 1000)
        for log in logs:
            log.trim(END)
        self.brokers.moved()

    async def delete(self, topics: Sequence[str]) -> None:
        """From the brokers; returns when their archives are deleted too."""
        for topic in topics:
            self.brokers.delete(topic)
        folders = tuple(f"{topic}-" for topic in topics)
        await until(lambda: not any(key.startswith(folders) for key in self.store._objects))

    async def read(self, log: SimulatedLog) -> None:
        """A new client of either process reads the log from its beginning and leaves."""
        number = next(self.numbers)
        gateway = ARCHIVING if number % 2 else SERVING
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}", 0
        _, connection = await asyncio.get_running_loop().create_connection(
            lambda: ClientConnection(f"client-{number}"), *gateway, local_addr=address
        )
        assert isinstance(connection, ClientConnection)
        await connection.ask(*metadata_request([log.tp.topic]))
        earliest = await connection.ask(*earliest_request(log.tp))
        assert earliest.message.topics[0].partitions[0].offset == 0
        session, offset = ClientFetchSession(False), 0
        while offset < END:
            entries = {log.tp: FetchEntry(offset, 1 << 20)}
            limits = {
                "max_wait_ms": 500, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 0,
            }  # fmt: skip
            request, _ = session.request(entries, FETCH_VERSION, limits)
            response = await connection.ask(request, FETCH_RESPONSE, FETCH_VERSION)
            for topic in response.message.responses:
                for partition in topic.partitions:
                    assert not partition.error_code
                    offset += len(partition.records or b"") // BATCH_BYTES * BATCH_OFFSETS
        await connection.close()

    async def clients(self, logs: Sequence[SimulatedLog], each: int) -> None:
        """`each` new clients of every log, some at once."""
        readers = (log for log in logs for _ in range(each))

        async def some() -> None:
            for log in readers:
                await self.read(log)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(CLIENTS_AT_ONCE):
                tasks.create_task(some())

    async def settled(self) -> None:
        """All tables were looked at, with knowledge of store and cluster from after this call."""
        await asyncio.sleep(4 * FORGET_INTERVAL_S)


def census() -> tuple[Counter[str], int]:
    """(objects of this process by type, lines of `/metrics`). Caches that a number or bytes bound
    are emptied before: what is in them does not grow.
    """
    RECENT_EVENTS._ring.clear()
    _remove_cancelled_timers(cast(Any, asyncio.get_running_loop()))
    for one in gc.get_objects():
        # Not `isinstance`: it keeps each class that it has seen.
        if Cache in type(one).__mro__:
            one.clear()
        elif type(one) is _lru_cache_wrapper:
            one.cache_clear()
    lines = generate_latest(REGISTRY).count(b"\n")
    gc.collect()
    # One error that is under way has dozens of the others.
    objects = [one for one in gc.get_objects() if type(one) not in (FrameType, TracebackType)]
    kinds = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in objects)
    return kinds, lines


def _remove_cancelled_timers(loop: Any) -> None:
    """asyncio itself does it when more than a hundred, and more than half, are cancelled."""
    for timer in loop._scheduled:
        timer._scheduled = not timer.cancelled()
    loop._scheduled = [timer for timer in loop._scheduled if timer._scheduled]
    heapq.heapify(loop._scheduled)
    loop._timer_cancelled_count = 0


def run_topics(
    main: Callable[[TopicsWorld], Awaitable[None]], monkeypatch: pytest.MonkeyPatch, manager: str
) -> None:
    """`manager`: "store" or "topic". One topic, `stays`, is always there."""
    loops: list[NetworkLoop] = []

    def new_loop() -> NetworkLoop:
        loops.append(NetworkLoop())
        return loops[-1]

    configure_logging(LogConfig(level="error"), io.StringIO())
    monkeypatch.setattr(app, "wall_clock_ms", wall_clock_ms)
    monkeypatch.setattr(forgetting, "FORGET_INTERVAL_S", FORGET_INTERVAL_S)
    monkeypatch.setattr(reader_accounts, "FORGOTTEN_AFTER_S", FORGET_INTERVAL_S)
    monkeypatch.setattr(reader_accounts, "LOOK_INTERVAL_S", FORGET_INTERVAL_S)

    async def whole() -> None:
        loops[-1].network = network = SimulatedNetwork(Random(1), Conditions())
        brokers = SimulatedCluster(network, Random(2), [], nodes=1)
        brokers.topic_configs["stays"] = {}
        store, log = MemoryObjectStore(), MemoryMetadataLog() if manager == "topic" else None
        with tempfile.TemporaryDirectory() as folder:
            async with (
                brokers.serving(),
                _process(ARCHIVING, brokers, store, log, Path(folder)) as parts,
                _process(SERVING, brokers, store, log, None),
            ):
                world = TopicsWorld(brokers, store, parts, Random(6))
                await world.archived(world.make(["stays"], 1))
                await main(world)

    run_virtual(whole, new_loop)


@asynccontextmanager
async def _process(
    gateway: tuple[str, int],
    brokers: SimulatedCluster,
    store: MemoryObjectStore,
    log: MemoryMetadataLog | None,
    spool: Path | None,
) -> AsyncIterator[Parts]:
    """`log`: the metadata topic, if there is one. `spool` None: it only serves."""
    archive = {
        "topics": "stays|passing-.*",
        "spool_dir": spool,
        "segment_age_max_ms": 1_000,
        "topic_deletion": "delete-all",
        "topic_deletion_grace_ms": 0,
    }
    config = Config.model_validate(
        {
            "cluster": {"bootstrap": brokers.bootstrap, "request_max_ms": 2_000},
            "gateway": {"listen": f"{gateway[0]}:{gateway[1]}"},
            "store": {"url": "file:///nowhere"},
            "archive": archive if spool else {},
        }
    )
    async with (
        RemoteStorage(store) as storage,
        Cluster(config.cluster, Random(4)) as cluster,
        _metadata(log, storage) as rlmm,
        asyncio.TaskGroup() as tasks,
    ):
        archives, health = spool is not None, Health()
        own_archive = OwnArchive(
            config, storage, rlmm, cluster, uuid4, archives=archives, create=archives, health=health
        )
        await own_archive.at_start()
        limits = replace(LIMITS, writing=WRITING)
        parts = Parts(config, limits, storage, rlmm, cluster, own_archive, health, Random(5), True)
        running = [tasks.create_task(serve(parts))]
        if archives:  # the other one asks the brokers for nothing but what its clients need
            running.append(tasks.create_task(_collector(parts).run()))
        yield parts
        for task in running:
            task.cancel()


def _metadata(
    log: MemoryMetadataLog | None, storage: RemoteStorage
) -> AbstractAsyncContextManager[Rlmm]:
    if log is None:
        return StoreBackedRemoteLogMetadataManager(storage, MetadataConfig(), collects=True)
    return TopicBasedRemoteLogMetadataManager(log, storage, MetadataConfig(), wall_clock_ms)


def _collector(parts: Parts) -> StatusCollector:
    around = StatusSources(
        mode=parts.mode, health=parts.health, listeners=parts.listeners,
        brokers=parts.brokers.status, work=parts.work, archiver=parts.archiver,
        published_conditions=parts.published_conditions, consumer_paces=parts.consumer_paces,
    )  # fmt: skip
    return StatusCollector(
        parts.config, parts.storage, parts.rlmm, parts.cluster, around, limits=parts.limits.console
    )
