"""An outage of each part, seen only through the page in a real browser, /metrics and the log.

Each outage is named with its consequences, and none is named without an outage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import pytest
from archive_process import archive_process
from archived_topics import SETTINGS
from page_watcher import Watcher
from proxy_process import ProxyProcess, wait_for
from small_disk import SmallDisk, mount_small_disk
from topic_data import TopicData, archived_ends, produce

from benchmarks.fault_relay import NO_FAULT, Fault, FaultRelay
from lab.browser import Browser, find_browser
from lab.kafka import KafkaServer
from lab.kafka_cluster import KafkaCluster
from lab.s3 import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.s3]

TOPIC = "seen"


@pytest.fixture
def browser(find_part) -> Iterator[Browser]:
    find_part("browser", find_browser)
    with Browser() as page:
        yield page


@pytest.fixture
def cluster(find_part) -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


def produces(cluster: KafkaCluster, data: TopicData) -> None:
    produce(cluster.bootstrap, data, 50)


@pytest.mark.remedy("store_failing", "broker_away")
def test_each_outage_is_named_and_nothing_else(
    browser: Browser, cluster: KafkaCluster, own_s3_server: S3Server, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for key, value in own_s3_server.environment.items():
        monkeypatch.setenv(key, value)
    bucket = own_s3_server.create_bucket("seen")
    cluster.create_topic(TOPIC, [[1, 2, 3]])
    data = TopicData(TOPIC)
    produce(cluster.bootstrap, data, 300)
    with FaultRelay(own_s3_server.port) as relay:
        store = f"s3://{bucket}/a?endpoint_url={quote(relay.endpoint_url, safe='')}"
        store += f"&region={own_s3_server.region}"
        with ProxyProcess(
            cluster.bootstrap, store, tmp_path, archive=TOPIC, settings=SETTINGS
        ) as proxy:
            watcher = Watcher(browser, proxy)
            wait_for("a calm page", watcher.is_calm)
            watcher.picture("calm")
            see_the_store_fail(watcher, relay, lambda: produces(cluster, data))
            see_brokers_fail(watcher, cluster)
            assert proxy.running


def see_the_store_fail(
    watcher: Watcher, relay: FaultRelay, go_on_producing: Callable[[], None]
) -> None:
    def see(kind: str, page: Callable[[], bool]) -> None:
        operations = ("list", "read", "write") if kind == "all" else (kind,)
        before = len(watcher.lines("store_failing"))
        begun_at = time.monotonic()
        relay.set(Fault(cut=True) if kind == "all" else Fault(refuse=(kind,)))
        go_on_producing()
        watcher.waits(f"store-{kind}", begun_at, {
            "metric": lambda: any(watcher.store_fails(operation) for operation in operations),
            "page": page,
            "log": lambda: any(
                line["operation"] in operations for line in watcher.lines("store_failing")[before:]
            ),
        })  # fmt: skip
        relay.set(NO_FAULT)
        wait_for(f"calm after {kind}", watcher.is_calm)

    stopped = "Nothing is being archived"
    first = watcher.begins_with
    see("read", lambda: first(
        "The store cannot be read", "keep their position", "The store's reads have been failing",
        "are held back",
    ))  # fmt: skip
    see("write", lambda: first(
        "The store accepts no writes", "Readers notice nothing yet",
        "The store's writes have been failing", stopped,
    ))  # fmt: skip
    see("list", lambda: first(
        "The store cannot be listed", "The store's listings have been failing", stopped
    ))  # fmt: skip
    see("all", lambda: first("The store is failing", "been failing", stopped))


def see_brokers_fail(watcher: Watcher, cluster: KafkaCluster) -> None:
    begun_at = time.monotonic()
    cluster.nodes[3].kill()
    watcher.waits("one-broker", begun_at, {
        "metric": lambda: watcher.metric("fetchproxy_brokers_reachable") == 2,
        "page": lambda: watcher.begins_with("A broker does not answer", "2 of 3 do"),
        "log": lambda: watcher.logged("broker_away"),
    })  # fmt: skip
    assert watcher.is_ready()
    cluster.nodes[3].start()
    wait_for("calm after a broker", watcher.is_calm)
    begun_at = time.monotonic()
    for node in (1, 2, 3):
        cluster.nodes[node].kill()
    watcher.waits("brokers", begun_at, {
        "metric": lambda: watcher.metric("fetchproxy_brokers_reachable") == 0,
        "page": lambda: (
            watcher.begins_with("No broker responds", "No client is served")
            and watcher.sees("Not ready")
        ),
        "log": lambda: watcher.logged("brokers_away"),
        "readiness": lambda: not watcher.is_ready(),
    })  # fmt: skip


# --- an archiver in another process -------------------------------------------------------------
@pytest.fixture
def small_disk(find_part, tmp_path: Path) -> Iterator[SmallDisk]:
    with ExitStack() as mounted:
        yield find_part("small disk", lambda: mounted.enter_context(mount_small_disk(tmp_path)))


def test_what_befalls_an_archiver_elsewhere_is_named_here(
    browser: Browser, own_kafka_server: KafkaServer, small_disk: SmallDisk, tmp_path: Path
) -> None:
    kafka, name = own_kafka_server, "elsewhere"
    kafka.create_topic(name, 1, {"retention.ms": str(7 * 24 * 3_600_000)})
    data = TopicData(name)
    produce(kafka.bootstrap, data, 300)
    store = (tmp_path / "store").as_uri()
    spool = {"archive.spool_dir": small_disk.folder}
    archiver = archive_process(kafka.bootstrap, store, name, tmp_path, spool)
    archiver.start()
    try:
        wait_for("an archive", lambda: archived_ends(store, name) == data.ends(kafka.bootstrap))
        with ProxyProcess(kafka.bootstrap, store, tmp_path) as proxy:
            watcher = Watcher(browser, proxy)
            heard = {"metric": lambda: watcher.metric("fetchproxy_archivers_heard") == 1}
            watcher.waits("calm-elsewhere", time.monotonic(), heard)
            assert watcher.alarms() == []
            begun_at = time.monotonic()
            archiver.kill()
            watcher.waits("archiver-killed", begun_at, {
                "metric": lambda: watcher.metric("fetchproxy_archivers_silent") == 1,
                "page": lambda: watcher.begins_with(
                    "An archiver is not running", "An archiver has been silent",
                    "not archived", "the brokers delete",
                ),
                "log": lambda: watcher.logged("archiver_silent"),
            })  # fmt: skip
            produce(kafka.bootstrap, data, 20)
            lost = "records are lost from about", "(in 6 d 23 h) on"
            wait_for("the time left", lambda: watcher.begins_with(*lost))
            archiver.start()
            wait_for("calm with another archiver", lambda: not watcher.alarms())
            wait_for("its word", lambda: watcher.metric("fetchproxy_archivers_heard") == 1)

            begun_at = time.monotonic()
            sees = ("The archiver's disk fails", "No space left", "not archived", "the brokers")
            watcher.waits("disk-full-elsewhere", begun_at, {
                "page": lambda: filled(small_disk, kafka, data) and watcher.sees(*sees),
            })  # fmt: skip
            small_disk.free()
            wait_for("calm with room", lambda: not watcher.alarms())
            wait_for("all of it", lambda: archived_ends(store, name) == data.ends(kafka.bootstrap))
    finally:
        archiver.stop()


def filled(disk: SmallDisk, kafka: KafkaServer, data: TopicData) -> bool:
    """Always True: there are records to archive, and no space that became free meanwhile."""
    produce(kafka.bootstrap, data, 20)
    disk.fill()
    return True


@pytest.mark.parametrize("full", ["spool", "store"])
@pytest.mark.remedy("archiver_disk_failing", "store_failing")
def test_a_full_disk_is_named(
    browser: Browser, own_kafka_server: KafkaServer, small_disk: SmallDisk, tmp_path: Path,
    full: str,
) -> None:  # fmt: skip
    kafka, name = own_kafka_server, f"full-{full}"
    kafka.create_topic(name, 1)
    data = TopicData(name)
    produce(kafka.bootstrap, data, 300)
    places = {"spool": tmp_path / "spool", "store": tmp_path / "store"}
    places[full] = small_disk.folder / full
    settings = {**SETTINGS, "archive.spool_dir": places["spool"]}
    with ProxyProcess(
        kafka.bootstrap, places["store"].as_uri(), tmp_path, archive=name, settings=settings
    ) as proxy:
        watcher = Watcher(browser, proxy)
        wait_for("a calm page", watcher.is_calm)
        begun_at = time.monotonic()
        signs: dict[str, Callable[[], bool]] = {
            "metric": lambda: (
                filled(small_disk, kafka, data)
                and watcher.metric("fetchproxy_archiver_disk_failing") == 1
            ),
            "page": lambda: watcher.sees("The archiver's disk fails", "No space left", "brokers"),
            "log": lambda: watcher.logged("archiver_disk_failing"),
        }
        if full == "store":
            signs = {
                "metric": lambda: (
                    filled(small_disk, kafka, data) and watcher.store_fails("write")
                ),
                "page": lambda: watcher.sees(
                    "The store's writes have been failing", "Nothing is being archived",
                    "the brokers", "No space left",
                ),
                "log": lambda: watcher.logged("store_failing", operation="write"),
            }  # fmt: skip
        watcher.waits(f"disk-full-{full}", begun_at, signs)
        small_disk.free()
        wait_for("calm with room", watcher.is_calm)
        ends = data.ends(kafka.bootstrap)
        wait_for("all of it", lambda: archived_ends(places["store"].as_uri(), name) == ends)
