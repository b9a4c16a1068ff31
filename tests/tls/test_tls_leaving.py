"""A TLS client of a process that ends: the last response, then the end that TLS itself says."""

from __future__ import annotations

from pathlib import Path

import pytest
from certificates import Authority
from leaving import ask_to_end, assert_ended, assert_lets_nobody_in, long_poll
from proxy_process import ProxyProcess, wait_for
from raw_tls import RawTls
from tls_parts import TlsKafka, listener_settings, upstream_settings

pytestmark = pytest.mark.kafka


def test_what_waits_is_answered_first(
    secured: TlsKafka, authority: Authority, client_certificate: Path, tmp_path: Path
) -> None:
    topic = secured.server.create_topic("tls-leaving")
    (tmp_path / "store").mkdir()
    settings = {
        **upstream_settings(authority, authority.issue("upstream", hosts=("proxy",))),
        **listener_settings(authority, authority.issue("leaving")),
        "gateway.drain_max_ms": 4_000,
    }
    store = (tmp_path / "store").as_uri()
    with ProxyProcess(secured.bootstrap, store, tmp_path, settings=settings) as proxy:
        clients = [RawTls(proxy, authority, certificate=client_certificate) for _ in range(2)]
        waits, idle = clients
        with waits, idle, long_poll(waits, topic, 0) as responses:
            wait_for("the connections", lambda: proxy.metric("fetchproxy_connections") >= 2)
            ask_to_end(proxy)
            assert_lets_nobody_in(proxy)
            assert_ended(idle)
        (answer,) = responses
        assert (answer.error, answer.records) == (0, b"")
        wait_for("the end", lambda: not proxy.running)
        (end,) = proxy.logged("drained")
        assert end["connections_cut"] == 0
