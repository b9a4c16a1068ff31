"""A topic archived by `fetchproxy archive` from the broker's own files, read through the proxy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from fetchproxy_command import archive_once
from proxy_process import ProxyProcess
from topic_data import TopicData, archived_ends, produce_transactions, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

Records = list[tuple[int, bytes, bytes]]


def read(bootstrap: str, topic: str, end: int, isolation: str) -> Records:
    """All records from offset 0 up to but not including `end`."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"{topic}-{isolation}",
            "isolation.level": isolation,
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": False,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        records: Records = []
        while not consumer.position([TopicPartition(topic, 0)])[0].offset >= end:
            message = consumer.poll(30)
            assert message is not None, f"nothing more after {len(records)} records"
            assert message.error() is None, message.error()
            records.append((message.offset(), message.key(), message.value()))
        return [record for record in records if record[0] < end]
    finally:
        consumer.close()


def test_what_the_broker_deleted_is_read_from_the_archive(
    kafka_server: KafkaServer, create_topic: Callable[..., str], tmp_path: Path
) -> None:
    data = TopicData(create_topic(config={"segment.bytes": str(1 << 20)}))
    produce_transactions(kafka_server.bootstrap, data, 45, 300)  # a third of them are aborted
    store = (tmp_path / "store").as_uri()
    folder = kafka_server.data_dir / f"{data.topic}-0"
    end = max(int(path.stem) for path in folder.glob("*.log"))
    before = read(kafka_server.bootstrap, data.topic, end, "read_uncommitted")
    result = archive_once(
        kafka_server.bootstrap, store, data.topic, {"archive.log_dirs": kafka_server.data_dir}
    )
    assert result.returncode == 0, result.stderr
    assert archived_ends(store, data.topic) == {0: end}
    trim(kafka_server.bootstrap, data.topic, {0: end})
    with ProxyProcess(kafka_server.bootstrap, store, tmp_path) as proxy:
        assert read(proxy.bootstrap, data.topic, end, "read_uncommitted") == before
        committed = [record for record in data.written[0] if record[0] < end]
        assert len(committed) < len(before), "no aborted record: isolation was not shown"
        assert read(proxy.bootstrap, data.topic, end, "read_committed") == committed


def test_a_folder_that_is_none_is_refused_at_the_start(
    kafka_server: KafkaServer, topic: str, tmp_path: Path
) -> None:
    result = archive_once(
        kafka_server.bootstrap, (tmp_path / "store").as_uri(), topic, {"archive.log_dirs": tmp_path}
    )
    assert result.returncode != 0
    assert f"archive.log_dirs: {tmp_path} is not a readable log directory" in result.stderr
