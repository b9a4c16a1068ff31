"""Topic-based managers on a real broker, each with its own connections."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from memory_object_store import MemoryObjectStore
from metadata_contract import OTHER, TP, State, copied, now, segment
from scripted_metadata_log import ScriptedMetadataLog
from scripted_store import ScriptedStore
from topic_backing import PARTITIONS, Manager, TopicBacking, TopicContract

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig, MetadataConfig
from fetchproxy.errors import RemoteStorageError
from fetchproxy.metadata.metadata_topic import KafkaMetadataLog
from fetchproxy.storage.remote_storage import RemoteStorage
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

_numbers = itertools.count(1)


class KafkaBacking(TopicBacking):
    """A separate metadata topic on a real broker."""

    def __init__(self, kafka: KafkaServer, store: ScriptedStore) -> None:
        super().__init__(store)
        self.cluster_config = ClusterConfig(bootstrap=kafka.bootstrap, request_max_ms=30_000)
        self.settings = MetadataConfig(
            topic_name=f"__metadata_of_managers_{next(_numbers)}",
            topic_partitions=PARTITIONS,
            topic_replication_factor=1,
        )

    @asynccontextmanager
    async def manager(  # type: ignore[override]  # the decorated one is the same to its callers
        self, config: MetadataConfig | None = None, storage: RemoteStorage | None = None
    ) -> AsyncIterator[Manager]:
        chosen = self.settings.model_copy(
            update={} if config is None else {"cache_dir": config.cache_dir}
        )
        async with Cluster(self.cluster_config) as cluster:
            log = KafkaMetadataLog(cluster, self.cluster_config, chosen, lambda: 1)
            scripted = ScriptedMetadataLog(log, self.script)
            async with Manager(scripted, storage or self.storage, chosen, lambda: 17) as manager:
                yield manager


class TestOnKafka(TopicContract):
    @pytest.fixture
    async def backing(self, kafka_server: KafkaServer) -> AsyncIterator[TopicBacking]:
        async with ScriptedStore(MemoryObjectStore()) as store:
            yield KafkaBacking(kafka_server, store)


@pytest.fixture
async def backing(module_kafka_server: KafkaServer) -> AsyncIterator[KafkaBacking]:
    async with ScriptedStore(MemoryObjectStore()) as store:
        yield KafkaBacking(module_kafka_server, store)


async def test_two_instances_over_a_restart_of_the_broker(
    backing: KafkaBacking, module_kafka_server: KafkaServer
) -> None:
    # The broker's absence is noticed after this time.
    backing.cluster_config = ClusterConfig(
        bootstrap=module_kafka_server.bootstrap, request_max_ms=10_000
    )
    async with backing.manager() as one, backing.manager() as two:
        first = await copied(one, segment(1, 0, 9))
        assert tuple((await two.refresh(TP, now())).segments) == (first,)
        module_kafka_server.kill()
        before = two.view(TP)
        failures = await asyncio.gather(
            two.refresh(TP, now()), one.put(segment(2, 10, 19)), return_exceptions=True
        )
        assert all(isinstance(failure, RemoteStorageError) for failure in failures), failures
        assert two.view(TP) is before
        module_kafka_server.start()
        assert tuple((await two.refresh(TP, now())).segments) == (first,)
        second = await copied(two, segment(2, 10, 19))
        assert tuple((await one.refresh(TP, now())).segments) == (first, second)
        await one.put(second.with_state(State.DELETE_SEGMENT_STARTED, 3))
        assert tuple((await two.refresh(TP, now())).segments) == (first,)


async def test_a_restart_with_a_cache_reads_only_what_is_new(
    backing: KafkaBacking, tmp_path: Path
) -> None:
    async with backing.manager() as other:
        async with backing.cached(tmp_path) as manager:
            for n in range(5):
                await copied(manager, segment(n, 10 * n, 10 * n + 9))
            await copied(manager, segment(10, 0, 9, tp=OTHER))
        await copied(other, segment(5, 50, 59))
        for torn in (False, True):
            if torn:
                (file,) = tmp_path.rglob("0-*.remote-log-metadata")
                file.write_bytes(file.read_bytes()[:-5])
            read_before = backing.script.values_read
            async with backing.cached(tmp_path) as again:
                view = await again.refresh(TP, now())
                assert tuple(view.segments) == tuple((await other.refresh(TP, now())).segments)
                assert len(view.segments) == 6
                # The two events of `other`: first they are new, then they are in the torn write.
                assert backing.script.values_read == read_before + 2
            assert (await other.refresh(OTHER, now())).log_end_offset == 10
