"""The first response on a connection, and offsets that neither tier has: no client hangs or
loops.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from archive_process import archive_process, archive_with_gap
from archived_topics import SETTINGS, archive_and_trim, new_store, new_topic
from client_readers import read_confluent
from fetchproxy_protocol.record_batch import walk
from proxy_process import ProxyProcess, wait_for
from raw_fetch import Fetched, RawConnection
from removable_store import folder_store
from topic_data import TopicData, make_archive, produce, trim

from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

OUT_OF_RANGE = 1
STORAGE_ERROR = 56
VERSIONS = [4, 7, 10, 12, 16]
# Long enough for every look at the store, so that the one response has the final result.
WAIT_MS = 20_000


def first_offset(fetched: Fetched) -> int:
    assert fetched.error == 0
    assert fetched.records, "the first answer is the answer"
    return next(walk(fetched.records)).base_offset


def fetch_once(proxy: ProxyProcess, version: int, data: TopicData, offset: int) -> Fetched:
    """Fetch on a new connection."""
    with RawConnection(proxy.bootstrap) as raw:
        topic_id = raw.topic_id(data.topic) if version >= 13 else None
        return raw.fetch(version, data.topic, topic_id, offset, wait_ms=WAIT_MS)


@pytest.fixture(scope="module")
def with_gap(
    kafka_server: KafkaServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ProxyProcess, TopicData]]:
    """0 to 299 are archived, 300 to 449 lost, 450 to 599 archived; the broker has 590 on."""
    folder = tmp_path_factory.mktemp("gap")
    store, name = new_store(folder), "first-answers"
    data = new_topic(kafka_server, name)
    archive_with_gap(kafka_server, store, data, folder, batches=(300, 150, 150))
    trim(kafka_server.bootstrap, name, {0: 590})
    with ProxyProcess(kafka_server.bootstrap, store, folder) as proxy:
        yield proxy, data


@pytest.mark.parametrize("version", VERSIONS)
def test_the_first_answer_carries_the_records(
    with_gap: tuple[ProxyProcess, TopicData], version: int
) -> None:
    proxy, data = with_gap
    for offset, first in ((0, 0), (299, None), (300, 450), (449, 450), (450, 450), (590, None)):
        first_read = first_offset(fetch_once(proxy, version, data, offset))
        assert first_read <= offset if first is None else first_read == first, (offset, first_read)


@pytest.mark.parametrize("version", VERSIONS)
def test_beyond_the_end_each_answer_is_the_error(
    with_gap: tuple[ProxyProcess, TopicData], version: int
) -> None:
    proxy, data = with_gap
    with RawConnection(proxy.bootstrap) as raw:
        topic_id = raw.topic_id(data.topic) if version >= 13 else None
        for _ in range(4):
            fetched = raw.fetch(version, data.topic, topic_id, 999_999, wait_ms=WAIT_MS)
            assert fetched.error == OUT_OF_RANGE


def test_in_a_session_too_the_archive_answers_the_fetch_that_was_caught(
    with_gap: tuple[ProxyProcess, TopicData],
) -> None:
    """A full fetch begins the session; the following incremental fetches continue it."""
    proxy, data = with_gap
    with RawConnection(proxy.bootstrap) as raw:
        begun = raw.fetch_response(11, data.topic, None, {0: 0}, wait_ms=WAIT_MS, session=(0, 0))
        assert begun.error_code == 0
        assert begun.session_id > 0
        session, offset, epoch = begun.session_id, 0, 1
        partitions = begun.responses[0].partitions
        while offset < 600:
            for batch in walk(bytes(partitions[0].records)):
                offset = max(offset, batch.last_offset + 1)
            if offset >= 600:
                break
            response = raw.fetch_response(
                11, data.topic, None, {0: offset}, wait_ms=WAIT_MS, session=(session, epoch)
            )
            assert response.error_code == 0
            partitions, epoch = response.responses[0].partitions, epoch + 1


@pytest.mark.parametrize("version", [7, 12])
def test_behind_the_archives_end_readers_are_led_on_to_the_live_log(
    kafka_server: KafkaServer, tmp_path: Path, version: int
) -> None:
    """No archiver runs any more: records that the broker deleted since then are lost."""
    store, name = new_store(tmp_path), f"archiver-retired-{version}"
    data = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, data, 300)
    archiver = archive_process(kafka_server.bootstrap, store, name, tmp_path)
    archiver.start()
    archive_and_trim(kafka_server.bootstrap, store, data, keep=3)  # the cut is at the log's end
    archiver.stop()
    for _ in range(2):  # no batch lies across 450
        produce(kafka_server.bootstrap, data, 150)
    trim(kafka_server.bootstrap, name, {0: 450})
    with ProxyProcess(kafka_server.bootstrap, store, tmp_path) as proxy:
        assert first_offset(fetch_once(proxy, version, data, 300)) == 450
        assert first_offset(fetch_once(proxy, version, data, 449)) == 450
        records = read_confluent(proxy.bootstrap, name, {0: 600})
        assert [offset for offset, _, _ in records[0]] == [*range(300), *range(450, 600)]
        # Without live records the reader is at the log's end, and continues when records come.
        trim(kafka_server.bootstrap, name, {0: 600})
        with RawConnection(proxy.bootstrap) as raw:
            topic_id = raw.topic_id(name) if version >= 13 else None
            at_end = raw.fetch(version, name, topic_id, 300, wait_ms=500)
            assert (at_end.error, at_end.records, at_end.high_watermark) == (0, b"", 300)
            produce(kafka_server.bootstrap, data, 50)
            assert first_offset(raw.fetch(version, name, topic_id, 300, wait_ms=WAIT_MS)) == 600


@pytest.mark.remedy("readers_held")
def test_what_an_archiver_of_another_process_gathers_is_waited_for(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """The first segment is in its spool: `earliest` is its start, and its offsets are in range.

    A stale offset below it gets the broker's response at once. What delays the archiver is that its
    segment is not full: with more records the wait ends.
    """
    store, name = new_store(tmp_path), "in-a-spool"
    data = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, data, 100)
    trim(kafka_server.bootstrap, name, {0: 50})
    # It accumulates until there are more records, however slow this test is.
    slow = {
        "archive.segment_age_max_ms": 600_000,
        "archive.segment_bytes_max": 20_000,
        "limits.writing.last_copy_age_min_ms": 600_000,
    }
    archiver = archive_process(kafka_server.bootstrap, store, name, tmp_path, {**SETTINGS, **slow})
    archiver.start()
    try:
        # A proxy that starts before there is an archive reports it as missing until its next look.
        wait_for("its word", lambda: _archiver_position(tmp_path / "store") == {50})
        with ProxyProcess(kafka_server.bootstrap, store, tmp_path) as proxy:
            trim(kafka_server.bootstrap, name, {0: 100})
            with RawConnection(proxy.bootstrap) as raw:
                wait_for("the list", lambda: raw.list_offset(6, name, -2) == (0, -1, 50))
                stale = raw.fetch(12, name, None, 10, wait_ms=WAIT_MS)
                assert stale.error == OUT_OF_RANGE
                held_fetch = raw.fetch(12, name, None, 60, wait_ms=500)
                assert (held_fetch.error, held_fetch.records) == (0, b"")
                wait_for("the held reader", lambda: _held_partitions(proxy) == 1)
                headlines = _status(proxy)["headlines"]
                assert len(headlines) == 1, headlines
                assert headlines[0].startswith("readers of 1 partition wait for an archiver")
                kinds = [one["kind"] for one in _status(proxy)["conditions"]]
                assert kinds == ["readers_held"]
                produce(kafka_server.bootstrap, data, 100)
                assert first_offset(raw.fetch_until_data(12, name, None, 60, wait_ms=WAIT_MS)) <= 60
            wait_for("its end", lambda: _held_partitions(proxy) == 0)
            wait_for("no word of it", lambda: not _status(proxy)["headlines"])
    finally:
        archiver.stop()


def test_a_topic_that_was_never_archived_knows_nothing_of_the_store(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    name, store = "no-archive", folder_store(tmp_path)
    data = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, data, 200)
    trim(kafka_server.bootstrap, name, {0: 100})
    make_archive(store.url)
    with ProxyProcess(kafka_server.bootstrap, store.url, tmp_path) as proxy:
        with RawConnection(proxy.bootstrap) as raw:
            assert raw.list_offset(6, name, -2) == (0, -1, 100)
        store.take_away()
        with RawConnection(proxy.bootstrap) as raw:
            assert raw.list_offset(6, name, -2) == (0, -1, 100)
            for offset in (0, 50, 99, 201):
                assert raw.fetch(12, name, None, offset, wait_ms=WAIT_MS).error == OUT_OF_RANGE
            assert first_offset(raw.fetch(12, name, None, 100, wait_ms=WAIT_MS)) <= 100
        more = {"auto.offset.reset": "earliest"}
        records = read_confluent(proxy.bootstrap, name, {0: 200}, **more)
        assert [offset for offset, _, _ in records[0]] == list(range(100, 200))


def test_with_a_store_that_was_never_seen_a_whole_log_is_as_without_a_proxy(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """A folder not yet made looks like a missing mount; for a whole log the proxy need not know."""
    name = "store-never-seen"
    data = new_topic(kafka_server, name)
    produce(kafka_server.bootstrap, data, 50)
    time.sleep(0.01)
    produce(kafka_server.bootstrap, data, 50)
    with ProxyProcess(kafka_server.bootstrap, (tmp_path / "later").as_uri(), tmp_path) as proxy:
        with RawConnection(proxy.bootstrap) as raw, RawConnection(kafka_server.bootstrap) as broker:
            assert raw.list_offset(6, name, -2) == (0, -1, 0)
            assert raw.fetch(12, name, None, 101, wait_ms=WAIT_MS).error == OUT_OF_RANGE
            _, last_ms, last = broker.list_offset(7, name, -3)
            assert last > 0
            for timestamp in (0, last_ms, last_ms + 1, -3):
                expected = broker.list_offset(7, name, timestamp)
                assert raw.list_offset(7, name, timestamp) == expected
        more = {"auto.offset.reset": "earliest"}
        records = read_confluent(proxy.bootstrap, name, {0: 100}, **more)
        assert [offset for offset, _, _ in records[0]] == list(range(100))
        # It is unknown whether the records that the broker deleted were archived.
        trim(kafka_server.bootstrap, name, {0: 10})
        with RawConnection(proxy.bootstrap) as raw:
            assert raw.list_offset(7, name, last_ms)[0] == STORAGE_ERROR


def _archiver_position(store: Path) -> set[int]:
    documents = [json.loads(path.read_text()) for path in store.glob("archivers/*.positions")]
    return {at for one in documents for topic in one["positions"].values() for at in topic.values()}


def _held_partitions(proxy: ProxyProcess) -> int:
    count: int = _status(proxy)["remote_reads"]["held_partitions"]
    return count


def _status(proxy: ProxyProcess) -> dict[str, Any]:
    url = f"http://127.0.0.1:{proxy.console_port}/api/status"
    with urllib.request.urlopen(url, timeout=10) as response:
        status: dict[str, Any] = json.load(response)
        return status
