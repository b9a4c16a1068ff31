"""New certificates without a restart: open connections go on, new ones get the new one."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from certificates import Authority
from confluent_kafka.admin import AdminClient
from proxy_process import ProxyProcess, wait_for
from raw_tls import responses, serves, tls_connection
from tls_parts import confluent_tls

from lab.mock_cluster import MockCluster


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("old"), "old")


@pytest.fixture(scope="module")
def new(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("new"), "new")


@pytest.fixture
def in_use(old: Authority, tmp_path: Path) -> Path:
    file = tmp_path / "in-use.pem"
    file.write_bytes(old.issue("proxy").read_bytes())
    return file


@pytest.fixture
def proxy(in_use: Path, tmp_path: Path) -> Iterator[ProxyProcess]:
    (tmp_path / "store").mkdir()
    settings = {"gateway.tls_certificate_file": in_use, "limits.tls_reload_interval_ms": 100}
    with (
        MockCluster() as cluster,
        ProxyProcess(
            cluster.bootstrap, (tmp_path / "store").as_uri(), tmp_path, settings=settings
        ) as process,
    ):
        yield process
        assert not process.logged("session_crashed") + process.logged("part_failed")


class Traffic:
    """Asks over one connection again and again, until told to stop."""

    def __init__(self, peer: ssl.SSLSocket) -> None:
        self._peer = peer
        self._stop = threading.Event()
        self.responded = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                assert responses(self._peer, self.responded + 1)
                self.responded += 1
        except (AssertionError, OSError) as error:
            self.failure = error

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._peer.close()


def test_reload_under_traffic(
    proxy: ProxyProcess, in_use: Path, old: Authority, new: Authority
) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": proxy.bootstrap, **confluent_tls(old, None)}
    )
    failed: list[object] = []

    def send() -> None:
        for _ in range(20):
            producer.produce(
                "reload", b"x", partition=0, on_delivery=lambda e, m: e and failed.append(e)
            )
        assert producer.flush(30) == 0

    send()
    traffic = Traffic(tls_connection(proxy, old))
    try:
        in_use.write_bytes(new.issue("proxy").read_bytes())
        wait_for("the reload", lambda: proxy.logged("tls_files_reloaded"))
        before = traffic.responded
        wait_for("answers over the old connection", lambda: traffic.responded > before + 20)
        assert serves(proxy, new), "a client that trusts the new authority alone"
        with pytest.raises(ssl.SSLCertVerificationError):
            tls_connection(proxy, old)
        assert AdminClient(
            {"bootstrap.servers": proxy.bootstrap, **confluent_tls(new, None)}
        ).list_topics(timeout=20)
        send()
    finally:
        traffic.stop()
    assert traffic.failure is None
    assert not failed


def test_a_broken_file_leaves_the_old_one_in_use(
    proxy: ProxyProcess, in_use: Path, old: Authority, new: Authority
) -> None:
    good = in_use.read_bytes()
    in_use.write_bytes(b"-----BEGIN CERTIFICATE-----\nhalf a fi")
    wait_for("an error", lambda: proxy.logged("tls_files_unusable"))
    assert proxy.metric("fetchproxy_tls_files_unusable", 'listener"') == 1
    assert serves(proxy, old)
    in_use.write_bytes(b"-----BEGIN CERTIFICATE-----\nhalf a fil")  # as broken as before
    # Mismatching halves: the certificate of one pair, the key of another.
    key = good.split(b"-----BEGIN CERTIFICATE-----")[0]
    other = new.issue("other").read_bytes().split(b"-----BEGIN CERTIFICATE-----")[1]
    in_use.write_bytes(key + b"-----BEGIN CERTIFICATE-----" + other)
    wait_for("another", lambda: len(proxy.logged("tls_files_unusable")) == 2)
    assert "does not belong to" in proxy.logged("tls_files_unusable")[1]["error"]
    assert serves(proxy, old)
    in_use.write_bytes(good)
    wait_for("recovery", lambda: proxy.metric("fetchproxy_tls_files_unusable") == 0)
    assert len(proxy.logged("tls_files_unusable")) == 2, "each fault is said once"
    assert serves(proxy, old)
