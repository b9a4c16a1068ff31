"""`gateway.node_map`: which port stands for which broker, and what clients are told. Text only."""

from __future__ import annotations

from dataclasses import dataclass

from fetchproxy.config.addresses import parse_host, parse_host_port


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where the proxy listens for a node, and what clients are told instead: `host` None means
    the gateway's advertised host."""

    listen_port: int
    host: str | None
    port: int


def parse_node_map(text: str) -> dict[int, NodePlace]:
    """`NODE=PORT`, `NODE=HOST:PORT` or `NODE=PORT/HOST:PORT`, separated by commas.

    Raises ValueError, also where a node, a listened port or a told address comes twice.
    """
    places: dict[int, NodePlace] = {}
    for part in text.split(",") if text.strip() else ():
        node, separator, place = part.strip().partition("=")
        if not separator or not (node.isascii() and node.isdigit()):
            raise ValueError(f"expected NODE=PORT or NODE=HOST:PORT, not {part.strip()!r}")
        if int(node) in places:
            raise ValueError(f"node {node} comes twice")
        places[int(node)] = _parse_place(place)
    if len({place.listen_port for place in places.values()}) < len(places):
        raise ValueError("one port stands for two nodes")
    if len({(place.host, place.port) for place in places.values()}) < len(places):
        raise ValueError("two nodes are told at the same address")
    return places


def _parse_place(text: str) -> NodePlace:
    listen, separator, told = text.partition("/")
    if not separator:
        told = text
        listen = text.rpartition(":")[2]
    if told.isascii() and told.isdigit():
        told_host, told_port = None, _port(told)
    else:
        address = parse_host_port(told)
        told_host, told_port = parse_host(address.host), _port(str(address.port))
    return NodePlace(_port(listen), told_host, told_port)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 65535):
        raise ValueError(f"expected a port from 1 to 65535, not {text!r}")
    return int(text)
