"""One consumer reads one partition's archive and another's tail; neither waits for the other."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import kafka
import pytest
from archived_topics import NO_MEMORY, SETTINGS, archive_and_trim, new_store, new_topic
from fetchproxy_protocol.record_batch import walk
from held_reader import STEP_BYTES
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from topic_data import TopicData, produce, trim

from lab.kafka import KafkaServer
from lab.s3 import S3Server

pytestmark = pytest.mark.kafka

REMOTE, TAIL = 0, 1
CLIENTS = ("kafka-python", "confluent-kafka")
IDLE_TAIL_FETCH_S = 0.04  # the median; a few ms without any wait
PROMPT_S = 2.0  # an order of magnitude: a tail that waits for the archive takes for ever


class MixedReader:
    """Partition 0 from offset 0, partition 1 from its end. The long poll is 5 s."""

    def __init__(self, client: str, bootstrap: str, data: TopicData) -> None:
        self.offsets: dict[int, list[int]] = {REMOTE: [], TAIL: []}
        self._poll = getattr(self, "_" + client.replace("-", "_"))(bootstrap, data)

    def poll(self) -> None:
        for partition, offset in self._poll():
            self.offsets[partition].append(offset)

    def _kafka_python(self, bootstrap: str, data: TopicData):
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap,
            auto_offset_reset="none",
            enable_auto_commit=False,
            fetch_max_wait_ms=5_000,
            max_partition_fetch_bytes=STEP_BYTES,
        )
        self.close = consumer.close
        consumer.assign([kafka.TopicPartition(data.topic, p) for p in (REMOTE, TAIL)])
        consumer.seek(kafka.TopicPartition(data.topic, REMOTE), 0)
        consumer.seek(kafka.TopicPartition(data.topic, TAIL), len(data.written[TAIL]))

        def poll():
            polled = consumer.poll(timeout_ms=20, max_records=50)
            return [(r.partition, r.offset) for records in polled.values() for r in records]

        return poll

    def _confluent_kafka(self, bootstrap: str, data: TopicData):
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "mixed",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 5_000,
                "fetch.message.max.bytes": STEP_BYTES,
                "queued.max.messages.kbytes": 8,
                "fetch.queue.backoff.ms": 10,
            }
        )
        self.close = consumer.close
        starts = {REMOTE: 0, TAIL: len(data.written[TAIL])}
        consumer.assign(
            [confluent_kafka.TopicPartition(data.topic, p, at) for p, at in starts.items()]
        )

        def poll():
            messages = consumer.consume(50, timeout=0.02)
            for message in messages:
                assert message.error() is None, message.error()
            return [(m.partition(), m.offset()) for m in messages]

        return poll


@pytest.fixture(params=CLIENTS)
def client(request: pytest.FixtureRequest) -> Iterator[str]:
    return request.param


@pytest.mark.s3
def test_neither_tier_waits_for_the_other(
    kafka_server: KafkaServer, own_s3_server: S3Server, tmp_path: Path, client: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for variable, value in own_s3_server.environment.items():
        monkeypatch.setenv(variable, value)
    name = f"both-tiers-{client}"
    url = own_s3_server.store_url(own_s3_server.create_bucket("both"), "")
    data = new_topic(kafka_server, name, 2)
    produce(kafka_server.bootstrap, data, 1000, partition_count=2)
    with ProxyProcess(kafka_server.bootstrap, url, tmp_path, archive=name, settings=SETTINGS):
        archive_and_trim(kafka_server.bootstrap, url, data)
        trim(kafka_server.bootstrap, name, {REMOTE: 1000})
    with ProxyProcess(
        kafka_server.bootstrap, url, tmp_path, settings={**SETTINGS, **NO_MEMORY}
    ) as proxy:
        reader = MixedReader(client, proxy.bootstrap, data)
        try:
            wait_for("first remote records", lambda: read_up_to(reader, 100))
            own_s3_server.pause()  # it accepts connections and does not answer
            drain(reader)
            stood_at = len(reader.offsets[REMOTE])
            assert stood_at < 900
            took = [latency(kafka_server, name, reader) for _ in range(8)]
            assert max(took) < PROMPT_S, took
            assert len(reader.offsets[REMOTE]) < 900, "the store was not away"
            own_s3_server.resume()
            wait_for("all of the archive", lambda: read_up_to(reader, 1000))
        finally:
            reader.close()
    assert reader.offsets == {REMOTE: list(range(1000)), TAIL: list(range(1000, 1008))}


def test_an_idle_tail_does_not_slow_the_archive(kafka_server: KafkaServer, tmp_path: Path) -> None:
    """Each fetch also asks for the idle tail; the response must not wait for the long poll."""
    store = new_store(tmp_path)
    data = new_topic(kafka_server, "idle-tail", 2)
    produce(kafka_server.bootstrap, data, 600, partition_count=2)
    with ProxyProcess(
        kafka_server.bootstrap, store, tmp_path, archive=data.topic,
        settings={**SETTINGS, **NO_MEMORY},
    ) as proxy:  # fmt: skip
        archive_and_trim(kafka_server.bootstrap, store, data)
        for session in (False, True):
            # A busy machine is slow at times; a wait of ours would be there each time.
            medians = (
                statistics.median(fetch_times(proxy.bootstrap, data, session)) for _ in range(8)
            )
            assert any(median < IDLE_TAIL_FETCH_S for median in medians)


def fetch_times(bootstrap: str, data: TopicData, session: bool) -> list[float]:
    """Seconds for each fetch from 0 to the last 150 records, with a long poll of 5 s."""
    took, offset = [], 0
    offsets_asked = {REMOTE: 0, TAIL: len(data.written[TAIL])}
    session_id, epoch = (0, 0) if session else (0, -1)
    with RawConnection(bootstrap) as raw:
        while offset < 450:
            began = time.monotonic()
            response = raw.fetch_response(
                12, data.topic, None, offsets_asked, bytes_max=STEP_BYTES, wait_ms=5_000,
                session=(session_id, epoch),
            )  # fmt: skip
            took.append(time.monotonic() - began)
            for partition in (p for topic in response.responses for p in topic.partitions):
                assert partition.error_code == 0
                if partition.records:
                    offset = list(walk(bytes(partition.records)))[-1].last_offset + 1
            offsets_asked = {REMOTE: offset}
            if session:
                session_id, epoch = response.session_id, epoch + 1
            else:
                offsets_asked[TAIL] = len(data.written[TAIL])
    return took


def read_up_to(reader: MixedReader, count: int) -> bool:
    reader.poll()
    return len(reader.offsets[REMOTE]) >= count


def drain(reader: MixedReader) -> None:
    """Poll until the archive gives nothing for a second."""
    quiet_since, count = time.monotonic(), -1
    while time.monotonic() - quiet_since < 1:
        reader.poll()
        if len(reader.offsets[REMOTE]) != count:
            quiet_since, count = time.monotonic(), len(reader.offsets[REMOTE])


def latency(kafka_server: KafkaServer, topic: str, reader: MixedReader) -> float:
    """Seconds from the acknowledgement of a new record at the tail to its arrival."""
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": kafka_server.bootstrap, "linger.ms": 0}
    )
    producer.produce(topic, b"new", b"new", TAIL)
    assert producer.flush(30) == 0
    sent_at, before = time.monotonic(), len(reader.offsets[TAIL])
    wait_for("the new record", lambda: (reader.poll(), len(reader.offsets[TAIL]) > before)[1], 30)
    return time.monotonic() - sent_at
