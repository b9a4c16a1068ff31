from __future__ import annotations

import pytest

from fetchproxy.config.addresses import HostPort, parse_bootstrap, parse_host_port


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:9092", "127.0.0.1", 9092),
        ("kafka-1.example:0", "kafka-1.example", 0),
        ("[::1]:9092", "::1", 9092),
        (" h:65535 ", "h", 65535),
    ],
)
def test_addresses_round_trip(text: str, host: str, port: int) -> None:
    address = parse_host_port(text)
    assert address == HostPort(host, port)
    assert parse_host_port(str(address)) == address


@pytest.mark.parametrize(
    "text",
    ["", "h", ":1", "h:", "h:x", "h:65536", "h:-1", "::1:9092", "a b:1", "[]:1", "h:²", "[::1"],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_host_port(text)


def test_bootstrap_lists() -> None:
    assert parse_bootstrap("a:1, [::1]:2,") == [HostPort("a", 1), HostPort("::1", 2)]


@pytest.mark.parametrize("text", ["", ",", "a:0", "a:1,b"])
def test_what_is_no_bootstrap_list(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_bootstrap(text)
