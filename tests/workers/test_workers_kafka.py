"""`serve --workers 2` in front of a real broker, with real clients."""

from __future__ import annotations

import json
import os
import signal
import socket
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from archived_topics import SETTINGS, archive_and_trim, new_store, new_topic
from client_readers import read_confluent, read_kafka_python
from confluent_kafka import Consumer
from fetchproxy_command import fetchproxy
from held_reader import collected_here as collected_here
from held_reader import held_readers
from leaving import ask_to_end, assert_ended, metadata
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection
from topic_data import TopicData, produce

from lab.kafka import KafkaServer
from lab.process import free_port, free_ports

pytestmark = [
    pytest.mark.kafka,
    # kafka-python leaves its socket to the garbage collector when a connection is refused.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("collected_here"),
]

RECORDS = 600


@pytest.fixture
def data(proxy: ProxyProcess, kafka_server: KafkaServer, tmp_path: Path) -> TopicData:
    """A topic whose first records are in the archive alone."""
    made = new_topic(kafka_server, f"workers-{proxy.port}")
    produce(kafka_server.bootstrap, made, RECORDS)
    archive_and_trim(kafka_server.bootstrap, (tmp_path / "store").as_uri(), made)
    return made


def is_ready(proxy: ProxyProcess, workers: int = 2) -> bool:
    """All workers serve."""
    try:
        readiness = json.loads(proxy.get("/readyz"))
    except (urllib.error.URLError, ConnectionError):  # also 503
        return False
    return bool(readiness["ready"]) and readiness["workers"] == workers


@pytest.fixture
def proxy(kafka_server: KafkaServer, tmp_path: Path) -> Iterator[ProxyProcess]:
    settings = {**SETTINGS, "process.workers": 2, "console.show_records": "true"}
    file = tmp_path / "fetchproxy.toml"
    file.write_text("")
    with ProxyProcess(
        kafka_server.bootstrap,
        new_store(tmp_path),
        tmp_path,
        archive="workers-.*",
        settings=settings,
        config=file,
        port=free_ports(1 + 2),  # the lab's broker has node id 1
    ) as process:
        wait_for("all workers", lambda: is_ready(process))
        yield process
        assert not process.logged("session_crashed") + process.logged("part_failed")


def pids(proxy: ProxyProcess) -> list[int]:
    """Of the workers, the latest start of each."""
    started = {entry["worker"]: entry["pid"] for entry in proxy.logged("worker_started")}
    return [started[number] for number in sorted(started)]


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def connections(proxy: ProxyProcess) -> list[float]:
    return [proxy.metric("fetchproxy_connections", f'worker="{number}"') for number in range(2)]


def test_all_take_clients_and_one_archives(proxy: ProxyProcess, data: TopicData) -> None:
    with ExitStack() as stack:
        for _ in range(40):  # the kernel deals them out by their ports
            stack.enter_context(RawConnection(proxy.bootstrap))
        wait_for("connections everywhere", lambda: min(connections(proxy)) > 5)
        status = json.loads(proxy.get("/api/status"))
        assert status["relay"]["connections"] >= 40
        with pytest.raises(urllib.error.HTTPError, match="400") as refused:
            proxy.get("/api/status?rows_max=many")
        refused.value.close()
    for read_all in (read_confluent, read_kafka_python):
        assert read_all(proxy.bootstrap, data.topic, {0: RECORDS}) == data.written
    assert status["archiver"]["leads"] == 1, "the page shows the archiver's worker"
    assert proxy.metric("kafka_server_brokertopicmetrics_remotecopybytes_total", 'worker="1"') == 0


def test_the_page_of_all_has_the_lists_of_one(proxy: ProxyProcess, data: TopicData) -> None:
    def page(path: str) -> list[dict[str, Any]]:
        return list(json.loads(proxy.get(path))["items"])

    assert read_confluent(proxy.bootstrap, data.topic, {0: RECORDS}) == data.written
    alone = f"/api/topics?sort=worst&name_part={data.topic}"
    wait_for("the topic", lambda: [row["topic"] for row in page(alone)] == [data.topic])
    place = f"/api/topics/{data.topic}/partitions"
    assert page(f"{place}?sort=-size_bytes")[0]["partition"] == 0
    assert page(f"{place}/0/segments")[0]["base_offset"] == 0
    spans = page(f"/api/topics/{data.topic}/timeline") + page(f"{place}/0/timeline")
    assert [span["kind"] for span in spans] == ["archived", "brokers"] * 2
    wait_for("samples", lambda: page("/api/history"))
    wait_for("the reader", lambda: [r for r in page("/api/readers") if r["served_bytes"] > 0])
    with pytest.raises(urllib.error.HTTPError, match="404") as unknown:
        proxy.get("/api/topics/none/partitions")
    unknown.value.close()


def test_killed_workers_come_back_with_their_clients(proxy: ProxyProcess, data: TopicData) -> None:
    with held_readers(proxy.bootstrap, data.topic, {0: RECORDS}, hold_at=200) as readers:
        before = pids(proxy)
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        for reader in readers:
            reader.go_on()
        for reader in readers:
            assert reader.records() == data.written
    wait_for("both again", lambda: is_ready(proxy))
    assert set(pids(proxy)).isdisjoint(before)
    assert proxy.metric("fetchproxy_worker_restarts_total") == 2


def test_a_signal_lets_the_clients_of_all_go(proxy: ProxyProcess) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(proxy.bootstrap)) for _ in range(10)]
        for client in clients:
            metadata(client, 12)
        ask_to_end(proxy)
        for client in clients:
            assert_ended(client)
        wait_for("the end", lambda: not proxy.running)
    assert [entry["connections_cut"] for entry in proxy.logged("drained")] == [0, 0]
    assert all(is_gone(pid) for pid in pids(proxy))


def test_no_worker_outlives_its_parent(proxy: ProxyProcess) -> None:
    proxy.kill()
    wait_for("the workers' end", lambda: all(is_gone(pid) for pid in pids(proxy)))


def test_a_taken_port_is_said(proxy: ProxyProcess, tmp_path: Path) -> None:
    result = fetchproxy(
        "serve", "--bootstrap", "127.0.0.1:1", "--store", tmp_path.as_uri(),
        "--listen", proxy.bootstrap, "--workers", "2",
    )  # fmt: skip
    assert result.returncode == 2
    assert f"gateway.listen = {proxy.bootstrap}: cannot listen there" in result.stderr


def test_what_keeps_a_worker_from_starting_ends_all(
    kafka_server: KafkaServer, tmp_path: Path
) -> None:
    """The archive is not there, which only the worker with the archiver finds."""
    result = fetchproxy(
        "serve", "--bootstrap", kafka_server.bootstrap, "--store", tmp_path.as_uri(),
        "--listen", "127.0.0.1:0", "--workers", "2", "--archive", "workers",
        "--set", "archive.log_dirs=/nowhere",
    )  # fmt: skip
    assert result.returncode == 2
    assert "/nowhere" in result.stderr
    assert "a worker could not start" in result.stderr


def rows(proxy: ProxyProcess, path: str, limit: int = 2) -> list[dict[str, Any]]:
    """All rows of a list, in small pages."""
    all_rows: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        page = json.loads(proxy.get(f"{path}?limit={limit}&after={quote(after)}"))
        assert len(page["items"]) <= limit
        all_rows += page["items"]
        after = page["next"]
    return all_rows


def test_the_one_console_has_the_pages_of_all(proxy: ProxyProcess, data: TopicData) -> None:
    with ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(proxy.bootstrap)) for _ in range(20)]
        for client in clients:
            topic_id = client.topic_id(data.topic)
            client.fetch(13, data.topic, topic_id, 0)
        wait_for("both read", lambda: min(connections(proxy)) > 1)
        partitions = f"/api/topics/{data.topic}/partitions"
        known = lambda: data.topic in {row["topic"] for row in rows(proxy, "/api/topics")}  # noqa: E731
        wait_for("the topic", known)
        assert [row["partition"] for row in rows(proxy, partitions)] == [0]
        segments = rows(proxy, f"{partitions}/0/segments")
        assert segments[0]["base_offset"] == 0
        assert [s["base_offset"] for s in segments[1:]] == [
            s["last_offset"] + 1 for s in segments[:-1]
        ]
        [raw] = [row for row in rows(proxy, "/api/readers") if row["client_id"] == "raw"]
        own_rows = [row for row in rows(proxy, "/api/readers") if row["address"] == "this process"]
        assert len(own_rows) == 1
        by_worker = [
            proxy.metric("fetchproxy_reader_served_bytes_total", f'worker="{number}",address="1')
            for number in range(2)
        ]
        assert raw["served_bytes"] > 0
        assert raw["served_bytes"] == sum(by_worker)
        assert min(by_worker) > 0, "the sum is one of both workers"
    page = json.loads(proxy.get(f"/api/records?topic={data.topic}&partition=0&offset=7&count=3"))
    assert [record["offset"] for record in page["records"]] == [7, 8, 9]
    lines = rows(proxy, "/api/log", limit=50)
    assert {json.loads(line["line"]).get("worker") for line in lines} == {0, 1}
    assert [line["at"] for line in lines] == sorted((line["at"] for line in lines), reverse=True)
    assert len(rows(proxy, "/api/process", limit=1)) == 2
    assert "paths" in json.loads(proxy.get("/api/openapi.json"))
    with socket.create_connection(("127.0.0.1", proxy.console_port)) as absolute:
        elsewhere = f"http://127.0.0.1:{free_port()}{partitions}"  # must not be dialed
        absolute.sendall(f"GET {elsewhere} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert absolute.recv(100).startswith(b"HTTP/1.1 200")
    for path, status in (
        ("/api/topics/none/partitions", "404"),
        ("/api/readers?limit=0", "400"),
        ("/api/log?after=x", "400"),
        ("/api/records?topic=none&partition=0&offset=0", "404"),
    ):
        with pytest.raises(urllib.error.HTTPError, match=status) as refused:
            proxy.get(path)
        refused.value.close()


def test_groups_of_clients_are_merged(proxy: ProxyProcess, data: TopicData) -> None:
    settings = {"bootstrap.servers": proxy.bootstrap, "group.id": "team"}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe([data.topic])
    try:
        wait_for("a record", lambda: consumer.poll(0.1) is not None)
        [row] = rows(proxy, "/api/groups")
        assert row["group"] == "team"
        assert row["clients"] >= 1
    finally:
        consumer.close()


def test_settings_reach_all_workers_and_those_that_start_later(
    proxy: ProxyProcess, tmp_path: Path
) -> None:
    file = tmp_path / "fetchproxy.toml"

    def hang_up(text: str, event: str) -> None:
        before = len(proxy.logged(event))
        file.write_text(text)
        os.kill(proxy.pid, signal.SIGHUP)
        wait_for("each worker", lambda: len(proxy.logged(event)) == before + 2)

    def settings() -> list[set[str]]:
        return [set(row["settings"]) for row in rows(proxy, "/api/process")]

    with ExitStack() as stack:
        clients = [stack.enter_context(RawConnection(proxy.bootstrap)) for _ in range(8)]
        hang_up(
            "prices.get_usd_per_1000 = 3.5\ncluster.request_max_ms = 9000", "settings_read_again"
        )
        for client in clients:
            metadata(client, 12)
    assert all("prices.get_usd_per_1000 = 3.5" in setting for setting in settings())
    assert {entry["worker"] for entry in proxy.logged("settings_read_again")} == {0, 1}
    assert proxy.logged("settings_read_again")[0]["waiting"] == ["cluster.request_max_ms"]
    before = pids(proxy)
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_for("both again", lambda: is_ready(proxy) and set(pids(proxy)).isdisjoint(before))
    assert all("prices.get_usd_per_1000 = 3.5" in setting for setting in settings())
    assert not any('cluster.request_max_ms = "9s"' in setting for setting in settings())
    wait_for("what waits is told", lambda: "settings_wait" in kinds(proxy))
    hang_up("prices.get_usd_per_1000 = -1", "settings_refused")
    assert "settings_refused" in kinds(proxy)
    assert all("prices.get_usd_per_1000 = 3.5" in setting for setting in settings())


def kinds(proxy: ProxyProcess) -> set[str]:
    return {row["kind"] for row in rows(proxy, "/api/conditions")}
