"""Large answers of the tail: copied or spliced, their records are the broker's."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from proxy_process import ProxyProcess
from raw_fetch import RawConnection
from topic_data import TopicData, produce

from lab.kafka import KafkaServer

pytestmark = [
    pytest.mark.kafka,
    pytest.mark.skipif(not hasattr(os, "splice"), reason="no splice on this system"),
]

TOPIC, PARTITIONS = "spliced", 3
RESPONSE_BYTES_MIN = 4 << 20
Responses = dict[int, list[tuple[int, bytes]]]  # by version: (partition, records)


@pytest.fixture(scope="module")
def proxy(
    kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    kafka_server.create_topic(TOPIC, PARTITIONS)
    produce(kafka_server.bootstrap, TopicData(TOPIC), 400, partition_count=PARTITIONS, size=5_000)
    folder: Path = tmp_path_factory.mktemp("spliced")
    with ProxyProcess(kafka_server.bootstrap, (folder / "store").as_uri(), folder) as running:
        yield running


def responses(connection: RawConnection, topic_id: UUID) -> Responses:
    """Two answers of each version: leftovers of the first would show in the second."""
    by_version: Responses = {}
    for version in (4, 6, 7, 11, 12, 13, 16, 17):
        for _ in range(2):
            response = connection.fetch_response(
                version,
                TOPIC,
                topic_id if version >= 13 else None,
                dict.fromkeys(range(PARTITIONS), 0),
                bytes_max=8 << 20,
            )
            by_version.setdefault(version, []).extend(
                (p.partition_index, bytes(p.records)) for p in response.responses[0].partitions
            )
    return by_version


def test_records_are_the_brokers_own(proxy: ProxyProcess, kafka_server: KafkaServer) -> None:
    with (
        RawConnection(kafka_server.bootstrap) as direct,
        RawConnection(proxy.bootstrap) as through,
    ):
        topic_id = direct.topic_id(TOPIC)
        expected = responses(direct, topic_id)
        assert all(
            sum(len(records) for _, records in of_one) > RESPONSE_BYTES_MIN
            for of_one in expected.values()
        )
        assert responses(through, topic_id) == expected
    size = sum(len(records) for of_one in expected.values() for _, records in of_one)
    assert proxy.metric("fetchproxy_spliced_bytes_total") > size / 2


def test_clients_that_take_turns_and_one_that_is_slow(
    proxy: ProxyProcess, kafka_server: KafkaServer
) -> None:
    """All clients share one pipe: none gets another client's bytes."""
    with RawConnection(kafka_server.bootstrap) as direct:
        topic_id = direct.topic_id(TOPIC)
        expected = responses(direct, topic_id)
    responses_read: list[Responses] = []

    def read(slow: bool) -> None:
        with RawConnection(proxy.bootstrap, receive_bytes_max=20_000 if slow else None) as through:
            responses_read.append(responses(through, topic_id))

    readers = [threading.Thread(target=read, args=(i == 0,)) for i in range(4)]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    assert [response == expected for response in responses_read] == [True] * 4
