"""Every case of a fetch session (KIP-227) against a real broker: in one tier, both, or between."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient
from proxy_process import ProxyProcess, wait_for
from raw_session import Session, SessionClient
from topic_data import TopicData, archived_ends, produce, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

COUNT, TRIMMED = 400, 350
UNKNOWN_TOPIC, UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID = 3, 100, 103
SESSION_NOT_FOUND, WRONG_EPOCH, TOPIC_ID_ERROR = 70, 71, 106
SETTINGS: dict[str, object] = {
    "archive.segment_bytes_max": 20_000,
    "archive.segment_age_max_ms": 300,
    "limits.writing.rlm_process_interval_ms": 100,
    "limits.writing.discovery_interval_ms": 200,
    "limits.serving.log_start_max_age_ms": 1_000,
}
OLD, LIVE, OTHER = "fs-old", "live", "live-too"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tmp_path_factory.mktemp("fs-store").as_uri()


@pytest.fixture(scope="module")
def proxy(
    kafka_server: KafkaServer, store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    folder: Path = tmp_path_factory.mktemp("fs")
    with ProxyProcess(
        kafka_server.bootstrap, store, folder, archive="fs-.*", settings=SETTINGS
    ) as process:
        make_archived(kafka_server, store, OLD, partitions=2)
        for live in (LIVE, OTHER):
            kafka_server.create_topic(live, 2)
            produce(kafka_server.bootstrap, TopicData(live), 100, partition_count=2)
        yield process
        assert not process.logged("session_crashed")


def make_archived(
    kafka: KafkaServer, store: str, topic: str, partitions: int = 1, trimmed: int = TRIMMED
) -> TopicData:
    kafka.create_topic(topic, partitions)
    data = TopicData(topic)
    produce(kafka.bootstrap, data, COUNT, partition_count=partitions)
    ends = dict.fromkeys(range(partitions), COUNT)
    wait_for("the archive", lambda: archived_ends(store, topic) == ends)
    if trimmed:
        trim(kafka.bootstrap, topic, dict.fromkeys(range(partitions), trimmed))
    return data


def script(bootstrap: str, version: int, topic: str, offset: int) -> list[tuple[str, int, bool]]:
    """The answers to each kind of request: (step, error, whether it names a session)."""
    other = 12 if version >= 13 else 13
    outcomes: list[tuple[str, int, bool]] = []
    with SessionClient(bootstrap, version) as client:

        def step(name: str, *args, **more) -> int:
            response = client.poll(*args, **more)
            outcomes.append((name, response.error, response.session_id != 0))
            return response.session_id

        offsets_by_topic = {topic: {0: offset}, OTHER: {1: 0}}
        sid = step("new", (0, 0), offsets_by_topic)
        step("incremental", (sid, 1), {})
        step("wrong epoch", (sid, 7), {})
        step("unknown id", (sid ^ 1, 2), {})
        step("by name and by id", (sid, 2), {}, version=other)
        step("goes on after all these", (sid, 2), {})
        step("forget one", (sid, 3), {}, {topic: [0]})
        step("add it again", (sid, 4), {topic: {0: offset}})
        step("forget all", (sid, 5), {}, {topic: [0], OTHER: [1]})
        step("which ended it", (sid, 6), {})
        sid = step("another", (sid, 0), offsets_by_topic)
        step("again new, closing that", (sid, 0), {OTHER: {0: 0}})
        step("the closed one", (sid, 1), {})
        sid = step("one more", (0, 0), offsets_by_topic)
        step("read on", (sid, 1), {})
        step("close", (sid, -1), {})
        step("closed", (sid, 2), {})
        step("without any", (0, -1), offsets_by_topic)
    return outcomes


@pytest.mark.parametrize("version", [7, 12, 13, 16])
def test_ids_epochs_and_errors_are_the_brokers(
    proxy: ProxyProcess, kafka_server: KafkaServer, version: int
) -> None:
    direct = script(kafka_server.bootstrap, version, LIVE, 0)
    assert {error for _, error, _ in direct} == {
        0, SESSION_NOT_FOUND, WRONG_EPOCH, TOPIC_ID_ERROR
    }  # fmt: skip
    assert script(proxy.bootstrap, version, LIVE, 0) == direct, "at the tail"
    assert script(proxy.bootstrap, version, OLD, 5) == direct, "with a part in the archive"


@pytest.mark.parametrize("version", [12, 13])
def test_a_partition_crosses_the_tiers_both_ways_in_one_session(
    proxy: ProxyProcess, kafka_server: KafkaServer, store: str, version: int
) -> None:
    topic = f"fs-cross-{version}"
    make_archived(kafka_server, store, topic)
    key = (topic, 0)
    with SessionClient(proxy.bootstrap, version) as client:
        session = Session(client, {topic: {0: 0}, LIVE: {0: 0}}, partition_bytes=9_000)
        position, steps = 0, 0
        begins: list[int] = []  # of the batches, which a busy producer cuts as it likes
        while position < COUNT:  # archive to tail
            part = session.poll({topic: {0: position}}).parts.get(key)
            if part is not None and part.offsets:
                assert part.error == 0
                assert part.offsets[0] <= position
                begins += part.offsets
                position = part.next_offset
                steps += 1
            assert steps < 100
        session.poll({topic: {0: COUNT}})
        produce(kafka_server.bootstrap, TopicData(topic), 50)
        assert session.until(key, lambda part: part.offsets).offsets[0] == COUNT
        seeked = session.poll({topic: {0: 10}})  # seek back
        part = seeked.parts.get(key) or session.until(key, lambda part: part.offsets)
        if not part.offsets:
            part = session.until(key, lambda part: part.offsets)
        holds_10 = max(begin for begin in begins if begin <= 10)
        assert (part.offsets[0], part.log_start_offset) == (holds_10, 0)
        # Tail to archive: the broker deletes records that a slow reader has yet to read.
        session.poll({topic: {0: TRIMMED}})
        wait_for("the archive", lambda: archived_ends(store, topic) == {0: COUNT + 50})
        trim(kafka_server.bootstrap, topic, {0: COUNT})
        part = session.poll({topic: {0: TRIMMED + 1}}).parts.get(key)
        if part is None or not part.offsets:
            part = session.until(key, lambda part: part.offsets)
        assert part.offsets[0] == max(begin for begin in begins if begin <= TRIMMED + 1)
        assert part.error == 0


def test_a_withheld_partition_is_forgotten_and_comes_back(proxy: ProxyProcess) -> None:
    with SessionClient(proxy.bootstrap, 13) as client:
        session = Session(client, {OLD: {0: 0, 1: 0}, LIVE: {0: 100}}, partition_bytes=1_000)
        assert session.until((OLD, 1), lambda part: part.offsets).offsets == (0,)
        session.poll({}, {OLD: [1]})
        for _ in range(5):
            assert (OLD, 1) not in session.poll().parts
        response = session.poll({OLD: {1: 60}})
        part = response.parts.get((OLD, 1))
        if part is None or not part.offsets:
            part = session.until((OLD, 1), lambda part: part.offsets)
        assert part.offsets == (50,)


@pytest.mark.parametrize("version", [11, 12, 13, 16])
@pytest.mark.parametrize("epoch", [0, -1])
def test_partitions_of_both_tiers_share_their_topics_entry(
    proxy: ProxyProcess, version: int, epoch: int
) -> None:
    """sarama forgets the first of two entries, so its archived partition never came (see `_read`).

    The test asks often, since the broker's part usually comes last.
    """
    offsets_by_topic = {OLD: {0: 0, 1: TRIMMED}}
    with SessionClient(proxy.bootstrap, version) as client:
        together = 0
        for _ in range(50):
            parts = client.poll((0, epoch), offsets_by_topic, wait_ms=1_000).parts
            assert parts.keys() == {(OLD, 0), (OLD, 1)}
            together += all(part.offsets for part in parts.values())
        assert together


def test_a_session_that_the_broker_lost_in_mid_replay_gets_error_70(
    proxy: ProxyProcess, kafka_server: KafkaServer
) -> None:
    """Another connection ends the session by its id, which acts like an eviction.

    The session begins at the tail, so the broker answers and its session id is used. A response
    with an archived part does not wait for a slow broker and may carry an id of the proxy's own.
    """
    with (
        SessionClient(proxy.bootstrap, 12) as client,
        SessionClient(kafka_server.bootstrap, 12) as direct,
    ):
        session = Session(client, {LIVE: {0: 100}}, partition_bytes=1_000)
        session.poll({OLD: {0: 0}})
        assert session.until((OLD, 0), lambda part: part.offsets).offsets == (0,)
        direct.poll((session.id, -1), {})
        deadline = time.monotonic() + 30
        while not (error := session.poll({LIVE: {0: 100, 1: 100}}).error):
            assert time.monotonic() < deadline, "the broker's error did not come"
        assert error == SESSION_NOT_FOUND
        again = Session(client, {OLD: {0: 60}, LIVE: {0: 100}}, partition_bytes=1_000)
        assert again.until((OLD, 0), lambda part: part.offsets).offsets == (50,)


def test_a_session_belongs_to_its_connection(proxy: ProxyProcess) -> None:
    with SessionClient(proxy.bootstrap, 12) as one, SessionClient(proxy.bootstrap, 12) as two:
        session = Session(one, {LIVE: {0: 100}})
        assert two.poll((session.id, 1), {}).error == SESSION_NOT_FOUND
        assert session.poll().error == 0, "and the other notices nothing"


@pytest.mark.parametrize("version", [12, 13])
def test_a_topic_that_is_made_anew_within_a_session(
    proxy: ProxyProcess, kafka_server: KafkaServer, store: str, version: int
) -> None:
    """The proxy serves no data of the old topic, and its errors are those of a broker."""
    topic = f"fs-anew-{version}"
    make_archived(kafka_server, store, topic)
    key = (topic, 0)
    admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
    with (
        SessionClient(proxy.bootstrap, version) as client,
        SessionClient(kafka_server.bootstrap, version) as direct,
    ):
        session = Session(client, {topic: {0: 0}, LIVE: {0: 100}}, partition_bytes=1_000)
        assert session.until(key, lambda part: part.offsets).offsets == (0,)
        broker = Session(direct, {topic: {0: TRIMMED}, LIVE: {0: 100}}, partition_bytes=1_000)
        for future in admin.delete_topics([topic]).values():
            future.result(30)
        # By id, the error depends on when the broker looked up the session's topic.
        errors = {UNKNOWN_TOPIC}
        if version >= 13:
            errors |= {UNKNOWN_TOPIC_ID, INCONSISTENT_TOPIC_ID}
        assert broker.until(key, lambda part: part.error).error in errors
        assert session.until(key, lambda part: part.error).error in errors
        kafka_server.create_topic(topic, 1)
        produce(kafka_server.bootstrap, TopicData(topic), 20, batch_records=20)
        if version >= 13:  # the id stays unknown
            assert broker.until(key, lambda part: part.error).error in errors
            assert session.until(key, lambda part: part.error).error in errors
        else:
            assert broker.until(key, lambda part: part.error == 1)  # 350 is above its end
            assert session.until(key, lambda part: part.offsets).offsets == (0,)


@pytest.mark.parametrize("version", [5, 11, 12, 13, 16])
def test_a_reader_of_the_tail_sees_where_the_log_really_begins(
    proxy: ProxyProcess, version: int
) -> None:
    with SessionClient(proxy.bootstrap, 13) as ids, SessionClient(proxy.bootstrap, version) as raw:
        topic_id = ids.topic_id(OLD)

        def log_start() -> int:
            return raw.fetch(version, OLD, topic_id, TRIMMED, wait_ms=0).log_start_offset

        assert log_start() in (0, -1)
        wait_for("the archive's log start", lambda: log_start() == 0)
        live = raw.fetch(version, LIVE, ids.topic_id(LIVE), 0)
        assert live.log_start_offset == 0
        assert live.records
