"""What clients are told in answers instead of the brokers' addresses.

A proxy that listens on all addresses of its machine, and has no name to give, tells each client the
address at which this one has reached it: the one address of which it is known that it works there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence

import structlog

from fetchproxy.config.addresses import HostPort, is_any_address, parse_host_port
from fetchproxy.config.sections import GatewayConfig
from fetchproxy.gateway.address_map import Address, AddressMap
from protocol.addresses import AnswerAddresses, hide_node_endpoints, splice_node_endpoints_tag
from protocol.primitives import Buffer

log = structlog.get_logger(__name__)


def tells_address_reached(config: GatewayConfig) -> bool:
    """Whether there is no one host that all clients are told."""
    return config.advertise_host is None and is_any_address(parse_host_port(config.listen).host)


def warn_of_address_reached(config: GatewayConfig, listener: str) -> None:
    """At the start: what clients are told, and for whom it is wrong."""
    log.warning(
        "listens_on_all_addresses",
        listener=listener,
        host=parse_host_port(config.listen).host,
        clients_are_told="the address at which each has reached this listener",
        fails_for="clients behind NAT, a load balancer or a container's published ports, and where "
        "a certificate does not name that address",
        hint="set gateway.advertise_host (--advertise) to a host that all clients can dial",
    )


def in_words(nodes: Mapping[int, Address]) -> list[str]:
    """What clients are told, for the console; in the order of node ids."""
    said = []
    for node_id, (host, port) in sorted(nodes.items()):
        reached = ", told by the address reached" if is_any_address(host) else ""
        said.append(f"{HostPort(host, port)} (node {node_id}{reached})")
    return said


class ToldAddresses:
    """`reached`: the proxy's own address on the connection of the one client that asks."""

    def __init__(self, nodes: AddressMap, reached: str | None = None) -> None:
        self._nodes = nodes
        self.reached = reached

    def lookup(self, node_id: int, host: str, port: int) -> Address:
        """For the splicers: what the client is told instead of (host, port)."""
        told_host, told_port = self._nodes.lookup(node_id, host, port)
        if self.reached is not None and is_any_address(told_host):
            return self.reached, told_port
        return told_host, told_port

    def rewrite(
        self, payload: bytes, version: int, addresses: AnswerAddresses
    ) -> Buffer | Awaitable[Buffer]:
        """The answer with proxied addresses; waits only where a listener must be opened first."""
        nodes = addresses.find(payload, version)
        if self._nodes.heard_of(nodes):
            return addresses.splice(payload, version, self.lookup)
        return self._open_and_rewrite(payload, version, addresses, nodes)

    async def _open_and_rewrite(
        self,
        payload: bytes,
        version: int,
        addresses: AnswerAddresses,
        nodes: Sequence[tuple[int, str, int]],
    ) -> Buffer:
        await self._nodes.ensure(nodes)
        return addresses.splice(payload, version, self.lookup)

    def splice_fetch_tags(self, tags: bytes) -> bytes:
        """NodeEndpoints of a Fetch answer; hidden where a node has no listener yet."""
        if tags == b"\x00":
            return tags
        unknown: list[int] = []

        def known(node_id: int, host: str, port: int) -> Address:
            if not self._nodes.listens_for(node_id):
                unknown.append(node_id)
            return self.lookup(node_id, host, port)

        spliced = splice_node_endpoints_tag(tags, known)
        return hide_node_endpoints(tags) if unknown else bytes(spliced)
