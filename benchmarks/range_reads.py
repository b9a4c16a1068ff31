"""Raw parallel range reads of stored objects: the speed of the store for a client that only counts
bytes.

`python -m benchmarks.range_reads` takes `{"objects": [[place, size], …], "concurrency": N,
"part_bytes": N}` from its standard input. It reads every object completely, in parts, and prints
seconds, CPU seconds and bytes as JSON. A place is a file's path or a presigned http URL.
"""

from __future__ import annotations

import json
import os
import queue
import resource
import socket
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from urllib.parse import urlsplit

_STALLED_S = 60.0
_HEAD_BYTES_MAX = 64 * 1024

Part = tuple[str, int, int]  # place, first byte, after the last byte


def parts_of(objects: Sequence[tuple[str, int]], part_bytes: int) -> list[Part]:
    """In the order of the objects."""
    return [
        (place, start, min(start + part_bytes, size))
        for place, size in objects
        for start in range(0, size, part_bytes)
    ]


class _FileReader:
    def __init__(self, part_bytes: int) -> None:
        self._buffer = bytearray(part_bytes)

    def close(self) -> None:
        """Does nothing: no file stays open between two parts."""

    def read(self, part: Part) -> int:
        place, start, end = part
        view = memoryview(self._buffer)[: end - start]
        file = os.open(place, os.O_RDONLY)
        try:
            count = 0
            while count < len(view):
                more = os.preadv(file, [view[count:]], start + count)
                if not more:
                    raise OSError(f"{place} ends at byte {start + count}")
                count += more
        finally:
            os.close(file)
        return count


class _HttpReader:
    """One connection that stays open. No HTTP library: the benchmark would measure the library."""

    def __init__(self, part_bytes: int) -> None:
        self._buffer = bytearray(part_bytes + _HEAD_BYTES_MAX)
        self._socket: socket.socket | None = None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def read(self, part: Part) -> int:
        place, start, end = part
        url = urlsplit(place)
        if self._socket is None:
            assert url.hostname is not None
            address = (url.hostname, url.port or 80)
            self._socket = socket.create_connection(address, timeout=_STALLED_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = f"GET {url.path}?{url.query} HTTP/1.1\r\nHost: {url.netloc}\r\n"
        self._socket.sendall(f"{head}Range: bytes={start}-{end - 1}\r\n\r\n".encode())
        view, received, body_at = memoryview(self._buffer), 0, 0
        while not body_at or received < body_at + end - start:
            more = self._socket.recv_into(view[received:])
            if not more:
                raise OSError(f"the store closed the connection at byte {received} of an answer")
            received += more
            if not body_at and (header_end := self._buffer.find(b"\r\n\r\n", 0, received)) >= 0:
                body_at = header_end + 4
                if not self._buffer.startswith(b"HTTP/1.1 206"):
                    raise OSError(f"the store answered {bytes(self._buffer[:header_end])!r}")
        return received - body_at


def read_all(parts: Sequence[Part], concurrency: int, part_bytes: int) -> int:
    """Returns the number of bytes read. Raises OSError."""
    waiting: queue.SimpleQueue[Part] = queue.SimpleQueue()
    for part in parts:
        waiting.put(part)
    sizes: list[int] = []
    failures: list[Exception] = []

    def work() -> None:
        over_http = bool(parts) and parts[0][0].startswith("http")
        with closing((_HttpReader if over_http else _FileReader)(part_bytes)) as reader:
            try:
                while not failures:
                    sizes.append(reader.read(waiting.get_nowait()))
            except queue.Empty:
                return
            except OSError as error:
                failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return sum(sizes)


def main() -> int:
    task = json.load(sys.stdin)
    objects = [(place, size) for place, size in task["objects"]]
    parts = parts_of(objects, task["part_bytes"])
    begun = time.perf_counter()
    size = read_all(parts, task["concurrency"], task["part_bytes"])
    seconds = time.perf_counter() - begun
    usage = resource.getrusage(resource.RUSAGE_SELF)
    used = usage.ru_utime + usage.ru_stime
    print(json.dumps({"seconds": seconds, "cpu_seconds": used, "bytes": size}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
