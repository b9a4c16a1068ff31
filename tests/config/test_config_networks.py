"""What `gateway.proxy_protocol_from` may say."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.values import parse_networks
from fetchproxy.errors import ConfigError


def test_addresses_and_networks() -> None:
    networks = parse_networks("10.0.0.7, 10.1.0.0/16,2001:db8::/32")
    assert networks == tuple(map(ip_network, ("10.0.0.7/32", "10.1.0.0/16", "2001:db8::/32")))


@pytest.mark.parametrize("text", ["balancer", "10.0.0.1/24", "10.0.0.0/33", "10.0.0.1:9192", "all"])
def test_what_is_no_address_or_network_is_refused(text: str) -> None:
    settings = [Setting("gateway.proxy_protocol_from", text, "test")]
    with pytest.raises(ConfigError, match="expected IP addresses or networks"):
        load_config(None, {}, settings)
