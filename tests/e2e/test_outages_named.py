"""An outage of each part, seen with nothing but the page in a real browser, /metrics and the log:
each is named, with what it means; and none is named where there is none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import quote

import pytest
from archived_topics import SETTINGS
from proxy_process import ProxyProcess, wait_for
from topic_data import TopicData, produce

from benchmarks.fault_relay import NO_FAULT, Fault, FaultRelay
from lab.browser import Browser, find_browser
from lab.kafka_cluster import KafkaCluster
from lab.s3 import S3Server

pytestmark = [pytest.mark.slow, pytest.mark.kafka, pytest.mark.s3]

TOPIC = "seen"
# Kept by whoever wants to look at the page.
PICTURES = os.environ.get("PICTURES_OF_THE_PAGE")


class Watcher:
    """Somebody who sees the page, the metrics and the log of one process."""

    def __init__(self, page: Browser, proxy: ProxyProcess) -> None:
        self._page, self._proxy = page, proxy
        page.open(f"http://127.0.0.1:{proxy.console_port}/")

    def sees(self, *words: str) -> bool:
        text = self._page.text("main")
        return all(word in text for word in words)

    def alarms(self) -> list[str]:
        """Everything on the page that says that something is wrong."""
        found = self._page.evaluate(
            "[...document.querySelectorAll('.banner.bad:not([hidden]), .banner.warn:not([hidden]),"
            " .tiles .alarm, #partitions .fault')].map((node) => node.innerText)"
        )
        return list(found)

    def metric(self, name: str, labels: str = "") -> float:
        return self._proxy.metric(name, labels)

    def lines(self, event: str, **values: object) -> list[dict[str, object]]:
        return [line for line in self._proxy.logged(event) if values.items() <= line.items()]

    def logged(self, event: str, **values: object) -> bool:
        return bool(self.lines(event, **values))

    def store_fails(self, operation: str) -> bool:
        return self.metric("fetchproxy_store_up", f'operation="{operation}"') == 0

    def is_ready(self) -> bool:
        try:
            self._proxy.get("/readyz")
        except HTTPError:
            return False
        return True

    def is_calm(self) -> bool:
        return self.sees("The store answers", "leads 1 of 1") and not self.alarms()

    def waits(self, name: str, begun_at: float, signs: Mapping[str, Callable[[], bool]]) -> None:
        """Until each sign is there; how long it took is printed."""
        for sign, is_there in signs.items():
            wait_for(f"{name}: {sign}", is_there)
            print(f"{name}: {sign} after {time.monotonic() - begun_at:.1f} s")
        self.picture(name)

    def picture(self, name: str) -> None:
        if PICTURES:
            self._page.screenshot(Path(PICTURES) / f"{name}.png")


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
    see("read", lambda: watcher.sees("The store's reads have been failing", "are held back"))
    see("write", lambda: watcher.sees("The store's writes have been failing", stopped))
    see("list", lambda: watcher.sees("The store's listings have been failing", stopped))
    see("all", lambda: watcher.sees("been failing", stopped))


def see_brokers_fail(watcher: Watcher, cluster: KafkaCluster) -> None:
    begun_at = time.monotonic()
    cluster.nodes[3].kill()
    watcher.waits("one-broker", begun_at, {
        "metric": lambda: watcher.metric("fetchproxy_brokers_reachable") == 2,
        "page": lambda: watcher.sees("does not answer", "2 of 3 do"),
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
        "page": lambda: watcher.sees("No broker answers", "Not ready"),
        "log": lambda: watcher.logged("brokers_away"),
        "readiness": lambda: not watcher.is_ready(),
    })  # fmt: skip
