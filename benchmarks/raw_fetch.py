"""A fetch client that only counts bytes, to measure reads without a consumer's own work.

`python -m benchmarks.raw_fetch '{"bootstrap": …, "topic": …, "ends": [[partition, end], …],
"connections": N, "partitions_max": N}'` reads every partition from offset 0 to its end and prints
seconds, CPU seconds, bytes of record batches and the number of fetches as JSON. Each connection has
a thread and its share of the partitions. A fetch names up to `partitions_max` of them, in turn,
with the limits of Kafka's own consumer. The client uses Fetch version 11 without a fetch session:
all brokers speak it, and it is quick to write.
"""

from __future__ import annotations

import json
import resource
import socket
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from struct import Struct
from typing import Self

_STALLED_S = 60.0
PARTITION_BYTES_MAX = 1024 * 1024  # max.partition.fetch.bytes
_FETCH_BYTES_MAX = 50 * 1024 * 1024  # fetch.max.bytes
_WAIT_MS = 500

_FRAME = Struct(">i")
_HEAD = Struct(">hhih9s")  # API key, version, correlation id, client id
_LIMITS = Struct(">iiiibii")  # replica, wait, min, max, isolation, session id and epoch
_PARTITION_REQUEST = Struct(">iiqqi")  # partition, leader epoch, offset, log start, bytes at most
_RESPONDED = Struct(">ihqqq")  # partition, error, high watermark, last stable offset, log start
_BATCH = Struct(">qi")  # base offset, length
_LAST_OFFSET_DELTA = Struct(">i")
_LAST_OFFSET_DELTA_AT, _BATCH_HEAD_BYTES = 23, 61


class FetchFailed(Exception):
    """The server answers with an error or with bytes that make no sense, or it does not answer."""


@dataclass(slots=True)
class Fetched:
    """By partition: `sizes` in bytes of records, the `next_offsets` to fetch, `errors` as codes."""

    sizes: dict[int, int] = field(default_factory=dict)
    next_offsets: dict[int, int] = field(default_factory=dict)
    errors: dict[int, int] = field(default_factory=dict)


def request(topic: str, offsets: Sequence[tuple[int, int]], correlation: int) -> bytes:
    """A complete frame that fetches (partition, offset) pairs."""
    name = topic.encode()
    parts = [
        _HEAD.pack(1, 11, correlation, 9, b"benchmark"),
        _LIMITS.pack(-1, _WAIT_MS, 1, _FETCH_BYTES_MAX, 0, 0, -1),
        (1).to_bytes(4, "big") + len(name).to_bytes(2, "big") + name,
        len(offsets).to_bytes(4, "big"),
        *(
            _PARTITION_REQUEST.pack(each, -1, offset, -1, PARTITION_BYTES_MAX)
            for each, offset in offsets
        ),
        bytes(4) + bytes(2),  # no topic forgotten, no rack
    ]
    body = b"".join(parts)
    return _FRAME.pack(len(body)) + body


def response(frame: memoryview) -> Fetched:
    """`frame` begins with the correlation id. Raises FetchFailed for a top-level error."""
    error = int.from_bytes(frame[8:10], "big", signed=True)
    if error:
        raise FetchFailed(f"the fetch has error {error}")
    fetched = Fetched()
    position = 18
    for _ in range(int.from_bytes(frame[14:18], "big", signed=True)):
        position += 2 + int.from_bytes(frame[position : position + 2], "big")
        count = int.from_bytes(frame[position : position + 4], "big", signed=True)
        position += 4
        for _ in range(count):
            position = _partition(frame, position, fetched)
    return fetched


def _partition(frame: memoryview, position: int, fetched: Fetched) -> int:
    partition, error, _, _, _ = _RESPONDED.unpack_from(frame, position)
    position += _RESPONDED.size
    aborted = int.from_bytes(frame[position : position + 4], "big", signed=True)
    position += 4 + max(aborted, 0) * 16 + 4  # and the preferred replica
    size = max(int.from_bytes(frame[position : position + 4], "big", signed=True), 0)
    position += 4
    if error:
        fetched.errors[partition] = error
    # The last batch may be incomplete: Kafka ends a fetch at its byte limit, not at a batch's end.
    at, end = position, position + size
    while at + _BATCH_HEAD_BYTES <= end:
        base, length = _BATCH.unpack_from(frame, at)
        if at + _BATCH.size + length > end:
            break
        (delta,) = _LAST_OFFSET_DELTA.unpack_from(frame, at + _LAST_OFFSET_DELTA_AT)
        fetched.next_offsets[partition] = base + delta + 1
        at += _BATCH.size + length
    if at > position:
        fetched.sizes[partition] = at - position
    return end


class RawConnection:
    """One connection with one request at a time. Raises OSError and FetchFailed."""

    def __init__(self, bootstrap: str) -> None:
        host, _, port = bootstrap.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=_STALLED_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1024 * 1024)
        self._correlation = 0

    def fetch(self, topic: str, offsets: Sequence[tuple[int, int]]) -> Fetched:
        self._correlation += 1
        self._socket.sendall(request(topic, offsets, self._correlation))
        self._receive(4)
        size = int.from_bytes(self._buffer[:4], "big")
        if size > len(self._buffer):
            self._buffer = bytearray(size)
        return response(self._receive(size))

    def first_record_ms(self, topic: str, partition: int, offset: int) -> float:
        """The time until a response has the batch with `offset`, in milliseconds."""
        begun = time.perf_counter()
        while True:
            fetch_result = self.fetch(topic, [(partition, offset)])
            if fetch_result.errors:
                raise FetchFailed(f"{topic}-{partition} at {offset}: {fetch_result.errors}")
            if fetch_result.sizes:
                return (time.perf_counter() - begun) * 1000
            if time.perf_counter() - begun > _STALLED_S:
                raise FetchFailed(f"{topic}-{partition} has nothing at {offset}")

    def _receive(self, size: int) -> memoryview:
        view = memoryview(self._buffer)[:size]
        received = 0
        while received < size:
            count = self._socket.recv_into(view[received:])
            if not count:
                raise FetchFailed("the connection was closed")
            received += count
        return view

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def drain(
    bootstrap: str, topic: str, ends: Sequence[tuple[int, int]], partitions_max: int
) -> tuple[int, int]:
    """(bytes, fetches), after every partition was read from 0 to its end (exclusive)."""
    limits = dict(ends)
    # As in consumers, the partition that was answered last goes to the end of the next fetch, so no
    # partition has to wait for the others.
    offsets_left = {partition: 0 for partition, end in ends if end > 0}
    size = fetches = 0
    progress_at = time.monotonic()
    with RawConnection(bootstrap) as connection:
        while offsets_left:
            fetch_result = connection.fetch(
                topic, list(islice(offsets_left.items(), partitions_max))
            )
            fetches += 1
            if fetch_result.errors:
                raise FetchFailed(f"{topic}: errors by partition {fetch_result.errors}")
            for partition, following in fetch_result.next_offsets.items():
                size += fetch_result.sizes[partition]
                del offsets_left[partition]
                if following < limits[partition]:
                    offsets_left[partition] = following
            if fetch_result.sizes:
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at > _STALLED_S:
                raise FetchFailed(f"nothing of {topic} in {_STALLED_S} s; left {offsets_left}")
    return size, fetches


def shares(ends: Sequence[tuple[int, int]], connections: int) -> list[list[tuple[int, int]]]:
    """The partitions that each connection reads. With more connections than partitions, each
    connection reads all of them."""
    if connections > len(ends):
        return [list(ends) for _ in range(connections)]
    return [list(ends[number::connections]) for number in range(connections)]


def main(arguments: Sequence[str]) -> int:
    task = json.loads(arguments[0])
    ends = [(partition, end) for partition, end in task["ends"]]
    parts = shares(ends, task["connections"])
    begun = time.perf_counter()
    with ThreadPoolExecutor(len(parts)) as threads:
        results = list(
            threads.map(
                lambda share: drain(
                    task["bootstrap"], task["topic"], share, task["partitions_max"]
                ),
                parts,
            )
        )
    seconds = time.perf_counter() - begun
    usage = resource.getrusage(resource.RUSAGE_SELF)
    print(
        json.dumps(
            {
                "seconds": seconds,
                "cpu_seconds": usage.ru_utime + usage.ru_stime,
                "bytes": sum(size for size, _ in results),
                "fetches": sum(fetches for _, fetches in results),
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
