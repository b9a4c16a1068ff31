"""A topic that the proxy's own user may not describe: what the broker says of it passes."""

from __future__ import annotations

import pytest
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from proxy_process import ProxyProcess, wait_for
from secured_clients import SaslConnection
from topic_data import TopicData, produce, trim

from lab.secured_kafka import SecuredKafka

pytestmark = pytest.mark.kafka

EARLIEST, MAX_TIMESTAMP = -2, -3
LOG_START = 120


@pytest.fixture(scope="module")
def undescribed(secured: SecuredKafka) -> TopicData:
    """The broker has its end alone; alice reads it, and nobody else knows of it."""
    data = TopicData(secured.create_topic("undescribed-look-ups"))
    produce(secured.bootstrap, data, 200)
    trim(secured.bootstrap, data.topic, {0: LOG_START})
    secured.allow("alice", data.topic, "READ")
    return data


def offset_at(connection: SaslConnection, topic: str, timestamp: int) -> tuple[int, int]:
    """(error code, offset)."""
    request_topic = ListOffsetsRequest.ListOffsetsTopic
    place = request_topic.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=0, topics=[request_topic(name=topic, partitions=[place])]
    )
    request.API_VERSION = 7
    [partition_response] = connection.ask(request, ListOffsetsResponse, 7).topics[0].partitions
    return partition_response.error_code, partition_response.offset


def end_of_epoch(connection: SaslConnection, topic: str) -> tuple[int, int, int]:
    request_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    place = request_topic.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=-1, leader_epoch=0
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=-1, topics=[request_topic(topic=topic, partitions=[place])]
    )
    request.API_VERSION = 4
    response = connection.ask(request, OffsetForLeaderEpochResponse, 4)
    [partition_response] = response.topics[0].partitions
    return (
        partition_response.error_code,
        partition_response.leader_epoch,
        partition_response.end_offset,
    )


def test_the_brokers_answers_pass_with_one_warning(
    undescribed: TopicData, secured: SecuredKafka, proxy: ProxyProcess
) -> None:
    name = undescribed.topic
    with (
        SaslConnection(secured.sasl, "alice") as direct,
        SaslConnection(proxy.bootstrap, "alice") as alice,
    ):
        for timestamp in (EARLIEST, 0, MAX_TIMESTAMP, 2**60):
            assert offset_at(alice, name, timestamp) == offset_at(direct, name, timestamp)
        assert offset_at(alice, name, EARLIEST) == (0, LOG_START)
        assert end_of_epoch(alice, name) == end_of_epoch(direct, name)
    warned = [line for line in proxy.logged("topic_not_described") if line["topic"] == name]
    assert len(warned) == 1


@pytest.mark.parametrize("version", [12, 16])
def test_a_fetch_shows_the_brokers_log_start(
    undescribed: TopicData, secured: SecuredKafka, proxy: ProxyProcess, version: int
) -> None:
    with (
        SaslConnection(secured.sasl, "alice") as direct,
        SaslConnection(proxy.bootstrap, "alice") as alice,
    ):
        topic_id = direct.topic_id(undescribed.topic) if version >= 13 else None

        def log_start_shown(by: SaslConnection) -> int:
            return by.fetch(version, undescribed.topic, topic_id, LOG_START).log_start_offset

        assert log_start_shown(direct) == LOG_START
        wait_for("it to be looked up", lambda: log_start_shown(alice) == LOG_START)
