"""A small answer in one piece takes a faster path; the client sees the same bytes as otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import cast

import pytest
from fetchproxy_protocol import fetch as fr
from fetchproxy_protocol.apis import ErrorCode, WireError
from fetchproxy_protocol.fetch import TopicRef
from fetchproxy_protocol.primitives import INT32, Buffer

from fetchproxy.serving.gateway.broker_link import (
    WALKED_BYTES,
    WHOLE_BYTES_MAX,
    BrokerLink,
    BufferedResponse,
    Payload,
)
from fetchproxy.serving.gateway.fetch_conversation import (
    BrokerPoll,
    FetchConversation,
    RelayedFetch,
)
from fetchproxy.serving.gateway.fetch_session import FetchKind
from fetchproxy.serving.limits import AccumulatedBytes
from fetchproxy.serving.transport import ReceiveBuffer
from fetchproxy.serving.upstream import ExpectedResponse

CORRELATION_ID = 7
BROKERS_SESSION, CLIENTS_SESSION = 11, 12
TOPIC = {12: b"orders", 16: bytes(range(16)), 11: b"orders"}


class Wire(asyncio.Transport):
    """A transport that takes everything at once."""

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


class Client:
    """The session, as far as a link knows it."""

    closing = False

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.responses = 0
        self.failures: list[WireError] = []
        self.refused: list[str] = []

    def write_to_client(self, data: Buffer) -> None:
        self.pieces.append(bytes(data))

    def write_pieces(self, pieces: Iterable[Buffer]) -> None:
        self.pieces += [bytes(piece) for piece in pieces]

    def responded(self) -> None:
        self.responses += 1

    def rewrite(self, response: BufferedResponse) -> Payload | None:
        payload = response.rewrite(bytes(response.payload))
        assert isinstance(payload, list)
        return payload

    def link_failed(self, error: WireError) -> None:
        self.failures.append(error)

    def refused_as_too_large(self, limit: str, what: str) -> None:
        self.refused.append(limit)

    def give_up(self) -> None:
        self.closing = True

    def link_closed(self, error: Exception | None) -> None: ...

    def broker_slow(self, slow: bool) -> None: ...


class Fetches:
    """The conversation, as far as a response knows it; `asked` lists the calls to it."""

    def __init__(self, requests: list[str], clients_session: int = CLIENTS_SESSION) -> None:
        self.requests = requests
        self.clients_session = clients_session
        self.throttle_time_ms = 0
        self.mirror = self
        self.session = SimpleNamespace(addresses=SimpleNamespace(splice_fetch_tags=bytes))

    def on_ok_response(self, session_id: int) -> int:
        assert session_id == BROKERS_SESSION
        self.requests.append("plain")
        return self.clients_session

    def on_head(self, request: fr.FetchRequest, head: fr.FetchResponseHead) -> fr.HeadPatch:
        self.requests.append("head")
        return fr.HeadPatch(head.correlation_id, CLIENTS_SESSION)

    def on_partition_error(
        self, topic: TopicRef, partition: int, code: int
    ) -> fr.PartitionPatch | None:
        self.requests.append(f"error {code}")
        return fr.PartitionPatch(5, 5, 5)

    def serve_instead(self, fetch: RelayedFetch) -> bool:
        return False

    def passed(self, fetch: RelayedFetch) -> None:
        self.requests.append("done")

    def poll_arrived(self) -> None:
        self.requests.append("arrived")


class Conversation:
    """One link with one response due."""

    def __init__(
        self,
        response: ExpectedResponse,
        held_bytes_max: int = 1 << 20,
        accumulated: AccumulatedBytes | None = None,
    ) -> None:
        self.client = Client()
        self.link = BrokerLink(
            self.client, ReceiveBuffer(), Wire(), held_bytes_max, _accumulated=accumulated
        )
        self.link.tells_responded = True
        self.link.connection_made(Wire())
        self.link.expected.append(response)

    def arrives(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self.link.get_buffer(-1)[: len(piece)] = piece
            self.link.buffer_updated(len(piece))


def fetch_response(
    version: int, requests: list[str], fetches: Fetches | None = None, **log_starts: int
) -> RelayedFetch:
    """A response for a client with its own session; `shown`: the log start the client is shown."""
    starts = {TOPIC[version]: lambda partition: log_starts["start"]} if log_starts else None
    return RelayedFetch(
        cast(FetchConversation, fetches or Fetches(requests)),
        CORRELATION_ID,
        cast(fr.FetchRequest, SimpleNamespace(version=version)),
        FetchKind.SESSIONLESS,
        b"",
        log_starts=starts,
    )


def throttled(requests: list[str]) -> Fetches:
    """The client was not shown a throttle time yet: the next head must change."""
    fetches = Fetches(requests)
    fetches.throttle_time_ms = 1
    return fetches


def framed(
    version: int, error_code: int = 0, records: bytes = b"records", top_error: int = 0
) -> bytes:
    start = fr.encode_partition_start(
        version, 3, error_code, fr.PartitionPatch(90, 80, 70), None, len(records)
    )
    body = fr.encode_topic_start(version, TOPIC[version], 1) + start + records
    body += fr.no_tags(version) + fr.no_tags(version)
    body += b"\x00" if version >= 12 else b""
    head = fr.FetchResponseHead(CORRELATION_ID, 0, top_error, BROKERS_SESSION, 1)
    return fr.encode_head(version, head, len(body)) + body


def byte_by_byte(frame: bytes) -> Iterator[bytes]:
    return (frame[at : at + 1] for at in range(len(frame)))


@pytest.mark.parametrize("version", [11, 12, 16])
@pytest.mark.parametrize("start_options", [{}, {"start": 20}, {"start": -1}])
def test_a_plain_answer_leaves_in_one_piece_as_it_does_in_many(
    version: int, start_options: dict[str, int]
) -> None:
    frame = framed(version, records=b"r" * 300)
    requests: list[str] = []
    whole = Conversation(fetch_response(version, requests, **start_options))
    whole.arrives([frame])
    assert requests == ["plain", "done"]
    assert len(whole.client.pieces) == whole.client.responses == 1
    assert not whole.link.expected

    waited: list[str] = []
    small = Conversation(fetch_response(version, waited, **start_options))
    small.arrives(byte_by_byte(frame))
    assert waited == ["plain", "done"]
    assert small.client.pieces == whole.client.pieces
    assert INT32.pack(CLIENTS_SESSION) in whole.client.pieces[0]

    large = framed(version, records=b"r" * WHOLE_BYTES_MAX)
    scanned: list[str] = []
    cut = Conversation(fetch_response(version, scanned, **start_options))
    cut.arrives(byte_by_byte(large))
    assert scanned == ["head", "done"]
    whole = Conversation(fetch_response(version, [], **start_options))
    whole.arrives([large])
    assert [b"".join(cut.client.pieces)] == whole.client.pieces


@pytest.mark.parametrize("cut_at", [1, 4, 8, 30, -1])
def test_a_small_answer_in_two_pieces_leaves_in_one(cut_at: int) -> None:
    """Brokers send the head first, and then the records."""
    frame = framed(16)
    requests: list[str] = []
    response = fetch_response(16, requests, Fetches(requests, clients_session=BROKERS_SESSION))
    talk = Conversation(response)
    talk.arrives([frame[:cut_at]])
    assert talk.client.pieces == []
    assert talk.link.kept_bytes == len(frame[:cut_at])
    talk.arrives([frame[cut_at:]])
    assert talk.client.pieces == [frame]
    assert response.frame_bytes == len(frame), "counted for the client's status"
    assert requests == ["plain", "done"]
    assert talk.link.kept_bytes == 0


def test_the_rest_of_a_small_answer_is_waited_for_in_front_of_the_next() -> None:
    both = Conversation(ExpectedResponse(CORRELATION_ID))
    both.link.expected.append(ExpectedResponse(CORRELATION_ID))
    first = INT32.pack(8) + INT32.pack(CORRELATION_ID) + b"body"
    both.arrives([first[:10], first[10:] + first[:5], first[5:]])
    assert both.client.pieces == [first, first]


@pytest.mark.parametrize("version", [11, 12, 16])
def test_an_answer_with_an_error_is_scanned(version: int) -> None:
    frame = framed(version, ErrorCode.OFFSET_OUT_OF_RANGE, b"")
    requests: list[str] = []
    whole = Conversation(fetch_response(version, requests))
    whole.arrives([frame])
    assert requests == ["head", "error 1", "done"]
    cut = Conversation(fetch_response(version, []))
    cut.arrives(byte_by_byte(frame))
    assert b"".join(whole.client.pieces) == b"".join(cut.client.pieces)


def test_an_answer_with_an_error_at_its_top_is_scanned() -> None:
    requests: list[str] = []
    whole = Conversation(fetch_response(16, requests))
    whole.arrives([framed(16, top_error=ErrorCode.FETCH_SESSION_ID_NOT_FOUND)])
    assert requests == ["head", "done"]


def test_an_answer_whose_head_must_change_is_scanned() -> None:
    requests: list[str] = []
    response = fetch_response(16, requests, throttled(requests))
    whole = Conversation(response)
    whole.arrives([framed(16)])
    assert requests == ["head", "done"]
    assert len(whole.client.pieces) == 1


def test_a_parked_answer_stays_where_it_is() -> None:
    requests: list[str] = []
    poll = BrokerPoll(
        cast(FetchConversation, Fetches(requests)), CORRELATION_ID, 16, 0, 0.0, None, False
    )
    parked = Conversation(poll)
    parked.arrives([framed(16)])
    assert requests == ["arrived"]
    assert parked.client.pieces == []
    assert parked.link.expected


def test_another_answer_than_the_one_due_is_refused() -> None:
    wrong = Conversation(ExpectedResponse(CORRELATION_ID + 1))
    wrong.arrives([framed(16)])
    assert [str(failure) for failure in wrong.client.failures] == [
        "the broker responded to 7 where 8 was due"
    ]
    assert wrong.client.pieces == []


def test_what_is_rewritten_is_not_passed_even_if_it_is_whole() -> None:
    conversation = Conversation(BufferedResponse(CORRELATION_ID, lambda payload: [b"another"]))
    conversation.arrives([framed(16)])
    assert conversation.client.pieces == [b"\x00\x00\x00\x07another"]


def test_two_answers_in_one_piece_leave_in_order() -> None:
    requests: list[str] = []
    both = Conversation(ExpectedResponse(CORRELATION_ID))
    both.link.expected.append(fetch_response(16, requests))
    first = INT32.pack(8) + INT32.pack(CORRELATION_ID) + b"body"
    both.arrives([first + framed(16)])
    assert b"".join(both.client.pieces).startswith(first)
    assert both.client.responses == 2


@pytest.mark.parametrize("version", [11, 12, 16])
def test_little_comes_at_once_of_what_is_walked_slowly(version: int) -> None:
    """Walking 10,000 partitions without records in one piece holds the loop for milliseconds."""
    for slowly in (False, True):
        response = fetch_response(version, [], throttled([]))
        response.walked_slowly = slowly
        talk = Conversation(response)
        frame = framed(version, records=b"")
        for piece in (b"", frame[:30], frame[30:]):
            talk.arrives([piece] if piece else [])
            whole = piece == frame[30:]
            assert (len(talk.link.get_buffer(-1)) <= WALKED_BYTES) == (slowly and not whole)
