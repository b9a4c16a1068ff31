"""Many connections of one cheap client, either idle or fetching the same record all the time.

`python -m benchmarks.many_connections BOOTSTRAP TOPIC CONNECTIONS SECONDS [SERVER_PID] [--differ]
[--tls]`.
Each connection begins like a consumer's: ApiVersions, Metadata, and a Fetch of partition 0 at
offset 0. With SECONDS 0, the program prints a line when all connections are open and keeps them
idle until stdin ends. Otherwise each connection sends its next fetch when the last one is answered,
and the program prints `{"requests": …, "seconds": …, "cpu_seconds": …, "server_cpu_seconds": …}`,
the last one of the process SERVER_PID. It is a process of its own, so its memory and CPU time do
not count as the proxy's.

With --differ, no fetch of a connection equals the one before it: its bytes at most are others. With
--tls, connections speak TLS; they can only be idle.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import ssl
import sys
import time
from collections.abc import Sequence
from struct import Struct
from typing import Any

from kafka.protocol.metadata.api_versions import ApiVersionsRequest
from kafka.protocol.metadata.metadata import MetadataRequest

from benchmarks import raw_fetch
from benchmarks.process_usage import cpu_seconds

_CORRELATION = Struct(">i")
_CORRELATION_AT = 8  # after size, API key and API version
_BODY_AT = 8  # in a response, after size and correlation id
_PARTITION_BYTES_MAX = Struct(">i")  # the last field but one of a fetch of one partition
_PARTITION_BYTES_MAX_AT = -10  # before the counts of forgotten topics and the length of the rack
_TOGETHER = 100  # connections opened at a time
_WARM_UP_S = 0.5
_STALLED_S = 30.0
_RECEIVE_BYTES = 64 * 1024


def greeting(topic: str) -> tuple[bytes, bytes, bytes]:
    """The first requests of a consumer's connection, the fetch last; correlation id 0."""
    topics = [MetadataRequest.MetadataRequestTopic(name=topic)]
    metadata = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    fetch = raw_fetch.request(topic, [(0, 0)], 0)
    return _encoded(ApiVersionsRequest(), 0), _encoded(metadata, 9), fetch


def _encoded(request: Any, version: int) -> bytes:
    # `Any`: kafka-python creates its message classes at import time, so mypy has no types for them.
    request.API_VERSION = version
    request.with_header(correlation_id=0, client_id="benchmark")
    return bytes(request.encode(header=True, framed=True))


def connect(
    bootstrap: str, topic: str, count: int, tls: bool = False
) -> tuple[list[socket.socket], bytes]:
    """(connections, the response to their fetch). Raises OSError, or SystemExit if answers
    differ.
    """
    host, _, port = bootstrap.rpartition(":")
    requests = greeting(topic)
    sockets: list[socket.socket] = []
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    expected = b""
    while len(sockets) < count:
        batch = []
        for _ in range(min(_TOGETHER, count - len(sockets))):
            connection = socket.create_connection((host, int(port)), timeout=_STALLED_S)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if tls:
                connection = context.wrap_socket(connection)
            batch.append(connection)
        for request in requests:
            for connection in batch:
                connection.sendall(request)
            responses = {receive(connection) for connection in batch}
            if len(responses) > 1:
                raise SystemExit("equal requests were answered in different ways")
            (expected,) = responses
        sockets += batch
    return sockets, expected


def receive(connection: socket.socket) -> bytes:
    """One complete answer, with its size field. Raises OSError."""
    response = _exactly(connection, 4)
    return response + _exactly(connection, int.from_bytes(response, "big"))


def _exactly(connection: socket.socket, size: int) -> bytes:
    received_bytes = bytearray()
    while len(received_bytes) < size:
        part = connection.recv(size - len(received_bytes))
        if not part:
            raise ConnectionResetError("a connection was closed")
        received_bytes += part
    return bytes(received_bytes)


class Load:
    """One fetch in flight on each connection. The answer to it triggers the next fetch."""

    def __init__(
        self,
        connections: Sequence[socket.socket],
        request: bytes,
        expected: bytes,
        differ: bool = False,
    ) -> None:
        self._connections = {each.fileno(): each for each in connections}
        self._request = bytearray(request)
        self._body = expected[_BODY_AT:]
        self._response_bytes = len(expected)
        self._begun: dict[int, bytes] = {}  # answers that are not complete yet
        self._count_sent, self._differ = 0, differ
        self.responded = 0
        self._epoll = select.epoll()
        for number, connection in self._connections.items():
            connection.setblocking(False)
            self._epoll.register(number, select.EPOLLIN)
            self._send(connection)

    def run(self, seconds: float) -> None:
        """Raises SystemExit if a response differs from the expected one, or if none comes."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            ready = self._epoll.poll(_STALLED_S)
            if not ready:
                raise SystemExit(f"no answer in {_STALLED_S} s")
            for number, _ in ready:
                self._receive(number)

    def close(self) -> None:
        self._epoll.close()

    def _receive(self, number: int) -> None:
        connection = self._connections[number]
        part = connection.recv(_RECEIVE_BYTES)
        if not part:
            raise SystemExit("a connection was closed")
        response = self._begun.pop(number, b"") + part
        if len(response) < self._response_bytes:
            self._begun[number] = response
            return
        if response[_BODY_AT:] != self._body:
            raise SystemExit("a fetch was answered in another way than the first one")
        self.responded += 1
        self._send(connection)

    def _send(self, connection: socket.socket) -> None:
        self._count_sent = (self._count_sent + 1) & 0x7FFFFFFF
        _CORRELATION.pack_into(self._request, _CORRELATION_AT, self._count_sent)
        if self._differ:
            most = raw_fetch.PARTITION_BYTES_MAX + (self._count_sent & 0xFFFF)
            at = len(self._request) + _PARTITION_BYTES_MAX_AT
            _PARTITION_BYTES_MAX.pack_into(self._request, at, most)
        connection.send(self._request)


def main(options: argparse.Namespace) -> None:
    connections, expected = connect(
        options.bootstrap, options.topic, options.connections, options.tls
    )
    if not options.seconds:
        print(json.dumps({"connections": len(connections)}), flush=True)
        sys.stdin.read()
        return

    def server_cpu_seconds() -> float:
        return cpu_seconds(options.server_pid) if options.server_pid else 0.0

    load = Load(connections, greeting(options.topic)[-1], expected, options.differ)
    load.run(_WARM_UP_S)
    before, cpu_before, begun = load.responded, time.process_time(), time.perf_counter()
    server_before = server_cpu_seconds()
    load.run(options.seconds)
    measured = {
        "requests": load.responded - before,
        "seconds": time.perf_counter() - begun,
        "cpu_seconds": time.process_time() - cpu_before,
        "server_cpu_seconds": server_cpu_seconds() - server_before,
    }
    print(json.dumps(measured))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("bootstrap")
    parser.add_argument("topic")
    parser.add_argument("connections", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("server_pid", type=int, nargs="?")
    parser.add_argument("--differ", action="store_true")
    parser.add_argument("--tls", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main(_options())
