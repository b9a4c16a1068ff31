"""Another process extends the archive, or it changes under a proxy: an old view does no harm."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from archive_process import archive_process, archive_with_gap, segments, verify
from archived_topics import SETTINGS, archive_and_trim, new_store, new_topic
from fetchproxy_protocol.record_batch import walk
from held_reader import CLIENTS, HeldReader
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from topic_data import archived_ends, produce, trim

from fetchproxy.serving.gateway.route_decision import IDENTITY_AGE_MAX_MS
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

# The proxy looks at the archive only when it must.
NEVER_REFRESHED: dict[str, object] = {**SETTINGS, "limits.console.refresh_interval_ms": 3_600_000}
OUT_OF_RANGE = 1


@pytest.mark.parametrize("client", CLIENTS)
def test_the_archive_grew_right_before_the_trim(
    kafka_server: KafkaServer, tmp_path: Path, client: str
) -> None:
    name = f"stale-{client}"
    store = new_store(tmp_path)
    data = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, data, 300)
    archiver = archive_process(kafka_server.bootstrap, store, name, tmp_path)
    archiver.start()
    try:
        archive_and_trim(kafka_server.bootstrap, store, data, keep=50)
        with (
            ProxyProcess(
                kafka_server.bootstrap, store, tmp_path, settings=NEVER_REFRESHED
            ) as proxy,
            HeldReader(client, proxy.bootstrap, name, {0: 900}, hold_at=100) as reader,
            RawConnection(proxy.bootstrap) as raw,
        ):
            reader.wait_until_held()  # the proxy has a view now, up to 300
            for _ in range(2):
                produce(kafka_server.bootstrap, data, 300)
                # the proxy has not seen these segments; some offsets are within the reader's next
                # ones
                archive_and_trim(kafka_server.bootstrap, store, data, keep=10)
                for offset in (280, 299, 300, 301, data.written[0][-20][0]):
                    fetched = raw.fetch_until_data(12, name, None, offset)
                    assert fetched.error == 0
                    assert fetched.records
            reader.go_on()
            assert reader.records() == data.written
    finally:
        archiver.stop()


def test_a_gap_is_recorded_and_said(kafka_server: KafkaServer, tmp_path: Path) -> None:
    """The archiver was away while the broker deleted: only those offsets are skipped."""
    name = "with-a-gap"
    store = new_store(tmp_path)
    data = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, data, 300)
    archiver = archive_process(kafka_server.bootstrap, store, name, tmp_path)
    archiver.start()
    wait_for("the archive", lambda: archived_ends(store, name) == {0: 300})
    archiver.kill()
    for _ in range(2):  # no batch lies across 450
        produce(kafka_server.bootstrap, data, 150)
    trim(kafka_server.bootstrap, name, {0: 450})
    with (
        ProxyProcess(kafka_server.bootstrap, store, tmp_path, settings=NEVER_REFRESHED) as proxy,
        RawConnection(proxy.bootstrap) as raw,
    ):
        # It is not yet known that they are lost: an archiver may still have them.
        assert raw.fetch(12, name, None, 350).error == 0
        archiver.start()
        try:
            wait_for("the rest", lambda: archived_ends(store, name) == {0: 600})
        finally:
            archiver.stop()
        trim(kafka_server.bootstrap, name, {0: 590})
        for offset in (0, 299, 450, 589, 590):
            fetched = raw.fetch_until_data(12, name, None, offset)
            assert fetched.error == 0
            assert fetched.records
        for offset in (300, 350, 449):
            behind = raw.fetch(12, name, None, offset)
            assert behind.error == 0
            assert next(walk(behind.records)).base_offset == 450, "the first batch at or above it"
        assert len(proxy.logged("lost_offsets_skipped")) == 1
        assert raw.list_offset(6, name, -2) == (0, -1, 0)
    ranges = [(row["base_offset"], row["last_offset"]) for row in segments(store, name)]
    assert [last + 1 for _, last in ranges if last < 450][-1] == 300
    assert next(base for base, _ in ranges if base >= 300) == 450
    assert f"archive_gap: {name}-0: offsets 300 to 449" in verify(store)


@pytest.mark.parametrize("policy", ["skip", "error"])
def test_a_stock_consumer_reads_across_a_gap_or_stops_there(
    policy: str, kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """It reads on as across a compaction hole; with the other policy it stops with an error."""
    name = f"read-into-a-gap-{policy}"
    store = new_store(tmp_path)
    data = new_topic(kafka_server, name)
    archive_with_gap(kafka_server, store, data, tmp_path, batches=(100, 50, 50))
    settings = {"gateway.gap_policy": policy}
    with ProxyProcess(kafka_server.bootstrap, store, tmp_path, settings=settings) as proxy:
        for client in CLIENTS:
            with HeldReader(client, proxy.bootstrap, name, {0: 200}) as reader:
                wait_for("the end", lambda reader=reader: reader.finished)
                offsets = [offset for offset, _, _ in reader.read[0]]
                if policy == "skip":
                    assert offsets == [*range(100), *range(150, 200)]
                    assert not reader.errors
                else:
                    assert offsets == list(range(100))
                    assert reader.errors


def test_a_topic_that_was_made_anew_has_no_past(kafka_server: KafkaServer, tmp_path: Path) -> None:
    """The topic id is the identity: a client of the new topic gets nothing of the old one."""
    from confluent_kafka.admin import AdminClient

    name = "made-anew"
    store = new_store(tmp_path)
    old = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, old, 400)
    with ProxyProcess(
        kafka_server.bootstrap, store, tmp_path, archive=name, settings=SETTINGS
    ) as proxy:
        archive_and_trim(kafka_server.bootstrap, store, old)
        with RawConnection(proxy.bootstrap) as raw:
            old_id = raw.topic_id(name)
            for version, topic_id in ((12, None), (13, old_id), (17, old_id)):
                assert raw.fetch_until_data(version, name, topic_id, 0).batches
            admin = AdminClient({"bootstrap.servers": kafka_server.bootstrap})
            admin.delete_topics([name])[name].result(30)
            wait_for("the end", lambda: name not in admin.list_topics(timeout=20).topics)
            time.sleep(IDENTITY_AGE_MAX_MS / 1000)
            new = new_topic(kafka_server, name)
            produce(kafka_server.bootstrap, new, 30, size=77)
            with RawConnection(proxy.bootstrap) as other:
                for connection in (raw, other):  # with and without a permit for the old topic
                    check_only_the_new_is_served(connection, kafka_server.bootstrap, name, old_id)
            # Once the new topic has an archive of its own, the proxy serves it under the new id.
            produce(kafka_server.bootstrap, new, 300, size=77)
            # the store has two topics of this name, so the name alone is not enough
            wait_for("it", lambda: any(row["last_offset"] == 329 for row in segments(store, name)))
            trim(kafka_server.bootstrap, name, {0: 310})
            with HeldReader("kafka-python", proxy.bootstrap, name, {0: 330}) as reader:
                assert reader.records() == new.written


def check_only_the_new_is_served(
    connection: RawConnection, direct: str, name: str, old_id: object
) -> None:
    with RawConnection(direct) as broker:
        new_id = broker.topic_id(name)
        assert new_id != old_id
        for version in (12, 13, 17):
            topic_id = new_id if version >= 13 else None
            fetched = connection.fetch_until_data(version, name, topic_id, 0)
            its = broker.fetch(version, name, topic_id, 0)
            assert (fetched.error, fetched.records) == (its.error, its.records)
            assert fetched.error == 0
            # above the new log's end, but within the old archive
            assert connection.fetch_until_data(version, name, topic_id, 200).error == OUT_OF_RANGE
        for version in (13, 17):
            fetched = connection.fetch(version, name, old_id, 0)
            its = broker.fetch(version, name, old_id, 0)
            assert (fetched.error, fetched.records) == (its.error, its.records)
            assert fetched.error == 100  # UNKNOWN_TOPIC_ID
        assert connection.list_offset(6, name, -2) == (0, -1, 0)
