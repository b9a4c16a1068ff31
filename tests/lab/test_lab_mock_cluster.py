"""The mock cluster forgets the beginning of a partition, as the demo and its tests rely on."""

from __future__ import annotations

from confluent_kafka import Consumer, Producer, TopicPartition

from lab.mock_cluster import MockCluster

RECORD_BYTES = 100_000


def test_brokers_forget_all_but_the_last_five_mebibytes(mock_cluster: MockCluster) -> None:
    producer = Producer({"bootstrap.servers": mock_cluster.bootstrap})
    for _ in range(100):
        producer.produce("events", b"v" * RECORD_BYTES, partition=0)
        producer.flush(30)
    consumer = Consumer(
        {
            "bootstrap.servers": mock_cluster.bootstrap,
            "group.id": "unused",
            "auto.offset.reset": "error",
        }
    )
    low, high = consumer.get_watermark_offsets(TopicPartition("events", 0), timeout=30)
    consumer.assign([TopicPartition("events", 0, 0)])
    message = consumer.poll(30)
    consumer.close()
    assert high == 100
    assert low > 0
    assert (high - low) * RECORD_BYTES <= 5 * 1024 * 1024
    assert message is not None
    assert "out of range" in str(message.error()).lower()


def test_each_broker_has_an_address() -> None:
    with MockCluster(broker_count=3) as cluster:
        assert sorted(cluster.addresses) == [1, 2, 3]
        assert len(set(cluster.addresses.values())) == 3
