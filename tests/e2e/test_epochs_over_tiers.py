"""OffsetForLeaderEpoch over both tiers, on a broker whose restarts make new leader epochs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from archived_topics import SETTINGS, new_store
from fetchproxy_protocol.record_batch import walk
from kafka.protocol.consumer import OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from topic_data import TopicData, archived_ends, produce, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

TOPIC = "e2e-epochs"
PER_EPOCH = 100
LAST = 3 * PER_EPOCH
TRIMMED_TO = 2 * PER_EPOCH + 30


@pytest.fixture(scope="module")
def proxy(module_kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory):
    """Three epochs with `PER_EPOCH` records each; the broker has records of the last one only."""
    kafka, folder = module_kafka_server, tmp_path_factory.mktemp("epochs")
    store = new_store(folder)
    kafka.create_topic(TOPIC, 1)
    data = TopicData(TOPIC)
    for number in range(3):
        if number:
            kafka.restart()
        produce(kafka.bootstrap, data, PER_EPOCH)
    assert data.ends(kafka.bootstrap) == {0: LAST}
    with ProxyProcess(kafka.bootstrap, store, folder, archive=TOPIC, settings=SETTINGS) as process:
        wait_for("the archive", lambda: archived_ends(store, TOPIC) == {0: LAST})
        trim(kafka.bootstrap, TOPIC, {0: TRIMMED_TO})
        yield process


@pytest.fixture(scope="module")
def epochs(proxy: ProxyProcess) -> Iterator[list[int]]:
    """The epochs of the three runs of records, from the archived batches."""
    with RawConnection(proxy.bootstrap) as raw:
        epochs_read: list[int] = []
        for offset in range(0, LAST, PER_EPOCH):
            records = raw.fetch_until_data(12, TOPIC, None, offset).records
            epochs_read.append(next(iter(walk(records))).partition_leader_epoch)
    assert epochs_read == sorted(set(epochs_read))
    return epochs_read


def end_of_epoch(
    bootstrap: str, epoch: int, version: int, *, current: int = -1, replica: int = -1
) -> tuple[int, int, int]:
    """(error code, epoch, end offset)."""
    request_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
    partition = request_topic.OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current, leader_epoch=epoch
    )
    request = OffsetForLeaderEpochRequest(
        replica_id=replica, topics=[request_topic(topic=TOPIC, partitions=[partition])]
    )
    request.API_VERSION = version
    with RawConnection(bootstrap) as raw:
        response = raw.ask(request, OffsetForLeaderEpochResponse, version)
    [partition_response] = response.topics[0].partitions
    return (
        partition_response.error_code,
        partition_response.leader_epoch,
        partition_response.end_offset,
    )


@pytest.mark.parametrize("version", [2, 3, 4])
def test_each_epoch_ends_where_the_next_begins(
    module_kafka_server: KafkaServer, proxy: ProxyProcess, epochs: list[int], version: int
) -> None:
    first, second, third = epochs
    for epoch, expected in (
        (first, (0, first, PER_EPOCH)),
        (second, (0, second, 2 * PER_EPOCH)),
        (second - 1, (0, first if second - 1 >= first else second - 1, PER_EPOCH)),
        (third - 1, (0, second, 2 * PER_EPOCH)),
        (third, (0, third, LAST)),
    ):
        assert end_of_epoch(proxy.bootstrap, epoch, version) == expected
    # The broker has deleted them: without the proxy the response differs.
    direct = end_of_epoch(module_kafka_server.bootstrap, first, version)
    assert direct == (0, first, TRIMMED_TO)


@pytest.mark.parametrize("version", [2, 4])
def test_what_the_broker_refuses_stays_refused(
    module_kafka_server: KafkaServer, proxy: ProxyProcess, epochs: list[int], version: int
) -> None:
    third = epochs[-1]
    for epoch, current in ((epochs[0], third + 5), (epochs[0], 0), (third + 5, -1), (-1, -1)):
        direct = end_of_epoch(module_kafka_server.bootstrap, epoch, version, current=current)
        assert end_of_epoch(proxy.bootstrap, epoch, version, current=current) == direct
    assert end_of_epoch(proxy.bootstrap, epochs[0], version, current=third + 5)[0] == 75
    assert end_of_epoch(proxy.bootstrap, epochs[0], version, current=0)[0] == 74


def test_the_epoch_of_an_offset_is_that_of_its_record(
    proxy: ProxyProcess, epochs: list[int]
) -> None:
    from kafka.protocol.consumer import ListOffsetsRequest, ListOffsetsResponse

    request_topic = ListOffsetsRequest.ListOffsetsTopic
    with RawConnection(proxy.bootstrap) as raw:
        for timestamp, offset, epoch in ((-2, 0, epochs[0]), (-5, LAST - 1, epochs[2])):
            partition = request_topic.ListOffsetsPartition(
                partition_index=0, current_leader_epoch=-1, timestamp=timestamp
            )
            request = ListOffsetsRequest(
                replica_id=-1,
                isolation_level=0,
                topics=[request_topic(name=TOPIC, partitions=[partition])],
                timeout_ms=20_000,
            )
            request.API_VERSION = 10
            partition_response = raw.ask(request, ListOffsetsResponse, 10).topics[0].partitions[0]
            assert (
                partition_response.error_code,
                partition_response.offset,
                partition_response.leader_epoch,
            ) == (0, offset, epoch)
