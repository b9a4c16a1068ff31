"""The files of load balancers: the page shows them, and their ports are those of the proxies."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from compose_file import ROOT

from fetchproxy.config.load import Setting, load_config
from fetchproxy.config.values import parse_host_port, parse_node_map

PAGE = (ROOT / "docs" / "deploy" / "load-balancer.md").read_text("utf-8")
DEPLOY = ROOT / "deploy"
PROXIES = DEPLOY / "load-balancer.toml"
BALANCERS = [DEPLOY / "haproxy" / "haproxy.cfg", DEPLOY / "nginx" / "nginx.conf"]


@pytest.mark.parametrize("file", [PROXIES, *BALANCERS], ids=lambda file: file.name)
def test_the_page_shows_the_file(file: Path) -> None:
    assert f"\n{file.read_text('utf-8')}```\n" in PAGE


def test_each_port_that_clients_learn_is_forwarded() -> None:
    sections = tomllib.loads(PROXIES.read_text("utf-8"))
    settings = [
        Setting(f"{section}.{key}", value, PROXIES.name)
        for section, keys in sections.items()
        for key, value in keys.items()
    ]
    config = load_config(None, {}, settings)
    listened = {parse_host_port(config.gateway.listen).port}
    places = parse_node_map(config.gateway.node_map or "").values()
    listened |= {place.listen_port for place in places}
    assert config.gateway.proxy_protocol_from
    haproxy, nginx = (file.read_text("utf-8") for file in BALANCERS)
    assert {int(port) for port in re.findall(r"bind :(\d+)", haproxy)} == listened
    assert {int(port) for port in re.findall(r"listen (\d+);", nginx)} == listened
    checked = re.findall(r"check port (\d+)", haproxy)
    assert checked == [str(parse_host_port(config.console.listen or "").port)]
    for text in (haproxy, nginx):
        servers = re.findall(r"server .*(proxy-[ab]):(\d+)", text)
        assert len(servers) == len(set(servers)) == 2 * len(listened)
        assert {int(port) for _, port in servers} == listened
