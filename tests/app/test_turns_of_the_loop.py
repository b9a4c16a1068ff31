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
        for number, (ours, theirs) in enumerate(pairs):
            theirs.send(b"x")  # nobody takes it: the socket stays ready
            selector.register(ours, selectors.EVENT_READ, number)
        seen: list[int] = []
        for _ in range(SOCKETS // EVENTS_AT_ONCE_MAX):
            ready = selector.select(0)
            assert len(ready) == EVENTS_AT_ONCE_MAX
            assert {mask for _, mask in ready} == {selectors.EVENT_READ}
            seen += [key.data for key, _ in ready]
        assert sorted(seen) == list(range(SOCKETS))


def test_time_outs_and_both_directions(pairs: list[tuple[socket.socket, socket.socket]]) -> None:
    ours, theirs = pairs[0]
    both = selectors.EVENT_READ | selectors.EVENT_WRITE
    with FewAtOnce() as selector:
        selector.register(ours, selectors.EVENT_READ)
        begun = time.monotonic()
        assert selector.select(0.02) == []
        assert time.monotonic() - begun >= 0.02
        theirs.send(b"x")
        selector.modify(ours, both)
        assert [mask for _, mask in selector.select(None)] == [both]
        theirs.close()  # the end is told to who reads and to who writes
        assert [mask for _, mask in selector.select(-1)] == [both]


def test_a_loop_serves_all_that_are_ready_at_once(
    pairs: list[tuple[socket.socket, socket.socket]],
) -> None:
    async def main() -> list[bytes]:
        loop = asyncio.get_running_loop()
        for ours, theirs in pairs:
            ours.setblocking(False)
            theirs.send(b"x")
        return await asyncio.gather(*(loop.sock_recv(ours, 1) for ours, _ in pairs))

    def new_loop() -> TimedEventLoop:
        return TimedEventLoop(time.perf_counter, time.thread_time, time.monotonic)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == [b"x"] * SOCKETS
