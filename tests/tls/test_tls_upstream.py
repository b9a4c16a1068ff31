"""Brokers that must not be trusted, or cannot be talked to: nothing passes; the log says why."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificates import Authority
from proxy_process import ProxyProcess, wait_for
from test_bad_input import connect, is_closed, request, still_serves
from tls_parts import TlsKafka, upstream_settings

pytestmark = pytest.mark.kafka


@contextlib.contextmanager
def proxied(bootstrap: str, folder: Path, settings: dict[str, object]) -> Iterator[ProxyProcess]:
    (folder / "store").mkdir()
    with ProxyProcess(bootstrap, (folder / "store").as_uri(), folder, settings=settings) as process:
        yield process
        assert not process.logged("session_crashed") + process.logged("part_failed")


def ask_in_vain(proxy: ProxyProcess) -> None:
    with connect(proxy) as peer:
        peer.sendall(request(18, 0))
        assert is_closed(peer)


def reasons(proxy: ProxyProcess, event: str) -> str:
    wait_for(event, lambda: proxy.logged(event))
    return "; ".join(entry["error"] for entry in proxy.logged(event))


def test_a_certificate_for_another_name(
    secured: TlsKafka, authority: Authority, tmp_path: Path
) -> None:
    """The broker's is for 127.0.0.1, and it is dialed as `localhost`."""
    settings = upstream_settings(authority, authority.issue("own"))
    bootstrap = f"localhost:{secured.port}"
    with proxied(bootstrap, tmp_path, settings) as proxy:
        ask_in_vain(proxy)
        assert "Hostname mismatch" in reasons(proxy, "broker_unreachable")
    (tmp_path / "lax").mkdir()
    lax = settings | {"cluster.tls_verify_hostname": "false"}
    with proxied(bootstrap, tmp_path / "lax", lax) as proxy:
        assert still_serves(proxy)


def test_a_certificate_of_another_authority(
    secured: TlsKafka, authority: Authority, tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "foreign")
    settings = upstream_settings(foreign, authority.issue("own"))
    with proxied(secured.bootstrap, tmp_path, settings) as proxy:
        ask_in_vain(proxy)
        assert "certificate not accepted" in reasons(proxy, "broker_unreachable")


def test_no_certificate_where_the_broker_asks_for_one(
    secured: TlsKafka, authority: Authority, tmp_path: Path
) -> None:
    settings = {
        "cluster.security_protocol": "SSL",
        "cluster.tls_ca_file": authority.file,
    }
    with proxied(secured.bootstrap, tmp_path, settings) as proxy:
        ask_in_vain(proxy)
        assert "or was shown none" in reasons(proxy, "broker_connection_lost")


def test_tls_to_a_plaintext_port_and_the_other_way_round(
    secured: TlsKafka, authority: Authority, tmp_path: Path
) -> None:
    settings = upstream_settings(authority, authority.issue("own"))
    with proxied(secured.server.bootstrap, tmp_path, settings) as proxy:
        ask_in_vain(proxy)
        assert "closed within the handshake" in reasons(proxy, "broker_unreachable")
    (tmp_path / "plain").mkdir()
    with proxied(secured.bootstrap, tmp_path / "plain", {}) as proxy:
        ask_in_vain(proxy)
        assert "speaks TLS, see cluster.security_protocol" in reasons(
            proxy, "client_connection_closed"
        )
