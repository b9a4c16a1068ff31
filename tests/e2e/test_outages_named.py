"""An outage of each part, seen with nothing but the page in a real browser, /metrics and the log:
each is named, with what it means; and none is named where there is none."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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
PICTURES = os.environ.get("FETCHPROXY_PICTURES")


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

    def logged(self, event: str, **values: object) -> bool:
        return any(values.items() <= line.items() for line in self._proxy.logged(event))

    def picture(self, name: str) -> None:
        if PICTURES:
            self._page.screenshot(Path(PICTURES) / f"{name}.png")


def named(
    watcher: Watcher, name: str, begin: Callable[[], object], *signs: Callable[[], bool]
) -> None:
    """Each sign is there some time after `begin`; how long it took is printed."""
    begun_at = time.monotonic()
    begin()
    for number, sign in enumerate(signs):
        wait_for(f"sign {number} of {name}", sign)
        print(f"{name}: sign {number} after {time.monotonic() - begun_at:.1f} s")
    watcher.picture(name)


@pytest.fixture
def browser(find_part) -> Iterator[Browser]:
    find_part("browser", find_browser)
    with Browser() as page:
        yield page


@pytest.fixture
def cluster(find_part) -> Iterator[KafkaCluster]:
    with KafkaCluster() as cluster:
        yield cluster


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
    with (
        FaultRelay(int(own_s3_server.endpoint_url.rpartition(":")[2])) as relay,
        ProxyProcess(
            cluster.bootstrap,
            own_s3_server.store_url(bucket, "a").replace(
                own_s3_server.endpoint_url.replace(":", "%3A").replace("/", "%2F"),
                relay.endpoint_url.replace(":", "%3A").replace("/", "%2F"),
            ),
            tmp_path,
            archive=TOPIC,
            settings=SETTINGS,
        ) as proxy,
    ):
        watcher = Watcher(browser, proxy)

        def calm() -> bool:
            return watcher.sees("The store answers", "leads 1 of 1") and not watcher.alarms()

        wait_for("a calm page", calm)
        watcher.picture("calm")
        for kind, word in (("read", "reads"), ("write", "writes"), ("list", "listings")):
            label = f'operation="{kind}"'
            named(
                watcher, f"store-{kind}",
                lambda kind=kind: (relay.set(Fault(refuse=(kind,))), produce(cluster.bootstrap, data, 50)),
                lambda label=label: watcher.metric("fetchproxy_store_up", label) == 0,
                lambda word=word: watcher.sees(f"The store's {word} have been failing"),
                lambda kind=kind: watcher.logged("store_failing", operation=kind),
            )  # fmt: skip
            relay.set(NO_FAULT)
            wait_for(f"calm after {kind}", calm)
        named(
            watcher, "store-away", lambda: (relay.set(Fault(cut=True)), produce(cluster.bootstrap, data, 50)),
            lambda: watcher.sees("have been failing" ) or watcher.sees("has been failing"),
            lambda: watcher.sees("Nothing is being archived"),
            lambda: watcher.logged("store_failing"),
        )  # fmt: skip
        relay.set(NO_FAULT)
        wait_for("calm after the store", calm)
        named(
            watcher, "one-broker", cluster.nodes[3].kill,
            lambda: watcher.metric("fetchproxy_brokers_reachable") == 2,
            lambda: watcher.sees("does not answer", "2 of 3 do"),
            lambda: watcher.logged("broker_away"),
        )  # fmt: skip
        cluster.nodes[3].start()
        wait_for("calm after a broker", calm)
        named(
            watcher, "brokers", lambda: [cluster.nodes[node].kill() for node in (1, 2, 3)],
            lambda: watcher.metric("fetchproxy_brokers_reachable") == 0,
            lambda: watcher.sees("No broker answers"),
            lambda: watcher.logged("brokers_away"),
        )  # fmt: skip
