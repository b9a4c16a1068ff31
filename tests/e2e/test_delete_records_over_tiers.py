"""DeleteRecords through the proxy moves the log start of both tiers, for every proxy."""

from __future__ import annotations

from pathlib import Path

import pytest
from archived_topics import SETTINGS, new_topic
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from removable_store import folder_store
from topic_data import TopicData, archived_ends, produce, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

OUT_OF_RANGE = 1
STORAGE_ERROR = 56


def archived(
    kafka: KafkaServer, store: str, name: str, count: int = 600, local_from: int = 500
) -> TopicData:
    """The archive has all records; the broker has those from `local_from` on."""
    data = new_topic(kafka, name)
    produce(kafka.bootstrap, data, count)
    wait_for("the archive", lambda: archived_ends(store, name) == {0: count})
    trim(kafka.bootstrap, name, {0: local_from})
    return data


def delete_records(
    bootstrap: str, topic: str, offset: int, version: int = 2, timeout_ms: int = 20_000
) -> tuple[int, int]:
    """(error code, low watermark) of partition 0."""
    request_topic = DeleteRecordsRequest.DeleteRecordsTopic
    partition = request_topic.DeleteRecordsPartition(partition_index=0, offset=offset)
    request = DeleteRecordsRequest(
        topics=[request_topic(name=topic, partitions=[partition])], timeout_ms=timeout_ms
    )
    request.API_VERSION = version
    with RawConnection(bootstrap) as raw:
        response = raw.ask(request, DeleteRecordsResponse, version)
    [partition_response] = response.topics[0].partitions
    return partition_response.error_code, partition_response.low_watermark


@pytest.mark.parametrize("version", [0, 1, 2])
def test_an_offset_in_the_archive(
    kafka_server: KafkaServer, e2e_store: str, proxy: ProxyProcess, version: int
) -> None:
    name = f"e2e-delete-{version}"
    archived(kafka_server, e2e_store, name)
    with RawConnection(proxy.bootstrap) as raw:
        assert raw.list_offset(6, name, -2) == (0, -1, 0)
        assert raw.fetch_until_data(12, name, None, 122).records
        assert delete_records(proxy.bootstrap, name, 123, version) == (0, 123)
        assert raw.list_offset(6, name, -2) == (0, -1, 123)
        for offset, error in ((0, OUT_OF_RANGE), (122, OUT_OF_RANGE), (123, 0), (500, 0)):
            fetched = raw.fetch_until_data(12, name, None, offset)
            assert fetched.error == error
        # Below the log start: nothing changes.
        assert delete_records(proxy.bootstrap, name, 5, version) == (0, 123)
        assert raw.list_offset(6, name, -2) == (0, -1, 123)


def test_another_proxy_sees_it_and_a_stock_admin_client_gets_it(
    kafka_server: KafkaServer, e2e_store: str, proxy: ProxyProcess, tmp_path: Path
) -> None:
    name = "e2e-delete-other"
    archived(kafka_server, e2e_store, name)
    with (
        ProxyProcess(
            kafka_server.bootstrap, e2e_store, tmp_path, settings={"metadata.view_age_max_ms": 300}
        ) as other,
        RawConnection(other.bootstrap) as raw,
    ):
        assert raw.fetch_until_data(12, name, None, 10).records
        admin = AdminClient({"bootstrap.servers": proxy.bootstrap})
        outcome = admin.delete_records([TopicPartition(name, 0, 321)], request_timeout=30)
        assert [future.result().low_watermark for future in outcome.values()] == [321]
        # A view in use is at most view_age_max_ms old.
        wait_for("the other proxy", lambda: raw.fetch(12, name, None, 10, wait_ms=50).error != 0)
        assert raw.list_offset(6, name, -2) == (0, -1, 321)
        assert raw.fetch_until_data(12, name, None, 321).records


def test_up_to_the_high_watermark_and_on(
    kafka_server: KafkaServer, e2e_store: str, proxy: ProxyProcess
) -> None:
    name = "e2e-delete-all"
    data = archived(kafka_server, e2e_store, name)
    assert delete_records(proxy.bootstrap, name, -1) == (0, 600)
    with RawConnection(proxy.bootstrap) as raw:
        assert raw.list_offset(6, name, -2) == (0, -1, 600)
        assert raw.fetch_until_data(12, name, None, 599).error == OUT_OF_RANGE
        # The archiver continues there and records no gap.
        produce(kafka_server.bootstrap, data, 200)
        wait_for("the rest", lambda: archived_ends(e2e_store, name) == {0: 800})
        trim(kafka_server.bootstrap, name, {0: 790})
        assert raw.list_offset(6, name, -2) == (0, -1, 600)
        assert raw.fetch_until_data(12, name, None, 600).records
        assert raw.fetch_until_data(12, name, None, 599).error == OUT_OF_RANGE
    gaps = [line for line in proxy.logged("archive_gap") if line.get("topic") == name]
    assert not gaps


def test_errors_of_the_broker_change_nothing(
    kafka_server: KafkaServer, e2e_store: str, proxy: ProxyProcess
) -> None:
    name = "e2e-delete-refused"
    archived(kafka_server, e2e_store, name)
    direct = delete_records(kafka_server.bootstrap, name, 10_000)
    assert delete_records(proxy.bootstrap, name, 10_000) == direct == (OUT_OF_RANGE, -1)
    direct = delete_records(kafka_server.bootstrap, "e2e-no-such-topic", 1)
    assert delete_records(proxy.bootstrap, "e2e-no-such-topic", 1) == direct
    with RawConnection(proxy.bootstrap) as raw:
        assert raw.list_offset(6, name, -2) == (0, -1, 0)


def test_a_topic_that_is_not_archived_is_the_brokers_alone(
    kafka_server: KafkaServer, e2e_store: str, proxy: ProxyProcess
) -> None:
    data = new_topic(kafka_server, "delete-unarchived")
    produce(kafka_server.bootstrap, data, 100)
    assert delete_records(proxy.bootstrap, data.topic, 40) == (0, 40)
    assert not list(Path(e2e_store.removeprefix("file://")).glob(f"{data.topic}-*"))


def test_a_store_that_is_away(kafka_server: KafkaServer, tmp_path: Path) -> None:
    """The broker trims its log, the client gets a retriable error, and a retry does the rest."""
    name = "delete-store-away"
    store = folder_store(tmp_path)
    settings = {**SETTINGS, "metadata.view_age_max_ms": 600_000}
    with (
        ProxyProcess(
            kafka_server.bootstrap, store.url, tmp_path, archive=name, settings=settings
        ) as proxy,
        RawConnection(proxy.bootstrap) as raw,
    ):
        archived(kafka_server, store.url, name)
        store.take_away()
        try:
            assert delete_records(proxy.bootstrap, name, 550) == (STORAGE_ERROR, -1)
            assert delete_records(kafka_server.bootstrap, name, 0) == (0, 550)
        finally:
            store.bring_back()
        assert raw.list_offset(6, name, -2) == (0, -1, 0)
        assert delete_records(proxy.bootstrap, name, 550) == (0, 550)
        assert raw.list_offset(6, name, -2) == (0, -1, 550)
        assert raw.fetch_until_data(12, name, None, 549).error == OUT_OF_RANGE
