"""A bare Fetch client over one socket, any version: kafka-python's codec, no consumer logic."""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Self
from uuid import UUID

from fetchproxy_protocol.record_batch import walk
from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
)
from kafka.protocol.metadata import MetadataRequest, MetadataResponse


@dataclass(frozen=True)
class Fetched:
    error: int
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    aborted: list[tuple[int, int]] | None
    records: bytes

    @property
    def batches(self) -> list[bytes]:
        """Whole batches only; a partial last batch is left off."""
        return [self.records[b.position : b.end] for b in walk(self.records)]


class RawConnection:
    def __init__(self, bootstrap: str, receive_bytes_max: int | None = None) -> None:
        """`receive_bytes_max`: the most bytes received at a time; None: no limit."""
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)))
        self._receive_bytes_max = receive_bytes_max
        if receive_bytes_max is not None:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes_max)
        self._socket.settimeout(60)
        self._correlation = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, request: Any, response: Any, version: int) -> Any:
        self._correlation += 1
        request.with_header(correlation_id=self._correlation, client_id="raw")
        self.send(request.encode(header=True, framed=True))
        response = response[version].decode(self.receive(), header=True)
        assert response.header.correlation_id == self._correlation
        return response

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> bytes:
        """The next answer, without its size prefix."""
        return self._exactly(struct.unpack(">i", self._exactly(4))[0])

    def _exactly(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            more = self._socket.recv(min(count - len(data), self._receive_bytes_max or count))
            assert more, "connection closed"
            data += more
        return bytes(data)

    def topic_id(self, topic: str) -> UUID:
        request = MetadataRequest[12]()
        request.topics = [MetadataRequest.MetadataRequestTopic(version=12)]
        request.topics[0].name, request.topics[0].topic_id = topic, UUID(int=0)
        topic_uuid: UUID = self.ask(request, MetadataResponse, 12).topics[0].topic_id
        return topic_uuid

    def fetch_response(
        self,
        version: int,
        topic: str,
        topic_id: UUID | None,
        offsets: dict[int, int],
        *,
        bytes_max: int = 1 << 20,
        wait_ms: int = 500,
        isolation: int = 0,
        session: tuple[int, int] = (0, -1),
    ) -> Any:
        request = FetchRequest[version]()
        request.replica_id = -1
        request.max_wait_ms, request.min_bytes, request.max_bytes = wait_ms, 1, 50 << 20
        request.isolation_level = isolation
        request.session_id, request.session_epoch = session
        request.forgotten_topics_data = []
        fetch_topic = FetchRequest.FetchTopic(version=version)
        fetch_topic.topic, fetch_topic.topic_id, fetch_topic.partitions = topic, topic_id, []
        for partition, offset in offsets.items():
            entry = FetchRequest.FetchTopic.FetchPartition(version=version)
            entry.partition, entry.fetch_offset = partition, offset
            entry.partition_max_bytes = bytes_max
            fetch_topic.partitions.append(entry)
        request.topics = [fetch_topic] if offsets else []
        return self.ask(request, FetchResponse, version)

    def fetch(
        self, version: int, topic: str, topic_id: UUID | None, offset: int, **more: Any
    ) -> Fetched:
        response = self.fetch_response(version, topic, topic_id, {0: offset}, **more)
        p = response.responses[0].partitions[0]
        aborted = p.aborted_transactions
        pairs = None if aborted is None else [(a.producer_id, a.first_offset) for a in aborted]
        start = p.log_start_offset if version >= 5 else -1
        return Fetched(
            p.error_code, p.high_watermark, p.last_stable_offset, start, pairs,
            bytes(p.records or b""),
        )  # fmt: skip

    def fetch_until_data(self, *args: Any, **more: Any) -> Fetched:
        """Like a consumer, fetch again after each empty response without error."""
        deadline = time.monotonic() + 30
        while True:
            fetched = self.fetch(*args, **more)
            if fetched.records or fetched.error:
                return fetched
            assert time.monotonic() < deadline, f"only empty answers for {args}"

    def list_offset(self, version: int, topic: str, timestamp: int) -> tuple[int, int, int]:
        """(error, timestamp, offset) of partition 0."""
        request = ListOffsetsRequest[version]()
        request.replica_id, request.isolation_level = -1, 0
        offsets_topic = ListOffsetsRequest.ListOffsetsTopic(version=version)
        entry = ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(version=version)
        entry.partition_index, entry.timestamp, entry.current_leader_epoch = 0, timestamp, -1
        offsets_topic.name, offsets_topic.partitions = topic, [entry]
        request.topics = [offsets_topic]
        if version >= 10:
            request.timeout_ms = 20_000
        p = self.ask(request, ListOffsetsResponse, version).topics[0].partitions[0]
        return p.error_code, p.timestamp, p.offset
