"""A relay in front of an object store that delays every request and records what passes.

`python -m benchmarks.store_relay PORT UPSTREAM_PORT CONTROL_PORT LATENCY_MS` is the relay, for HTTP
without pipelining. It moves answers with `splice`, so that it is not a bottleneck for the
benchmark. `StoreRelay` starts the relay in a process of its own and asks it for its records. Linux
only.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from lab.process import ServerProcess, free_port, port_responses

_PIPE_BYTES = 1024 * 1024
_METHODS = (b"GET ", b"HEAD ", b"PUT ", b"POST ", b"DELETE ")
_PROJECT = Path(__file__).parents[1]


@dataclass(frozen=True, slots=True)
class Passed:
    """One request: its arrival and the end of its response, in seconds of one clock."""

    began: float
    ended: float
    size_bytes: int


def longest_chain(requests: Sequence[Passed]) -> int:
    """Round trips: the longest sequence of requests that began after the previous answer."""
    depths: list[tuple[float, int]] = []  # (end, number of requests in sequence up to it)
    for each in sorted(requests, key=lambda request: request.began):
        before = max((depth for ended, depth in depths if ended <= each.began), default=0)
        depths.append((each.ended, before + 1))
    return max((depth for _, depth in depths), default=0)


class StoreRelay:
    """`with StoreRelay(upstream_port, latency_ms) as relay: … relay.endpoint_url`."""

    def __init__(self, upstream_port: int, latency_ms: float) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="store-relay-")
        self.port, self._control = free_port(), free_port()
        ports = [str(self.port), str(upstream_port), str(self._control)]
        command = [sys.executable, "-m", "benchmarks.store_relay", *ports, str(latency_ms)]
        log = Path(self._folder.name) / "log"
        self._process = ServerProcess("store relay", command, log, cwd=_PROJECT)

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    def take(self) -> list[Passed]:
        """All that passed since the last call. If a call falls into a response, both calls get a
        part.

        Raises OSError.
        """
        address = ("127.0.0.1", self._control)
        with socket.create_connection(address, timeout=30) as asking, asking.makefile() as lines:
            return [Passed(*each) for each in json.load(lines)]

    def __enter__(self) -> Self:
        try:
            self._process.start()
            ports = (self.port, self._control)
            self._process.wait_until(lambda: all(port_responses(port) for port in ports), 30.0)
            self.take()
        except BaseException:
            self._process.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._process.stop()
        self._folder.cleanup()


class _Log:
    """Requests of all connections. A request without a response has no entry yet."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._passed: list[tuple[float, float, int]] = []

    def add(self, began: float, ended: float, size_bytes: int) -> None:
        with self._lock:
            self._passed.append((began, ended, size_bytes))

    def take(self) -> list[tuple[float, float, int]]:
        with self._lock:
            taken, self._passed = self._passed, []
        return taken


class _Connection:
    """A client's connection and the one to the store, a thread for each direction."""

    def __init__(self, client: socket.socket, port: int, latency_s: float, log: _Log) -> None:
        self._client = client
        self._store = socket.create_connection(("127.0.0.1", port))
        for each in (self._client, self._store):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._latency_s = latency_s
        self._log = log
        self._lock = threading.Lock()
        self._began = self._ended = 0.0
        self._size = 0

    def start(self) -> None:
        for work in (self._requests, self._responses):
            threading.Thread(target=self._until_closed, args=(work,), daemon=True).start()

    def settle(self) -> None:
        """Records what has passed of the last response.

        It is called when the client sends the next request, when the connection closes, and when
        `take` is called. Any later bytes of the response get an entry of their own.
        """
        with self._lock:
            if self._size:
                self._log.add(self._began, self._ended, self._size)
                self._size = 0

    def _until_closed(self, work: Callable[[], None]) -> None:
        # When one side closes, the other side is closed too.
        with contextlib.suppress(OSError):
            work()
        for each in (self._client, self._store):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.settle()

    def _requests(self) -> None:
        while data := self._client.recv(256 * 1024):
            if data.startswith(_METHODS):
                self.settle()
                with self._lock:
                    self._began = time.monotonic()
                time.sleep(self._latency_s)
            self._store.sendall(data)

    def _responses(self) -> None:
        source, sink = os.pipe()
        try:
            fcntl.fcntl(sink, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
            while count := os.splice(self._store.fileno(), sink, _PIPE_BYTES):
                # Counted before it leaves: a client that has all of it may call `take` at once.
                with self._lock:
                    self._ended = time.monotonic()
                    self._size += count
                bytes_left = count
                while bytes_left:
                    bytes_left -= os.splice(source, self._client.fileno(), bytes_left)
                with self._lock:
                    self._ended = time.monotonic()
        finally:
            os.close(source)
            os.close(sink)


def _serve(port: int, upstream_port: int, control_port: int, latency_s: float) -> None:
    log = _Log()
    open_ones: list[_Connection] = []

    def tell() -> None:
        with socket.create_server(("127.0.0.1", control_port)) as listener:
            while True:
                asking, _ = listener.accept()
                for each in list(open_ones):
                    each.settle()
                with asking, contextlib.suppress(OSError):
                    asking.sendall(json.dumps(log.take()).encode())

    threading.Thread(target=tell, daemon=True).start()
    with socket.create_server(("127.0.0.1", port), backlog=512) as listener:
        while True:
            client, _ = listener.accept()
            try:
                connection = _Connection(client, upstream_port, latency_s, log)
            except OSError:
                client.close()  # the store is away, so the relay closes the connection
                continue
            open_ones.append(connection)
            connection.start()


if __name__ == "__main__":
    listen, upstream, control = (int(each) for each in sys.argv[1:4])
    _serve(listen, upstream, control, float(sys.argv[4]) / 1000)
