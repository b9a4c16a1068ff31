"""Bytes from socket to socket through one shared pipe: all of them, once, in order."""

from __future__ import annotations

import os
import socket
from asyncio.trsock import TransportSocket
from collections.abc import Iterator
from contextlib import closing
from random import Random

import pytest

from fetchproxy.serving.record_pipe import NOTHING_MOVED, RecordPipe, open_record_pipe

pytestmark = pytest.mark.skipif(not hasattr(os, "splice"), reason="no splice on this system")

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pipe() -> Iterator[RecordPipe]:
    with closing(RecordPipe(1)) as opened:
        yield opened


def tcp_pair(buffer_bytes: int = 0) -> Pair:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        near = socket.create_connection(listening.getsockname())
        far, _ = listening.accept()
    for end in (near, far):
        end.setblocking(False)
        if buffer_bytes:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
    return near, far


@pytest.fixture
def broker() -> Iterator[Pair]:
    pair = tcp_pair()
    yield pair
    for end in pair:
        end.close()


@pytest.fixture
def client() -> Iterator[Pair]:
    """A client that accepts few bytes until it reads."""
    pair = tcp_pair(buffer_bytes=16 * 1024)
    yield pair
    for end in pair:
        end.close()


def received(end: socket.socket) -> bytes:
    data_received = b""
    while True:
        try:
            data_received += end.recv(1 << 20)
        except BlockingIOError:
            return data_received


def send(end: socket.socket, content: bytes) -> int:
    try:
        return end.send(content)
    except BlockingIOError:
        return 0


def test_every_byte_once_whether_the_client_takes_it_or_not(
    pipe: RecordPipe, broker: Pair, client: Pair
) -> None:
    rng = Random(1)
    content = rng.randbytes(16 << 20)  # the client refuses about every 0.7 MiB
    source, target = TransportSocket(broker[1]), TransportSocket(client[0])
    bytes_sent = taken = refused = 0
    waiting, bytes_received = b"", b""
    while len(bytes_received) < len(content):
        bytes_sent += send(broker[0], content[bytes_sent : bytes_sent + 300_000])
        if waiting:
            waiting = waiting[send(client[0], waiting) :]
        else:
            moved = pipe.move(source, target, min(rng.randint(1, 2 << 20), len(content) - taken))
            taken += moved.moved_bytes
            refused += bool(moved.not_sent)
            waiting = bytes(moved.not_sent)
        if rng.random() < 0.7:
            bytes_received += received(client[1])
    assert bytes_received == content
    assert refused > 10, "the client has taken everything at once"


def test_no_more_is_taken_than_was_asked_for(pipe: RecordPipe, broker: Pair, client: Pair) -> None:
    broker[0].send(b"recordshead")
    assert pipe.move(TransportSocket(broker[1]), TransportSocket(client[0]), 7) == (7, b"")
    assert received(client[1]) == b"records"
    assert broker[1].recv(100) == b"head"


def test_nothing_there_and_nobody_left(pipe: RecordPipe, broker: Pair, client: Pair) -> None:
    source, target = TransportSocket(broker[1]), TransportSocket(client[0])
    assert pipe.move(source, target, 10) == NOTHING_MOVED
    broker[0].close()
    assert pipe.move(source, target, 10) == NOTHING_MOVED
    broker[1].close()
    assert pipe.move(source, target, 10) == NOTHING_MOVED


def test_what_a_lost_client_did_not_get_is_not_the_next_ones(
    pipe: RecordPipe, broker: Pair, client: Pair
) -> None:
    source = TransportSocket(broker[1])
    client[0].shutdown(socket.SHUT_WR)
    broker[0].send(b"for one that is gone")
    assert pipe.move(source, TransportSocket(client[0]), 100) == (20, b"for one that is gone")
    broker[0].send(b"for the next")
    following = tcp_pair()
    assert pipe.move(source, TransportSocket(following[0]), 100) == (12, b"")
    assert following[1].recv(100) == b"for the next"
    for end in following:
        end.close()


def test_it_can_be_left_out() -> None:
    assert open_record_pipe(0) is None
