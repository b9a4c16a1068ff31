"""The metadata topic on a real broker: the log's contract, and the checks of its settings."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from metadata_log_contract import MetadataLogContract, read_all

from fetchproxy.brokers.cluster import Cluster
from fetchproxy.config.schema import ClusterConfig, MetadataConfig
from fetchproxy.errors import ConfigError, RemoteStorageError, StorageUnavailable
from fetchproxy.metadata.metadata_topic import SETTINGS, KafkaMetadataLog, settings_fault
from lab.kafka import KafkaServer

_numbers = itertools.count(1)


def unused_name() -> str:
    return f"__remote_log_metadata_{next(_numbers)}"


@asynccontextmanager
async def log_on(
    kafka: KafkaServer, name: str, partitions: int = 3, replicas: int = 1
) -> AsyncIterator[KafkaMetadataLog]:
    cluster_config = ClusterConfig(bootstrap=kafka.bootstrap)
    config = MetadataConfig(
        topic_name=name, topic_partitions=partitions, topic_replication_factor=replicas
    )
    async with Cluster(cluster_config) as cluster:
        yield KafkaMetadataLog(cluster, cluster_config, config, lambda: 1_700_000_000_000)


@pytest.mark.kafka
class TestKafkaMetadataLog(MetadataLogContract):
    @pytest.fixture
    async def metadata_log(self, kafka_server: KafkaServer) -> AsyncIterator[KafkaMetadataLog]:
        async with log_on(kafka_server, unused_name()) as metadata_log:
            await metadata_log.open()
            yield metadata_log


@pytest.mark.kafka
async def test_it_is_created_so_that_it_keeps_all(kafka_server: KafkaServer) -> None:
    name = unused_name()
    async with log_on(kafka_server, name, partitions=5) as metadata_log:
        opened = await metadata_log.open()
        assert (opened.name, len(opened.leaders)) == (name, 5)
    async with Cluster(ClusterConfig(bootstrap=kafka_server.bootstrap)) as cluster:
        topic = await cluster.topic_by_name(name)
        assert topic.topic_id == opened.topic_id
        settings = await cluster.topic_config(name)
        assert {key: settings[key] for key in SETTINGS} == SETTINGS


@pytest.mark.kafka
async def test_of_two_that_create_it_at_once_both_have_it(kafka_server: KafkaServer) -> None:
    name = unused_name()
    async with log_on(kafka_server, name) as one, log_on(kafka_server, name) as two:
        first, second = await asyncio.gather(one.open(), two.open())
        assert first == second
        await one.append(0, b"from one")
        assert await read_all(two, 0) == [b"from one"]


@pytest.mark.kafka
@pytest.mark.parametrize(
    "wrong",
    [
        {"cleanup.policy": "compact"},
        {"cleanup.policy": "compact,delete", "retention.ms": "-1"},
        {"retention.ms": "604800000"},
        {"retention.ms": "-1", "retention.bytes": "1000000"},
    ],
)
async def test_settings_that_lose_events_are_refused_with_the_command(
    kafka_server: KafkaServer, wrong: dict[str, str]
) -> None:
    name = kafka_server.create_topic(unused_name(), 3, wrong)
    async with log_on(kafka_server, name) as metadata_log:
        with pytest.raises(ConfigError) as refused:
            await metadata_log.open()
        message = str(refused.value)
        assert f"kafka-configs.sh --alter --entity-type topics --entity-name {name}" in message
        assert message.endswith(f"--bootstrap-server {kafka_server.bootstrap}")
        bad = {key for key, right in SETTINGS.items() if wrong.get(key, right) != right}
        for key in bad:
            assert f"{key}={SETTINGS[key]}" in message
        with pytest.raises(StorageUnavailable, match="not opened"):
            await metadata_log.append(0, b"never")


@pytest.mark.kafka
async def test_another_number_of_partitions_is_refused(kafka_server: KafkaServer) -> None:
    name = kafka_server.create_topic(unused_name(), 2, SETTINGS)
    async with log_on(kafka_server, name, partitions=3) as metadata_log:
        with pytest.raises(ConfigError, match=r"has 2 partitions.*metadata.topic_partitions=2"):
            await metadata_log.open()
    async with log_on(kafka_server, name, partitions=2) as metadata_log:
        assert len((await metadata_log.open()).leaders) == 2


@pytest.mark.kafka
async def test_more_replicas_than_brokers_are_refused_in_the_brokers_words(
    kafka_server: KafkaServer,
) -> None:
    async with log_on(kafka_server, unused_name(), replicas=3) as metadata_log:
        with pytest.raises(ConfigError, match="cannot be created"):
            await metadata_log.open()


async def test_brokers_that_are_away_are_an_outage() -> None:
    cluster_config = ClusterConfig(bootstrap="127.0.0.1:1", request_max_ms=200)
    async with Cluster(cluster_config) as cluster:
        metadata_log = KafkaMetadataLog(cluster, cluster_config, MetadataConfig(), lambda: 0)
        with pytest.raises(RemoteStorageError, match="topic __remote_log_metadata"):
            await metadata_log.open()


def test_what_the_broker_does_not_tell_is_not_held_against_it() -> None:
    assert settings_fault("events", {}) is None
    assert settings_fault("events", {"cleanup.policy": " delete ", "retention.ms": "-1"}) is None
