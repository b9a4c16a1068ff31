from __future__ import annotations

import pytest

from fetchproxy.config.load import load_config, parse_assignment
from fetchproxy.config.values import (
    HostPort,
    is_any_address,
    parse_bootstrap,
    parse_host,
    parse_host_port,
)
from fetchproxy.errors import ConfigError


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


HOSTS = {
    "kafka": "kafka",
    "kafka_1.example.": "kafka_1.example.",
    " proxy.example ": "proxy.example",
    "10.0.0.7": "10.0.0.7",
    "::1": "::1",
    "[2001:db8::7]": "2001:db8::7",
    "fe80::1%eth0": "fe80::1%eth0",
}
NO_HOSTS = [
    "kafka:9092",
    "10.0.0.7:9092",
    "[::1]:9092",
    "kafka:",
    "[kafka]",
    "[::1",
    "a b",
    "a,b",
    "kafka://a",
    "me@a",
    " ",
    "0.0.0.0",
    "::",
    "[::]",
    "0",
    "-x",
    "a-",
    "..",
    ".a",
    "a..b",
    "é.example",
    "a\tb",
    "a!b",
    "256.0.0.1",
    "10.0.0.7.8",
    "a" * 64,
    ".".join(["a" * 60] * 5),
]


@pytest.mark.parametrize(("text", "host"), HOSTS.items())
def test_hosts(text: str, host: str) -> None:
    assert parse_host(text) == host
    config = load_config(None, {}, [parse_assignment(f"gateway.advertise_host={text}")])
    assert config.gateway.advertise_host == host


@pytest.mark.parametrize("text", NO_HOSTS)
def test_what_is_no_host_to_tell_clients(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_host(text)


@pytest.mark.parametrize("text", [text for text in NO_HOSTS if text.strip()])
def test_a_host_that_clients_cannot_be_told_is_refused_by_its_key_with_the_reason(
    text: str,
) -> None:
    with pytest.raises(ConfigError) as refused:
        load_config(None, {"FETCHPROXY_GATEWAY_ADVERTISE_HOST": text})
    message = str(refused.value)
    assert message.startswith(
        f"gateway.advertise_host = {text!r} (FETCHPROXY_GATEWAY_ADVERTISE_HOST)"
    )
    for words in ("without a port", "gateway.node_map", "sni_node_pattern", "0.0.0.0"):
        assert words in message


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "0", "0:0::0"])
def test_addresses_that_stand_for_all(host: str) -> None:
    assert is_any_address(host)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "kafka", "10.0.0.0", ""])
def test_addresses_that_stand_for_one(host: str) -> None:
    assert not is_any_address(host)
