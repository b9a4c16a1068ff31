"""A broker's response passes whatever its size; a limit that refuses a message names its
setting.
"""

from __future__ import annotations

import json
import socket
import ssl
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from certificates import Authority
from fetchproxy_protocol import fetch as fr
from fetchproxy_protocol.primitives import Buffer
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from scripted_broker import TOPIC, TOPIC_ID, ScriptedBroker
from test_bad_input import connect, is_closed, request
from test_limits import rss_bytes
from test_whole_responses import CORRELATION_ID, Client, Conversation, fetch_response

from fetchproxy.serving.gateway.broker_link import (
    HELD_COPIES,
    RESPONSE_BUFFERED_BYTES_MAX,
    BufferedResponse,
)
from fetchproxy.serving.limits import AccumulatedBytes
from fetchproxy.serving.upstream import ExpectedResponse

LARGEST = 0x7FFFFFFF  # of a size prefix
MiB = 1 << 20
KEPT_BYTES_MAX = 48 * MiB  # what a process may grow by while a response passes
STEP = bytes(128 * 1024)


class CountingClient(Client):
    """Keeps none of what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def write_to_client(self, data: Buffer) -> None:
        self.bytes += len(data)

    def write_pieces(self, pieces: Iterable[Buffer]) -> None:
        self.bytes += sum(map(len, pieces))


def start_of(version: int, frame_bytes: int, correlation_id: int) -> tuple[bytes, bytes]:
    """The bytes of a Fetch response of `frame_bytes` before and after its one run of records."""
    topic = TOPIC_ID.bytes if version >= 13 else TOPIC.encode()
    head = fr.FetchResponseHead(correlation_id, 0, 0, 77 if version >= 7 else 0, 1)
    end = fr.no_tags(version) * 2 + (b"\0" if version >= 12 else b"")

    def before(records: int) -> bytes:
        marks = fr.PartitionPatch(1 << 40, 1 << 40, 0)
        body = fr.encode_topic_start(version, topic, 1)
        body += fr.encode_partition_start(version, 0, 0, marks, None, records)
        return fr.encode_head(version, head, len(body) + records + len(end)) + body

    # The width of the records' own length depends on it.
    records = frame_bytes + 4 - len(before(frame_bytes - 1_000)) - len(end)
    start = before(records)
    assert struct.unpack_from(">i", start) == (frame_bytes,)
    return start, end


@pytest.mark.parametrize(
    "version",
    [pytest.param(11, marks=pytest.mark.slow), 12, pytest.param(16, marks=pytest.mark.slow)],
)
async def test_the_largest_possible_fetch_answer_is_walked_while_it_passes(version: int) -> None:
    topics_asked: list[str] = []
    response = fetch_response(version, topics_asked)
    talk = Conversation(response)
    client = talk.link._owner = talk.client = CountingClient()
    start, end = start_of(version, LARGEST, CORRELATION_ID)
    talk.arrives([start])
    bytes_left = LARGEST + 4 - len(start) - len(end)
    while bytes_left:
        step = min(bytes_left, len(STEP))
        talk.arrives([STEP[:step]])
        bytes_left -= step
    if end:
        assert topics_asked == ["head"]
        talk.arrives([end])
    assert topics_asked == ["head", "done"]
    assert client.bytes == LARGEST + 4
    assert talk.link.kept_bytes < MiB
    assert not client.failures


async def test_an_answer_that_is_read_whole_is_refused_by_its_size_alone() -> None:
    talk = Conversation(BufferedResponse(CORRELATION_ID, lambda payload: [payload]))
    talk.arrives([struct.pack(">ii", MiB + 1, CORRELATION_ID)])
    assert [str(error) for error in talk.client.failures] == [
        "a broker's response of 1048577 bytes, which the proxy has to read completely, is larger "
        "than gateway.frame_bytes_max = 1048576"
    ]
    assert talk.client.refused == ["gateway.frame_bytes_max"]
    talk = Conversation(ExpectedResponse(CORRELATION_ID))
    talk.arrives([struct.pack(">ii", LARGEST, CORRELATION_ID)])
    assert not talk.client.failures


async def test_an_answer_that_is_read_whole_has_a_limit_below_that_of_requests() -> None:
    talk = Conversation(BufferedResponse(CORRELATION_ID, lambda payload: [payload]), 100 * MiB)
    talk.arrives([struct.pack(">ii", RESPONSE_BUFFERED_BYTES_MAX + 1, CORRELATION_ID)])
    assert talk.client.refused == ["held_bytes_max"]
    assert len(talk.client.failures) == 1
    talk = Conversation(BufferedResponse(CORRELATION_ID, lambda payload: [payload]), 100 * MiB)
    talk.arrives([struct.pack(">ii", RESPONSE_BUFFERED_BYTES_MAX, CORRELATION_ID)])
    assert not talk.client.failures


async def test_the_largest_of_the_answers_being_gathered_gives_way() -> None:
    accumulated = AccumulatedBytes(HELD_COPIES * 4 * len(STEP))

    def talk_of(steps: int) -> Conversation:
        talk = Conversation(
            BufferedResponse(CORRELATION_ID, lambda payload: [payload]), MiB, accumulated
        )
        talk.arrives([struct.pack(">ii", steps * len(STEP), CORRELATION_ID)])
        return talk

    def closed() -> list[bool]:
        return [talk.client.closing for talk in (small, large, other)]

    small, large, other = talk_of(2), talk_of(4), talk_of(3)
    small.arrives([STEP])
    large.arrives([STEP[8:], STEP])
    assert closed() == [False, False, False]
    other.arrives([STEP])
    assert closed() == [False, True, False], "the largest, at once"
    small.arrives([STEP[: len(STEP) - 4]])
    assert len(b"".join(small.client.pieces)) == 2 * len(STEP) + 4
    other.arrives([STEP, STEP[: len(STEP) - 4]])
    assert closed() == [False, True, False]
    for _ in range(20):  # what has left no longer counts
        again = talk_of(3)
        again.arrives([STEP, STEP, STEP[: len(STEP) - 4]])
        assert not again.client.closing


@pytest.mark.parametrize(
    ("first", "says"),
    [
        (b"\x15\x03\x03\x00\x02\x02\x46\x00", "broker speaks TLS, see cluster.security_protocol"),
        (b"\x15\x03\x03\x00\x02", "broker speaks TLS, see cluster.security_protocol"),
        (b"HTTP/1.1 400 Bad Request", "broker speaks HTTP"),
        (b"SSH-2.0-x", "broker speaks SSH"),
        (struct.pack(">ii", 3, 0), "3 is not the size of a response"),
    ],
)
async def test_a_broker_that_is_none_is_named(first: bytes, says: str) -> None:
    talk = Conversation(ExpectedResponse(CORRELATION_ID))
    talk.arrives([first])
    if not talk.client.failures:
        talk.link.connection_lost(None)
    assert [str(error) for error in talk.client.failures] == [says]


# --- whole processes ---
class LargeBroker(ScriptedBroker):
    """Answers a Fetch with `fetched_bytes` in one frame."""

    def __init__(self, fetched_bytes: int, tls: ssl.SSLContext | None = None) -> None:
        super().__init__()
        self.fetched_bytes, self._tls = fetched_bytes, tls

    @contextmanager
    def open(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
            yield f"127.0.0.1:{self.port}"

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        try:
            with peer if self._tls is None else self._tls.wrap_socket(peer, True) as peer:
                stream = peer.makefile("rb")
                while size := stream.read(4):
                    request_bytes = stream.read(struct.unpack(">i", size)[0])
                    api_key, version, correlation_id = struct.unpack_from(">hhi", request_bytes)
                    if api_key == 1:
                        self._send_large(peer, version, correlation_id)
                    elif frame := self.response_to(request_bytes):
                        peer.sendall(frame)
        except OSError:
            pass

    def _send_large(self, peer: socket.socket, version: int, correlation_id: int) -> None:
        start, end = start_of(version, self.fetched_bytes, correlation_id)
        peer.sendall(start)
        bytes_left = self.fetched_bytes + 4 - len(start) - len(end)
        while bytes_left:
            step = min(bytes_left, len(STEP))
            peer.sendall(STEP[:step])
            bytes_left -= step
        peer.sendall(end)


def passes(proxy: ProxyProcess, tls: ssl.SSLContext | None, bytes_min: int) -> None:
    """Two fetches in one session, each answered with the same large frame."""
    peer = socket.create_connection(("127.0.0.1", proxy.port))
    peer.settimeout(60)
    with peer if tls is None else tls.wrap_socket(peer, server_hostname="127.0.0.1") as peer:
        grown = 0
        for correlation_id in (1, 2):
            before = rss_bytes(proxy.pid)
            body = struct.pack(">iiiibii", -1, 500, 1, LARGEST, 0, 0, -1)
            body += b"\x02" + bytes([len(TOPIC) + 1]) + TOPIC.encode() + b"\x02"
            body += struct.pack(">iiqiqi", 0, -1, 5, -1, -1, LARGEST) + b"\0\0\x01\x01\0"
            head = struct.pack(">hhih", 1, 12, correlation_id, -1) + b"\0"
            peer.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
            stream = peer.makefile("rb", buffering=0)
            size, responded = struct.unpack(">ii", stream.read(8))
            assert responded == correlation_id
            assert size == bytes_min
            bytes_left, buffer = size - 4, memoryview(bytearray(1 << 18))
            while bytes_left:
                bytes_read = stream.readinto(buffer[: min(bytes_left, len(buffer))])
                assert bytes_read, f"closed {bytes_left} bytes before the end"
                bytes_left -= bytes_read
            grown = max(grown, rss_bytes(proxy.pid) - before)
    assert grown < KEPT_BYTES_MAX


@pytest.mark.parametrize("spliced", [pytest.param(True, marks=pytest.mark.slow), False])
def test_three_hundred_megabytes_pass_without_being_kept(tmp_path: Path, spliced: bool) -> None:
    size = 300 * MiB
    settings: dict[str, object] = {} if spliced else {"limits.serving.splice_bytes_min": 0}
    store = tmp_path / "store"
    store.mkdir()
    with (
        LargeBroker(size).open() as bootstrap,
        ProxyProcess(bootstrap, store.as_uri(), tmp_path, settings=settings) as proxy,
    ):
        passes(proxy, None, size)
        assert not proxy.logged("client_connection_closed")


def test_over_tls_on_both_sides(tmp_path: Path) -> None:
    size = 110 * MiB
    authority = Authority(tmp_path / "authority")
    certificate = authority.issue("127.0.0.1")
    of_server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    of_server.load_cert_chain(certificate)
    store = tmp_path / "store"
    store.mkdir()
    settings: dict[str, object] = {
        "cluster.security_protocol": "SSL",
        "cluster.tls_ca_file": authority.file,
        "gateway.tls_certificate_file": certificate,
    }
    with (
        LargeBroker(size, of_server).open() as bootstrap,
        ProxyProcess(bootstrap, store.as_uri(), tmp_path, settings=settings) as proxy,
    ):
        passes(proxy, ssl.create_default_context(cafile=authority.file), size)


@pytest.mark.remedy("message_too_large")
def test_a_refused_request_is_a_condition_that_names_the_setting_and_the_client(
    tmp_path: Path,
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    settings: dict[str, object] = {
        "gateway.frame_bytes_max": 1_000_000,
        "limits.serving.held_request_bytes_max": 1_000,
    }
    with (
        LargeBroker(100).open() as bootstrap,
        ProxyProcess(bootstrap, store.as_uri(), tmp_path, settings=settings) as proxy,
    ):

        def conditions() -> dict[str, str]:
            conditions_shown = json.loads(proxy.get("/api/status"))["conditions"]
            return {
                c["subject"]: c["what"]
                for c in conditions_shown
                if c["kind"] == "message_too_large"
            }

        assert conditions() == {}
        for octet, api_key, size in ((31, 0, 1_000_001), (32, 0, 1_000_009), (33, 2, 1_001)):
            with connect(proxy, octet) as peer:
                peer.sendall(struct.pack(">i", size) + request(api_key, 3)[4:])
                assert is_closed(peer)
        wait_for("both conditions", lambda: len(conditions()) == 2)
        assert conditions() == {
            "gateway.frame_bytes_max": "Refused, 2 times: PRODUCE request of 1000009 bytes is "
            "larger than gateway.frame_bytes_max = 1000000 (client 127.0.0.32)",
            "held_request_bytes_max": "Refused: LIST_OFFSETS request of 1001 bytes is larger than "
            "held_request_bytes_max = 1000 (client 127.0.0.33)",
        }
        # The remedy of the first: the setting that it names.
    with (
        LargeBroker(100).open() as bootstrap,
        ProxyProcess(bootstrap, store.as_uri(), tmp_path) as proxy,
        RawConnection(proxy.bootstrap) as raw,
    ):
        raw.send(request(18, 0, bytes(1_000_001)))
        assert raw.receive()
