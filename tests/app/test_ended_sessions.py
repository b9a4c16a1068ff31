"""Sessions that have ended leave the memory, however long they lasted."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from weakref import WeakSet

import pytest
from calm_replay import Replay, run_replay
from client_connection import FETCH_RESPONSE
from mirrors import filled, url_of
from test_large_requests import VERSION, fetch_of
from test_many_connections import connected

from fetchproxy.config.schema import RemoteFetchConfig
from fetchproxy.runtime.timed_loop import TimedEventLoop
from fetchproxy.serving.gateway.session import GatewaySession

# A collection of garbage exempts what it has passed over, and so do these tests. Objects that refer
# to each other would then stay for hours.
SESSIONS = """
import asyncio, gc, struct, sys, weakref
from fetchproxy import app
from fetchproxy.config.load import load_config, parse_assignment
from fetchproxy.serving.session import ClientSession

COUNT = 50
alive = weakref.WeakSet()
make = ClientSession.__init__

def counted(session, *arguments, **named):
    make(session, *arguments, **named)
    alive.add(session)

ClientSession.__init__ = counted

def config(url):
    mode = ("archive_only.enabled=true", "archive_only.open_to_anybody=true")
    settings = (f"store.url={url}", "gateway.listen=127.0.0.1:0", *mode)
    return load_config(None, {}, [parse_assignment(setting) for setting in settings])

async def ended_after_a_collection(port):
    request = struct.pack(">hhih", 18, 0, 1, -1)  # ApiVersions
    writers = []
    for _ in range(COUNT):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(struct.pack(">i", len(request)) + request)
        await reader.readexactly(4)
        writers.append(writer)
    assert len(alive) == COUNT
    gc.collect()
    for writer in writers:
        writer.transport.abort()

async def main():
    async with app._open_parts(config(sys.argv[1]), app.LIMITS, serves=True, writes=False) as parts:
        async with app._purgatory(parts, parts.rlmm) as purgatory:
            async with app._archive_only(parts, purgatory) as gateway:
                await ended_after_a_collection(gateway.port)
                while any(task.get_name().startswith("session-") for task in asyncio.all_tasks()):
                    await asyncio.sleep(0.01)
                gc.collect()
                return len(alive)

print(asyncio.run(main()))
"""


def test_sessions_that_a_collection_has_seen_are_freed_when_they_end(tmp_path: Path) -> None:
    asyncio.run(filled(tmp_path))
    command = [sys.executable, "-c", SESSIONS, url_of(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout.split()[-1]) <= 1, "the last one may still be referred to"


@contextmanager
def exempt() -> Iterator[None]:
    """What exists now is visited by no collection."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def test_the_parts_of_relayed_sessions_are_freed_when_they_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of them refers to its session, which simulated connections keep."""
    alive: WeakSet[object] = WeakSet()
    sessions: list[GatewaySession] = []
    make = GatewaySession.connection_made

    def made(session: GatewaySession, transport: asyncio.BaseTransport) -> None:
        make(session, transport)
        fetch = session.fetch
        sessions.append(session)
        alive.update((session.requests, fetch, fetch.routing))  # type: ignore[attr-defined]

    monkeypatch.setattr(GatewaySession, "connection_made", made)

    async def main(replay: Replay) -> None:
        connections = [await connected("one of ten") for _ in range(10)]
        for connection in connections:
            await connection.ask(fetch_of(3), FETCH_RESPONSE, VERSION)
        assert len(alive) >= 30
        with exempt():
            for session in sessions[::2]:
                session.close()  # it ends before its connection, the others after it
            for connection in connections:
                await connection.close()
            await asyncio.sleep(1)
            gc.collect()
            assert len(alive) <= 3, "the last one may still be referred to"

    run_replay(RemoteFetchConfig(), main, partitions=1, batches=1)


def test_connections_are_freed_when_they_end() -> None:
    """Those of the store and the console, too: the event loop makes all of them."""
    alive: WeakSet[object] = WeakSet()

    class Peer(asyncio.Protocol):
        def __init__(self, news: asyncio.Queue[None]) -> None:
            self._news = news

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            alive.add(transport)
            self._news.put_nowait(None)

        def connection_lost(self, exc: Exception | None) -> None:
            self._news.put_nowait(None)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        news = asyncio.Queue[None]()
        peer = partial(Peer, news)
        server = await loop.create_server(peer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        transports = [(await loop.create_connection(peer, "127.0.0.1", port))[0] for _ in range(5)]
        for _ in range(10):
            await news.get()
        with exempt():
            while transports:
                transports.pop().abort()
            for _ in range(10):
                await news.get()
            await asyncio.sleep(0)
            assert len(alive) <= 1, "the last one may still be referred to"
        server.close()

    def new_loop() -> TimedEventLoop:
        return TimedEventLoop(time.perf_counter, time.thread_time, time.monotonic)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
