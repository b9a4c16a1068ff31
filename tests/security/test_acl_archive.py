"""Who may not read a topic gets from the archive what the broker says of its own log.

Every case is asked of the broker itself too, at an offset that it still has, by the same principal.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest
from kafka.protocol.admin import DeleteRecordsRequest, DeleteRecordsResponse
from kafka.protocol.consumer import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from proxy_process import ProxyProcess, wait_for
from secured_clients import PERMIT_TTL_MS, SaslConnection
from topic_data import TopicData

from lab.secured_kafka import SecuredKafka

pytestmark = pytest.mark.kafka

DENIED = 29  # TOPIC_AUTHORIZATION_FAILED
VERSIONS = (4, 7, 11, 12, 13, 16, 17)
# What a fetch may take beyond the permit: its own wait, the broker's news of the ACL, the machine.
SLACK_S = 8.0
Session = tuple[int, int]


@pytest.fixture(scope="module")
def denied_topic(make_replayed, secured: SecuredKafka) -> TopicData:
    """Alice reads it; mallory may only describe it, so knows its id."""
    data: TopicData = make_replayed("sec-denied", "alice")
    secured.allow("mallory", data.topic, "DESCRIBE")
    return data


@pytest.fixture
def allowed_topic(open_topic: TopicData, secured: SecuredKafka) -> Iterator[TopicData]:
    """Mallory may read this one for the time of a test."""
    secured.allow("mallory", open_topic.topic, "READ")
    yield open_topic
    secured.revoke("mallory", open_topic.topic, "READ")


@pytest.fixture
def alice(proxy: ProxyProcess) -> Iterator[SaslConnection]:
    with SaslConnection(proxy.bootstrap, "alice") as connection:
        yield connection


@pytest.fixture
def mallory(proxy: ProxyProcess) -> Iterator[SaslConnection]:
    with SaslConnection(proxy.bootstrap, "mallory") as connection:
        yield connection


@pytest.fixture
def direct(secured: SecuredKafka) -> Iterator[SaslConnection]:
    """Mallory at the broker itself."""
    with SaslConnection(secured.sasl, "mallory") as connection:
        yield connection


def last_offset(data: TopicData) -> int:
    return data.written[0][-1][0]


def shape(response: object) -> list[tuple[int, int, int, int, int, bytes]]:
    """All of a Fetch response's partitions that a client looks at."""
    return [
        (p.partition_index, p.error_code, p.high_watermark, p.last_stable_offset,
         p.log_start_offset, bytes(p.records or b""))
        for topic in response.responses  # type: ignore[attr-defined]
        for p in topic.partitions
    ]  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("session", [(0, -1), (0, 0)], ids=["sessionless", "session"])
def test_no_read_means_no_archive_though_the_chunk_is_cached(
    version: int,
    session: Session,
    denied_topic: TopicData,
    alice: SaslConnection,
    mallory: SaslConnection,
    direct: SaslConnection,
) -> None:
    if version < 7 and session == (0, 0):
        pytest.skip("no sessions before version 7")
    name, topic_id = denied_topic.topic, alice.topic_id(denied_topic.topic)
    assert alice.fetch_until_data(version, name, topic_id, 0).records
    live = direct.fetch_response(
        version, name, topic_id, {0: last_offset(denied_topic)}, session=session
    )
    archived = mallory.fetch_response(version, name, topic_id, {0: 0}, session=session)
    assert shape(archived) == shape(live)
    assert shape(archived)[0][1] == DENIED
    if session == (0, 0):  # and the next, incremental one has the error again, as the broker's has
        again = mallory.fetch_response(
            version, name, topic_id, {}, session=(archived.session_id, 1)
        )
        live_again = direct.fetch_response(
            version, name, topic_id, {}, session=(live.session_id, 1)
        )
        assert shape(again) == shape(live_again)
    for _ in range(3):  # nor does asking again help
        assert shape(mallory.fetch_response(version, name, topic_id, {0: 0})) == shape(live)


def test_a_permit_for_one_topic_is_none_for_another(
    denied_topic: TopicData,
    allowed_topic: TopicData,
    alice: SaslConnection,
    mallory: SaslConnection,
) -> None:
    """Both in the archive, both cached, on one connection, in turn and by name and by id."""
    for version in (11, 13):
        ids = {d.topic: alice.topic_id(d.topic) for d in (denied_topic, allowed_topic)}
        assert alice.fetch_until_data(version, denied_topic.topic, ids[denied_topic.topic], 0)
        good = mallory.fetch_until_data(version, allowed_topic.topic, ids[allowed_topic.topic], 0)
        assert good.error == 0
        assert good.records
        for _ in range(3):
            bad = mallory.fetch(version, denied_topic.topic, ids[denied_topic.topic], 0)
            assert (bad.error, bad.records) == (DENIED, b"")
            good = mallory.fetch(version, allowed_topic.topic, ids[allowed_topic.topic], 0)
            assert good.error == 0


class Replay:
    """Reads one archived offset again and again, as name or id and session say."""

    def __init__(self, connection: SaslConnection, data: TopicData, version: int, in_session: bool):
        self._connection, self._name, self._version = connection, data.topic, version
        self._id = connection.topic_id(data.topic)
        self._session: Session = (0, 0) if in_session else (0, -1)
        self._first = True

    def once(self) -> tuple[int, bytes] | None:
        """(error, records); None where an incremental answer says nothing of the partition."""
        response = self._connection.fetch_response(
            self._version, self._name, self._id, {0: 0}, session=self._session, wait_ms=100
        )
        if self._session[1] >= 0:
            assert response.error_code == 0, response.error_code
            self._session = (response.session_id, self._session[1] + 1)
        parts_shape = shape(response)
        return (parts_shape[0][1], parts_shape[0][5]) if parts_shape else None

    def until(self, condition: Callable[[tuple[int, bytes]], bool]) -> tuple[int, bytes]:
        responses: list[tuple[int, bytes]] = []

        def look() -> bool:
            response = self.once()
            if response is not None and condition(response):
                responses.append(response)
            return bool(responses)

        wait_for("the answer that is wanted", look, 20)
        return responses[0]


@pytest.mark.parametrize("in_session", [False, True], ids=["sessionless", "session"])
@pytest.mark.parametrize("version", [11, 13])
def test_a_revoked_acl_ends_a_replay_within_the_permit_and_a_new_one_mends_it(
    version: int,
    in_session: bool,
    allowed_topic: TopicData,
    secured: SecuredKafka,
    mallory: SaslConnection,
) -> None:
    replay = Replay(mallory, allowed_topic, version, in_session)
    records = replay.until(lambda response: bool(response[1]))[1]
    secured.revoke("mallory", allowed_topic.topic, "READ")
    revoked_at = time.monotonic()
    secured.allow("mallory", allowed_topic.topic, "DESCRIBE")
    error, served_at = 0, revoked_at
    while error == 0:
        asked_at = time.monotonic()
        response = replay.once()
        if response is not None:
            error = response[0]
            if response[1]:
                served_at = asked_at
        assert asked_at < revoked_at + 60
    assert error == DENIED
    assert served_at - revoked_at < PERMIT_TTL_MS / 1000 + SLACK_S
    for _ in range(5):  # it stays so, also when the old permit's mark is still there
        again = replay.once()
        assert again is None or again == (DENIED, b"")
    secured.allow("mallory", allowed_topic.topic, "READ")
    assert replay.until(lambda response: bool(response[1])) == (0, records)
    secured.revoke("mallory", allowed_topic.topic, "DESCRIBE")


def test_a_revoked_acl_ends_a_replay_beside_a_tail_that_goes_on(
    allowed_topic: TopicData,
    make_replayed,
    secured: SecuredKafka,
    mallory: SaslConnection,
) -> None:
    """One session over two topics: losing one leaves the other as it was."""
    other = make_replayed("sec-beside", "mallory", records=200)
    ids = {d.topic: mallory.topic_id(d.topic) for d in (allowed_topic, other)}

    def read(data: TopicData) -> tuple[int, bytes]:
        fetched = mallory.fetch(13, data.topic, ids[data.topic], 0, wait_ms=100)
        return fetched.error, fetched.records

    wait_for("both are read", lambda: read(allowed_topic)[1] and read(other)[1], 20)
    secured.revoke("mallory", allowed_topic.topic, "READ")
    wait_for("one is refused", lambda: read(allowed_topic)[0] == DENIED, 20)
    wait_for("the other is still read", lambda: read(other)[1], 20)


@pytest.mark.parametrize("timestamp", [-1, -2, -3, -4, -5, 0, 10**15])
def test_list_offsets_needs_describe(
    timestamp: int,
    open_topic: TopicData,
    denied_topic: TopicData,
    mallory: SaslConnection,
    direct: SaslConnection,
) -> None:
    """READ brings DESCRIBE along, but DESCRIBE alone is enough."""
    refused = mallory.list_offset(9, open_topic.topic, timestamp)
    assert refused == direct.list_offset(9, open_topic.topic, timestamp)
    assert refused[0] == DENIED
    assert mallory.list_offset(9, denied_topic.topic, timestamp)[0] == 0


@pytest.mark.parametrize("topic_is_described", [False, True])
def test_offset_for_leader_epoch_needs_describe(
    topic_is_described: bool,
    open_topic: TopicData,
    denied_topic: TopicData,
    mallory: SaslConnection,
    direct: SaslConnection,
) -> None:
    def ask(connection: SaslConnection) -> tuple[int, int, int]:
        request = OffsetForLeaderEpochRequest[4]()
        request.replica_id = -1
        topic = OffsetForLeaderEpochRequest.OffsetForLeaderTopic(version=4)
        place = OffsetForLeaderEpochRequest.OffsetForLeaderTopic.OffsetForLeaderPartition(version=4)
        place.partition, place.current_leader_epoch, place.leader_epoch = 0, -1, 0
        topic.topic = (denied_topic if topic_is_described else open_topic).topic
        topic.partitions, request.topics = [place], [topic]
        response = connection.ask(request, OffsetForLeaderEpochResponse, 4).topics[0].partitions[0]
        return response.error_code, response.leader_epoch, response.end_offset

    assert ask(mallory) == ask(direct)
    assert ask(mallory)[0] == (0 if topic_is_described else DENIED)


def test_delete_records_needs_delete(
    denied_topic: TopicData, alice: SaslConnection, secured: SecuredKafka, proxy: ProxyProcess
) -> None:
    """Alice reads it and may not trim it; the archive stays as it was."""
    request = DeleteRecordsRequest[2]()
    topic = DeleteRecordsRequest.DeleteRecordsTopic(version=2)
    place = DeleteRecordsRequest.DeleteRecordsTopic.DeleteRecordsPartition(version=2)
    place.partition_index, place.offset = 0, 50
    topic.name, topic.partitions = denied_topic.topic, [place]
    request.topics, request.timeout_ms = [topic], 10_000

    def ask(connection: SaslConnection) -> int:
        response = connection.ask(request, DeleteRecordsResponse, 2)
        return int(response.topics[0].partitions[0].error_code)

    with SaslConnection(secured.sasl, "alice") as direct:
        assert ask(direct) == ask(alice) == DENIED
    assert alice.list_offset(9, denied_topic.topic, -2)[2] == 0
    topic_id = alice.topic_id(denied_topic.topic)
    assert alice.fetch_until_data(13, denied_topic.topic, topic_id, 0).error == 0
