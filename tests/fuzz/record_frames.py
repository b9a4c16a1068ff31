"""Writes `recorded_frames.txt`: the requests of real clients, the seeds that the fuzzer mutates.

`python tests/fuzz/record_frames.py`, by hand, where a new client or Kafka version speaks otherwise.
A real broker advertises the address of a tap, so every connection of every client runs through it.
One line per frame: API key, version, client, bytes in hex. Topic ids are written as `TOPIC_ID`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import struct
import subprocess
import tempfile
import threading
import uuid
from pathlib import Path

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import Consumer, Producer, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonPartition
from kafka.protocol.admin import DeleteRecordsRequest, DescribeClusterRequest
from kafka.protocol.consumer import FetchRequest, ListOffsetsRequest, OffsetForLeaderEpochRequest
from kafka.protocol.metadata import FindCoordinatorRequest, MetadataRequest
from kafka.protocol.sasl import SaslHandshakeRequest

from lab.kafka import KafkaServer, tool_command
from lab.process import free_port

RECORDED = Path(__file__).with_name("recorded_frames.txt")
TOPIC = "fuzzed"
TOPIC_ID = uuid.UUID("f022ed00-0000-4000-8000-00000000f022")
FRAME_BYTES_MAX = 4096
PER_KIND_MAX = 3  # of one API, version and client: enough to see a session go on


class Tap:
    """Relays a port to another and keeps what clients send, by (API key, version, client)."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.target = 0
        self.frames: dict[tuple[int, int, str], list[bytes]] = {}

    def start(self) -> None:
        ready = threading.Event()
        threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True).start()
        ready.wait()

    async def _serve(self, ready: threading.Event) -> None:
        server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)
        ready.set()
        await server.serve_forever()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.close()
            return

        async def responses() -> None:
            with contextlib.suppress(OSError):
                while data := await up_reader.read(1 << 16):
                    writer.write(data)
            writer.close()

        back = asyncio.create_task(responses())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readexactly(4)
                frame = head + await reader.readexactly(struct.unpack(">i", head)[0])
                self.keep(frame)
                up_writer.write(frame)
        up_writer.close()
        await back

    def keep(self, frame: bytes) -> None:
        key, version, _, size = struct.unpack_from(">hhih", frame, 4)
        client = frame[14 : 14 + max(size, 0)].decode(errors="replace")
        frames_kept = self.frames.setdefault((key, version, client), [])
        if (
            len(frame) <= FRAME_BYTES_MAX
            and len(frames_kept) < PER_KIND_MAX
            and frame not in frames_kept
        ):
            frames_kept.append(frame)


def librdkafka(bootstrap: str) -> None:
    producer = Producer(
        {"bootstrap.servers": bootstrap, "client.id": "librdkafka", "transactional.id": "fuzz"}
    )
    producer.init_transactions()
    producer.begin_transaction()
    for number in range(20):
        producer.produce(TOPIC, f"{number}", partition=number % 2)
    producer.commit_transaction()
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "librdkafka",
            "group.id": "fuzz-librdkafka",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([TOPIC])
    while not consumer.consume(10, timeout=5):
        pass
    consumer.commit(asynchronous=False)
    consumer.offsets_for_times([TopicPartition(TOPIC, 0, 1)], timeout=10)
    consumer.close()
    admin = AdminClient({"bootstrap.servers": bootstrap, "client.id": "librdkafka"})
    admin.list_consumer_groups().result()
    admin.describe_consumer_groups(["fuzz-librdkafka"])["fuzz-librdkafka"].result()
    admin.describe_cluster().result()
    for described in admin.describe_configs(
        [ConfigResource(ConfigResource.Type.TOPIC, TOPIC)]
    ).values():
        described.result()


def kafka_python(bootstrap: str) -> None:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        client_id="kafka-python",
        group_id="fuzz-kafka-python",
        auto_offset_reset="earliest",
    )
    consumer.subscribe([TOPIC])
    while not consumer.poll(5000):
        pass
    consumer.commit()
    consumer.end_offsets([PythonPartition(TOPIC, 0)])
    consumer.close()


async def aiokafka(bootstrap: str) -> None:
    async with AIOKafkaProducer(bootstrap_servers=bootstrap, client_id="aiokafka") as producer:
        await producer.send_and_wait(TOPIC, b"from aiokafka", partition=0)
    async with AIOKafkaConsumer(
        TOPIC,
        bootstrap_servers=bootstrap,
        client_id="aiokafka",
        group_id="fuzz-aiokafka",
        auto_offset_reset="earliest",
    ) as consumer:
        await consumer.getone()
        await consumer.commit()


def java(bootstrap: str) -> None:
    consumer = "org.apache.kafka.tools.consumer.ConsoleConsumer"
    for protocol in ("classic", "consumer"):
        arguments = ["--bootstrap-server", bootstrap, "--topic", TOPIC, "--from-beginning"]
        arguments += ["--max-messages", "5", "--timeout-ms", "20000"]
        arguments += ["--consumer-property", f"group.protocol={protocol}"]
        arguments += ["--consumer-property", "isolation.level=read_committed"]
        arguments += ["--consumer-property", "client.id=java"]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(tool_command(Path(folder), consumer, *arguments), check=True)


def every_version() -> list[bytes]:
    """The APIs that the proxy reads, in versions that today's clients no longer choose."""
    requests = []
    for version in range(4, 19):
        partition = FetchRequest.FetchTopic.FetchPartition(
            partition=0, fetch_offset=0, partition_max_bytes=1 << 20
        )
        topic = FetchRequest.FetchTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[partition])
        for session in ((0, -1), (0, 0)):
            requests.append(
                FetchRequest[version](
                    replica_id=-1,
                    max_wait_ms=10,
                    min_bytes=1,
                    max_bytes=1 << 20,
                    isolation_level=1,
                    session_id=session[0],
                    session_epoch=session[1],
                    topics=[topic],
                    forgotten_topics_data=[],
                    rack_id="",
                )
            )
    for version in range(1, 11):
        inner = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
            partition_index=0, timestamp=-2
        )
        offsets_topic = ListOffsetsRequest.ListOffsetsTopic(name=TOPIC, partitions=[inner])
        requests.append(ListOffsetsRequest[version](replica_id=-1, topics=[offsets_topic]))
    for version in range(2, 5):
        epoch = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(
            partition=0, leader_epoch=0
        )
        epoch_topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(
            topic=TOPIC, partitions=[epoch]
        )
        requests.append(OffsetForLeaderEpochRequest[version](replica_id=-1, topics=[epoch_topic]))
    for version in range(14):
        requests.append(MetadataRequest[version](topics=None if version else []))
    for version in range(7):
        requests.append(FindCoordinatorRequest[version](key="g", coordinator_keys=["g"]))
    for version in range(3):
        gone = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(
            partition_index=1, offset=0
        )
        less = DeleteRecordsRequest.DeleteRecordsTopic(name=TOPIC, partitions=[gone])
        requests.append(DeleteRecordsRequest[version](topics=[less], timeout_ms=1000))
        requests.append(DescribeClusterRequest[version]())
    requests += [SaslHandshakeRequest[version](mechanism="PLAIN") for version in range(2)]
    for number, request in enumerate(requests):
        request.with_header(correlation_id=number, client_id="encoded")
    return [request.encode(header=True, framed=True) for request in requests]


def main() -> None:
    tap = Tap(free_port())
    tap.start()
    advertised = f"PLAINTEXT://127.0.0.1:{tap.port}"
    kafka = KafkaServer({"advertised.listeners": advertised})
    with kafka:
        tap.target = kafka.port
        bootstrap = f"127.0.0.1:{tap.port}"
        kafka.create_topic(TOPIC, 2)
        admin = AdminClient({"bootstrap.servers": bootstrap})
        (described,) = admin.describe_topics(TopicCollection([TOPIC])).values()
        topic_id = base64.urlsafe_b64decode(f"{described.result().topic_id}==")
        librdkafka(bootstrap)
        kafka_python(bootstrap)
        asyncio.run(aiokafka(bootstrap))
        java(bootstrap)
    for frame in every_version():
        tap.keep(frame)
    lines = [
        f"{key} {version} {client.replace(' ', '_')} "
        f"{frame.replace(topic_id, TOPIC_ID.bytes).hex()}"
        for (key, version, client), frames in sorted(tap.frames.items())
        for frame in frames
    ]
    RECORDED.write_text("\n".join(lines) + "\n")
    print(f"{len(lines)} frames of {len({line.split()[0] for line in lines})} APIs")


if __name__ == "__main__":
    main()
