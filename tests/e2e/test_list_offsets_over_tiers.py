"""ListOffsets through the proxy against the same log on a broker that still has all of it."""

from __future__ import annotations

import pytest
from archived_topics import SETTINGS, new_store, new_topic
from confluent_kafka import Producer
from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse
from kafka.protocol.metadata.api_versions import ApiVersionsRequest, ApiVersionsResponse
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from test_delete_records_over_tiers import delete_records
from topic_data import archived_ends, produce, trim

from lab.kafka import KafkaServer
from lab.kafka_versions import KAFKA_NEWEST

pytestmark = pytest.mark.kafka

COUNT = 400
# Not in offset order: several records share the largest time, one of them late in the log.
TIMES = [1_700_000_000_000 + 1000 * ((n * 7) % 101) for n in range(COUNT)]
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED, PENDING = -1, -2, -3, -4, -5, -6
UNSUPPORTED_VERSION = 35

Result = tuple[int, int, int, int]  # error code, timestamp, offset, leader epoch


def list_offset(
    bootstrap: str, topic: str, timestamp: int, version: int, isolation: int = 0
) -> Result:
    request_topic = ListOffsetsRequest.ListOffsetsTopic
    partition = request_topic.ListOffsetsPartition(
        partition_index=0, current_leader_epoch=-1, timestamp=timestamp
    )
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[request_topic(name=topic, partitions=[partition])],
        timeout_ms=20_000,
    )
    request.API_VERSION = version
    with RawConnection(bootstrap) as raw:
        partition_response = raw.ask(request, ListOffsetsResponse, version).topics[0].partitions[0]
    epoch = partition_response.leader_epoch if version >= 4 else -1
    return (
        partition_response.error_code,
        partition_response.timestamp,
        partition_response.offset,
        epoch,
    )


@pytest.fixture(scope="module")
def topics(kafka_server: KafkaServer, e2e_store: str, proxy: ProxyProcess) -> tuple[str, str]:
    """(a topic that the broker has whole, the same records over two overlapping tiers)."""
    whole, tiered = "whole-listed", "e2e-listed"
    for name in (whole, tiered):
        new_topic(kafka_server, name)
        producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
        for number, timestamp in enumerate(TIMES):
            producer.produce(name, b"v" * 300, b"%d" % number, 0, timestamp=timestamp)
            if number % 20 == 19:  # small batches make many segments and chunks
                assert producer.flush(30) == 0
    wait_for("the archive", lambda: archived_ends(e2e_store, tiered) == {0: COUNT})
    trim(kafka_server.bootstrap, tiered, {0: 213})
    return whole, tiered


@pytest.mark.parametrize("version", [1, 3, 4, 6, 10])
@pytest.mark.parametrize("isolation", [0, 1])
def test_times_are_found_in_both_tiers(
    kafka_server: KafkaServer, proxy: ProxyProcess, topics: tuple[str, str], version: int,
    isolation: int,
) -> None:  # fmt: skip
    whole, tiered = topics
    times = [LATEST, EARLIEST, 0, *sorted(set(TIMES))[::9], max(TIMES), max(TIMES) + 1]
    if version >= 7:
        times.append(MAX_TIMESTAMP)
    for timestamp in times:
        expected = list_offset(kafka_server.bootstrap, whole, timestamp, version, isolation)
        assert list_offset(proxy.bootstrap, tiered, timestamp, version, isolation) == expected


def test_special_timestamps(
    kafka_server: KafkaServer, proxy: ProxyProcess, topics: tuple[str, str]
) -> None:
    name = topics[1]
    assert list_offset(proxy.bootstrap, name, EARLIEST, 10) == (0, -1, 0, 0)
    assert list_offset(proxy.bootstrap, name, EARLIEST_LOCAL, 10) == (0, -1, 213, 0)
    assert list_offset(proxy.bootstrap, name, LATEST_TIERED, 10) == (0, -1, COUNT - 1, 0)
    for timestamp, version in ((EARLIEST_LOCAL, 7), (LATEST_TIERED, 8), (PENDING, 10), (-9, 10)):
        direct = list_offset(kafka_server.bootstrap, name, timestamp, version)
        assert direct[0] == UNSUPPORTED_VERSION
        assert list_offset(proxy.bootstrap, name, timestamp, version) == direct


def test_what_was_deleted_is_not_found(
    kafka_server: KafkaServer, e2e_store: str, proxy: ProxyProcess
) -> None:
    """The log start is inside an archived batch; the largest timestamp was before it."""
    whole, tiered = "whole-cut", "e2e-cut"
    times = [1_700_000_000_000 + 10 * n for n in range(200)]
    times[90] += 1_000_000
    for name in (whole, tiered):
        new_topic(kafka_server, name)
        producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
        for number, timestamp in enumerate(times):
            producer.produce(name, b"v" * 300, b"%d" % number, 0, timestamp=timestamp)
            if number % 50 == 49:
                assert producer.flush(30) == 0
    wait_for("the archive", lambda: archived_ends(e2e_store, tiered) == {0: 200})
    trim(kafka_server.bootstrap, tiered, {0: 160})
    assert delete_records(proxy.bootstrap, tiered, 97) == (0, 97)
    trim(kafka_server.bootstrap, whole, {0: 97})
    for timestamp in (EARLIEST, 0, times[50], times[97], times[98], times[150], times[199] + 1):
        expected = list_offset(kafka_server.bootstrap, whole, timestamp, 10)
        assert list_offset(proxy.bootstrap, tiered, timestamp, 10) == expected


@pytest.mark.slow
def test_earliest_pending_upload_on_the_newest_broker(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """KIP-1023 came with ListOffsets v11 (Kafka 4.2); ApiVersions v5 came with 4.4."""
    folder = tmp_path_factory.mktemp("newest")
    store = new_store(folder)
    with KafkaServer(version=KAFKA_NEWEST) as kafka:
        data = new_topic(kafka, "newest")
        produce(kafka.bootstrap, data, 100)
        with ProxyProcess(
            kafka.bootstrap, store, folder, archive="newest", settings=SETTINGS
        ) as proxy:
            wait_for("the archive", lambda: archived_ends(store, "newest") == {0: 100})
            trim(kafka.bootstrap, "newest", {0: 60})
            # A broker without a remote tier has no pending upload.
            assert list_offset(kafka.bootstrap, "newest", PENDING, 11) == (0, -1, -1, -1)
            assert list_offset(proxy.bootstrap, "newest", PENDING, 11) == (0, -1, 100, 0)
            assert list_offset(proxy.bootstrap, "newest", LATEST_TIERED, 11) == (0, -1, 99, 0)
            assert list_offset(proxy.bootstrap, "newest", EARLIEST, 11) == (0, -1, 0, 0)
            with RawConnection(proxy.bootstrap) as raw:
                offered = raw.ask(ApiVersionsRequest[0](), ApiVersionsResponse, 0)
            ranges = {api.api_key: (api.min_version, api.max_version) for api in offered.api_keys}
            assert ranges[18] == (0, 5)
            assert ranges[2] == (1, 11)
            assert ranges[93] == (0, 0)
