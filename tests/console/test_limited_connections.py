"""Who opens many connections to the console, or sends and reads nothing, is let go."""

from __future__ import annotations

import asyncio
import gzip
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry
from sample_status import STATUS

from fetchproxy.config.schema import ConsoleConfig
from fetchproxy.config.values import HostPort
from fetchproxy.console import limited_connections
from fetchproxy.console.limited_connections import (
    CONSOLE_CONNECTIONS_MAX,
    CONSOLE_SILENT_MAX,
    request_to_close,
)
from fetchproxy.console.server import ConsoleServer
from fetchproxy.console.status import NO_PARTITIONS, PartitionQuery, Status
from fetchproxy.observability.metrics import LIMITS_REACHED

STRANGERS = 4_000
GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"


async def source(query: PartitionQuery) -> Status:
    return replace(STATUS, partitions=STATUS.partitions * 5_000)


@pytest.fixture
async def address() -> AsyncIterator[HostPort]:
    config = ConsoleConfig(listen="127.0.0.1:0")
    async with ConsoleServer(config, source, CollectorRegistry()) as console:
        yield console.address


async def response(address: HostPort, *parts: bytes) -> bytes:
    """All until the console closes; nothing where it has aborted."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    try:
        for part in parts:
            writer.write(part)
            await asyncio.sleep(0.01)
        async with asyncio.timeout(10):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


def reached(limit: str) -> float:
    return float(LIMITS_REACHED.labels(limit)._value.get())


async def test_one_request_a_connection_however_it_is_cut(address: HostPort) -> None:
    for cut in (1, 10, len(GET) - 3, len(GET) - 1):
        assert b"ok\n" in await response(address, GET[:cut], GET[cut:])


async def test_silent_connections_give_way_to_a_probe(address: HostPort) -> None:
    before = reached("console_connections_max")
    async with AsyncExitStack() as opened:
        silent = []
        for _ in range(CONSOLE_SILENT_MAX):
            reader, writer = await asyncio.open_connection(address.host, address.port)
            opened.callback(writer.close)
            silent.append(reader)
        await asyncio.sleep(0.1)
        for _probe in range(4):
            assert b"ok\n" in await response(address, GET)
            assert reached("console_connections_max") == before + 1  # its place is free again
        assert await silent[0].read() == b"", "the oldest is closed"


async def test_a_probe_has_a_place_when_all_others_are_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also for a probe of another machine: here, nobody is of this one."""
    monkeypatch.setattr(limited_connections, "is_loopback", lambda host: False)
    let_go, arrived = asyncio.Event(), asyncio.Semaphore(0)

    async def slow(query: PartitionQuery) -> Status:
        if query != NO_PARTITIONS:
            arrived.release()
            await let_go.wait()
        return STATUS

    request = GET.replace(b"/healthz", b"/api/status")
    config = ConsoleConfig(listen="127.0.0.1:0")
    async with ConsoleServer(config, slow, CollectorRegistry()) as console, AsyncExitStack() as all:
        address = console.address
        for number in range(CONSOLE_CONNECTIONS_MAX + CONSOLE_SILENT_MAX):
            _, writer = await asyncio.open_connection(address.host, address.port)
            all.callback(writer.close)
            if number < CONSOLE_CONNECTIONS_MAX:
                writer.write(request)
                await arrived.acquire()
        before = reached("console_connections_max")
        assert await response(address, request) == b""
        # One that was silent gave way, and then there was no place for the request.
        assert reached("console_connections_max") == before + 2
        assert b"ok\n" in await response(address, GET)
        let_go.set()


CROWD = """
import socket, sys
crowd = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(int(sys.argv[2]))]
print("all", flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
async def test_a_probe_gets_in_among_thousands_of_strangers(address: HostPort) -> None:
    before, probes = reached("console_connections_max"), 0
    command = [sys.executable, "-c", CROWD, str(address.port), str(STRANGERS)]
    pipe = asyncio.subprocess.PIPE
    crowd = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
    assert crowd.stdout is not None
    all_there = asyncio.create_task(crowd.stdout.readline())
    while not all_there.done():
        assert b"ok\n" in await response(address, GET)
        probes += 1
    assert await all_there == b"all\n"
    assert b"ok\n" in await response(address, GET)
    assert probes > 5
    assert reached("console_connections_max") > before
    await crowd.communicate(b"")


async def test_health_says_ok_only_when_the_loop_turns(address: HostPort) -> None:
    """A probe's own time-out judges a loop that hangs. One that goes on says so at once."""

    def probe() -> tuple[bytes, float]:
        with socket.create_connection((address.host, address.port)) as peer:
            peer.sendall(GET)
            response = peer.recv(10_000)
            return response, time.monotonic()

    probing = asyncio.get_running_loop().run_in_executor(None, probe)
    time.sleep(2)  # noqa: ASYNC251 - it holds the loop
    held_until = time.monotonic()
    response, answered = await probing
    assert response.startswith(b"HTTP/1.1 200 ")
    assert answered >= held_until


STRANGER, OTHER, HERE = "203.0.113.7", "203.0.113.8", "127.0.0.1"


@pytest.mark.parametrize(
    ("hosts", "newcomer", "index"),
    [
        ([OTHER, STRANGER, STRANGER], OTHER, None),
        ([OTHER, STRANGER, STRANGER, STRANGER], OTHER, 1),
        ([STRANGER] * 3, STRANGER, None),
        ([HERE, STRANGER], HERE, 1),
        ([HERE] * 3, HERE, 0),
    ],
)
def test_which_connection_gives_way_to_a_newcomer(
    hosts: list[str], newcomer: str, index: int | None
) -> None:
    assert request_to_close(hosts, newcomer) == index


async def test_a_body_is_neither_read_nor_inflated(address: HostPort) -> None:
    bomb = gzip.compress(bytes(200 << 20))
    head = GET[:-2] + b"Content-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(bomb)
    before = time.process_time()
    assert b"ok\n" in await response(address, head + bomb)
    assert b"ok\n" in await response(address, head, bomb)
    assert time.process_time() - before < 0.2  # inflating takes longer than that


async def test_a_second_request_on_the_connection_is_not_answered(address: HostPort) -> None:
    assert (await response(address, GET + GET)).count(b"ok\n") == 1


async def test_headers_that_do_not_end_are_not_waited_for(
    address: HostPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_connections, "CONSOLE_HEADERS_MAX_S", 0.2)
    before = reached("console_headers_max_s")
    assert await response(address, GET[:-2]) == b""
    assert reached("console_headers_max_s") == before + 1


async def test_an_answer_that_nobody_reads_is_not_waited_for(
    address: HostPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limited_connections, "CONSOLE_REQUEST_MAX_S", 1.0)
    before = reached("console_request_max_s")
    reader, writer = await asyncio.open_connection(address.host, address.port, limit=1_000)
    writer.write(GET.replace(b"/healthz", b"/api/status"))
    async with asyncio.timeout(30):
        while reached("console_request_max_s") == before:  # noqa: ASYNC110 - it knows no events
            await asyncio.sleep(0.05)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(100_000_000)
    writer.close()


async def test_work_ends_with_its_client() -> None:
    """Thousands may ask and go at once: nobody waits for what would be made for them."""
    begun, ended = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def never(query: PartitionQuery) -> Status:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.release()
        raise AssertionError

    config = ConsoleConfig(listen="127.0.0.1:0")
    async with ConsoleServer(config, never, CollectorRegistry()) as console, asyncio.timeout(60):
        for _ in range(3):
            address = console.address
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(GET.replace(b"/healthz", b"/api/status"))
            await begun.acquire()
            writer.transport.abort()
            await ended.acquire()
