"""A TCP relay in front of an S3 server that injects faults.

It slows the server down, corrupts or cuts off its answers, refuses requests, or repeats earlier
answers to listings.

`python -m benchmarks.fault_relay LISTEN_PORT SERVER_PORT` prints a line when it listens. It reads a
`Fault` as JSON from each line of stdin and ends when stdin ends. It is not an HTTP proxy: bytes
pass unchanged, so the server sees the requests as the client signed them.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from lab.errors import PartFailed
from lab.process import free_port

_PIECE_BYTES = 64 * 1024
_PROJECT = Path(__file__).parents[1]
_REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Fault:
    """`delay_ms`: delay before the first piece of a response after a request.

    `bytes_per_s`, `sent_bytes_per_s`: rate of the answers and of the requests on each connection; 0
    is unlimited. `corrupt`: flips a bit in each piece of an object that is read and whose key ends
    with `corrupt_suffix`. `cut`: no byte passes either way, and connections stay open.
    `stale_listings`: a listing that was requested before gets its response from before the fault.
    `refuse`: the kinds of requests that are answered 503: list, read, write, delete.
    """

    delay_ms: int = 0
    bytes_per_s: int = 0
    sent_bytes_per_s: int = 0
    corrupt: bool = False
    corrupt_suffix: str = ""
    cut: bool = False
    stale_listings: bool = False
    refuse: tuple[str, ...] = ()


NO_FAULT = Fault()


class Exchange:
    """The requests and answers of one HTTP/1.1 connection, one after the other. Pure.

    Listings are never corrupted: S3 has no checksum by which a client could notice.
    """

    def __init__(self) -> None:
        self._reads_object = False
        self.path = b""  # of the last request
        self._head: bytes | None = None  # of the response, until it is complete

    def request(self, data: bytes) -> None:
        """Takes a piece of the client's bytes: the beginning of a request, or more of its body."""
        line = data.partition(b"\r\n")[0].split(b" ")
        if len(line) == 3 and line[2].startswith(b"HTTP/1."):
            self.path = line[1].partition(b"?")[0].strip(b"/")
            self._reads_object = line[0] == b"GET" and b"/" in self.path
            self._head = b""

    def response(self, data: bytes) -> bytes:
        """Returns the same bytes, with one bit flipped if they hold a part of an object."""
        body_at = 0
        if self._head is not None:
            before = len(self._head)
            self._head += data
            end = self._head.find(b"\r\n\r\n")
            if end < 0:
                return data
            body_at = end + 4 - before
            if self._head.split(b" ", 2)[1] not in (b"200", b"206"):
                self._reads_object = False
            self._head = None
        if not self._reads_object or body_at >= len(data):
            return data
        flipped = bytearray(data)
        flipped[(body_at + len(data)) // 2] ^= 0x10
        return bytes(flipped)


def kind_of(data: bytes) -> str | None:
    """The kind of the request that begins with this piece. None: no request begins with it."""
    line = data.partition(b"\r\n")[0].split(b" ")
    if len(line) != 3 or not line[2].startswith(b"HTTP/1."):
        return None
    method, target = line[0], line[1]
    if method == b"GET" and b"list-type=2" in target:
        return "list"
    if method == b"DELETE" or (method == b"POST" and target.endswith(b"?delete")):
        return "delete"
    return "read" if method in (b"GET", b"HEAD") else "write"


class Listing:
    """The listing that is being answered on one connection, if there is one. Pure.

    `responses`: the last complete answer to each listing, shared by all connections.
    """

    def __init__(self, responses: dict[bytes, bytes]) -> None:
        self._responses = responses
        self._listing_path: bytes | None = None
        self._response = b""

    def asked_before(self, data: bytes) -> bytes | None:
        """The earlier answer to this listing, if this piece requests a listing."""
        line = data.partition(b"\r\n")[0].split(b" ")
        if len(line) != 3 or not line[2].startswith(b"HTTP/1."):
            return None
        listing = line[0] == b"GET" and b"list-type=2" in line[1]
        self._listing_path, self._response = (line[1] if listing else None), b""
        return self._responses.get(line[1]) if listing else None

    def responded(self, data: bytes) -> None:
        if self._listing_path is None:
            return
        self._response += data
        head, separator, body = self._response.partition(b"\r\n\r\n")
        if separator and len(body) == _length(head) and head.split(b" ", 2)[1] == b"200":
            self._responses[self._listing_path] = self._response
            self._listing_path = None


def _length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    return -1


class Relay:
    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listings: dict[bytes, bytes] = {}
        self._joined = asyncio.Event()
        self.set(NO_FAULT)

    def set(self, fault: Fault) -> None:
        self.fault = fault
        if fault.cut:
            self._joined.clear()
        else:
            self._joined.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serves one connection until either side closes it."""
        await self._joined.wait()
        try:
            from_server, to_server = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        exchange, listing = Exchange(), Listing(self._listings)
        request_event = asyncio.Event()  # since the last piece of a response
        refused = False  # if True, the rest of the request's body is dropped

        async def request(data: bytes) -> bytes:
            nonlocal refused
            await self._joined.wait()
            kind = kind_of(data)
            if kind is not None:
                refused = kind in self.fault.refuse
                if refused:
                    writer.write(_REFUSAL)
            if refused:
                return b""
            earlier = listing.asked_before(data)
            if earlier is not None and self.fault.stale_listings:
                writer.write(earlier)
                return b""
            if self.fault.sent_bytes_per_s:
                await asyncio.sleep(len(data) / self.fault.sent_bytes_per_s)
            exchange.request(data)
            request_event.set()
            return data

        async def response(data: bytes) -> bytes:
            await self._joined.wait()
            fault = self.fault
            if not fault.stale_listings:
                listing.responded(data)
            if request_event.is_set():
                request_event.clear()
                await asyncio.sleep(fault.delay_ms / 1000)
            if fault.bytes_per_s:
                await asyncio.sleep(len(data) / fault.bytes_per_s)
            changed = exchange.response(data)
            damaged = fault.corrupt and exchange.path.endswith(fault.corrupt_suffix.encode())
            return changed if damaged else data

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(_pass(reader, to_server, request, writer))
            tasks.create_task(_pass(from_server, writer, response, to_server))

    async def run(self, port: int) -> None:
        """Runs until stdin ends."""
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self.serve, "127.0.0.1", port)
        print("listening", flush=True)
        while line := await loop.run_in_executor(None, sys.stdin.readline):
            self.set(Fault(**json.loads(line)))
            print("changed", flush=True)
        server.close()


async def _pass(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    change: Callable[[bytes], Awaitable[bytes]],
    other: asyncio.StreamWriter,
) -> None:
    """Passes one direction. When either side closes, both are closed."""
    try:
        while data := await reader.read(_PIECE_BYTES):
            writer.write(await change(data))
            await writer.drain()
    except OSError:
        pass  # one side closed the connection: the other side learns it by the close below
    finally:
        writer.close()
        other.close()


class FaultRelay:
    """`with FaultRelay(server_port) as relay: relay.set(Fault(corrupt=True))`."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._port = free_port()

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def set(self, fault: Fault) -> None:
        """Applies to answers that pass from now on. Raises PartFailed."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(fault)) + "\n")
        self._process.stdin.flush()
        self._expect("changed")

    def _expect(self, word: str) -> None:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if line != word:
            raise PartFailed(f"the relay before the store says {line!r}, not {word!r}")

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "benchmarks.fault_relay", str(self._port)]
        self._process = subprocess.Popen(
            [*command, str(self._server_port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=_PROJECT,
        )
        self._expect("listening")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()


if __name__ == "__main__":
    asyncio.run(Relay(int(sys.argv[2])).run(int(sys.argv[1])))
