"""The session mirror against a model of the broker's side (Kafka's FetchSession.scala)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy

import pytest
from fetch_entries import entry
from fetchproxy_protocol.fetch import FetchEntry, FetchRequest, PartitionKey, fetch_offset
from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.serving.gateway.fetch_session import (
    EPOCH_MAX,
    FetchKind,
    FetchSessionPair,
    UpstreamFetch,
    next_epoch,
)

KEYS: list[PartitionKey] = [(b"a", 0), (b"a", 1), (b"b", 0), (b"b", 7)]


def asks(
    session_id: int,
    epoch: int,
    partitions: Mapping[PartitionKey, int],
    forgotten: tuple[PartitionKey, ...] = (),
) -> FetchRequest:
    entries = {key: entry(key[1], offset) for key, offset in partitions.items()}
    return FetchRequest(
        version=12, correlation_id=1, header=b"", replica_id=-1, max_wait_ms=0, min_bytes=0,
        bytes_max=1, isolation_level=0, session_id=session_id, session_epoch=epoch,
        partitions=entries, forgotten=forgotten, rack=b"", tags=b"",
    )  # fmt: skip


class BrokerModel:
    """A broker's session ids and epochs; `serving`: the partitions that its response covers."""

    def __init__(self) -> None:
        self.sessions: dict[int, tuple[int, dict[PartitionKey, FetchEntry]]] = {}
        self.serving: dict[PartitionKey, FetchEntry] = {}
        self._next_id = 100

    def fetch(
        self,
        session_id: int,
        epoch: int,
        partitions: Mapping[PartitionKey, FetchEntry],
        forgotten: tuple[PartitionKey, ...],
    ) -> tuple[int, int]:
        """(error, session id of the response)."""
        if epoch in (-1, 0):
            self.sessions.pop(session_id, None)
            self.serving = dict(partitions)
            if epoch == -1:
                return 0, 0
            self._next_id += 1
            self.sessions[self._next_id] = (1, dict(partitions))
            return 0, self._next_id
        if session_id not in self.sessions:
            return 70, 0
        due, known = self.sessions[session_id]
        if epoch != due:
            return 71, 0
        known.update(partitions)
        for key in forgotten:
            known.pop(key, None)
        self.serving = dict(known)
        if not known:  # an emptied session ends
            del self.sessions[session_id]
            return 0, 0
        self.sessions[session_id] = (next_epoch(due), known)
        return 0, session_id


class ClientModel:
    """FetchSessionHandler.java: the client's next request, and all partitions it has asked for."""

    def __init__(self) -> None:
        self.session_id, self.epoch = 0, 0
        self.partitions: dict[PartitionKey, int] = {}
        self.parts_sent: dict[PartitionKey, int] = {}

    def request(self, mode: str) -> FetchRequest:
        if mode == "sessionless":
            close, self.session_id, self.epoch = self.session_id, 0, 0
            self.parts_sent = {}
            return asks(close, -1, self.partitions)
        if mode == "restart":  # as clients do after an error
            self.epoch = 0
        if self.epoch == 0:
            self.parts_sent = dict(self.partitions)
            return asks(self.session_id, 0, self.partitions)
        changed = {k: o for k, o in self.partitions.items() if self.parts_sent.get(k) != o}
        gone = tuple(k for k in self.parts_sent if k not in self.partitions)
        self.parts_sent = dict(self.partitions)
        return asks(self.session_id, self.epoch, changed, gone)

    def response(self, sessionless: bool, error: int, session_id: int) -> None:
        if sessionless:
            return
        if error or session_id == 0:
            self.session_id, self.epoch = 0, 0
        elif self.epoch == 0:
            self.session_id, self.epoch = session_id, 1
        else:
            assert session_id == self.session_id, "the client would drop its session"
            self.epoch = next_epoch(self.epoch)


STEPS = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(KEYS), st.integers(0, 5)),  # asked
        st.sets(st.sampled_from(KEYS)),  # withheld, if asked
        st.sampled_from(["session", "session", "session", "session", "sessionless", "restart"]),
        st.sampled_from(["answered", "answered", "alone", "parked", "parked", "evicted"]),
    ),
    max_size=25,
)


class Proxy:
    """The handler's use of the mirror; a poll may stay parked over several fetches."""

    def __init__(self, broker: BrokerModel) -> None:
        self.broker = broker
        self.mirror = FetchSessionPair(lambda: 7)
        self.parked: tuple[int, int] | None = None  # (error, session id) of the broker's response

    def fetch(
        self, request: FetchRequest, kind: FetchKind, kept_from_broker: frozenset, outcome: str
    ) -> tuple[int, int]:
        """(error, session id) as the client sees it."""
        mirror = self.mirror
        ended = not mirror.in_lockstep and not mirror.partitions
        if not kept_from_broker and self.parked is None and not ended:
            return self._pass(request)
        if self.parked is not None and not mirror.take_up(kept_from_broker):
            mirror.on_discarded_response(*self.parked)
            self.parked = None
        if self.parked is None:
            upstream = mirror.split_off_broker_part(kept_from_broker)
            if upstream is None:
                assert kept_from_broker == mirror.partitions.keys()
                return 0, mirror.on_proxy_response()
            self.parked = _send(self.broker, upstream)
        if not self.parked[0]:
            local = {k: p for k, p in mirror.partitions.items() if k not in kept_from_broker}
            assert dict(self.broker.serving) == local
            assert mirror.sent_full or not kind.lists_all, "some would not be answered"
        if outcome == "parked" and kept_from_broker:
            return 0, mirror.on_proxy_response()
        error, session_id = self.parked
        self.parked = None
        if outcome == "alone":  # the archive's answer goes alone, the poll is discarded
            mirror.on_discarded_response(error, session_id)
            return 0, mirror.on_proxy_response()
        return error, self._respond(error, session_id)

    def _respond(self, error: int, session_id: int) -> int:
        """A response that is not sent is undone: none of what it replaces may change in place."""
        mirror = self.mirror
        before = deepcopy(
            (
                mirror._client_session_id,
                mirror._client_epoch,
                mirror._upstream_epoch,
                mirror._needs_full_fetch,
                mirror._upstream_partitions,
                mirror._dirty,
                mirror._kept_from_broker,
            )
        )
        routes = mirror.on_response(error, session_id)
        assert mirror._before == (None if error else before)
        return routes

    def _pass(self, request: FetchRequest) -> tuple[int, int]:
        mirror, broker = self.mirror, self.broker
        if mirror.rejoin():
            session = (request.session_id, request.session_epoch)
            response = broker.fetch(*session, request.partitions, request.forgotten)
        elif (session := mirror.pass_on(request)) is not None:
            response = broker.fetch(*session, request.partitions, request.forgotten)
        else:
            upstream = mirror.split_off_broker_part(frozenset())
            assert upstream is not None
            response = _send(broker, upstream)
        if not response[0]:
            assert dict(broker.serving) == mirror.partitions
        return response[0], self._respond(*response)


@given(STEPS)
def test_the_broker_always_serves_what_is_asked_and_not_withheld(steps) -> None:
    broker, client = BrokerModel(), ClientModel()
    proxy = Proxy(broker)
    for partitions_asked, wish, mode, outcome in steps:
        if outcome == "evicted":
            broker.sessions.clear()
        client.partitions = partitions_asked
        request = client.request(mode)
        kind = proxy.mirror.on_request(request)
        assert kind.error_code == 0
        assert {k: fetch_offset(p) for k, p in proxy.mirror.partitions.items()} == partitions_asked
        error, session_id = proxy.fetch(
            request, kind, frozenset(wish & partitions_asked.keys()), outcome
        )
        client.response(mode == "sessionless", error, session_id)
    assert len(broker.sessions) <= 1, "sessions that nobody will ask for are left with the broker"


def _send(broker: BrokerModel, upstream: UpstreamFetch) -> tuple[int, int]:
    return broker.fetch(
        upstream.session_id, upstream.session_epoch, upstream.partitions, upstream.forgotten
    )


def test_a_session_keeps_to_names_or_to_ids() -> None:
    mirror = FetchSessionPair(lambda: 7)
    mirror.on_request(asks(0, 0, {KEYS[0]: 1}))
    mirror.on_response(0, 9)
    by_id = asks(9, 1, {})._replace(version=13)
    assert mirror.on_request(by_id) is FetchKind.WRONG_TOPIC_IDS
    assert mirror.on_request(asks(9, 1, {})) is FetchKind.INCREMENTAL, "the session goes on"


class Uncounted(dict):
    """A dict that fails if any code iterates over it."""

    def __iter__(self):
        raise AssertionError("a request of one partition went through the whole session")

    keys = values = items = __iter__


def test_a_request_costs_what_it_changes_and_not_its_session() -> None:
    mirror = FetchSessionPair(lambda: 7)
    many = {(b"t", n): 0 for n in range(1_000)}
    mirror.on_request(asks(0, 0, many))
    mirror.on_response(0, 9)
    mirror.on_request(asks(9, 1, {(b"t", 1): 5}))
    assert mirror.split_off_broker_part(frozenset([(b"t", 1)])) is not None
    mirror.on_response(0, 9)
    mirror.partitions, mirror._upstream_partitions = (
        Uncounted(mirror.partitions),
        Uncounted(mirror._upstream_partitions or {}),
    )
    mirror.on_request(asks(9, 2, {(b"t", 2): 5}))
    broker_part = mirror.split_off_broker_part(frozenset([(b"t", 1)]))
    assert broker_part is not None
    assert list(broker_part.partitions) == [(b"t", 2)]
    mirror.on_response(0, 9)
    mirror.on_request(asks(9, 3, {}))
    assert mirror.take_up(frozenset([(b"t", 1)]))
    assert not mirror.take_up(frozenset())
    broker_part = mirror.split_off_broker_part(frozenset())
    assert broker_part is not None
    assert list(broker_part.partitions) == [(b"t", 1)]
    mirror.on_response(0, 9)
    request = asks(9, 4, {(b"t", 3): 5})
    mirror.on_request(request)
    assert mirror.pass_on(request) == (9, 4)


def test_requests_of_a_session_that_is_not_this_connections_are_refused() -> None:
    mirror = FetchSessionPair(lambda: 7)
    assert mirror.on_request(asks(9, 4, {})) is FetchKind.UNKNOWN_SESSION
    mirror.on_request(asks(0, 0, {KEYS[0]: 1}))
    mirror.on_response(0, 9)
    assert mirror.on_request(asks(9, 5, {})) is FetchKind.WRONG_EPOCH
    assert mirror.on_request(asks(9, 1, {})) is FetchKind.INCREMENTAL


def test_a_session_that_only_the_archive_serves_has_an_id_of_its_own() -> None:
    mirror = FetchSessionPair(lambda: 7)
    mirror.on_request(asks(0, 0, {KEYS[0]: 1}))
    assert mirror.split_off_broker_part(frozenset([KEYS[0]])) is None
    assert mirror.on_proxy_response() == 7
    assert mirror.on_request(asks(7, 1, {})) is FetchKind.INCREMENTAL


def test_epochs_wrap_to_one() -> None:
    assert next_epoch(EPOCH_MAX) == 1
    assert next_epoch(1) == 2


@pytest.mark.parametrize("epoch", [-1, 0])
def test_after_a_withheld_full_answer_the_broker_is_asked_for_all_again(epoch: int) -> None:
    """The client's answer must list all partitions, and its session begins with that response."""
    mirror = FetchSessionPair(lambda: 7)
    mirror.on_request(asks(0, epoch, {KEYS[0]: 1, KEYS[1]: 2}))
    mirror.on_response(0, 9 if epoch == 0 else 0)
    mirror.on_suppressed_response(9 if epoch == 0 else 0)
    assert not mirror.in_lockstep
    broker_part = mirror.split_off_broker_part(frozenset([KEYS[0]]))
    assert broker_part is not None
    assert list(broker_part.partitions) == [KEYS[1]]
    assert (broker_part.session_id, broker_part.session_epoch) == (
        (9, 0) if epoch == 0 else (0, -1)
    )
    assert mirror.on_proxy_response() == (7 if epoch == 0 else 0)
    if epoch == 0:
        assert mirror.on_request(asks(7, 1, {})) is FetchKind.INCREMENTAL


def test_after_a_withheld_incremental_answer_the_broker_is_told_what_is_not_its() -> None:
    mirror = FetchSessionPair(lambda: 7)
    mirror.on_request(asks(0, 0, {KEYS[0]: 1, KEYS[1]: 2}))
    mirror.on_response(0, 9)
    mirror.on_request(asks(9, 1, {KEYS[0]: 5}))
    mirror.on_response(0, 9)
    mirror.on_suppressed_response(9)
    broker_part = mirror.split_off_broker_part(frozenset([KEYS[0]]))
    assert broker_part is not None
    assert (broker_part.session_id, broker_part.session_epoch) == (9, 2), (
        "the broker's session has gone on"
    )
    assert (dict(broker_part.partitions), broker_part.forgotten) == ({}, (KEYS[0],))
    assert mirror.on_response(0, 9) == 9
    assert mirror.on_request(asks(9, 2, {KEYS[0]: 6})) is FetchKind.INCREMENTAL, "and so has its"


def test_behind_lost_offsets_the_broker_is_asked_from_another_offset() -> None:
    mirror = FetchSessionPair(lambda: 7)
    mirror.on_request(asks(0, 0, {KEYS[0]: 5, KEYS[1]: 2}))
    mirror.on_response(0, 9)
    mirror.on_request(asks(9, 1, {}))
    mirror.set_broker_offsets({KEYS[0]: 80})
    assert not mirror.rejoin()
    assert mirror.pass_on(asks(9, 1, {})) is None
    broker_part = mirror.split_off_broker_part(frozenset())
    assert broker_part is not None
    assert broker_part.partitions == {KEYS[0]: entry(0, 80)}
    assert mirror.on_response(0, 9) == 9
    mirror.on_request(asks(9, 2, {KEYS[0]: 90}))
    mirror.set_broker_offsets({})
    broker_part = mirror.split_off_broker_part(frozenset())
    assert broker_part is not None
    assert broker_part.partitions == {KEYS[0]: entry(0, 90)}
