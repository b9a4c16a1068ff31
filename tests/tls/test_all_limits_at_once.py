"""A process at all its limits at once stays within its memory plan, and still serves."""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from proxy_process import ProxyProcess, wait_for
from raw_tls import responses, serves
from scripted_broker import TOPIC, encode
from silent_clients import COUNT_MAX
from test_large_answers import LargeBroker
from test_tls_memory import begun, resident_bytes
from tls_parts import client_context

from fetchproxy.config.memory_plan import TLS_HANDSHAKES_MAX
from fetchproxy.runtime.open_files import clients_that_fit
from fetchproxy.serving.gateway.broker_link import RESPONSE_BUFFERED_BYTES_MAX

MiB = 1 << 20
HUGE, HALF = 24, 150  # answers, and requests, that never end
HELD_REQUEST_BYTES = 2 * MiB - 1_000
LOG_START = 10_000
METADATA, FETCH, OUT_OF_RANGE = 3, 1, 1
UNEVEN = 1.1  # the fullest worker has at most this times its share
FEW = 10  # places that stay free


@dataclass(frozen=True)
class Crowd:
    """`readers`: below the broker's log, while nobody knows the archive. `watched_s`: for how long
    the memory is watched."""

    silent: int
    readers: int
    handshakes: int
    watched_s: float

    @property
    def others(self) -> int:
        return self.handshakes + self.readers + HUGE + HALF + FEW


MOST = Crowd(20_000, 2_000, TLS_HANDSHAKES_MAX, 20.0)
SOME = Crowd(200, 100, 100, 3.0)


class EvilBroker(LargeBroker):
    """It has deleted its records, and ends no response to a client's Metadata."""

    ENDLESS = 4242  # the correlation id of such a request

    def _send_large(self, peer: socket.socket, version: int, correlation_id: int) -> None:
        fetch_response = self._fetch()
        fetch_response.responses[0].topic = TOPIC
        peer.sendall(encode(fetch_response, version, correlation_id))

    def _offsets(self) -> Any:
        offsets_response = super()._offsets()
        offsets_response.topics[0].partitions[0].offset = LOG_START
        return offsets_response

    def response(self, api_key: int, version: int, correlation_id: int) -> bytes | None:
        if api_key == METADATA and correlation_id == self.ENDLESS:
            return struct.pack(">ii", RESPONSE_BUFFERED_BYTES_MAX, correlation_id) + bytes(
                RESPONSE_BUFFERED_BYTES_MAX - MiB
            )
        return super().response(api_key, version, correlation_id)


def files_max() -> int:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def fetch(offset: int) -> bytes:
    body = struct.pack(">iiiibii", -1, 60_000, 1, MiB, 0, 0, -1)
    body += b"\x02" + bytes([len(TOPIC) + 1]) + TOPIC.encode() + b"\x02"
    body += struct.pack(">iiqiqi", 0, -1, offset, -1, -1, MiB) + b"\0\0\x01\x01\0"
    head = struct.pack(">hhih", FETCH, 12, 7, -1) + b"\0"
    return struct.pack(">i", len(head) + len(body)) + head + body


def half_a_request() -> bytes:
    """A request that is accumulated, but for its last bytes."""
    head = struct.pack(">ihhih", HELD_REQUEST_BYTES, FETCH, 11, 9, -1)
    return head + bytes(HELD_REQUEST_BYTES - 1_000)


@contextmanager
def silent(proxy: ProxyProcess, authority: Authority, count: int) -> Iterator[None]:
    program = str(Path(__file__).with_name("silent_clients.py"))
    pieces = [min(COUNT_MAX, count - before) for before in range(0, count, COUNT_MAX)]
    with ExitStack() as stack:
        processes = []
        for number, piece in enumerate(pieces, 2):
            options = [str(proxy.port), str(authority.file), str(piece), f"127.0.0.{number}"]
            command = [sys.executable, program, *options]
            started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            processes.append(stack.enter_context(started))
            assert started.stdin is not None
            stack.callback(started.stdin.close)
        for started, piece in zip(processes, pieces, strict=True):
            assert started.stdout is not None
            assert started.stdout.readline() == f"{piece}\n".encode()
        yield


def workers_of(proxy: ProxyProcess) -> set[str]:
    """Those that report what they may take; one without a name if the process has no workers."""
    name = "fetchproxy_memory_budget_bytes"
    lines = [line for line in proxy.get("/metrics").splitlines() if line.startswith(name)]
    return {line.partition('worker="')[2].partition('"')[0] for line in lines}


def resident_of_all(proxy: ProxyProcess) -> int:
    """Of the process and its workers."""
    workers = Path(f"/proc/{proxy.pid}/task/{proxy.pid}/children").read_text().split()
    return sum(resident_bytes(int(pid)) for pid in (proxy.pid, *workers))


def settings_for(authority: Authority, admitted: int, workers: int) -> dict[str, object]:
    return {
        "gateway.tls_certificate_file": authority.issue("limits-at-once"),
        "gateway.connections_max": admitted,
        "process.workers": workers,
        "limits.serving.tls_handshake_max_ms": 3_600_000,
        # What this test does not fill takes no part in the plan, as far as possible.
        "gateway.connection_buffers_bytes_max": "128MiB",
        "gateway.remote_answers_bytes_max": "1MiB",
        "remote_fetch.chunk_cache_bytes_max": 0,
        "remote_fetch.inflight_bytes_max": "4MiB",
        "remote_fetch.index_cache_bytes_max": "1MiB",
    }


def that_fit(crowd: Crowd, workers: int) -> Crowd:
    """A process has files for half of 20,000 clients where 20,000 is the limit, three workers for
    all. A process admits no more clients than it has files for: each may need a broker's link.
    """
    fit = workers * clients_that_fit(files_max(), crowd.silent + crowd.others) - crowd.others
    # The kernel deals connections to the workers, but not evenly.
    fit = fit if workers == 1 else int(fit / UNEVEN)
    count = int(os.environ.get("SILENT_CLIENTS", min(crowd.silent, fit)))
    return replace(crowd, silent=count)


@contextmanager
def behind_it(
    authority: Authority, folder: Path, crowd: Crowd, workers: int
) -> Iterator[ProxyProcess]:
    """Behind it are a broker that deletes its records, and a store that hangs."""
    connections = crowd.silent + crowd.others
    admitted = connections if workers == 1 else int(connections * UNEVEN)
    broker = EvilBroker(0)
    broker.fetch_error = OUT_OF_RANGE
    with socket.create_server(("127.0.0.1", 0)) as mute, broker.open() as bootstrap:
        store = f"s3://archive/logs?endpoint_url=http://127.0.0.1:{mute.getsockname()[1]}"
        settings = settings_for(authority, admitted, workers)
        with ProxyProcess(bootstrap, store, folder, settings=settings) as proxy:
            wait_for("every worker", lambda: len(workers_of(proxy)) == workers)
            yield proxy


def all_at_once(proxy: ProxyProcess, authority: Authority, crowd: Crowd) -> int:
    """Returns the most memory that it took, in bytes."""
    context = client_context(authority, None)
    with ExitStack() as stack:
        stack.enter_context(silent(proxy, authority, crowd.silent))

        def plain() -> socket.socket:
            peer = socket.create_connection(("127.0.0.1", proxy.port), timeout=60)
            return stack.enter_context(peer)

        def linked() -> socket.socket:
            peer = context.wrap_socket(plain(), server_hostname="localhost")
            stack.enter_context(peer)
            assert responses(peer)
            return peer

        others = [linked() for _ in range(HUGE + HALF)]
        readers = [linked() for _ in range(crowd.readers)]
        for _ in range(crowd.handshakes):
            begun(plain(), context)
        connections = crowd.silent + crowd.others - FEW
        assert proxy.metric("fetchproxy_connections") == connections
        for offset, peer in enumerate(readers):
            peer.sendall(fetch(offset))
        catches = "fetchproxy_catches_total"
        wait_for("readers that wait", lambda: proxy.metric(catches) == crowd.readers, 300)
        most, until = 0, time.monotonic() + crowd.watched_s
        for peer in others[:HUGE]:
            peer.sendall(struct.pack(">ihhihi", 14, METADATA, 1, EvilBroker.ENDLESS, -1, -1))
        half = half_a_request()
        for number, peer in enumerate(others[HUGE:]):
            with suppress(OSError):  # closed, as the limit was reached
                peer.sendall(half)
            if not number % 10:
                most = max(most, resident_of_all(proxy))
        while time.monotonic() < until:
            most = max(most, resident_of_all(proxy))
            time.sleep(0.1)
        assert proxy.metric("fetchproxy_limits_reached_total", "connection_buffers_bytes_max") > 0
        assert serves(proxy, authority)
        return most


def within_its_plan(authority: Authority, folder: Path, crowd: Crowd, workers: int) -> None:
    crowd = that_fit(crowd, workers)
    with behind_it(authority, folder, crowd, workers) as proxy:
        plan = proxy.metric("fetchproxy_memory_budget_bytes")
        most = all_at_once(proxy, authority, crowd)
        print(
            f"{workers} processes, {crowd.silent} silent: at most {most / MiB:.0f} MiB; "
            f"the plan {plan / MiB:.0f}"
        )
        assert most <= plan
        assert not proxy.logged("session_crashed") + proxy.logged("part_failed")


@pytest.fixture
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.usefixtures("credentials")
def test_all_limits_at_once(authority: Authority, tmp_path: Path, workers: int) -> None:
    within_its_plan(authority, tmp_path, MOST, workers)


@pytest.mark.usefixtures("credentials")
def test_all_limits_with_some_clients(authority: Authority, tmp_path: Path) -> None:
    within_its_plan(authority, tmp_path, SOME, 1)
