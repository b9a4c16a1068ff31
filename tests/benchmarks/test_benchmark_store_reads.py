"""The relay before a store delays and counts, and raw range reads read every byte once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from benchmarks.range_reads import parts_of, read_all
from benchmarks.store_relay import Passed, StoreRelay, longest_chain

CONTENT = bytes(range(256)) * 1000


class Store(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[str] = []  # noqa: RUF012  # a handler is made for each connection

    def do_GET(self) -> None:
        found = self.headers["Range"].removeprefix("bytes=")
        first, last = (int(each) for each in found.split("-"))
        self.asked.append(found)
        body = CONTENT[first : last + 1]
        self.send_response(404 if "missing" in self.path else 206)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nobody reads it."""


@contextmanager
def store() -> Iterator[int]:
    Store.asked = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_round_trips_are_the_longest_chain() -> None:
    assert longest_chain([]) == 0
    assert longest_chain([Passed(0, 1, 1), Passed(0.5, 2, 1), Passed(0.9, 3, 1)]) == 1
    # The third waited for the first, the fourth for the second or the third.
    chain = [Passed(0, 1, 1), Passed(0.5, 2, 1), Passed(1, 1.5, 1), Passed(2, 3, 1)]
    assert longest_chain(chain) == 3
    assert longest_chain(list(reversed(chain))) == 3


def test_the_relay_delays_and_counts() -> None:
    with store() as port, StoreRelay(port, latency_ms=30) as relay:
        objects = [(f"{relay.endpoint_url}/object", len(CONTENT))]
        parts = parts_of(objects, 100_000)
        assert read_all(parts, 1, 100_000) == len(CONTENT)
        passed = relay.take()
        assert relay.take() == []
    assert len(passed) == len(Store.asked) == 3
    assert all(each.ended - each.began >= 0.03 for each in passed)
    assert longest_chain(passed) == 3
    assert sum(each.size_bytes for each in passed) > len(CONTENT)
    assert sum(each.size_bytes for each in passed) < len(CONTENT) + 3 * 500  # the heads


def test_requests_at_once_are_one_round_trip() -> None:
    with store() as port, StoreRelay(port, latency_ms=5_000) as relay:
        parts = parts_of([(f"{relay.endpoint_url}/object", len(CONTENT))], 100_000)
        assert read_all(parts, 3, 100_000) == len(CONTENT)
        assert longest_chain(relay.take()) == 1
    assert sorted(Store.asked) == ["0-99999", "100000-199999", "200000-255999"]


def test_a_store_that_refuses_is_an_error() -> None:
    with store() as port, pytest.raises(OSError, match="404"):
        read_all([(f"http://127.0.0.1:{port}/missing", 0, 10)], 2, 10)


def test_files_are_read_whole(tmp_path: Path) -> None:
    file = tmp_path / "object"
    file.write_bytes(CONTENT)
    parts = parts_of([(str(file), len(CONTENT))], 70_000)
    assert [end - start for _, start, end in parts] == [70_000, 70_000, 70_000, 46_000]
    assert read_all(parts, 4, 70_000) == len(CONTENT)
    with pytest.raises(OSError, match="ends at byte"):
        read_all([(str(file), 0, len(CONTENT) + 1)], 1, len(CONTENT) + 1)
