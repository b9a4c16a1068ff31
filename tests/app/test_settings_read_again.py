"""SIGHUP to `fetchproxy serve`, with clients that stay connected: what is taken is felt at once."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
from archived_topics import SETTINGS, new_store
from confluent_kafka import Producer
from leaving import metadata
from proxy_process import ProxyProcess, wait_for
from raw_fetch import RawConnection

from lab.mock_cluster import MockCluster

TOKEN, NEW_TOKEN = "first-token-of-the-console", "second-token-of-the-console"
COPIED = "kafka_server_brokertopicmetrics_remotecopybytes_total"
Settings = dict[str, object]


class Scene:
    """A proxy over a mock cluster, with its settings in a file."""

    def __init__(self, folder: Path, bootstrap: str, settings: Settings) -> None:
        self.file, self.token = folder / "fetchproxy.toml", folder / "token"
        self.settings = settings
        self.write()
        self.proxy = ProxyProcess(
            bootstrap, new_store(folder), folder, settings=SETTINGS, config=self.file
        )

    def write(self, **changes: object) -> None:
        self.settings |= {name.replace("__", "."): value for name, value in changes.items()}
        lines = [f"{key} = {json.dumps(value)}" for key, value in self.settings.items()]
        self.file.write_text("\n".join(lines))

    def hang_up(self) -> None:
        os.kill(self.proxy.pid, signal.SIGHUP)

    def read_again(self, **changes: object) -> dict[str, list[str]]:
        """Changes the file and asks; returns what the log says of it."""
        before = len(self.proxy.logged("settings_read_again"))
        self.write(**changes)
        self.hang_up()
        wait_for("taken", lambda: len(self.proxy.logged("settings_read_again")) > before)
        return self.proxy.logged("settings_read_again")[-1]

    def ask(self, path: str, **headers: str) -> tuple[int, str]:
        with closing(HTTPConnection("127.0.0.1", self.proxy.console_port)) as console:
            console.request("GET", path, headers=headers)
            with console.getresponse() as response:
                return response.status, response.read().decode()

    def conditions(self) -> dict[str, str]:
        rows = json.loads(self.ask("/api/status")[1])["conditions"]
        return {one["kind"]: one["what"] for one in rows}


@pytest.fixture
def bootstrap() -> Iterator[str]:
    with MockCluster() as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap})
        for topic in ("orders", "news"):
            for number in range(50):
                value = {"number": number, "card": f"4111-{number}"}
                producer.produce(topic, json.dumps(value).encode(), partition=0)
        assert producer.flush(30) == 0
        yield cluster.bootstrap


@pytest.fixture
def scene(bootstrap: str, tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path, bootstrap, {"archive.topics": "orders"})
    with scene.proxy:
        yield scene
        assert not scene.proxy.logged("part_failed")


def records(scene: Scene) -> str:
    """What the console shows of the first archived record."""
    return scene.ask("/api/records?topic=orders&partition=0&offset=0&count=1")[1]


def topics_assigned(scene: Scene) -> set[str]:
    return {entry["topic"] for entry in scene.proxy.logged("partition_assigned")}


@pytest.mark.live(
    "console.allowed_hosts",
    "console.show_records",
    "console.masked_fields",
    "prices.get_usd_per_1000",
    "prices.put_usd_per_1000",
    "prices.egress_usd_per_gb",
    "prices.storage_usd_per_gb_month",
    "archive.topics",
)
def test_what_is_changed_counts_and_clients_stay(scene: Scene) -> None:
    wait_for("archive", lambda: scene.proxy.metric(COPIED))
    assert scene.ask("/api/status", Host="console.example")[0] == 421
    assert scene.ask("/api/records?topic=orders&partition=0&offset=0")[0] == 403
    before = json.loads(scene.ask("/api/topics")[1])["items"]
    assert all(row["storage_usd_per_month"] is None for row in before)
    with RawConnection(scene.proxy.bootstrap) as client:
        metadata(client, 12)
        entry = scene.read_again(
            console__allowed_hosts="console.example",
            console__show_records=True,
            console__masked_fields="card",
            prices__storage_usd_per_gb_month=1000.0,
            prices__get_usd_per_1000=1.0,
            prices__put_usd_per_1000=2.0,
            prices__egress_usd_per_gb=3.0,
            archive__topics="orders|news",
            store__compression="zstd",
        )
        metadata(client, 12)  # the same connection
    assert len(entry["taken"]) == 8
    assert 'archive.topics = "orders|news"' in entry["taken"]
    assert entry["waiting"] == ["store.compression"]
    assert "store.compression" in scene.conditions()["settings_wait"]
    assert scene.ask("/api/status", Host="console.example")[0] == 200
    assert "4111" not in records(scene)
    assert '"number' in records(scene)
    [row] = [r for r in json.loads(scene.ask("/api/topics")[1])["items"] if r["topic"] == "orders"]
    assert row["storage_usd_per_month"] > 0
    [reader_row] = json.loads(scene.ask("/api/readers")[1])["items"][-1:]
    requests = reader_row["gets"] + 2 * (reader_row["lists"] + reader_row["puts"])
    assert reader_row["usd"] == pytest.approx(
        requests / 1000 + 3 * reader_row["store_bytes"] / 1e9, abs=1e-5
    )
    settings = json.loads(scene.ask("/api/process")[1])["items"][0]["settings"]
    assert "prices.egress_usd_per_gb = 3.0" in settings
    wait_for("news", lambda: "news" in topics_assigned(scene))
    scene.read_again(console__show_records=False, store__compression="none")
    assert scene.ask("/api/records?topic=orders&partition=0&offset=0")[0] == 403
    assert "settings_wait" not in scene.conditions()


@pytest.mark.live("console.token_file")
def test_a_token_changes_in_its_file_or_with_it(scene: Scene) -> None:
    scene.token.write_text(TOKEN)
    assert scene.ask("/api/status")[0] == 200
    scene.read_again(console__token_file=str(scene.token))
    assert scene.ask("/api/status")[0] == 401
    assert scene.ask("/healthz")[0] == 200
    scene.token.write_text(NEW_TOKEN)
    assert scene.ask("/api/status", Authorization=f"Bearer {TOKEN}")[0] == 200
    scene.read_again()
    assert scene.ask("/api/status", Authorization=f"Bearer {TOKEN}")[0] == 401
    assert scene.ask("/api/status", Authorization=f"Bearer {NEW_TOKEN}")[0] == 200


@pytest.mark.live("log.level", "log.format")
def test_the_log_gets_another_level_and_form(scene: Scene) -> None:
    scene.write(log__format="console")
    scene.hang_up()
    wait_for("taken", lambda: "settings_read_again" in scene.proxy.log_text())
    line = next(x for x in scene.proxy.log_text().splitlines() if "settings_read_again" in x)
    assert not line.startswith("{")
    scene.write(log__format="json", log__level="debug")
    scene.hang_up()
    wait_for("requests in the log", lambda: '"level": "debug"' in scene.proxy.log_text())


@pytest.mark.live("gateway.connections_per_ip_max", "gateway.idle_max_ms")
def test_limits_of_connections_count_for_those_that_are_there(scene: Scene) -> None:
    with RawConnection(scene.proxy.bootstrap) as first:
        metadata(first, 12)
        scene.read_again(gateway__connections_per_ip_max=1)
        with (
            RawConnection(scene.proxy.bootstrap) as second,
            pytest.raises((AssertionError, ConnectionError)),
        ):
            metadata(second, 12)
        metadata(first, 12)  # it stays
        scene.read_again(gateway__connections_per_ip_max=100, gateway__idle_max_ms=200)
        with pytest.raises((AssertionError, ConnectionError)):
            first.receive()
    reasons = {entry["reason"] for entry in scene.proxy.logged("client_connection_closed")}
    assert {"connections_per_ip_max", "idle_max_ms"} <= reasons


@pytest.mark.live("gateway.drain_max_ms")
def test_a_process_drains_as_it_was_told_last(scene: Scene) -> None:
    scene.read_again(gateway__drain_max_ms=4_321)
    os.kill(scene.proxy.pid, signal.SIGTERM)
    wait_for("the drain", lambda: scene.proxy.logged("draining"))
    assert scene.proxy.logged("draining")[0]["drain_max_ms"] == 4_321


@pytest.mark.remedy("settings_refused", "settings_wait")
@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("log__level", "loud", "log.level"),
        ("prices__get_usd_per_100", 1, "the nearest known one is prices.get_usd_per_1000"),
        ("console__token_file", "/nowhere/token", "console.token_file"),
    ],
)
def test_a_file_that_is_wrong_changes_nothing(
    scene: Scene, key: str, value: object, words: str
) -> None:
    sound = dict(scene.settings)
    scene.write(console__allowed_hosts="console.example", **{key: value})
    scene.hang_up()
    wait_for("refused", lambda: scene.proxy.logged("settings_refused"))
    assert words in scene.proxy.logged("settings_refused")[0]["error"]
    assert words in scene.conditions()["settings_refused"]
    assert scene.ask("/api/status", Host="console.example")[0] == 421, "not even the sound part"
    scene.settings = sound
    entry = scene.read_again(cluster__request_max_ms=9_000)
    assert (entry["taken"], entry["waiting"]) == ([], ["cluster.request_max_ms"])
    assert set(scene.conditions()) & {"settings_refused", "settings_wait"} == {"settings_wait"}
    scene.read_again(cluster__request_max_ms=10_000)
    assert "settings_wait" not in scene.conditions()
