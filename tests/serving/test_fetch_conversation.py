"""The states of a fetch: the ways between them, and what each input does. Without a loop."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from math import inf
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from fetchproxy_protocol.apis import ApiKey, ErrorCode
from fetchproxy_protocol.fetch import (
    FetchEntry,
    FetchRequest,
    FetchResponseHead,
    PartitionKey,
    PartitionPatch,
    encode_fetch_request,
)
from fetchproxy_protocol.headers import request_header
from test_fetch_session import asks
from test_whole_responses import CORRELATION_ID, framed

from fetchproxy.runtime.cooperative import READ_AT_ONCE_BYTES_MAX
from fetchproxy.serving.client_groups import GroupsOfClients
from fetchproxy.serving.gateway.fetch_conversation import (
    TRANSITIONS,
    FetchConversation,
    FetchState,
    Later,
    Merge,
    Output,
    Refuse,
    RelayedFetch,
    Serve,
    TiersSoFar,
    next_state,
)
from fetchproxy.serving.gateway.fetch_routing import ALL_FROM_BROKERS, FetchPlan, RouteTable
from fetchproxy.serving.gateway.fetch_session import FetchKind, FetchSessionPair
from fetchproxy.serving.gateway.served_archive import ArchivedTopics
from fetchproxy.serving.gateway.session import ToBroker
from fetchproxy.storage.reader_accounts import Client

PAGE = Path(__file__).parents[2] / "docs" / "contribute" / "architecture.md"
VERSION = 11
KEY = (b"orders", 3)
HEADER = request_header(ApiKey.FETCH, VERSION, CORRELATION_ID, "client")
EVERY_WAY = {(state, to) for state, following in TRANSITIONS.items() for to in following}


def test_the_page_shows_the_states_and_the_ways_between_them() -> None:
    page = PAGE.read_text("utf-8").partition("## The states of a fetch\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| ([A-Z]+) \| (.+) \| (.+) \|$", page, re.M)
    assert rows == [
        (state.name, state.value, ", ".join(to.name for to in following))
        for state, following in TRANSITIONS.items()
    ]
    assert list(TRANSITIONS) == list(FetchState)
    picture = page.partition("```text\n")[2].partition("```")[0]
    assert set(re.findall(r"[A-Z]{4,}", picture)) == {state.name for state in FetchState}


def test_no_other_way_is_taken() -> None:
    for state, to in product(FetchState, FetchState):
        fetches = Fetches()
        fetches.conversation.state = state
        if (state, to) in EVERY_WAY:
            fetches.conversation.move(to)
        else:
            with pytest.raises(AssertionError, match=f"from {state.name} to {to.name}"):
                fetches.conversation.move(to)


# What a served fetch does next.


def every_situation() -> list[TiersSoFar]:
    flags = [
        dict(zip(("broker_only", "arrived", "archive_ready", "archive_first"), four, strict=True))
        for four in product((False, True), repeat=4)
    ]
    more = [
        dict(zip(("has_error", "ask_broker", "only_refuses"), three, strict=True))
        for three in product((False, True), repeat=3)
    ]
    times = product((-inf, 1.0, 3.0), (1.0, 3.0), (1.0, 3.0))
    return [
        TiersSoFar(
            **one, **other, broker_deadline=due, client_deadline=deadline, archive_deadline=patience
        )
        for one, other, (due, deadline, patience) in product(flags, more, list(times))
    ]


def test_what_a_served_fetch_does_next_in_every_situation() -> None:
    now = 2.0
    for tiers in every_situation():
        state, until = next_state(tiers, now)
        assert state is FetchState.WAITING or (FetchState.WAITING, state) in EVERY_WAY
        if state is not FetchState.WAITING:
            assert until is None
        elif tiers.broker_only:
            assert until is None, "as long as without a proxy"
        else:
            assert until in (tiers.broker_deadline, tiers.client_deadline, tiers.archive_deadline)
            assert until is not None
            assert until > now
        if tiers.arrived and not tiers.archive_first:
            assert state is FetchState.MERGING, "tail data waits for nothing"
        assert (state is FetchState.MERGING) <= tiers.arrived
        if state is FetchState.PLANNING:
            assert tiers.ask_broker
            assert not tiers.has_news


@pytest.mark.parametrize(
    ("known", "state", "until"),
    [
        ({}, FetchState.WAITING, 5.0),
        ({"archive_deadline": 1.0}, FetchState.RESPONDING, None),
        ({"archive_ready": True}, FetchState.RESPONDING, None),
        ({"archive_ready": True, "broker_deadline": 2.05}, FetchState.WAITING, 2.05),
        ({"archive_ready": True, "broker_deadline": 2.0}, FetchState.RESPONDING, None),
        (
            {"archive_ready": True, "broker_deadline": 2.05, "arrived": True},
            FetchState.MERGING,
            None,
        ),
        (
            {"archive_ready": True, "archive_first": True, "broker_deadline": 2.05},
            FetchState.RESPONDING,
            None,
        ),
        (
            {"archive_ready": True, "archive_first": True, "arrived": True},
            FetchState.RESPONDING,
            None,
        ),
        ({"archive_ready": True, "only_refuses": True}, FetchState.WAITING, 4.0),
        ({"ask_broker": True}, FetchState.PLANNING, None),
        ({"ask_broker": True, "archive_ready": True}, FetchState.RESPONDING, None),
        ({"has_error": True}, FetchState.RESPONDING, None),
        ({"broker_only": True, "archive_deadline": 1.0}, FetchState.WAITING, None),
        ({"broker_only": True, "arrived": True}, FetchState.MERGING, None),
    ],
    ids=str,
)
def test_what_a_served_fetch_does_next(
    known: dict[str, Any], state: FetchState, until: float | None
) -> None:
    nothing = TiersSoFar(False, False, -inf, False, False, False, False, False, 4.0, 5.0)
    assert next_state(nothing._replace(**known), now=2.0) == (state, until)


# The inputs.


class Fetches:
    """A conversation and all that it knows: session, shell, routing and quota in one."""

    client, client_host, node_id = "10.0.0.1:5", "10.0.0.1", 1

    def __init__(self) -> None:
        self.now = 100.0
        self.nothing_overtaken = True
        self.due_s = 0.0
        self.tail_waits: list[float] = []
        self.served: list[Serve] = []
        self.responses = 0
        self.caught: list[PartitionKey] = []
        self.share = SimpleNamespace(
            due_in=self.due_in,
            budget_bytes=self.budget_bytes,
            responded=self.responded,
            groups=GroupsOfClients(),
            client=Client,
        )
        self.addresses = SimpleNamespace(splice_fetch_tags=bytes)
        self.by_id, self.table, self.plan = False, RouteTable(60.0), ALL_FROM_BROKERS
        nobody = cast(Any, None)
        clock = lambda: self.now  # noqa: E731
        steps = SimpleNamespace(tail_is_read=self.tail_waits.append)
        shared = SimpleNamespace(
            archive=SimpleNamespace(clock=clock, purgatory=SimpleNamespace(steps=steps)),
            topics=ArchivedTopics(nobody, nobody, nobody, clock, 300.0),
            permit_ttl_s=5.0,
        )
        me = cast(Any, self)
        self.mirror = FetchSessionPair(lambda: 77)
        self.conversation = FetchConversation(me, cast(Any, shared), self.mirror, me, me)

    # the quota
    def due_in(self, *_: object) -> float:
        return self.due_s

    def budget_bytes(self, bytes_max: int) -> int:
        return bytes_max

    # the routing
    def plan_at_once(self) -> FetchPlan:
        return self.plan

    def catch(self, key: PartitionKey, entry: FetchEntry, client: str) -> PartitionPatch:
        self.caught.append(key)
        return PartitionPatch(5, 5, 5)

    # the shell, and the quota again
    def responded(self, size_bytes: int = 0) -> None:
        self.responses += not size_bytes

    def serve_caught(self, serve: Serve) -> None:
        self.served.append(serve)

    def on_fetch(self, frame: bytes) -> Output:
        return self.conversation.on_request(frame, len(HEADER))

    def relayed(self) -> RelayedFetch:
        output = self.on_fetch(fetch({KEY: 40}))
        assert isinstance(output, ToBroker)
        fetch_ = output.expect()
        assert isinstance(fetch_, RelayedFetch)
        return fetch_

    def arrives(self, fetch: RelayedFetch, response: bytes) -> bytes:
        """Scan the whole response. Returns what leaves."""
        assert fetch.arrived(len(response))
        pieces = fetch.begin().feed(memoryview(bytearray(response)))
        return b"".join(bytes(piece) for piece in pieces)

    @property
    def state(self) -> FetchState:
        return self.conversation.state


def request(partitions: Mapping[PartitionKey, int], epoch: int = -1) -> FetchRequest:
    return asks(0, epoch, partitions)._replace(version=VERSION, header=HEADER)


def fetch(partitions: Mapping[PartitionKey, int], epoch: int = -1, replica_id: int = -1) -> bytes:
    plain_request = request(partitions, epoch)._replace(replica_id=replica_id, rack=b"\x00\x00")
    return encode_fetch_request(
        plain_request, partitions=plain_request.partitions, forgotten=(),
        session_id=0, session_epoch=epoch, max_wait_ms=500, min_bytes=1, bytes_max=1_000,
    )  # fmt: skip


def test_a_fetch_of_the_tail_passes_and_another_waits_behind_it() -> None:
    fetches = Fetches()
    frame = fetch({KEY: 40})
    relayed = fetches.relayed()
    assert (relayed.frame, relayed.requested_at) == (frame, fetches.now)
    assert fetches.state is FetchState.RELAYING
    assert fetches.on_fetch(frame) == Later(FetchState.RELAYING)
    response = framed(VERSION)
    assert relayed.passes(memoryview(bytearray(response)))
    relayed.done()
    assert fetches.state is FetchState.IDLE
    assert fetches.responses == 1
    assert fetches.conversation.tail_is_read
    assert fetches.conversation.may_read(KEY, fetches.now)
    assert not fetches.tail_waits
    fetches.relayed()
    assert fetches.tail_waits == [0.5]


def test_a_caught_fetch_without_records_is_served() -> None:
    fetches = Fetches()
    relayed = fetches.relayed()
    response = framed(VERSION, ErrorCode.OFFSET_OUT_OF_RANGE, b"")
    assert not relayed.passes(memoryview(bytearray(response)))
    requested_at, fetches.now = fetches.now, fetches.now + 1
    assert fetches.arrives(relayed, response) == b""
    assert fetches.caught == [KEY]
    (serve,) = fetches.served
    assert (serve.request, serve.client) == (relayed.request, Client("10.0.0.1", "client"))
    assert serve.requested_at == requested_at
    relayed.done()
    assert fetches.state is FetchState.PLANNING
    assert not fetches.conversation.tail_is_read


@pytest.mark.parametrize("records", [b"", b"records"])
def test_a_caught_fetch_leaves_with_the_partition_empty(records: bytes) -> None:
    """A later response could overtake one of our own; and records of the tail never wait."""
    fetches = Fetches()
    fetches.nothing_overtaken = bool(records)
    relayed = fetches.relayed()
    response = framed(VERSION, ErrorCode.OFFSET_OUT_OF_RANGE, records)
    forwarded = fetches.arrives(relayed, response)
    assert fetches.state is FetchState.CAUGHT
    assert fetches.on_fetch(fetch({KEY: 40})) == Later(FetchState.RELAYING)
    relayed.done()
    assert forwarded == framed(VERSION, 0, records).replace(
        (90).to_bytes(8, "big") + (80).to_bytes(8, "big") + (70).to_bytes(8, "big"),
        3 * (5).to_bytes(8, "big"),
    )
    assert (fetches.state, fetches.served) == (FetchState.IDLE, [])


def test_another_error_passes_and_such_a_topic_may_not_be_read() -> None:
    fetches = Fetches()
    relayed = fetches.relayed()
    response = framed(VERSION, ErrorCode.TOPIC_AUTHORIZATION_FAILED, b"")
    assert fetches.arrives(relayed, response) == response
    relayed.done()
    assert fetches.state is FetchState.IDLE
    assert fetches.conversation.tail_is_read
    assert not fetches.conversation.may_read(KEY, fetches.now)


def test_a_long_fetch_is_read_in_steps_and_then_paced() -> None:
    fetches = Fetches()
    offsets = {(b"orders", n): 40 for n in range(READ_AT_ONCE_BYTES_MAX // 20)}
    frame = fetch(offsets)
    assert fetches.on_fetch(frame) == Later(FetchState.READING)
    assert fetches.state is FetchState.READING
    fetches.conversation.parsed = request(offsets)
    fetches.due_s = 0.2
    assert fetches.on_fetch(frame) == Later(FetchState.PACED, 0.2)
    assert fetches.state is FetchState.PACED
    assert isinstance(fetches.on_fetch(frame), ToBroker), "it has waited once"
    assert fetches.conversation.parsed is None


def test_a_followers_fetch_passes_at_any_length() -> None:
    fetches = Fetches()
    offsets = {(b"orders", n): 40 for n in range(READ_AT_ONCE_BYTES_MAX // 20)}
    for partitions in ({KEY: 40}, offsets):
        frame = fetch(partitions, replica_id=2)
        if partitions is offsets:
            assert fetches.on_fetch(frame) == Later(FetchState.READING)
            fetches.conversation.parsed = request(partitions)._replace(replica_id=2)
        output = fetches.on_fetch(frame)
        assert isinstance(output, ToBroker)
        assert output.frame == frame
        assert not isinstance(output.expect(), RelayedFetch)
        assert fetches.state is FetchState.IDLE


def test_a_fetch_of_a_session_that_is_not_known_is_refused() -> None:
    fetches = Fetches()
    output = fetches.on_fetch(fetch({KEY: 40}, epoch=7))
    assert isinstance(output, Refuse)
    assert output.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert fetches.state is FetchState.RESPONDING


def test_a_fetch_with_archived_partitions_is_served() -> None:
    fetches = Fetches()
    fetches.table.permits[KEY[0]] = inf
    fetches.plan = FetchPlan({}, {KEY})
    output = fetches.on_fetch(fetch({KEY: 40}))
    assert isinstance(output, Serve)
    assert output.plan is fetches.plan
    assert fetches.state is FetchState.PLANNING


@pytest.mark.parametrize(
    ("has_news", "late", "patched", "errors_left", "min_bytes", "drops"),
    [
        (False, False, True, False, 1, True),
        (False, False, False, False, 1, True),
        (False, False, False, True, 1, False),
        (False, False, True, True, 1, True),
        (False, False, False, False, 0, False),
        (False, True, True, False, 1, False),
        (True, False, True, False, 1, False),
    ],
)
def test_a_response_is_dropped_only_if_the_client_loses_nothing(
    has_news: bool, late: bool, patched: bool, errors_left: bool, min_bytes: int, drops: bool
) -> None:
    fetches = Fetches()
    conversation = fetches.conversation
    served = request({KEY: 40})._replace(min_bytes=min_bytes)
    fetches.mirror.on_request(served)
    fetches.mirror.split_off_broker_part(frozenset())
    conversation.state = FetchState.MERGING
    deadline = fetches.now - 1 if late else fetches.now + 1
    keys = frozenset({(b"orders", 9)})
    kind = FetchKind.SESSIONLESS
    merge = Merge(conversation, served, kind, keys, {}, {}, has_news, deadline)
    merge.on_head(FetchResponseHead(CORRELATION_ID, 0, 0, 0, 1))
    assert merge.suppress(patched, errors_left) is merge.dropped is drops
    conversation.poll_done(merge)
    assert fetches.state is (FetchState.PLANNING if drops else FetchState.IDLE)
    assert fetches.responses == 1
