"""What contradicts archive-only mode is said, with the place where it was set."""

from __future__ import annotations

import pytest

from fetchproxy.config.load import Setting, load_config
from fetchproxy.errors import ConfigError

ENABLED = Setting("archive_only.enabled", "true", "--archive-only")


@pytest.mark.parametrize(
    ("key", "value"),
    [("cluster.bootstrap", "localhost:9092"), ("archive.topics", "orders")],
)
def test_contradictions_are_errors(key: str, value: str) -> None:
    other = Setting(key, value, "--somewhere")
    with pytest.raises(ConfigError, match=r"--somewhere.*--archive-only"):
        load_config(None, {}, [ENABLED, other])
    load_config(None, {}, [other])


def test_it_needs_nothing_else() -> None:
    assert load_config(None, {}, [ENABLED]).archive_only.enabled


@pytest.mark.parametrize("listen", ["0.0.0.0:9192", "[::]:9192", "10.1.2.3:9192", "kafka:9192"])
def test_beyond_loopback_it_says_who_may_read(listen: str) -> None:
    public = Setting("gateway.listen", listen, "--listen")
    with pytest.raises(ConfigError) as refusal:
        load_config(None, {}, [ENABLED, public])
    for word in (listen, "--listen", "gateway.tls_client_auth", "archive_only.open_to_anybody"):
        assert word in str(refusal.value)
    load_config(None, {}, [ENABLED, public, Setting("archive_only.open_to_anybody", "true", "")])
    load_config(None, {}, [public])  # brokers know who may


@pytest.mark.parametrize(
    "listen", ["127.0.0.1:9192", "127.1.2.3:9192", "[::1]:9192", "localhost:1"]
)
def test_on_loopback_it_is_this_machines(listen: str) -> None:
    load_config(None, {}, [ENABLED, Setting("gateway.listen", listen, "--listen")])


@pytest.mark.parametrize(("auth", "starts"), [("requested", False), ("required", True)])
def test_only_a_certificate_that_must_be_shown_closes_the_archive(auth: str, starts: bool) -> None:
    tls = {
        "gateway.listen": "0.0.0.0:9192",
        "gateway.tls_certificate_file": "own.pem",
        "gateway.tls_client_ca_file": "ca.pem",
        "gateway.tls_client_auth": auth,
    }
    settings = [ENABLED, *(Setting(key, value, "file") for key, value in tls.items())]
    if starts:
        load_config(None, {}, settings)
        return
    with pytest.raises(ConfigError, match=r"archive_only\.open_to_anybody"):
        load_config(None, {}, settings)
