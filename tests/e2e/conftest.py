"""One proxy over a file store for tests that do not change it, and topics archived by it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from archived_topics import SETTINGS, MakeReplayed, archive_and_trim
from folder_fixture import folder_fixture
from proxy_process import ProxyProcess
from topic_data import TopicData, produce

from lab.kafka import KafkaServer


@folder_fixture
def e2e_store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("e2e-store").as_uri()


@folder_fixture
def proxy(
    kafka_server: KafkaServer, e2e_store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    """Archives every topic named `e2e-…`. Never stop it, and never touch its store."""
    folder = tmp_path_factory.mktemp("e2e-proxy")
    with ProxyProcess(
        kafka_server.bootstrap, e2e_store, folder, archive="e2e-.*", settings=SETTINGS
    ) as process:
        yield process
        assert process.running, process.log_text()[-4000:]
        crashed = process.logged("session_crashed") + process.logged("part_failed")
        assert not crashed, crashed[0]


@folder_fixture
def replayed(kafka_server: KafkaServer, e2e_store: str, proxy: ProxyProcess) -> MakeReplayed:
    """`replayed("lz4", 4)`: a topic whose first records are only in the archive, made once."""
    made: dict[str, TopicData] = {}

    def make(codec: str, partition_count: int = 1) -> TopicData:
        name = f"e2e-replay-{codec}-{partition_count}"
        if name not in made:
            kafka_server.create_topic(name, partition_count)
            data = made[name] = TopicData(name)
            produce(
                kafka_server.bootstrap,
                data,
                1200,
                partition_count=partition_count,
                compression=codec,
            )
            archive_and_trim(kafka_server.bootstrap, e2e_store, data)
        return made[name]

    return make
