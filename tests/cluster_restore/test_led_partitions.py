"""What a follower hears, and which of its fetches is a proof: real requests of kafka-python."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.fetch import parse_fetch_request
from fetchproxy_protocol.headers import peek_request_header, request_header
from fetchproxy_protocol.list_offsets import EARLIEST, LATEST
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse

from fetchproxy.brokers.messages import body_of
from fetchproxy.cluster_restore.led_partitions import FetchResponse as Answer
from fetchproxy.cluster_restore.led_partitions import LedPartitions

TOPIC, TOPIC_ID, START = "orders", uuid.UUID(int=77), 5_000_000_000
VERSIONS = range(12, 18)  # kafka-python's latest; v18 adds a tag to the request


def fetched(
    led: LedPartitions, version: int, offset: int, *, log_start: int, replica: int = 3
) -> tuple[Any, Answer]:
    topic = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=replica,
        replica_state=FetchRequest.ReplicaState(replica_id=replica, replica_epoch=9),
        max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        session_id=0, session_epoch=0,
        topics=[topic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[topic.FetchPartition(
            partition=1, current_leader_epoch=2, fetch_offset=offset, last_fetched_epoch=-1,
            log_start_offset=log_start, partition_max_bytes=1 << 20)])],
        forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    payload = request_header(ApiKey.FETCH, version, 8, "broker-3-fetcher-0")
    payload += request.encode(version=version)
    head = peek_request_header(payload)
    answer = led.fetched(parse_fetch_request(payload, head.body_position))
    response = body_of(FetchResponse, memoryview(answer.frame)[4:], version)
    [row] = response.responses[0].partitions
    return row, answer


@pytest.fixture
def led() -> LedPartitions:
    partitions = LedPartitions()
    partitions.lead(TOPIC, TOPIC_ID, {1: START})
    return partitions


@pytest.mark.parametrize("version", VERSIONS)
def test_a_follower_elsewhere_hears_that_it_is_out_of_range(
    led: LedPartitions, version: int
) -> None:
    row, answer = fetched(led, version, 0, log_start=0)
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert (row.high_watermark, row.log_start_offset) == (-1, -1)
    assert answer.is_news
    assert not led.placed((TOPIC, 1))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_at_the_start_of_a_log_that_begins_there_is_the_proof(
    led: LedPartitions, version: int
) -> None:
    row, first = fetched(led, version, START, log_start=START)
    assert row.error_code == 0
    assert (row.high_watermark, row.log_start_offset) == (START, START)
    assert led.placed((TOPIC, 1)) == {3}
    assert first.is_news
    assert not fetched(led, version, START, log_start=START)[1].is_news


def test_a_log_that_begins_lower_proves_nothing(led: LedPartitions) -> None:
    fetched(led, 17, START, log_start=0)
    assert not led.placed((TOPIC, 1))


def test_a_consumer_proves_nothing(led: LedPartitions) -> None:
    fetched(led, 14, START, log_start=START, replica=-1)
    assert not led.placed((TOPIC, 1))


def test_an_unknown_topic_is_an_error(led: LedPartitions) -> None:
    assert fetched(LedPartitions(), 17, 0, log_start=0)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    by_name, _ = fetched(LedPartitions(), 12, 0, log_start=0)
    assert by_name.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_both_ends_of_the_log_are_its_start(led: LedPartitions) -> None:
    requested = [((TOPIC, 1), LATEST), ((TOPIC, 1), EARLIEST), ((TOPIC, 4), LATEST)]
    [topic] = led.listed(requested)["topics"]
    rows = [(row["error_code"], row.get("offset")) for row in topic["partitions"]]
    assert rows == [(0, START), (0, START), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)]
