"""Archived records in the console, as a person and a program ask for them, on a real Kafka."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest
from archived_topics import SETTINGS, archive_and_trim, new_store, new_topic
from confluent_kafka import Producer
from folder_fixture import folder_fixture
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, produce

from fetchproxy.config.values import MASK
from fetchproxy.console.archived_records import RECORDS_MAX
from lab.browser import Browser, find_browser
from lab.kafka import KafkaServer

pytestmark = pytest.mark.kafka

TOPIC = "looked-at"
SHOWS = {**SETTINGS, "console.show_records": True, "console.masked_fields": "password"}


@folder_fixture
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return new_store(tmp_path_factory.mktemp("looked-at-store"))


@folder_fixture
def shows(
    kafka_server: KafkaServer, store: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ProxyProcess]:
    folder = tmp_path_factory.mktemp("looked-at")
    with ProxyProcess(
        kafka_server.bootstrap, store, folder, archive=TOPIC, settings=SHOWS
    ) as process:
        yield process


@folder_fixture
def looked_at(kafka_server: KafkaServer, store: str, shows: ProxyProcess) -> TopicData:
    """Partition 0 has texts, partition 1 JSON with a password."""
    data = new_topic(kafka_server, TOPIC, 2)
    produce(kafka_server.bootstrap, data, 300, compression="zstd")
    producer = Producer({"bootstrap.servers": kafka_server.bootstrap})
    for number in range(60):
        value = json.dumps({"id": number, "password": f"hunter{number}"}).encode()
        producer.produce(TOPIC, value, partition=1, timestamp=1_700_000_000_000 + number)
        data.written.setdefault(1, []).append((number, b"", value))
    producer.flush()
    archive_and_trim(kafka_server.bootstrap, store, data, keep=40)
    wait_for("the page to know both", lambda: knows(shows, 0) and knows(shows, 1))
    return data


def knows(process: ProxyProcess, partition: int) -> bool:
    return status_of(process, partition=partition) == 200


def ask(process: ProxyProcess, **query: object) -> dict:
    page: dict = json.loads(process.get(f"/api/records?{urlencode({'topic': TOPIC} | query)}"))
    return page


def status_of(process: ProxyProcess, **query: object) -> int:
    try:
        ask(process, **query)
    except HTTPError as error:
        return error.code
    return 200


def test_pages_have_each_record_once(shows: ProxyProcess, looked_at: TopicData) -> None:
    rows_seen, query = [], {"count": 70}
    while True:
        page = ask(shows, **query)
        # Without JSON in it, nothing of a value may be shown while fields are masked.
        assert all("hidden" in r["value"] for r in page["records"])
        rows_seen += [(r["offset"], r["value"]["bytes"]) for r in page["records"]]
        if page["next_offset"] is None:
            break
        query["offset"] = page["next_offset"]
    assert rows_seen == [(offset, len(value)) for offset, _, value in looked_at.written[0]]


def test_from_a_time_with_masked_fields(shows: ProxyProcess, looked_at: TopicData) -> None:
    page = ask(shows, partition=1, timestamp_ms=1_700_000_000_057)
    assert [r["offset"] for r in page["records"]] == [57, 58, 59]
    assert json.loads(page["records"][0]["value"]["text"]) == {"id": 57, "password": MASK}
    for form in ("text", "hex"):
        everything = json.dumps(ask(shows, partition=1, count=RECORDS_MAX, **{"as": form}))
        assert "hunter" not in everything
        assert b"hunter".hex() not in everything


def test_what_is_not_there_is_named(shows: ProxyProcess, looked_at: TopicData) -> None:
    assert status_of(shows, offset=301) == 404
    assert status_of(shows, topic="elsewhere") == 404
    assert status_of(shows, partition=7) == 404
    assert status_of(shows, partition=1, timestamp_ms=2_000_000_000_000) == 404
    assert status_of(shows, offset="x") == 400


def test_without_the_setting_no_record_is_shown(
    kafka_server: KafkaServer, store: str, looked_at: TopicData, tmp_path: Path
) -> None:
    with ProxyProcess(kafka_server.bootstrap, store, tmp_path, settings=SETTINGS) as proxy:
        assert status_of(proxy) == 403
        assert json.loads(proxy.get("/api/status"))["shows_records"] is False


def test_a_person_reads_them_in_a_browser(
    shows: ProxyProcess, looked_at: TopicData, find_part
) -> None:
    find_part("browser", find_browser)
    with Browser() as page:
        page.open(f"http://127.0.0.1:{shows.console_port}/")
        name = f"button[data-topic={json.dumps(TOPIC)}][data-partition='1']"
        wait_for("the partition", lambda: page.evaluate(f"!!document.querySelector({name!r})"))
        page.evaluate(f"document.querySelector({name!r}).click()")
        wait_for("its records", lambda: MASK in page.text("#records"))
        assert "hunter" not in page.text()
        assert "offsets 0 … 59" in page.text("#records-said")
