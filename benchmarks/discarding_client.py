"""A fetch client over TLS that decrypts nothing, so that the server has the cores.

`python -m benchmarks.discarding_client '{"bootstrap": …, "topic": …, "partitions": N,
"connections": N, "seconds": S}'`. Each connection fetches the offset 0 of its partition, again and
again, with two requests under way. The first responses are decrypted, until two have the same size.
From then on the kernel discards what arrives (MSG_TRUNC), and whole responses are counted by their
size in TLS. It prints responses, bytes of them, seconds and CPU seconds as JSON.
"""

from __future__ import annotations

import json
import resource
import select
import socket
import ssl
import sys
import time
from collections.abc import Sequence

from benchmarks.raw_fetch import FetchFailed, request, response

_UNDER_WAY = 2
_NOWHERE = bytearray(8 * 1024 * 1024)  # as large as what is discarded at once; never written
_RECEIVE_BYTES = 256 * 1024
_RECORDS_BYTES_MIN = 100_000
_STALLED_S = 60.0


class Connection:
    def __init__(self, bootstrap: str, topic: str, partition: int) -> None:
        host, _, port = bootstrap.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), timeout=_STALLED_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self._request = request(topic, [(partition, 0)], 1)
        self._encrypted = 0  # bytes received
        self._shake_hands()
        self.plain_bytes, self._tls_bytes = self._equal_responses()
        self._owed = 0  # bytes of the responses under way that have not arrived
        self.responses = 0

    def _shake_hands(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._exchange()
            else:
                self.socket.sendall(self._outgoing.read())
                return

    def _exchange(self) -> None:
        if pending := self._outgoing.read():
            self.socket.sendall(pending)
        arrived = self.socket.recv(_RECEIVE_BYTES)
        if not arrived:
            raise FetchFailed("the connection was closed")
        self._encrypted += len(arrived)
        self._incoming.write(arrived)

    def _equal_responses(self) -> tuple[int, int]:
        """(plain bytes, bytes in TLS) of one, when the archive and its caches are warm."""
        deadline, last = time.monotonic() + _STALLED_S, (0, 0)
        while time.monotonic() < deadline:
            before = self._encrypted
            self.ask()
            frame = self._read(int.from_bytes(self._read(4)))
            fetch_response = response(memoryview(frame))
            size = len(frame) + 4, self._encrypted - before
            if sum(fetch_response.sizes.values()) > _RECORDS_BYTES_MIN and size == last:
                return size
            last = size
        raise FetchFailed(f"no two equal responses in {_STALLED_S} s")

    def _read(self, count: int) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            try:
                parts += self._tls.read(count - len(parts))
            except ssl.SSLWantReadError:
                self._exchange()
        return bytes(parts)

    def ask(self) -> None:
        self._tls.write(self._request)
        self.socket.sendall(self._outgoing.read())

    def begin(self) -> None:
        for _ in range(_UNDER_WAY):
            self.ask()
        self._owed = _UNDER_WAY * self._tls_bytes

    def discard(self) -> None:
        """What has arrived; and asks for as many responses as have come whole."""
        arrived = self.socket.recv_into(_NOWHERE, 0, socket.MSG_TRUNC)
        if not arrived:
            raise FetchFailed("the connection was closed")
        self._owed -= arrived
        while self._owed <= (_UNDER_WAY - 1) * self._tls_bytes:
            self.ask()
            self._owed += self._tls_bytes
            self.responses += 1


def drain(connections: Sequence[Connection], seconds: float) -> float:
    """Returns the seconds that it took."""
    poll = select.epoll()
    by_file = {each.socket.fileno(): each for each in connections}
    for file, each in by_file.items():
        each.socket.setblocking(False)
        poll.register(file, select.EPOLLIN)
        each.begin()
    begun = time.perf_counter()
    while time.perf_counter() < begun + seconds:
        ready = poll.poll(_STALLED_S)
        if not ready:
            raise FetchFailed(f"nothing in {_STALLED_S} s")
        for file, _ in ready:
            by_file[file].discard()
    return time.perf_counter() - begun


def main(arguments: Sequence[str]) -> int:
    order = json.loads(arguments[0])
    connections = [
        Connection(order["bootstrap"], order["topic"], number % order["partitions"])
        for number in range(order["connections"])
    ]
    before = time.process_time()
    seconds = drain(connections, order["seconds"])
    spent = time.process_time() - before
    responses = sum(each.responses for each in connections)
    size = sum(each.responses * each.plain_bytes for each in connections)
    print(json.dumps({
        "responses": responses, "bytes": size, "seconds": seconds, "cpu_seconds": spent,
        "memory_kib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }))  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
