"""The HTTP client of range reads against servers that keep, cut, slow down and stall."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.model import ByteRange
from fetchproxy.storage.stores.s3_ranges import (
    HEAD_BYTES_MAX,
    OtherResponse,
    PartRequest,
    RangeRequests,
    _Connection,
    part_of,
)

CONTENT = bytes(range(256)) * 4096  # 1 MiB
PART = ByteRange(10, 20)
RIGHT = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 10\r\nContent-Range: bytes 10-19/100"

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Serve = Callable[["Served"], Awaitable[None]]


class Served:
    """One connection with its number; `asked`: the last requested range."""

    def __init__(self, number: int, stream: Stream) -> None:
        self.number = number
        self.reader, self.writer = stream
        self.range_asked = ByteRange(0, 1)

    async def request(self) -> bool:
        """Wait for a request; False: the client has gone."""
        try:
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            return False
        match = re.search(r"\r\nRange: bytes=(\d+)-(\d+)\r\n", head)
        assert match is not None
        self.range_asked = ByteRange(int(match[1]), int(match[2]) + 1)
        return True

    def head(self, *more: str) -> bytes:
        start, end = self.range_asked.start, self.range_asked.end
        lines = [f"Content-Range: bytes {start}-{end - 1}/{len(CONTENT)}", *more]
        lines.append(f"Content-Length: {end - start}")
        return "\r\n".join(["HTTP/1.1 206 Partial Content", *lines, "", ""]).encode()

    @property
    def body(self) -> bytes:
        return CONTENT[self.range_asked.start : self.range_asked.end]


@asynccontextmanager
async def serving(serve: Serve) -> AsyncIterator[tuple[str, list[Served]]]:
    """(URL of the content, the connections so far); `serve` handles each connection."""
    connections: list[Served] = []
    tasks: set[asyncio.Task[None]] = set()

    async def run(served: Served) -> None:
        try:
            with suppress(ConnectionError):
                await serve(served)
        finally:
            served.writer.close()
            with suppress(OSError):
                await served.writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(Served(len(connections), (reader, writer)))
        tasks.add(asyncio.create_task(run(connections[-1])))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/b/k%20?sign=1", connections
    finally:
        server.close()
        await server.wait_closed()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def requests(connections_max: int = 4, silence_max_s: float = 30.0) -> RangeRequests:
    return RangeRequests(connections_max, 10.0, silence_max_s)


async def serve_well(served: Served) -> None:
    while await served.request():
        served.writer.write(served.head() + served.body)


async def test_any_part_over_one_connection() -> None:
    async with serving(serve_well) as (url, connections), requests() as client:
        for part in (ByteRange(0, 1), ByteRange(5, len(CONTENT)), ByteRange(0, len(CONTENT))):
            for _ in range(3):
                assert await client.get(url, PartRequest(part)) == CONTENT[part.start : part.end]
        assert len(connections) == 1


async def test_no_more_connections_than_allowed() -> None:
    at_once, most = 0, 0

    async def serve(served: Served) -> None:
        nonlocal at_once, most
        while await served.request():
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.01)
            at_once -= 1
            served.writer.write(served.head() + served.body)

    async with serving(serve) as (url, connections), requests(connections_max=2) as client:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(10):
                tasks.create_task(client.get(url, PartRequest(PART)))
        assert (len(connections), most) == (2, 2)


async def test_a_connection_that_the_server_shut_meanwhile() -> None:
    """Whether the client notices or not, the next read uses a new one, without an error."""

    async def serve(served: Served) -> None:
        await served.request()
        served.writer.write(served.head() + served.body)
        if served.number % 2:
            await served.request()  # shut with the request in hand

    async with serving(serve) as (url, connections), requests() as client:
        for _ in range(6):
            assert await client.get(url, PartRequest(PART)) == CONTENT[10:20]
            await asyncio.sleep(0.01)
        assert len(connections) == 6


@pytest.mark.parametrize("header", ["Connection: close", "connection:CLOSE"])
async def test_a_connection_that_is_not_to_be_kept(header: str) -> None:
    async def serve(served: Served) -> None:
        while await served.request():
            served.writer.write(served.head(header) + served.body)

    async with serving(serve) as (url, connections), requests() as client:
        for _ in range(3):
            assert await client.get(url, PartRequest(PART)) == CONTENT[10:20]
        assert len(connections) == 3


@pytest.mark.parametrize("bytes_sent", [0, 5, None])
async def test_a_server_that_breaks_off(bytes_sent: int | None) -> None:
    async def serve(served: Served) -> None:
        await served.request()
        whole = served.head() + served.body
        served.writer.write(whole[: bytes_sent if bytes_sent is not None else -1])

    async with serving(serve) as (url, _), requests() as client:
        for _ in range(2):
            with pytest.raises(ConnectionError):
                await client.get(url, PartRequest(PART))


async def test_silence_is_counted_from_the_last_byte() -> None:
    async def serve(served: Served) -> None:
        while await served.request():
            served.writer.write(served.head())
            for byte in served.body:
                await asyncio.sleep(0.75)
                served.writer.write(bytes([byte]))

    async with serving(serve) as (url, _), requests(silence_max_s=7.0) as client:
        assert await client.get(url, PartRequest(PART)) == CONTENT[10:20]  # slow, but never silent


@pytest.mark.parametrize("begun", [False, True])
async def test_a_server_that_falls_silent(begun: bool) -> None:
    async def serve(served: Served) -> None:
        await served.request()
        if begun:
            served.writer.write(served.head() + served.body[:3])
        await asyncio.sleep(60)

    async with serving(serve) as (url, connections), requests(silence_max_s=0.1) as client:
        with pytest.raises(TimeoutError, match="silent"):
            await client.get(url, PartRequest(PART))
        assert len(connections) == 1  # the caller has to retry


async def test_a_server_that_is_gone_is_an_os_error() -> None:
    async with serving(serve_well) as (url, _):
        pass
    async with requests() as client:
        with pytest.raises(OSError):  # noqa: PT011 - refused, by whichever family was tried last
            await client.get(url, PartRequest(PART))


async def test_a_read_given_up_leaves_its_place_and_nothing_for_the_next() -> None:
    """The rest of its bytes must not become part of the next answer."""

    given_up = asyncio.Event()

    async def serve(served: Served) -> None:
        while await served.request():
            served.writer.write(served.head() + served.body[:5])
            await given_up.wait()
            served.writer.write(served.body[5:])

    async with serving(serve) as (url, _), requests(connections_max=1) as client:
        for start in range(10, 40, 10):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await client.get(url, PartRequest(ByteRange(start, start + 10)))
        given_up.set()
        assert await client.get(url, PartRequest(ByteRange(50, 60))) == CONTENT[50:60]


async def test_closing_ends_a_read_with_an_error() -> None:
    request_seen = asyncio.Event()

    async def serve(served: Served) -> None:
        await served.request()
        request_seen.set()
        await asyncio.sleep(60)

    async with serving(serve) as (url, _), asyncio.TaskGroup() as tasks:
        async with requests() as client:
            failing_read = tasks.create_task(_raised(client.get(url, PartRequest(PART))))
            await request_seen.wait()
        assert isinstance(await failing_read, ConnectionError)


async def _raised(range_read: Awaitable[object]) -> BaseException | None:
    try:
        await range_read
    except OSError as error:
        return error
    return None


@pytest.mark.parametrize("size", [HEAD_BYTES_MAX - 200, HEAD_BYTES_MAX])
async def test_a_head_of_any_length_is_bounded(size: int) -> None:
    async def serve(served: Served) -> None:
        await served.request()
        served.writer.write(served.head(f"X: {'x' * size}") + served.body)
        await served.writer.drain()
        await served.request()

    async with serving(serve) as (url, _), requests() as client:
        if size < HEAD_BYTES_MAX:
            assert await client.get(url, PartRequest(PART)) == CONTENT[10:20]
        else:
            with pytest.raises(OtherResponse, match="a head of more than"):
                await client.get(url, PartRequest(PART))


@pytest.mark.parametrize("more", [b"y", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_more_than_was_asked_for(more: bytes) -> None:
    async def serve(served: Served) -> None:
        while await served.request():
            served.writer.write(served.head() + served.body + more)

    async with serving(serve) as (url, _), requests() as client:
        with pytest.raises(OtherResponse, match="more"):
            await client.get(url, PartRequest(PART))


@given(st.lists(st.integers(1, 200), max_size=30))
def test_an_answer_in_pieces(cuts: list[int]) -> None:
    async def serve(served: Served) -> None:
        while await served.request():
            whole, at = served.head() + served.body, 0
            for cut in cuts:
                served.writer.write(whole[at : at + cut])
                await served.writer.drain()
                await asyncio.sleep(0)
                at += cut
            served.writer.write(whole[at:])

    async def main() -> None:
        async with serving(serve) as (url, _), requests() as client:
            for part in (ByteRange(3, 1000), PART):
                assert await client.get(url, PartRequest(part)) == CONTENT[part.start : part.end]

    asyncio.run(main())


def test_a_head_that_is_right() -> None:
    assert part_of(RIGHT, PartRequest(PART)) == (10, True)
    assert part_of(RIGHT.replace(b"/100", b"/*").replace(b"C", b"c"), PartRequest(PART))[1]
    assert not part_of(RIGHT + b"\r\nConnection: close", PartRequest(PART))[1]


def test_an_object_that_ends_inside_the_range() -> None:
    whole = RIGHT.replace(b"10-19/100", b"0-9/10")
    assert part_of(whole, PartRequest(ByteRange(0, 64), to_end=True))[0] == 10
    assert part_of(whole, PartRequest(ByteRange(0, 10), to_end=True))[0] == 10
    for request in (PartRequest(ByteRange(0, 64)), PartRequest(ByteRange(0, 9), to_end=True)):
        with pytest.raises(OtherResponse):
            part_of(whole, request)


@pytest.mark.parametrize("total", [b"0-9/100", b"0-9/*", b"0-9/9", b"1-10/10"])
def test_a_part_that_may_not_be_all_there_is(total: bytes) -> None:
    with pytest.raises(OtherResponse):
        part_of(RIGHT.replace(b"10-19/100", total), PartRequest(ByteRange(0, 64), to_end=True))


@pytest.mark.parametrize(
    "head",
    [
        RIGHT.replace(b"206", b"200"),
        RIGHT.replace(b"206", b"503"),
        RIGHT.replace(b"HTTP/1.1", b"HTTP/1.0"),
        RIGHT.replace(b"Length: 10", b"Length: 9"),
        RIGHT.replace(b"Length: 10", b"Length: 010"),
        RIGHT.replace(b"10-19", b"10-18"),
        RIGHT.replace(b"10-19", b"11-19"),
        RIGHT.replace(b"bytes 10", b"chars 10"),
        RIGHT.replace(b"Content-Range", b"X-Range"),
        RIGHT.replace(b"Content-Length", b"X-Length"),
        RIGHT + b"\r\nContent-Length: 10",
        RIGHT + b"\r\nTransfer-Encoding: chunked",
        RIGHT + b"\r\ncontent-encoding: gzip",
        b"SSH-2.0-OpenSSH_9.2",
        b"",
    ],
)
def test_a_head_that_is_not(head: bytes) -> None:
    with pytest.raises(OtherResponse):
        part_of(head, PartRequest(PART))


def test_what_status_it_had_instead() -> None:
    with pytest.raises(OtherResponse) as error:
        part_of(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0", PartRequest(PART))
    assert error.value.status == 503


async def test_a_connection_that_is_lost_before_it_is_used_is_an_error_of_the_connection() -> None:
    connection = _Connection(lambda lost: None, 30.0)
    with pytest.raises(ConnectionResetError):
        connection.begin(b"GET / HTTP/1.1\r\n\r\n", PartRequest(ByteRange(0, 1)))


async def test_a_server_that_hangs_up_at_once_is_an_error_of_the_connection() -> None:
    """A stopping server does so. Chance decides the step it hits, so the test repeats it often."""

    def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, RangeRequests(4, 5.0, 5.0) as requests:
        for _ in range(100):
            with pytest.raises(OSError, match=r"."):
                await requests.get(f"http://127.0.0.1:{port}/key", PartRequest(ByteRange(0, 1)))
        assert not requests._open
