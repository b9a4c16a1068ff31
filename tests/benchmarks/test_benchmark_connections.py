"""The connections benchmark: its cheap clients, its figures, and that it runs from end to end."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from fetchproxy_protocol.fetch import fetch_offset, parse_fetch_request
from fetchproxy_protocol.headers import peek_request_header

from benchmarks.connections import (
    CONNECTIONS,
    CONNECTIONS_WIDE,
    PARTITIONS,
    PARTITIONS_WIDE,
    Measured,
    idle_within,
    rows_of,
)
from benchmarks.contestants import BARE_RELAY, DIRECT, FETCHPROXY
from benchmarks.many_connections import Load, greeting, receive
from lab.kafka_versions import kafka_jars
from tests.conftest import FindPart

PROJECT = Path(__file__).parents[2]


def test_a_greeting_is_three_whole_requests() -> None:
    keys = []
    for frame in greeting("orders"):
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        head = peek_request_header(memoryview(frame), 4, len(frame))
        keys.append(head.api_key)
        assert head.correlation_id == 0
    assert keys == [18, 3, 1]
    fetch = greeting("orders")[-1]
    at = peek_request_header(memoryview(fetch), 4, len(fetch)).body_position
    (asked,) = parse_fetch_request(memoryview(fetch)[4:], at - 4).partitions.values()
    assert fetch_offset(asked) == 0


EXPECTED = (12).to_bytes(4, "big") + bytes(4) + b"answered"


def serve(server: socket.socket, response: Callable[[int], bytes]) -> None:
    """Answers each request of one byte more than its correlation id with `response` of it."""
    number = 0
    try:
        while server.recv(64):
            number += 1
            server.sendall(response(number))
    except OSError:
        pass


@pytest.mark.parametrize(
    ("body", "fault"), [(b"answered", None), (b"answereD", "in another way"), (b"", "closed")]
)
def test_a_load_counts_right_answers_and_ends_at_a_wrong_one(
    body: bytes, fault: str | None
) -> None:
    client, server = socket.socketpair()
    ids: list[int] = []

    def response(number: int) -> bytes:
        ids.append(number)
        if number == 5 and not body:
            server.shutdown(socket.SHUT_RDWR)
            return b""
        return EXPECTED[:4] + number.to_bytes(4, "big") + (body if number == 5 else b"answered")

    thread = threading.Thread(target=serve, args=(server, response))
    with client, server:
        load = Load([client], bytes(12), EXPECTED)
        thread.start()
        if fault is None:
            while load.responded <= 5:
                load.run(0.2)
        else:
            with pytest.raises(SystemExit, match=fault):
                load.run(30.0)
            assert load.responded == 4
        client.close()
        thread.join(10.0)
    load.close()


def test_an_answer_is_received_whole() -> None:
    client, server = socket.socketpair()
    with client, server:
        server.sendall(EXPECTED[:6])
        threading.Timer(0.05, server.sendall, [EXPECTED[6:] + b"next"]).start()
        assert receive(client) == EXPECTED
        server.shutdown(socket.SHUT_WR)
        with pytest.raises(ConnectionResetError):
            receive(client)


def test_idle_connections_are_as_many_as_files_allow() -> None:
    assert idle_within(10_000, 65_536) == 10_000
    assert idle_within(10_000, 20_000) == 9_950
    assert idle_within(300, 20_000) == 300


def test_rates_are_compared_within_a_round() -> None:
    found = Measured(idle_kib=31.0, idle=9_950, files_each=2.0)
    found.requests_per_s = {
        (FETCHPROXY, CONNECTIONS): [1000.0, 2000.0],
        (FETCHPROXY, CONNECTIONS_WIDE): [900.0, 2000.0],
        (DIRECT, CONNECTIONS): [1.0, 1.0],
        (DIRECT, CONNECTIONS_WIDE): [2000.0, 4000.0],
        (BARE_RELAY, CONNECTIONS): [2.0, 2.0],
        (BARE_RELAY, CONNECTIONS_WIDE): [1000.0, 2000.0],
    }
    found.mb_per_s = {
        (FETCHPROXY, PARTITIONS): [100.0, 200.0],
        (FETCHPROXY, PARTITIONS_WIDE): [80.0, 160.0],
        (DIRECT, PARTITIONS): [1.0, 1.0],
        (DIRECT, PARTITIONS_WIDE): [1.0, 1.0],
    }
    rows = {each.name: each for each in rows_of(found)}
    assert rows["idle connections: memory each"].met is False
    line = "requests/s of small fetches over 1,000 connections, throughput at 10 × the partitions"
    assert rows[line].value == 0.95
    assert rows[line].met is False  # the throughput is not flat
    assert rows[f"{line}: throughput at 10 × the partitions"].value == 0.8
    small = rows["small fetches over 1,000 connections : direct"]
    assert (small.value, small.min, small.max, small.met) == (0.475, 0.45, 0.5, False)
    assert rows["small fetches over 1000 connections, bare-relay : direct"].value == 0.5
    assert rows["small fetches over 1000 connections, fetchproxy : bare-relay"].value == 0.95
    assert rows["small fetches over 100 connections, bare-relay : direct"].value == 2.0


@pytest.mark.kafka
@pytest.mark.slow
def test_the_benchmark_runs(find_part: FindPart[Path], tmp_path: Path) -> None:
    find_part("kafka", kafka_jars)
    results = tmp_path / "connections.json"
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.connections", "--quick", "--results", str(results)],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = {each["name"]: each for each in json.loads(results.read_text())["rows"]}
    assert rows["idle connections held"]["value"] == 300
    assert rows["sockets of the proxy for each"]["value"] == pytest.approx(2.0, abs=0.05)
    assert rows["idle connections: memory each"]["value"] > 1
