"""The session mirror against a model of the broker's side (Kafka's FetchSession.scala)."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from fetchproxy.gateway.fetch_session import (
    EPOCH_MAX,
    FetchKind,
    FetchSessionMirror,
    UpstreamFetch,
    next_epoch,
)
from protocol.fetch_request import FetchPartition, FetchRequest, PartitionKey

KEYS: list[PartitionKey] = [(b"a", 0), (b"a", 1), (b"b", 0), (b"b", 7)]


def asks(
    session_id: int,
    epoch: int,
    partitions: Mapping[PartitionKey, int],
    forgotten: tuple[PartitionKey, ...] = (),
) -> FetchRequest:
    entries = {
        key: FetchPartition(key[1], offset, 1000, b"%d" % offset)
        for key, offset in partitions.items()
    }
    return FetchRequest(
        version=12, correlation_id=1, header=b"", replica_id=-1, max_wait_ms=0, min_bytes=0,
        bytes_max=1, isolation_level=0, session_id=session_id, session_epoch=epoch,
        partitions=entries, forgotten=forgotten, rack=b"", tags=b"",
    )  # fmt: skip


class BrokerModel:
    """What a broker does with session ids and epochs; `serving` is what its answer is about."""

    def __init__(self) -> None:
        self.sessions: dict[int, tuple[int, dict[PartitionKey, FetchPartition]]] = {}
        self.serving: dict[PartitionKey, FetchPartition] = {}
        self._next_id = 100

    def fetch(
        self,
        session_id: int,
        epoch: int,
        partitions: Mapping[PartitionKey, FetchPartition],
        forgotten: tuple[PartitionKey, ...],
    ) -> tuple[int, int]:
        """(error, session id of the answer)."""
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
        self.sessions[session_id] = (next_epoch(due), known)
        self.serving = dict(known)
        return 0, session_id


class ClientModel:
    """FetchSessionHandler.java: what a client sends next, and what it has asked in all."""

    def __init__(self) -> None:
        self.session_id, self.epoch = 0, 0
        self.asked: dict[PartitionKey, int] = {}
        self.sent: dict[PartitionKey, int] = {}

    def request(self, sessionless: bool) -> FetchRequest:
        if sessionless:
            close, self.session_id, self.epoch = self.session_id, 0, 0
            self.sent = {}
            return asks(close, -1, self.asked)
        if self.epoch == 0:
            self.sent = dict(self.asked)
            return asks(self.session_id, 0, self.asked)
        changed = {k: o for k, o in self.asked.items() if self.sent.get(k) != o}
        gone = tuple(k for k in self.sent if k not in self.asked)
        self.sent = dict(self.asked)
        return asks(self.session_id, self.epoch, changed, gone)

    def answer(self, sessionless: bool, error: int, session_id: int) -> None:
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
        st.dictionaries(st.sampled_from(KEYS), st.integers(0, 5), min_size=1),  # asked
        st.sets(st.sampled_from(KEYS)),  # withheld, as far as asked
        st.sampled_from(["session", "session", "session", "sessionless"]),
        st.sampled_from(["answered", "answered", "alone", "evicted"]),
    ),
    max_size=25,
)


@given(STEPS)
def test_the_broker_always_serves_what_is_asked_and_not_withheld(steps) -> None:
    broker, client = BrokerModel(), ClientModel()
    mirror = FetchSessionMirror(lambda: 7)
    for asked, wish, mode, outcome in steps:
        if outcome == "evicted":
            broker.sessions.clear()
        client.asked = asked
        sessionless = mode == "sessionless"
        request = client.request(sessionless)
        kind = mirror.on_request(request)
        assert kind not in (FetchKind.UNKNOWN_SESSION, FetchKind.WRONG_EPOCH)
        assert {k: p.fetch_offset for k, p in mirror.asked.items()} == asked
        withheld = frozenset(wish & asked.keys())
        if not withheld and mirror.rejoin():
            error, session_id = broker.fetch(
                request.session_id, request.session_epoch, request.partitions, request.forgotten
            )
            shown = mirror.on_answer(error, session_id)
            client.answer(sessionless, error, shown)
            if not error:
                assert {k: p.fetch_offset for k, p in broker.serving.items()} == asked
            continue
        upstream = mirror.upstream_request(withheld)
        if upstream is None:
            assert withheld == asked.keys()
            client.answer(sessionless, 0, mirror.on_own_answer())
            continue
        error, session_id = _send(broker, upstream)
        if not error:
            local = {k: o for k, o in asked.items() if k not in withheld}
            assert {k: p.fetch_offset for k, p in broker.serving.items()} == local
        if outcome == "alone":  # the client is answered from the archive, the poll is discarded
            mirror.on_discarded_answer(error, session_id)
            client.answer(sessionless, 0, mirror.on_own_answer())
        else:
            client.answer(sessionless, error, mirror.on_answer(error, session_id))


def _send(broker: BrokerModel, upstream: UpstreamFetch) -> tuple[int, int]:
    return broker.fetch(
        upstream.session_id, upstream.session_epoch, upstream.partitions, upstream.forgotten
    )


def test_requests_of_a_session_that_is_not_this_connections_are_refused() -> None:
    mirror = FetchSessionMirror(lambda: 7)
    assert mirror.on_request(asks(9, 4, {})) is FetchKind.UNKNOWN_SESSION
    mirror.on_request(asks(0, 0, {KEYS[0]: 1}))
    mirror.on_answer(0, 9)
    assert mirror.on_request(asks(9, 5, {})) is FetchKind.WRONG_EPOCH
    assert mirror.on_request(asks(9, 1, {})) is FetchKind.INCREMENTAL


def test_a_session_that_only_the_archive_serves_has_an_id_of_its_own() -> None:
    mirror = FetchSessionMirror(lambda: 7)
    mirror.on_request(asks(0, 0, {KEYS[0]: 1}))
    assert mirror.upstream_request(frozenset([KEYS[0]])) is None
    assert mirror.on_own_answer() == 7
    assert mirror.on_request(asks(7, 1, {})) is FetchKind.INCREMENTAL


def test_epochs_wrap_to_one() -> None:
    assert next_epoch(EPOCH_MAX) == 1
    assert next_epoch(1) == 2
