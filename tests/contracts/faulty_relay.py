"""An HTTP relay in front of a store's server. It answers some requests with an error of its own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from urllib.parse import unquote


def refusal(status: str, code: str, *headers: str) -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>by the test</Message></Error>"
    head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Content-Type: application/xml"]
    return "\r\n".join([*head, *headers, "Connection: close", "", body]).encode()


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    target: str

    @property
    def name(self) -> str:
        return unquote(self.target.partition("?")[0])

    @property
    def writes_object(self) -> bool:
        """Not a part of an upload, which has a limit of its own."""
        query = self.target.partition("?")[2]
        if self.method == "PUT":
            return "partNumber=" not in query and "comp=block&" not in f"{query}&"
        return self.method == "POST" and "uploadId=" in query


@dataclass(frozen=True, slots=True)
class Fault:
    """`response`: sent in place of the server's. None: the connection is reset. `after`: the server
    has done what was asked. `cut`: the server's own response, without its last bytes.
    """

    response: bytes | None = None
    after: bool = False
    cut: bool = False


Judge = Callable[[Request], Fault | None]
PASSING = (
    Fault(refusal("503 Slow Down", "SlowDown")),
    Fault(refusal("500 Internal Server Error", "InternalError")),
    Fault(refusal("429 Too Many Requests", "TooManyRequests")),
    Fault(),
    Fault(cut=True),
    Fault(refusal("500 Internal Server Error", "InternalError"), after=True),
)


def each(number: int) -> Judge:
    """Every such request fails, each in another way."""
    faults: Iterator[Fault | None] = cycle(
        fault for one in PASSING for fault in [*[None] * (number - 1), one]
    )
    return lambda request: next(faults)


class OneWriteASecond:
    """Cloud Storage's limit for each name."""

    def __init__(self) -> None:
        self.written: dict[str, float] = {}
        self.refused: list[str] = []

    def __call__(self, request: Request) -> Fault | None:
        if not request.writes_object:
            return None
        now = asyncio.get_running_loop().time()
        if now - self.written.get(request.name, float("-inf")) < 1:
            self.refused.append(request.name)
            return Fault(refusal("429 Too Many Requests", "SlowDown"))
        self.written[request.name] = now
        return None


@dataclass(eq=False)
class FaultyRelay:
    server_port: int
    judge: Judge = lambda request: None
    requests: list[Request] = field(default_factory=list)
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):
            await self._serve(reader, writer)
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = b""
        if length := re.search(rb"(?i)\r\ncontent-length: *(\d+)", head):
            body = await reader.readexactly(int(length[1]))
        method, target = head.decode("latin-1").split(" ")[:2]
        request = Request(method, target)
        self.requests.append(request)
        fault = self.judge(request)
        response = b""
        if fault is None or fault.after or fault.cut:
            response = await self._forwarded(head, body)
        if fault is not None:
            if fault.response is None and not fault.cut:
                writer.transport.abort()
                return
            response = fault.response or response[: max(len(response) - 5, 0)]
        writer.write(response)
        await writer.drain()

    async def _forwarded(self, head: bytes, body: bytes) -> bytes:
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self.server_port)
        lines = [
            line
            for line in head[:-4].split(b"\r\n")
            if not line.lower().startswith((b"connection:", b"expect:"))
        ]
        to_server.write(b"\r\n".join([*lines, b"Connection: close", b"", b""]) + body)
        response = await from_server.read()
        to_server.close()
        # One request for each connection.
        return response.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)


@asynccontextmanager
async def faulty_relay(server_port: int) -> AsyncIterator[FaultyRelay]:
    relay = FaultyRelay(server_port)
    server = await asyncio.start_server(relay.serve, "127.0.0.1", 0, limit=1 << 20)
    relay.port = server.sockets[0].getsockname()[1]
    try:
        yield relay
    finally:
        server.close()
