"""What a follower hears, and which of its fetches is a proof: real requests of kafka-python."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.fetch import FetchRequest as WireRequest
from fetchproxy_protocol.fetch import parse_fetch_request
from fetchproxy_protocol.headers import peek_request_header, request_header
from fetchproxy_protocol.list_offsets import EARLIEST, LATEST
from kafka.protocol.consumer.fetch import FetchRequest, FetchResponse

from fetchproxy.brokers.messages import body_of
from fetchproxy.cluster_restore.led_partitions import FetchResponse as Answer
from fetchproxy.cluster_restore.led_partitions import (
    LedLog,
    LedPartitions,
    NeededRecords,
    Records,
)
from fetchproxy.model import EpochStart
from fetchproxy.runtime.cooperative import at_once

TOPIC, TOPIC_ID, START = "orders", uuid.UUID(int=77), 5_000_000_000
VERSIONS = range(12, 18)  # kafka-python's latest; v18 adds a tag to the request


def request_of(
    version: int,
    offset: int,
    *,
    log_start: int,
    replica: int = 3,
    last_epoch: int = -1,
    leader_epoch: int = 6,
) -> WireRequest:
    topic = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=replica,
        replica_state=FetchRequest.ReplicaState(replica_id=replica, replica_epoch=9),
        max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        session_id=0, session_epoch=0,
        topics=[topic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[topic.FetchPartition(
            partition=1, current_leader_epoch=leader_epoch, fetch_offset=offset,
            last_fetched_epoch=last_epoch,
            log_start_offset=log_start, partition_max_bytes=1 << 20)])],
        forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    payload = request_header(ApiKey.FETCH, version, 8, "broker-3-fetcher-0")
    payload += request.encode(version=version)
    head = peek_request_header(payload)
    return parse_fetch_request(payload, head.body_position)


def fetched(
    led: LedPartitions, version: int, offset: int, *, records: bytes = b"", **more: int
) -> tuple[Any, Answer]:
    """`records`: what the archive has for it. `more`: of `request_of`."""
    archived = {(TOPIC, 1): Records([records[:9], records[9:]], len(records))} if records else {}
    answer = at_once(led.fetched(request_of(version, offset, **more), archived))
    response = body_of(FetchResponse, memoryview(b"".join(answer.pieces))[4:], version)
    [row] = response.responses[0].partitions
    return row, answer


@pytest.fixture
def led() -> LedPartitions:
    partitions = LedPartitions()
    partitions.lead(TOPIC, TOPIC_ID, {1: LedLog(START, START)})
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


def test_who_is_no_broker_proves_nothing() -> None:
    """Else a stranger could make names up for ever."""
    brokers_only = LedPartitions((1, 2, 3))
    brokers_only.lead(TOPIC, TOPIC_ID, {1: LedLog(START, START)})
    for replica in (0, 4, 2**31 - 1):
        fetched(brokers_only, 14, START, log_start=START, replica=replica)
    assert not brokers_only.placed((TOPIC, 1))
    fetched(brokers_only, 14, START, log_start=START, replica=3)
    assert brokers_only.placed((TOPIC, 1)) == {3}


def test_an_unknown_topic_is_an_error(led: LedPartitions) -> None:
    assert fetched(LedPartitions(), 17, 0, log_start=0)[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID
    by_name, _ = fetched(LedPartitions(), 12, 0, log_start=0)
    assert by_name.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_both_ends_of_the_log_are_its_start(led: LedPartitions) -> None:
    requested = [((TOPIC, 1), LATEST), ((TOPIC, 1), EARLIEST), ((TOPIC, 4), LATEST)]
    [topic] = led.listed(requested)["topics"]
    rows = [(row["error_code"], row.get("offset")) for row in topic["partitions"]]
    assert rows == [(0, START), (0, START), (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, None)]


# --- a log with local history: epoch 3 from 100, epoch 5 from 150, up to 200 ---


@pytest.fixture
def with_history() -> LedPartitions:
    partitions = LedPartitions()
    log = LedLog(100, 200, (EpochStart(3, 100), EpochStart(5, 150)))
    partitions.lead(TOPIC, TOPIC_ID, {1: log})
    return partitions


@pytest.mark.parametrize("version", VERSIONS)
def test_records_come_as_they_are(with_history: LedPartitions, version: int) -> None:
    batches = bytes(range(80))
    row, answer = fetched(with_history, version, 100, log_start=100, records=batches)
    assert (row.error_code, bytes(row.records)) == (0, batches)
    assert (row.high_watermark, row.last_stable_offset, row.log_start_offset) == (200, 200, 100)
    assert row.aborted_transactions is None
    assert answer.is_news
    assert not with_history.placed((TOPIC, 1))
    # A follower that could not append them has to wait.
    assert not fetched(with_history, version, 100, log_start=100, records=batches)[1].is_news


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_needed_by_a_follower_that_would_append_them(
    with_history: LedPartitions, version: int
) -> None:
    """With an older epoch of its leader, it would drop them."""
    place = (TOPIC, 1)
    request = request_of(version, 120, log_start=100, leader_epoch=5)
    assert at_once(with_history.needed(request)) == {place: NeededRecords(120, 200, 1 << 20)}
    for offset, leader_epoch in [(120, 4), (200, 5), (99, 5), (201, 5)]:
        request = request_of(version, offset, log_start=100, leader_epoch=leader_epoch)
        assert at_once(with_history.needed(request)) == {}


def test_a_response_fits_into_a_segment_of_the_follower() -> None:
    partitions = LedPartitions()
    log = LedLog(100, 200, append_bytes_max=5_000)
    partitions.lead(TOPIC, TOPIC_ID, {1: log})
    [needed] = at_once(partitions.needed(request_of(17, 120, log_start=100))).values()
    assert needed.bytes_max == 5_000


def test_a_follower_is_placed_at_the_end(with_history: LedPartitions) -> None:
    for offset in (100, 130, 199):
        fetched(with_history, 17, offset, log_start=100)
        assert not with_history.placed((TOPIC, 1))
    fetched(with_history, 17, 200, log_start=100, last_epoch=5)
    assert with_history.placed((TOPIC, 1)) == {3}
    assert with_history.progress == 100


def test_retention_may_raise_the_start_of_a_follower(with_history: LedPartitions) -> None:
    fetched(with_history, 17, 200, log_start=180, last_epoch=5)
    assert with_history.placed((TOPIC, 1)) == {3}


@pytest.mark.parametrize("log_start", [0, 99])
def test_a_log_that_begins_below_the_history_proves_nothing(
    with_history: LedPartitions, log_start: int
) -> None:
    fetched(with_history, 17, 200, log_start=log_start, last_epoch=5)
    assert not with_history.placed((TOPIC, 1))


@pytest.mark.parametrize("offset", [0, 99, 201])
def test_offsets_beside_the_history_are_out_of_range(
    with_history: LedPartitions, offset: int
) -> None:
    row, _ = fetched(with_history, 17, offset, log_start=0)
    assert row.error_code == ErrorCode.OFFSET_OUT_OF_RANGE


@pytest.mark.parametrize(
    ("offset", "last_epoch", "epoch", "end_offset"),
    [(160, 3, 3, 150), (160, 4, 3, 150), (130, 2, 2, 100)],
)
def test_a_follower_that_diverges_is_told_where(
    with_history: LedPartitions, offset: int, last_epoch: int, epoch: int, end_offset: int
) -> None:
    row, answer = fetched(with_history, 17, offset, log_start=100, last_epoch=last_epoch)
    diverging = row.diverging_epoch
    assert (row.error_code, diverging.epoch, diverging.end_offset) == (0, epoch, end_offset)
    assert answer.is_news


@pytest.mark.parametrize(("offset", "last_epoch"), [(150, 3), (160, 5), (200, 5), (100, -1)])
def test_a_follower_that_agrees_is_not(
    with_history: LedPartitions, offset: int, last_epoch: int
) -> None:
    row, _ = fetched(with_history, 17, offset, log_start=100, last_epoch=last_epoch)
    assert row.diverging_epoch is None or row.diverging_epoch.epoch == -1


def test_the_ends_of_the_log_and_of_its_epochs(with_history: LedPartitions) -> None:
    place = (TOPIC, 1)
    [topic] = with_history.listed([(place, LATEST), (place, EARLIEST)])["topics"]
    rows = [(row["offset"], row["leader_epoch"]) for row in topic["partitions"]]
    assert rows == [(200, 5), (100, 3)]
    asked_epochs = [2, 3, 4, 5, 6]
    [topic] = with_history.epoch_ends((place, epoch) for epoch in asked_epochs)["topics"]
    ends = [(row["leader_epoch"], row["end_offset"]) for row in topic["partitions"]]
    assert ends == [(2, 100), (3, 150), (3, 150), (5, 200), (-1, -1)]


def test_ten_thousand_partitions_are_answered_in_steps() -> None:
    partitions, number = LedPartitions(), 10_000
    logs = {n: LedLog(START, START) for n in range(number)}
    partitions.lead(TOPIC, TOPIC_ID, logs)
    topic = FetchRequest.FetchTopic
    request = FetchRequest(
        replica_id=3, max_wait_ms=500, min_bytes=1, max_bytes=1 << 20, isolation_level=0,
        session_id=0, session_epoch=0,
        topics=[topic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[
            topic.FetchPartition(
                partition=n, current_leader_epoch=2, fetch_offset=START, last_fetched_epoch=-1,
                log_start_offset=START, partition_max_bytes=1 << 20)
            for n in range(number)])],
        forgotten_topics_data=[], rack_id="",
    )  # fmt: skip
    payload = request_header(ApiKey.FETCH, 13, 8, "broker-3-fetcher-0")
    payload += request.encode(version=13)
    head = peek_request_header(payload)
    steps = partitions.fetched(parse_fetch_request(payload, head.body_position))
    assert sum(1 for _ in steps) == number // 250
