"""Two proxies behind HAProxy and nginx, by the files in `deploy/`: what happens if one is lost."""

from __future__ import annotations

import gc
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from archived_topics import MakeReplayed
from balanced_proxies import HOSTS, BalancedProxy, Ports
from client_readers import read_confluent
from held_reader import HeldReader, held_readers
from page_commands import Terminal, is_as_shown, steps
from proxy_process import PROJECT, wait_for
from raw_fetch import RawConnection
from topic_data import produce

from lab.balancers import HAProxy, Nginx
from lab.kafka import KafkaServer

pytestmark = [
    pytest.mark.kafka,
    # kafka-python leaves its socket to the garbage collector when a connection is refused.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
FILES = {"haproxy": "haproxy/haproxy.cfg", "nginx": "nginx/nginx.conf"}
Balancer = HAProxy | Nginx
ServePart = Callable[[str, Balancer], Iterator[Balancer]]


class Scene:
    """A balancer before two proxies. `settings`: for the proxies, beside their file."""

    def __init__(
        self,
        name: str,
        serve_part: ServePart,
        bootstrap: str,
        store: str,
        folder: Path,
        settings: dict[str, object],
    ) -> None:
        self.ports = Ports()
        self.proxies = [
            BalancedProxy(proxy, self.ports, bootstrap, store, folder, settings)
            for proxy in ("proxy-a", "proxy-b")
        ]
        text = self.ports.adapted(FILES[name], "127.0.0.1")
        self.balancer = {"haproxy": HAProxy, "nginx": Nginx}[name](text, self.ports.bootstrap)
        self.bootstrap = f"127.0.0.1:{self.ports.bootstrap}"
        self._serve_part = serve_part

    def open(self) -> Iterator[Scene]:
        try:
            for proxy in self.proxies:
                proxy.start()
            for _ in self._serve_part("balancers", self.balancer):
                yield self
        finally:
            for proxy in self.proxies:
                proxy.process.stop()
        gc.collect()  # kafka-python's sockets, and not in a later test


@pytest.fixture
def scene(
    request: pytest.FixtureRequest,
    serve_part: ServePart,
    kafka_server: KafkaServer,
    e2e_store: str,
    tmp_path: Path,
) -> Iterator[Scene]:
    name, settings = request.param
    bootstrap = kafka_server.bootstrap
    yield from Scene(name, serve_part, bootstrap, e2e_store, tmp_path, settings).open()


def with_each(settings: dict[str, object]) -> pytest.MarkDecorator:
    scenes = [(name, settings) for name in FILES]
    return pytest.mark.parametrize("scene", scenes, indirect=True, ids=FILES)


@with_each({})
def test_a_proxy_is_killed_while_clients_read_both_tiers(
    scene: Scene, kafka_server: KafkaServer, replayed: MakeReplayed
) -> None:
    data = replayed("lz4", 2)
    ends = {p: end + 200 for p, end in data.ends(kafka_server.bootstrap).items()}
    with ExitStack() as stack:
        readers: list[HeldReader] = []
        for _ in range(2):  # enough connections for both proxies to have some
            reader_group = held_readers(scene.bootstrap, data.topic, ends, hold_at=300)
            readers += stack.enter_context(reader_group)
        lost, other = sorted(scene.proxies, key=lambda proxy: proxy.connections, reverse=True)
        assert other.connections > 0, "the balancer has led all clients to one proxy"
        lost.process.kill()
        for reader in readers:
            reader.go_on()
        produce(kafka_server.bootstrap, data, 200, partition_count=2)
        for reader in readers:
            assert reader.records() == data.written
    assert other.process.running
    lost.start()
    wait_for("clients for the returned proxy", lambda: serves_new_clients(scene, lost, data.topic))


def serves_new_clients(scene: Scene, proxy: BalancedProxy, topic: str) -> bool:
    with HeldReader("confluent-kafka", scene.bootstrap, topic, {0: 100}, hold_at=10) as reader:
        reader.wait_until_held()
        return proxy.connections > 0


@with_each({})
def test_the_page_says_whether_it_works(
    scene: Scene, replayed: MakeReplayed, tmp_path: Path
) -> None:
    topic = replayed("lz4", 1).topic
    consoles = {f"{name}:8080": f"{HOSTS[name]}:{scene.ports.console}" for name in HOSTS}
    places = {**consoles, "kafka.example:9192": scene.bootstrap, "orders": topic}
    terminal = Terminal(tmp_path, places, {})
    page_steps = list(steps((PROJECT / "docs" / "deploy" / "load-balancer.md").read_text("utf-8")))
    assert len(page_steps) == 3
    for step in page_steps:
        output = tuple(map(terminal.here, step.output))
        # The archive is younger than these proxies: they see it at their next look.
        wait_for(step.command, lambda o=output, c=step.command: is_as_shown(o, terminal.run(c)))


@with_each({"remote_fetch.client_bytes_per_s_max": 20_000})
def test_shares_of_the_archive_are_by_the_clients_own_address(
    scene: Scene, replayed: MakeReplayed
) -> None:
    data = replayed("lz4", 2)

    def throttle_ms(address: str) -> int:
        """What the client is told with the first records of the archive, or instead of them."""
        with ClientAt(address, scene.bootstrap) as client:
            while True:
                response = client.fetch_response(11, data.topic, None, {0: 0}, bytes_max=20_000)
                throttle_ms: int = response.throttle_time_ms
                if throttle_ms or response.responses[0].partitions[0].records:
                    return throttle_ms

    wait_for("the first client to owe", lambda: throttle_ms("127.0.0.1") > 0)
    assert throttle_ms("127.0.0.5") == 0


class ClientAt(RawConnection):
    """A client whose own address is `address`."""

    def __init__(self, address: str, bootstrap: str) -> None:
        super().__init__(bootstrap)
        self._socket.close()
        host, port = bootstrap.rsplit(":", 1)
        self._socket = socket.create_connection((host, int(port)), source_address=(address, 0))
        self._socket.settimeout(60)


@pytest.mark.parametrize("scene", [("haproxy", {})], indirect=True, ids=["haproxy"])
def test_the_health_check_takes_a_hung_proxy_out(scene: Scene, replayed: MakeReplayed) -> None:
    """Its port accepts connections as before; only /readyz tells."""
    balancer = scene.balancer
    assert isinstance(balancer, HAProxy)
    data = replayed("lz4", 2)
    both = {"a": ("UP", "L7OK"), "b": ("UP", "L7OK")}
    wait_for("two checked proxies", lambda: balancer.states("bootstrap") == both)
    scene.proxies[0].process.pause()
    wait_for("a to be down", lambda: balancer.states("bootstrap")["a"][0] == "DOWN")
    assert balancer.states("bootstrap")["b"] == both["b"]
    ends = {p: len(records) for p, records in data.written.items()}
    assert read_confluent(scene.bootstrap, data.topic, ends) == data.written
    scene.proxies[0].process.resume()
    wait_for("a to be back", lambda: balancer.states("bootstrap") == both)
