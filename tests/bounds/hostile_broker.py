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
        asked = (head.api_key, head.api_version, head.correlation_id, frame)
        name = client_id(frame, head)
        script = {blown_messages.CLIENT_ID: self.to_hostile, PROXY: self.to_proxy}.get(name)
        response = None if script is None else script(*asked)
        if response is None:
            response = self.ordinary(*asked)
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
        asked = at_once(read_request(request_of(key), frame, head.body_position, key, version))
        if key == ApiKey.PRODUCE and not asked["acks"]:
            return b""
        if key in (ApiKey.FETCH, ApiKey.LIST_OFFSETS):
            places = asked["topics"]
            if places is None or any(topic["partitions"] is None for topic in places):
                raise WireError("null in the place of a list")
        values = defaultdict(dict, self._responses(asked, version)).get(key, {})
        return bytes(at_once(write_response(response_of(key), values, key, version, correlation)))

    def _responses(self, asked: dict[str, Any], version: int) -> dict[int, dict[str, Any]]:
        node = {"node_id": NODE, "broker_id": NODE, "host": "127.0.0.1", "port": self.port}
        keys = [{**node, "key": key} for key in asked.get("coordinator_keys") or ()]
        found: dict[int, dict[str, Any]] = {
            ApiKey.API_VERSIONS: {"api_keys": _offered()},
            ApiKey.FIND_COORDINATOR: {**node, "coordinators": keys},
            ApiKey.DESCRIBE_CLUSTER: {"brokers": [node], "controller_id": NODE, "cluster_id": "c"},
        }
        topics = asked.get("topics")
        brokers = {"brokers": [node], "cluster_id": "c", "controller_id": NODE}
        if "allow_auto_topic_creation" in asked:
            found[ApiKey.METADATA] = brokers | {"topics": [_described(t) for t in topics or ({},)]}
        if "isolation_level" in asked and "session_id" in asked:
            found[ApiKey.FETCH] = {"responses": [_fetched(t, version) for t in topics]}
        elif "isolation_level" in asked:
            found[ApiKey.LIST_OFFSETS] = {"topics": [_listed(t) for t in topics]}
        return found


def _offered() -> list[dict[str, int]]:
    ranges = {int(key): range(1) for key in ApiKey}
    ranges |= {key: blown_messages.versions_of(key) for key in blown_messages.described()}
    return [
        {"api_key": key, "min_version": versions[0], "max_version": versions[-1]}
        for key, versions in ranges.items()
    ]


def _described(asked: dict[str, Any]) -> dict[str, Any]:
    """`{}` asks for all topics."""
    by_id = asked.get("name") is None and asked
    if asked and (asked["topic_id"] != TOPIC_ID if by_id else asked["name"] != TOPIC):
        return {"error_code": _UNKNOWN_ID if by_id else _UNKNOWN_TOPIC, **asked, "partitions": ()}
    place = {"leader_id": NODE, "leader_epoch": 0, "replica_nodes": [NODE], "isr_nodes": [NODE]}
    every = [place | {"partition_index": number} for number in range(PARTITIONS)]
    return {"name": TOPIC, "topic_id": TOPIC_ID, "partitions": every}


def _fetched(asked: dict[str, Any], version: int) -> dict[str, Any]:
    known = asked["topic"] == TOPIC or asked["topic_id"] == TOPIC_ID
    partitions = []
    for one in asked["partitions"]:
        error = 0 if one["fetch_offset"] >= LOG_START else _OUT_OF_RANGE
        if not known:
            error = _UNKNOWN_ID if version > 12 else _UNKNOWN_TOPIC
        marks = dict.fromkeys(("high_watermark", "last_stable_offset"), LOG_END)
        marks |= {"log_start_offset": LOG_START, "preferred_read_replica": -1, "records": b""}
        partitions.append({"partition_index": one["partition"], "error_code": error, **marks})
    return {"topic": asked["topic"], "topic_id": asked["topic_id"], "partitions": partitions}


def _listed(asked: dict[str, Any]) -> dict[str, Any]:
    partitions = [
        {
            "partition_index": one["partition_index"],
            "error_code": 0 if asked["name"] == TOPIC else _UNKNOWN_TOPIC,
            "offset": LOG_START if one["timestamp"] == -2 else LOG_END,
            "timestamp": -1,
            "leader_epoch": 0,
        }
        for one in asked["partitions"]
    ]
    return {"name": asked["name"], "partitions": partitions}


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
