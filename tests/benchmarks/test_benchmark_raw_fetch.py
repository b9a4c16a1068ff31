"""The client that only counts bytes asks and understands what Kafka's own schema says."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from kafka.protocol.consumer import FetchRequest, FetchResponse

from benchmarks.raw_fetch import FetchFailed, RawConnection, drain, request, response, shares

VERSION = 11


def batch(base: int, records: int, size: int = 200) -> bytes:
    """Only the fields that matter: base offset, length, last offset delta."""
    head = struct.pack(">qi", base, size - 12) + bytes(11) + struct.pack(">i", records - 1)
    return head + bytes(size - len(head))


def encoded_response(
    correlation: int, partitions: dict[int, tuple[int, bytes]], error: int = 0, aborted: int = 0
) -> bytes:
    """Encoded by kafka-python, as a frame without its size; (error, records) by partition."""
    one = FetchResponse.FetchableTopicResponse
    entries = []
    for number, (code, records) in partitions.items():
        entry = one.PartitionData(version=VERSION)
        entry.partition_index, entry.error_code = number, code
        entry.high_watermark = entry.last_stable_offset = 100
        entry.log_start_offset, entry.preferred_read_replica = 0, -1
        entry.aborted_transactions = []
        for producer in range(aborted):
            each = one.PartitionData.AbortedTransaction(version=VERSION)
            each.producer_id, each.first_offset = producer, 5
            entry.aborted_transactions.append(each)
        entry.records = records
        entries.append(entry)
    topic = one(version=VERSION)
    topic.topic, topic.partitions = "topic", entries
    whole = FetchResponse[VERSION]()
    whole.throttle_time_ms, whole.error_code, whole.session_id = 0, error, 0
    whole.responses = [topic]
    whole.with_header(correlation_id=correlation)
    return bytes(whole.encode(header=True))


def test_a_request_is_kafkas() -> None:
    frame = request("topic", [(3, 70), (1, 2**40)], 9)
    assert len(frame) == 4 + struct.unpack(">i", frame[:4])[0]
    parsed_request = FetchRequest[VERSION].decode(frame[4:], header=True)
    assert parsed_request.header.correlation_id == 9
    assert (parsed_request.header.request_api_key, parsed_request.header.request_api_version) == (
        1,
        VERSION,
    )
    assert (parsed_request.session_id, parsed_request.session_epoch, parsed_request.min_bytes) == (
        0,
        -1,
        1,
    )
    (topic,) = parsed_request.topics
    assert topic.topic == "topic"
    places = [(each.partition, each.fetch_offset) for each in topic.partitions]
    assert places == [(3, 70), (1, 2**40)]
    assert {each.partition_max_bytes for each in topic.partitions} == {1024 * 1024}


def test_only_whole_batches_count() -> None:
    records = batch(10, 5) + batch(15, 3, size=300)
    cut = batch(18, 9)[:150]
    frame = encoded_response(1, {0: (0, records + cut), 2: (0, b""), 3: (1, b"")}, aborted=2)
    parsed = response(memoryview(frame))
    assert parsed.sizes == {0: len(records)}
    assert parsed.next_offsets == {0: 18}
    assert parsed.errors == {3: 1}
    with pytest.raises(FetchFailed, match="error 70"):
        response(memoryview(encoded_response(1, {}, error=70)))


def test_connections_share_the_partitions() -> None:
    ends = [(0, 5), (1, 6), (2, 7)]
    assert shares(ends, 1) == [ends]
    assert shares(ends, 2) == [[(0, 5), (2, 7)], [(1, 6)]]
    assert shares(ends, 4) == [ends] * 4


@contextmanager
def broker(responses: list[dict[int, tuple[int, bytes]]]) -> Iterator[tuple[str, list[list[int]]]]:
    """Answers the fetches of one connection in turn; (its address, the partitions asked for)."""
    requests: list[list[int]] = []

    def serve() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as incoming:
            for number, partitions in enumerate(responses, 1):
                frame = incoming.read(struct.unpack(">i", incoming.read(4))[0])
                topic = FetchRequest[VERSION].decode(frame, header=True).topics[0]
                requests.append([each.partition for each in topic.partitions])
                body = encoded_response(number, partitions)
                connection.sendall(struct.pack(">i", len(body)) + body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}", requests
        thread.join(10)


def test_a_drain_goes_on_where_each_partition_ends() -> None:
    turns = [
        {0: (0, b""), 1: (0, b"")},
        {0: (0, batch(0, 4)), 1: (0, b"")},
        {0: (0, batch(4, 6)), 1: (0, batch(0, 2))},
    ]
    with broker(turns) as (address, requests):
        assert drain(address, "topic", [(0, 10), (1, 2), (2, 0)], 8) == (600, 3)
    assert requests == [[0, 1], [0, 1], [1, 0]]  # who was served comes last


def test_a_drain_names_no_more_partitions_than_it_may() -> None:
    turns = [{0: (0, batch(0, 4))}, {1: (0, batch(0, 4))}, {0: (0, batch(4, 1))}]
    with broker(turns) as (address, requests):
        assert drain(address, "topic", [(0, 5), (1, 4)], 1) == (600, 3)
    assert requests == [[0], [1], [0]]


def test_an_error_ends_it() -> None:
    with broker([{0: (3, b"")}]) as (address, _), pytest.raises(FetchFailed, match="3"):
        drain(address, "topic", [(0, 5)], 1)
    with (
        broker([]) as (address, _),
        RawConnection(address) as raw,
        pytest.raises((FetchFailed, ConnectionError)),
    ):
        raw.first_record_ms("topic", 0, 0)
