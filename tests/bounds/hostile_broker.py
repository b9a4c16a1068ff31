"""A broker that answers ordinary clients well, and hostile ones and the proxy as an attack says.

On a real socket, in this process's event loop. `orders` has 4 partitions whose log starts at offset
500, so that an earlier offset is in the archive alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import defaultdict
from collections.abc import AsyncIterable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import blown_messages
from fetchproxy_protocol.apis import ApiKey, WireError
from fetchproxy_protocol.headers import client_id, peek_request_header
from fetchproxy_protocol.messages import read_request, write_response

from fetchproxy.brokers.connections import CLIENT_ID as PROXY
from fetchproxy.runtime.cooperative import at_once
from fetchproxy.serving.archive_only.schemas import request_of, response_of

TOPIC, TOPIC_ID, PARTITIONS = "orders", UUID(int=1), 4
LOG_START, LOG_END = 500, 1_000
NODE = 1
_OUT_OF_RANGE, _UNKNOWN_TOPIC, _UNKNOWN_ID = 1, 3, 100

# (API key, version, correlation id, request without size prefix) -> the response with its size
# prefix, in pieces if it is iterable; b"" none, None: as a good broker.
Script = Callable[[int, int, int, bytes], "bytes | AsyncIterable[bytes] | None"]


class HostileBroker:
    """`to_hostile`, `to_proxy`: how clients named `hostile` and the proxy's own are answered."""

    def __init__(self) -> None:
        self.port = 0
        self.to_hostile: Script | None = None
        self.to_proxy: Script | None = None
        self.connections: set[asyncio.StreamWriter] = set()

    def peaceful(self) -> None:
        self.to_hostile = self.to_proxy = None

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, OSError, WireError):
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                await self._response(await reader.readexactly(size), writer)
        self.connections.discard(writer)
        writer.close()

    async def _response(self, frame: bytes, writer: asyncio.StreamWriter) -> None:
        head = peek_request_header(frame)
        arguments = (head.api_key, head.api_version, head.correlation_id, frame)
        name = client_id(frame, head)
        script = {blown_messages.CLIENT_ID: self.to_hostile, PROXY: self.to_proxy}.get(name)
        response = None if script is None else script(*arguments)
        if response is None:
            response = self.ordinary(*arguments)
        if isinstance(response, bytes):
            writer.write(response)
        else:
            async for piece in response:
                writer.write(piece)
                await writer.drain()
        await writer.drain()

    def ordinary(self, key: int, version: int, correlation: int, frame: bytes) -> bytes:
        """Raises WireError for a request that cannot be read; a broker closes, too."""
        head = peek_request_header(frame)
        if key not in blown_messages.described() or key == ApiKey.DESCRIBE_QUORUM:
            return struct.pack(">iihh", 8, correlation, 0, 0)
        request_fields = at_once(
            read_request(request_of(key), frame, head.body_position, key, version)
        )
        if key == ApiKey.PRODUCE and not request_fields["acks"]:
            return b""
        if key in (ApiKey.FETCH, ApiKey.LIST_OFFSETS):
            places = request_fields["topics"]
            if places is None or any(topic["partitions"] is None for topic in places):
                raise WireError("null in the place of a list")
        values = defaultdict(dict, self._responses(request_fields, version)).get(key, {})
        return bytes(at_once(write_response(response_of(key), values, key, version, correlation)))

    def _responses(self, request_fields: dict[str, Any], version: int) -> dict[int, dict[str, Any]]:
        node = {"node_id": NODE, "broker_id": NODE, "host": "127.0.0.1", "port": self.port}
        keys = [{**node, "key": key} for key in request_fields.get("coordinator_keys") or ()]
        by_key: dict[int, dict[str, Any]] = {
            ApiKey.API_VERSIONS: {"api_keys": _offered()},
            ApiKey.FIND_COORDINATOR: {**node, "coordinators": keys},
            ApiKey.DESCRIBE_CLUSTER: {"brokers": [node], "controller_id": NODE, "cluster_id": "c"},
        }
        topics = request_fields.get("topics")
        brokers = {"brokers": [node], "cluster_id": "c", "controller_id": NODE}
        if "allow_auto_topic_creation" in request_fields:
            by_key[ApiKey.METADATA] = brokers | {"topics": [_described(t) for t in topics or ({},)]}
        if "isolation_level" in request_fields and "session_id" in request_fields:
            by_key[ApiKey.FETCH] = {"responses": [_fetched(t, version) for t in topics]}
        elif "isolation_level" in request_fields:
            by_key[ApiKey.LIST_OFFSETS] = {"topics": [_listed(t) for t in topics]}
        return by_key


def _offered() -> list[dict[str, int]]:
    ranges = {int(key): range(1) for key in ApiKey}
    ranges |= {key: blown_messages.versions_of(key) for key in blown_messages.described()}
    return [
        {"api_key": key, "min_version": versions[0], "max_version": versions[-1]}
        for key, versions in ranges.items()
    ]


def _described(topic_fields: dict[str, Any]) -> dict[str, Any]:
    """`{}` asks for all topics."""
    by_id = topic_fields.get("name") is None and topic_fields
    if topic_fields and (
        topic_fields["topic_id"] != TOPIC_ID if by_id else topic_fields["name"] != TOPIC
    ):
        return {
            "error_code": _UNKNOWN_ID if by_id else _UNKNOWN_TOPIC,
            **topic_fields,
            "partitions": (),
        }
    place = {"leader_id": NODE, "leader_epoch": 0, "replica_nodes": [NODE], "isr_nodes": [NODE]}
    every = [place | {"partition_index": number} for number in range(PARTITIONS)]
    return {"name": TOPIC, "topic_id": TOPIC_ID, "partitions": every}


def _fetched(partition_fields: dict[str, Any], version: int) -> dict[str, Any]:
    known = partition_fields["topic"] == TOPIC or partition_fields["topic_id"] == TOPIC_ID
    partitions = []
    for one in partition_fields["partitions"]:
        error = 0 if one["fetch_offset"] >= LOG_START else _OUT_OF_RANGE
        if not known:
            error = _UNKNOWN_ID if version > 12 else _UNKNOWN_TOPIC
        marks = dict.fromkeys(("high_watermark", "last_stable_offset"), LOG_END)
        marks |= {"log_start_offset": LOG_START, "preferred_read_replica": -1, "records": b""}
        partitions.append({"partition_index": one["partition"], "error_code": error, **marks})
    return {
        "topic": partition_fields["topic"],
        "topic_id": partition_fields["topic_id"],
        "partitions": partitions,
    }


def _listed(partition_fields: dict[str, Any]) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": one["partition_index"],
            "error_code": 0 if partition_fields["name"] == TOPIC else _UNKNOWN_TOPIC,
            "offset": LOG_START if one["timestamp"] == -2 else LOG_END,
            "timestamp": -1,
            "leader_epoch": 0,
        }
        for one in partition_fields["partitions"]
    ]
    return {"name": partition_fields["name"], "partitions": partitions}


@asynccontextmanager
async def serving(broker: HostileBroker):
    """Yields the listener's `host:port`."""
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0, limit=1 << 22)
    broker.port = server.sockets[0].getsockname()[1]
    try:
        yield f"127.0.0.1:{broker.port}"
    finally:
        server.close()
        for writer in list(broker.connections):
            writer.transport.abort()
