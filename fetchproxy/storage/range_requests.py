"""GETs of byte ranges over HTTP/1.1, received where they are to lie.

An HTTP library hands a body over in pieces, to be joined by one more copy, and an S3 library makes
and takes apart each request in two milliseconds of Python: for a replay, more than half of what a
byte cost (ADR 0031). This client knows one kind of exchange, the one that every byte of a replay
comes by. Any other answer is OtherAnswer; what it means is for the store's own client to find out.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from ssl import SSLContext
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from fetchproxy import __version__
from fetchproxy.model import ByteRange

# An S3 server's head has half a KiB; what comes of the body with it is copied once more.
HEAD_BYTES_MAX = 16 * 1024
# A connection that was idle for longer is not used again: servers shut them after 5 s and more.
IDLE_MAX_S = 4.0

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})[ \r]")
_CONTENT_RANGE = re.compile(rb"bytes (\d+)-(\d+)/(?:\d+|\*)")
# With any of these the body is not the stored bytes as they are, or not this long.
_RECODED = (b"transfer-encoding", b"content-encoding")

Address = tuple[str, int, bool]  # host, port, whether by TLS


class OtherAnswer(Exception):
    """The server answered, with something else than the part that was asked for.

    `status`: 0 where it is no answer of HTTP/1.1.
    """

    def __init__(self, what: str, status: int = 0) -> None:
        super().__init__(what)
        self.status = status


def may_be_kept(head: bytes, byte_range: ByteRange) -> bool:
    """`head` is that of an answer with just `byte_range`: may the connection be used again?

    Raises OtherAnswer where it is not, beyond doubt, that one part, as long as it must be.
    """
    match = _STATUS.match(head)
    status = int(match[1]) if match else 0
    headers: dict[bytes, bytes] = {}
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        name = name.lower()
        if name in headers and name.startswith(b"content-"):
            raise OtherAnswer(f"{name.decode('latin-1')} twice", status)
        headers[name] = value.strip()
    part = _CONTENT_RANGE.fullmatch(headers.get(b"content-range", b""))
    right = (
        status == 206
        and part is not None
        and (int(part[1]), int(part[2]) + 1) == (byte_range.start, byte_range.end)
        and headers.get(b"content-length") == b"%d" % byte_range.length
        and not any(name in headers for name in _RECODED)
    )
    if not right:
        raise OtherAnswer(f"answered {head[:40]!r}", status)
    return headers.get(b"connection", b"").lower() != b"close"


def _request(url: str, byte_range: ByteRange) -> tuple[Address, bytes]:
    """Whom to send it to, and its bytes. The default port is not named, as in what is signed."""
    parts = urlsplit(url)
    secure = parts.scheme == "https"
    default = 443 if secure else 80
    named = parts.netloc.removesuffix(f":{default}")
    lines = [
        f"GET {parts._replace(scheme='', netloc='').geturl()} HTTP/1.1",
        f"Host: {named}",
        f"User-Agent: fetchproxy/{__version__}",
        f"Range: bytes={byte_range.start}-{byte_range.end - 1}",
        "Accept-Encoding: identity",
    ]
    address = (parts.hostname or "", parts.port or default, secure)
    return address, "\r\n".join([*lines, "", ""]).encode("ascii")


class _Connection(asyncio.BufferedProtocol):
    """One exchange at a time. Until its head is there an answer takes no memory of its own."""

    def __init__(self, on_lost: Callable[[_Connection], None]) -> None:
        self._on_lost = on_lost
        self._clock = asyncio.get_running_loop().time
        self._transport: asyncio.Transport | None = None
        self._head = bytearray(HEAD_BYTES_MAX)
        self._head_bytes = 0
        self._body: bytearray | None = None
        self._room = memoryview(b"")  # the rest of the body
        self._range = ByteRange(0, 1)
        self._answer: asyncio.Future[bytearray] | None = None
        self.heard_at = 0.0  # loop time, s; also when it was asked
        self.heard = False  # anything since it was asked
        self.kept = False  # ready for another exchange

    def begin(self, request: bytes, byte_range: ByteRange) -> asyncio.Future[bytearray]:
        """Send `request`. The future raises OtherAnswer, or ConnectionError where it is lost."""
        assert self._transport is not None
        self._range, self._head_bytes = byte_range, 0
        self.heard = self.kept = False
        self.heard_at = self._clock()
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return self._answer

    def shut(self) -> None:
        """Whatever is still to come is not wanted."""
        self.kept = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionAbortedError("the connection was shut"))
        if self._transport is not None:
            self._transport.abort()

    # --- called by the transport ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._room if self._body is not None else memoryview(self._head)[self._head_bytes :]

    def buffer_updated(self, nbytes: int) -> None:
        self.heard, self.heard_at = True, self._clock()
        if self._answer is None or self._answer.done():
            self.shut()  # nobody has asked for this
        elif self._body is None:
            self._head_bytes += nbytes
            try:
                self._take_head(self._answer)
            except OtherAnswer as error:
                self._answer.set_exception(error)
                self.shut()
        else:
            self._room = self._room[nbytes:]
            self._finish_if_whole(self._answer)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self.kept = None, False
        self._body, self._room = None, memoryview(b"")
        if self._answer is not None and not self._answer.done():
            lost = f"the connection was lost: {exc or 'closed by the store'}"
            self._answer.set_exception(ConnectionResetError(lost))
        self._on_lost(self)

    def _take_head(self, answer: asyncio.Future[bytearray]) -> None:
        end = self._head.find(b"\r\n\r\n", 0, self._head_bytes)
        if end < 0:
            if self._head_bytes == HEAD_BYTES_MAX:
                raise OtherAnswer(f"a head of more than {HEAD_BYTES_MAX} bytes")
            return
        self.kept = may_be_kept(bytes(self._head[:end]), self._range)
        come = self._head_bytes - end - 4
        if come > self._range.length:
            raise OtherAnswer("more came than was asked for")
        self._body = bytearray(self._range.length)
        self._body[:come] = memoryview(self._head)[end + 4 : self._head_bytes]
        self._room = memoryview(self._body)[come:]
        self._finish_if_whole(answer)

    def _finish_if_whole(self, answer: asyncio.Future[bytearray]) -> None:
        if not self._room and self._body is not None:
            answer.set_result(self._body)
            self._body, self._head_bytes = None, 0


class RangeRequests:
    """An async context manager that shuts its connections, of which it keeps idle ones.

    `silence_max_s`: longest within an answer.
    """

    def __init__(
        self,
        connections_max: int,
        connect_max_s: float,
        silence_max_s: float,
        tls: SSLContext | None = None,
    ) -> None:
        self._places = asyncio.Semaphore(connections_max)
        self._connect_max_s = connect_max_s
        self._silence_max_s = silence_max_s
        self._tls = tls
        self._idle: dict[Address, list[_Connection]] = {}  # the last used one last
        self._open: dict[_Connection, Address] = {}

    async def get(self, url: str, byte_range: ByteRange) -> bytearray:
        """All bytes of the range of what is at `url`.

        Raises OtherAnswer; OSError where the server is not there, falls silent or breaks off.
        """
        address, request = _request(url, byte_range)
        async with self._places:
            while (connection := self._idle_one(address)) is not None:
                try:
                    return await self._exchange(connection, request, byte_range)
                except ConnectionError:
                    if connection.heard:
                        raise  # else the server had shut it before it was asked
            return await self._exchange(await self._connect(address), request, byte_range)

    async def _exchange(
        self, connection: _Connection, request: bytes, byte_range: ByteRange
    ) -> bytearray:
        clock = asyncio.get_running_loop().time
        answer = connection.begin(request, byte_range)
        try:
            while not answer.done():
                left_s = connection.heard_at + self._silence_max_s - clock()
                if left_s <= 0:
                    raise TimeoutError(f"the store was silent for {self._silence_max_s} s")
                await asyncio.wait([answer], timeout=left_s)
            return answer.result()
        finally:
            if connection.kept and answer.done():
                self._idle.setdefault(self._open[connection], []).append(connection)
            else:
                connection.shut()
                answer.exception()  # seen, also where the caller was cancelled

    def _idle_one(self, address: Address) -> _Connection | None:
        idle = self._idle.get(address, [])
        oldest = asyncio.get_running_loop().time() - IDLE_MAX_S
        while idle:
            connection = idle.pop()
            if connection.heard_at >= oldest:
                return connection
            connection.shut()
        return None

    async def _connect(self, address: Address) -> _Connection:
        host, port, secure = address
        try:
            async with asyncio.timeout(self._connect_max_s):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._forget),
                    host,
                    port,
                    ssl=self._tls if secure else None,
                    happy_eyeballs_delay=0.25,
                )
        except TimeoutError:
            raise TimeoutError(
                f"no connection to {host}:{port} in {self._connect_max_s} s"
            ) from None
        self._open[connection] = address
        return connection

    def _forget(self, connection: _Connection) -> None:
        address = self._open.pop(connection, None)
        if address is not None and connection in (idle := self._idle.get(address, [])):
            idle.remove(connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for connection in list(self._open):
            connection.shut()
