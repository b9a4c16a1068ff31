"""A broker that answers as a test says, on a real socket. Not a test, and no model of Kafka."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from kafka.protocol.consumer.fetch import FetchResponse
from kafka.protocol.consumer.offsets import ListOffsetsResponse
from kafka.protocol.metadata.api_versions import ApiVersionsResponse
from kafka.protocol.metadata.metadata import MetadataResponse

TOPIC_ID = UUID(int=7)
TOPIC = "orders"
VERSIONS = {1: (4, 13), 2: (1, 7), 3: (0, 12), 18: (0, 0)}

ExpectedResponse = Callable[
    [int, int, int], bytes | None
]  # api key, version, correlation id -> frame


@dataclass
class ScriptedBroker:
    """`override` may answer any request itself (None: as below), and raise to hang up."""

    node_id: int = 1
    leader: int = 1
    leader_epoch: int = 0
    fetch_error: int = 0
    port: int = 0
    peers: dict[int, int] = field(default_factory=dict)  # node id -> port
    hosts: dict[int, str] = field(default_factory=dict)  # node id -> host, if not 127.0.0.1
    override: ExpectedResponse | None = None
    requests: list[int] = field(default_factory=list)  # api keys

    def response_to(self, request: bytes) -> bytes | None:
        """Without its size prefix."""
        return self.response(*struct.unpack_from(">hhi", request))

    def response(self, api_key: int, version: int, correlation_id: int) -> bytes | None:
        self.requests.append(api_key)
        if self.override is not None:
            frame = self.override(api_key, version, correlation_id)
            if frame is not None:
                return frame
        message = {18: self._versions, 3: self._metadata, 1: self._fetch, 2: self._offsets}
        return encode(message[api_key](), version, correlation_id)

    def _versions(self) -> Any:
        keys = [
            ApiVersionsResponse.ApiVersion(api_key=key, min_version=low, max_version=high)
            for key, (low, high) in VERSIONS.items()
        ]
        return ApiVersionsResponse(error_code=0, api_keys=keys)

    def _metadata(self) -> Any:
        topic = MetadataResponse.MetadataResponseTopic
        broker = MetadataResponse.MetadataResponseBroker
        partition = topic.MetadataResponsePartition(
            error_code=0,
            partition_index=0,
            leader_id=self.leader,
            leader_epoch=self.leader_epoch,
            replica_nodes=[1],
            isr_nodes=[1],
            offline_replicas=[],
        )
        return MetadataResponse(
            throttle_time_ms=0,
            brokers=[
                broker(node_id=node, host=self.hosts.get(node, "127.0.0.1"), port=port, rack=None)
                for node, port in {self.node_id: self.port, **self.peers}.items()
            ],
            cluster_id="c",
            controller_id=1,
            topics=[
                topic(
                    error_code=0,
                    name=TOPIC,
                    topic_id=TOPIC_ID,
                    is_internal=False,
                    partitions=[partition],
                )
            ],
        )

    def _fetch(self) -> Any:
        topic = FetchResponse.FetchableTopicResponse
        data = topic.PartitionData(
            partition_index=0,
            error_code=self.fetch_error,
            high_watermark=100 + self.node_id,
            last_stable_offset=100,
            log_start_offset=0,
            aborted_transactions=[],
            preferred_read_replica=-1,
            records=b"",
        )
        return FetchResponse(
            throttle_time_ms=0,
            error_code=0,
            session_id=0,
            responses=[topic(topic_id=TOPIC_ID, partitions=[data])],
        )

    def _offsets(self) -> Any:
        topic = ListOffsetsResponse.ListOffsetsTopicResponse
        place = topic.ListOffsetsPartitionResponse(
            partition_index=0, error_code=0, timestamp=-1, offset=5, leader_epoch=0
        )
        return ListOffsetsResponse(
            throttle_time_ms=0, topics=[topic(name=TOPIC, partitions=[place])]
        )


def encode(message: Any, version: int, correlation_id: int) -> bytes:
    message.API_VERSION = version
    message.with_header(correlation_id=correlation_id)
    return bytes(message.encode(header=True, framed=True))


@asynccontextmanager
async def serving(broker: ScriptedBroker) -> AsyncIterator[str]:
    """`host:port` of the broker's listener."""
    connections: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.add(writer)
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                request = await reader.readexactly(size)
                frame = broker.response_to(request)
                if frame is not None:
                    writer.write(frame)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            connections.discard(writer)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield f"127.0.0.1:{broker.port}"
    finally:
        server.close()
        for writer in list(connections):
            writer.close()
        await asyncio.sleep(0.01)
