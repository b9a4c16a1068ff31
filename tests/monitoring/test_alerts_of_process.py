"""Alerts on brokers and on the process itself."""

from __future__ import annotations

import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from alert_play import Watched, assert_fires
from certificates import Authority
from proxy_process import PROJECT, ProxyProcess, wait_for
from topic_data import make_archive

from lab.errors import PartMissing
from lab.kafka import KafkaServer
from lab.kafka_cluster import KafkaCluster
from lab.process import ServerProcess, free_port

pytestmark = [pytest.mark.kafka, pytest.mark.usefixtures("promtool")]

GROUPS = Path("/sys/fs/cgroup")
MiB = 1024 * 1024


@pytest.fixture
def cluster(serve_part: Callable[[str, KafkaCluster], Iterator[KafkaCluster]]) -> Iterator[object]:
    yield from serve_part("kafka", KafkaCluster())


@pytest.fixture
def store(tmp_path: Path) -> str:
    """An empty archive: without one, a proxy that only serves names it as missing."""
    url = (tmp_path / "store").as_uri()
    make_archive(url)
    return url


@pytest.fixture
def proxy(kafka_server: KafkaServer, store: str, tmp_path: Path) -> Iterator[ProxyProcess]:
    with ProxyProcess(kafka_server.bootstrap, store, tmp_path) as proxy:
        yield proxy


@pytest.mark.slow
def test_one_broker_away_and_then_all(cluster: KafkaCluster, store: str, tmp_path: Path) -> None:
    with ProxyProcess(cluster.bootstrap, store, tmp_path) as proxy:
        watched = Watched(proxy.console_port)
        reachable = "fetchproxy_brokers_reachable"
        wait_for("three", lambda: watched.value(reachable) == 3)
        watched.look()
        cluster.nodes[3].kill()
        wait_for("two", lambda: watched.value(reachable) == 2)
        watched.look_twice()
        assert_fires(watched.scrapes, "FetchproxyBrokerAway")
        for node in (1, 2):
            cluster.nodes[node].kill()
        wait_for("none", lambda: watched.value(reachable) == 0)
        watched.look_twice()
        assert_fires(watched.scrapes[:1] + watched.scrapes[-2:],
                     "FetchproxyBrokersAway", "FetchproxyLogErrors")  # fmt: skip


def test_a_process_that_was_killed(proxy: ProxyProcess) -> None:
    watched = Watched(proxy.console_port)
    watched.look()
    proxy.kill()
    watched.look()
    assert_fires(watched.scrapes, "FetchproxyDown")


def test_a_process_that_ends_again_and_again(proxy: ProxyProcess) -> None:
    watched = Watched(proxy.console_port)
    for _ in range(4):
        watched.look()
        proxy.kill()
        time.sleep(1.1)  # the time of a start is in hundredths of a second, from a clock of its own
        proxy.start()
    watched.look()
    assert_fires(watched.scrapes, "FetchproxyRestarts")


def test_files_run_out(proxy: ProxyProcess) -> None:
    watched = Watched(proxy.console_port)
    watched.look()
    limit = int(watched.value("process_open_fds")) + 90
    resource.prlimit(proxy.pid, resource.RLIMIT_NOFILE, (limit, limit))
    watched.look_twice()
    assert_fires(watched.scrapes, "FetchproxyFewFilesLeft")


def test_clients_come_on_above_a_limit(
    kafka_server: KafkaServer, store: str, tmp_path: Path
) -> None:
    settings: dict[str, object] = {"gateway.connections_max": 2}
    with ProxyProcess(kafka_server.bootstrap, store, tmp_path, settings=settings) as proxy:
        watched = Watched(proxy.console_port)
        watched.look()
        with ExitStack() as connections:
            for _ in range(2):
                connections.enter_context(socket.create_connection(("127.0.0.1", proxy.port)))
            for _ in range(2):
                wait_for("a refusal", lambda: is_refused(proxy.port))
                watched.look()
                time.sleep(1)
                assert is_refused(proxy.port)
                watched.look()
        assert_fires(watched.scrapes, "FetchproxyLimitReached")


def is_refused(port: int) -> bool:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.settimeout(0.5)
        try:
            return connection.recv(1) == b""
        except TimeoutError:
            return False
        except OSError:
            return True


def test_a_certificate_that_ends_soon(
    kafka_server: KafkaServer, store: str, tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "tls")
    file = authority.issue("proxy", ends=datetime.now(UTC) + timedelta(days=5))
    settings: dict[str, object] = {"gateway.tls_certificate_file": file}
    with ProxyProcess(kafka_server.bootstrap, store, tmp_path, settings=settings) as proxy:
        watched = Watched(proxy.console_port)
        expiry = "fetchproxy_tls_certificate_expiry_timestamp_seconds"
        wait_for("the certificate", watched.above(expiry, 0))
        watched.look_twice()
        # promtool's clock begins in 1970: the certificate then has as long as it has from today.
        for one in watched.scrapes:
            assert one.values is not None
            for name in one.values:
                if name.startswith(expiry):
                    one.values[name] -= time.time()
    assert_fires(watched.scrapes, "FetchproxyCertificateExpires")


# --- a process in control groups of its own -------------------------------------------------------
class Confined(ProxyProcess):
    """`serve` in the control groups, from its first instruction on."""

    def __init__(self, groups: list[Path], bootstrap: str, store: str, folder: Path) -> None:
        super().__init__(bootstrap, store, folder)
        joins = "".join(f"echo $$ > {group}/cgroup.procs && " for group in groups)
        words = [sys.executable, "-m", "fetchproxy", *self._process.command[3:]]
        command = ["sh", "-c", joins + 'exec "$@"', "sh", *words]
        self._process = ServerProcess("fetchproxy", command, self.log, cwd=PROJECT)


@contextmanager
def control_group(controller: str, **limits: int) -> Iterator[Path]:
    """Raises PartMissing if this user may not make one, or if the machine has version 2 alone."""
    group = GROUPS / controller / f"fetchproxy-test-{free_port()}"
    try:
        group.mkdir()
        for name, value in limits.items():
            (group / name.replace("__", ".")).write_text(str(value))
    except OSError as error:
        what = f"the control group {group} cannot be made: {error}"
        raise PartMissing("control groups", what, "It takes root and cgroup v1.") from None
    try:
        yield group
    finally:
        wait_for("an empty group", lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_memory_and_cores_are_used_up(
    kafka_server: KafkaServer, proxy: ProxyProcess, store: str, tmp_path: Path,
    find_part: Callable[[str, Callable[[], Path]], Path],
) -> None:  # fmt: skip
    """Its memory limit is a tenth above what such a process takes, its quota a tenth of a core:
    a busy machine leaves it that much.
    """
    resident = int(Watched(proxy.console_port).value("process_resident_memory_bytes"))
    limit = resident * 12 // 10
    with ExitStack() as made:

        def groups() -> list[Path]:
            memory = control_group("memory", memory__limit_in_bytes=limit)
            cpu = control_group("cpu", cpu__cfs_period_us=1_000_000, cpu__cfs_quota_us=100_000)
            return [made.enter_context(memory), made.enter_context(cpu)]

        both = find_part("control groups", groups)
        with Confined(both, kafka_server.bootstrap, store, tmp_path) as confined:
            watched = Watched(confined.console_port)
            assert watched.value("fetchproxy_available_cpu_cores") == pytest.approx(0.1)
            with busy(confined):
                time.sleep(1)
                watched.look()
                watched.look_twice(8.0)
    assert_fires(
        watched.scrapes,
        "FetchproxyMemoryHigh",
        "FetchproxyCpuHigh",
        "FetchproxyEventLoopLate",
    )


def test_a_loop_that_has_always_work(proxy: ProxyProcess) -> None:
    watched = Watched(proxy.console_port)
    with busy(proxy):
        watched.look()
        watched.look_twice(5.0)
    assert_fires(watched.scrapes, "FetchproxyEventLoopBusy")


@contextmanager
def busy(proxy: ProxyProcess) -> Iterator[None]:
    """More requests than the process can answer."""
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            try:
                proxy.get("/metrics")
            except OSError:
                time.sleep(0.05)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()
