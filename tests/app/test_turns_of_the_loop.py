"""How many sockets one turn of the event loop serves, and that all have their turn."""

from __future__ import annotations

import asyncio
import selectors
import socket
import sys
import time
from collections.abc import Iterator

import pytest

from fetchproxy.runtime.timed_loop import EVENTS_AT_ONCE_MAX, FewAtOnce, TimedEventLoop

SOCKETS = 5 * EVENTS_AT_ONCE_MAX


@pytest.fixture
def pairs() -> Iterator[list[tuple[socket.socket, socket.socket]]]:
    made = [socket.socketpair() for _ in range(SOCKETS)]
    yield made
    for pair in made:
        for one in pair:
            one.close()


@pytest.mark.skipif(sys.platform != "linux", reason="other selectors have no such limit")
def test_sockets_that_are_always_ready_do_not_keep_the_others_waiting(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    with FewAtOnce() as selector:
        for number, (near_end, far_end) in enumerate(pairs):
            far_end.send(b"x")  # nobody takes it: the socket stays ready
            selector.register(near_end, selectors.EVENT_READ, number)
        numbers_seen: list[int] = []
        for _ in range(SOCKETS // EVENTS_AT_ONCE_MAX):
            ready = selector.select(0)
            assert len(ready) == EVENTS_AT_ONCE_MAX
            assert {mask for _, mask in ready} == {selectors.EVENT_READ}
            numbers_seen += [key.data for key, _ in ready]
        assert sorted(numbers_seen) == list(range(SOCKETS))


def test_time_outs_and_both_directions(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    near_end, far_end = pairs[0]
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    with FewAtOnce() as selector:
        selector.register(near_end, selectors.EVENT_READ)
        begun = time.monotonic()
        assert selector.select(0.02) == []
        assert time.monotonic() - begun >= 0.02
        far_end.send(b"x")
        selector.modify(near_end, both)
        assert [mask for _, mask in selector.select(None)] == [both]
        far_end.close()  # the end is told to who reads and to who writes
        assert [mask for _, mask in selector.select(-1)] == [both]


def test_a_loop_serves_all_that_are_ready_at_once(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    async def main() -> list[bytes]:
        loop = asyncio.get_running_loop()
        for near_end, far_end in pairs:
            near_end.setblocking(False)
            far_end.send(b"x")
        return await asyncio.gather(*(loop.sock_recv(near_end, 1) for near_end, _ in pairs))

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == [b"x"] * SOCKETS


def test_a_ready_socket_is_called_before_work_that_is_ready(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    """And not at all, if an earlier callback of the same turn has removed it."""
    called: list[str] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        (first, first_end), (second, second_end) = pairs[:2]
        done = loop.create_future()

        def ready(name: str) -> None:
            called.append(name)
            for one in (first, second):
                loop.remove_reader(one)
            loop.call_soon(done.set_result, None)

        loop.add_reader(first, ready, "a socket")
        loop.add_reader(second, ready, "a socket")
        first_end.send(b"x")
        second_end.send(b"x")
        loop.call_soon(called.append, "work")  # in the turn that finds both sockets ready
        await asyncio.wait_for(done, 60)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert called == ["a socket", "work"]


def test_one_connection_ends_in_each_turn(
    pairs: list[tuple[socket.socket, socket.socket]], caplog: pytest.LogCaptureFixture
) -> None:
    """With a connection goes all that its client has named. One that ends badly keeps no other."""
    ended_in: list[int] = []

    class Ending(asyncio.Protocol):
        def connection_lost(self, exc: Exception | None) -> None:
            loop = asyncio.get_running_loop()
            assert isinstance(loop, TimedEventLoop)
            ended_in.append(loop.times.turns)
            if len(ended_in) == 1:
                raise RuntimeError("the first ends badly")
            if len(ended_in) == SOCKETS:
                all_ended.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        transports = [
            (await loop.create_connection(Ending, sock=near_end))[0] for near_end, _ in pairs
        ]
        for transport in transports:
            transport.close()
        await all_ended.wait()

    all_ended = asyncio.Event()
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
    assert len(set(ended_in)) == len(ended_in) == SOCKETS
    assert all(near_end.fileno() == -1 for near_end, _ in pairs)
    assert "the first ends badly" in caplog.text


def new_loop() -> TimedEventLoop:
    return TimedEventLoop(time.perf_counter, time.thread_time, time.monotonic)
