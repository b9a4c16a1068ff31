"""APIs that pass unchanged: the response through the proxy is the broker's own, byte for byte."""

from __future__ import annotations

import pytest
from archived_topics import new_topic
from kafka.protocol.admin import (
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
)
from proxy_process import ProxyProcess
from raw_fetch import RawConnection
from topic_data import produce

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka


def describe_topic_partitions(bootstrap: str, topic: str) -> bytes:
    """The whole response, without its size prefix."""
    request = DescribeTopicPartitionsRequest(
        topics=[DescribeTopicPartitionsRequest.TopicRequest(name=topic)],
        response_partition_limit=100,
        cursor=None,
    )
    request.API_VERSION = 0
    request.with_header(correlation_id=7, client_id="raw")
    with RawConnection(bootstrap) as raw:
        raw.send(request.encode(header=True, framed=True))
        return raw.receive()


def test_describe_topic_partitions(kafka_server: KafkaServer, proxy: ProxyProcess) -> None:
    """Java's admin client and `kafka-topics --describe` use this; it names nodes by id only."""
    data = new_topic(kafka_server, "described", 3)
    produce(kafka_server.bootstrap, data, 10, partition_count=3)
    direct = describe_topic_partitions(kafka_server.bootstrap, "described")
    assert describe_topic_partitions(proxy.bootstrap, "described") == direct
    decoded = DescribeTopicPartitionsResponse[0].decode(direct, header=True)
    [topic] = decoded.topics
    assert (topic.error_code, len(topic.partitions)) == (0, 3)
