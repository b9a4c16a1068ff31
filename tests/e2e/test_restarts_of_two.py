"""Two proxies behind HAProxy, by the files in `deploy/`, of which one after the other is restarted
or killed. HAProxy is told nothing: it finds out by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from archived_topics import SETTINGS
from balanced_proxies import BalancedProxy, Ports
from clients_under_load import FindPart, under_load
from held_reader import collected_here as collected_here
from proxy_process import wait_for

from lab.balancers import HAProxy
from lab.kafka import KafkaServer

pytestmark = [
    pytest.mark.kafka,
    # kafka-python leaves its socket to the garbage collector when a connection is refused.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.usefixtures("collected_here"),
]

BOTH_UP = {"a": "UP", "b": "UP"}
ServePart = Callable[[str, HAProxy], Iterator[HAProxy]]


class Pair:
    """`archive`: the topics that both archive, as one group."""

    def __init__(self, bootstrap: str, store: str, folder: Path, archive: str) -> None:
        ports = Ports()
        settings = {**SETTINGS, "archive.topics": archive, "archive.group_id": f"{archive}-group"}
        self.proxies = [
            BalancedProxy(name, ports, bootstrap, store, folder, settings)
            for name in ("proxy-a", "proxy-b")
        ]
        self.balancer = HAProxy(ports.adapted("haproxy/haproxy.cfg", "127.0.0.1"), ports.bootstrap)
        self.bootstrap = f"127.0.0.1:{ports.bootstrap}"

    def wait_until_both_are_up(self) -> None:
        wait_for("both", lambda: self._states() == BOTH_UP)

    def _states(self) -> dict[str, str]:
        states = self.balancer.states("bootstrap")
        return {name: state.split()[0] for name, (state, _) in states.items()}


def drained(proxy: BalancedProxy) -> None:
    before = len(logged(proxy, "drained"))
    proxy.process.stop()
    [entry] = logged(proxy, "drained")[before:]
    assert entry["connections_cut"] == 0
    assert not logged(proxy, "session_crashed") + logged(proxy, "part_failed")


def killed(proxy: BalancedProxy) -> None:
    proxy.process.kill()


def logged(proxy: BalancedProxy, event: str) -> list[dict[str, object]]:
    lines = proxy.process.log.read_text().splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    return [entry for entry in entries if entry.get("event") == event]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("end", "count", "interval_s"), [(drained, 100, 0.8), (killed, 30, 0.2)], ids=["drain", "kill"]
)
def test_no_client_notices(
    kafka_server: KafkaServer,
    serve_part: ServePart,
    find_part: FindPart,
    tmp_path: Path,
    end: Callable[[BalancedProxy], None],
    count: int,
    interval_s: float,
) -> None:
    topic, kills = f"pair-{end.__name__}", end is killed

    @contextmanager
    def served(store: str) -> Iterator[Pair]:
        pair = Pair(kafka_server.bootstrap, store, tmp_path, topic)
        try:
            for proxy in pair.proxies:
                proxy.start()
            for _ in serve_part("balancers", pair.balancer):
                yield pair
        finally:
            for proxy in pair.proxies:
                proxy.process.stop()

    load = under_load(kafka_server, tmp_path, find_part, topic, served, interval_s, kills)
    with load as pair:
        for number in range(count):
            proxy = pair.proxies[number % 2]
            end(proxy)
            proxy.start()
            pair.wait_until_both_are_up()
