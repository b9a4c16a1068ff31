"""The answer to a Fetch of one partition: as kafka-python writes it, without copying records."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest
from fetchproxy_protocol.apis import ApiKey
from hypothesis import given
from hypothesis import strategies as st
from kafka.protocol.consumer.fetch import FetchResponse

from fetchproxy.brokers.messages import VERSIONS as VERSIONS_SPOKEN
from fetchproxy.brokers.messages import decode_fetch
from fetchproxy.errors import ClusterError
from fetchproxy.model import TopicIdPartition

TP = TopicIdPartition(UUID(int=7), "orders", 3)
VERSIONS = range(VERSIONS_SPOKEN[ApiKey.FETCH][0], VERSIONS_SPOKEN[ApiKey.FETCH][1] + 1)


def payload_of(version: int, response_error: int = 0, **fields: Any) -> memoryview:
    """A response without size prefix about `TP`."""
    topic = FetchResponse.FetchableTopicResponse
    values = {
        "partition_index": TP.partition,
        "error_code": 0,
        "high_watermark": 100,
        "last_stable_offset": 90,
        "log_start_offset": 10,
        "aborted_transactions": [],
        "preferred_read_replica": -1,
        "records": b"",
        **fields,
    }
    message = FetchResponse(
        throttle_time_ms=5,
        error_code=response_error,
        session_id=0,
        responses=[
            topic(topic=TP.topic, topic_id=TP.topic_id, partitions=[topic.PartitionData(**values)])
        ],
    )
    message.API_VERSION = version
    message.with_header(correlation_id=1)
    return memoryview(bytearray(message.encode(header=True, framed=True)))[4:]


@given(
    st.sampled_from(VERSIONS),
    st.lists(st.tuples(st.integers(0, 2**62), st.integers(0, 2**62)), max_size=20),
    st.one_of(st.none(), st.binary(max_size=400)),
    st.integers(-1, 2**62),
)
def test_all_versions_are_read(
    version: int, aborted: list[tuple[int, int]], records: bytes | None, offset: int
) -> None:
    data = FetchResponse.FetchableTopicResponse.PartitionData
    partition = decode_fetch(
        payload_of(
            version,
            aborted_transactions=[
                data.AbortedTransaction(producer_id=each, first_offset=first)
                for each, first in aborted
            ],
            records=records,
            high_watermark=offset,
        ),
        version,
        TP,
    )
    assert (partition.error_code, partition.high_watermark) == (0, offset)
    assert (partition.last_stable_offset, partition.log_start_offset) == (90, 10)
    assert partition.aborted == tuple(aborted)
    assert bytes(partition.records) == (records or b"")


@pytest.mark.parametrize("version", VERSIONS)
def test_records_are_not_copied(version: int) -> None:
    payload = payload_of(version, records=b"some batches")
    partition = decode_fetch(payload, version, TP)
    at = bytes(payload).index(b"some batches")
    payload[at : at + 4] = b"SOME"
    assert bytes(partition.records) == b"SOME batches"


@pytest.mark.parametrize("version", VERSIONS)
def test_errors_are_raised_but_for_out_of_range(version: int) -> None:
    out_of_range = payload_of(version, error_code=1, high_watermark=-1, records=None)
    partition = decode_fetch(out_of_range, version, TP)
    assert (partition.error_code, partition.high_watermark, bytes(partition.records)) == (
        1,
        -1,
        b"",
    )
    with pytest.raises(ClusterError, match=r"orders.*error 56") as raised:
        decode_fetch(payload_of(version, error_code=56), version, TP)
    assert raised.value.error_code == 56


@pytest.mark.parametrize("version", [each for each in VERSIONS if each >= 7])
def test_an_error_of_the_whole_is_raised(version: int) -> None:
    with pytest.raises(ClusterError, match="error 70"):
        decode_fetch(payload_of(version, response_error=70), version, TP)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_cut_is_refused(version: int) -> None:
    payload = payload_of(version, records=b"records")
    tags = 3 if version >= 12 else 0  # behind the records: of partition, topic and answer
    for end in range(len(payload) - tags):
        with pytest.raises(ClusterError):
            decode_fetch(payload[:end], version, TP)


def test_an_answer_about_nothing_is_refused() -> None:
    message = FetchResponse(throttle_time_ms=0, error_code=0, session_id=0, responses=[])
    message.API_VERSION = 17
    message.with_header(correlation_id=1)
    payload = memoryview(message.encode(header=True, framed=True))[4:]
    with pytest.raises(ClusterError, match="without the partition"):
        decode_fetch(payload, 17, TP)
