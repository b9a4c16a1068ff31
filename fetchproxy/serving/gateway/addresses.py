"""The addresses that clients get instead of the brokers': listeners and server names."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

import structlog
from fetchproxy_protocol.addresses import (
    NODES_MAX,
    LocatedAddresses,
    NodeAddress,
    hide_node_endpoints,
    locate_addresses,
    splice_addresses,
    splice_node_endpoints_tag,
)
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.brokers.broker_watch import BROKER_FORGOTTEN_AFTER_S
from fetchproxy.config.schema import GatewayConfig
from fetchproxy.config.values import (
    HostPort,
    NodePlace,
    is_any_address,
    parse_host_port,
    parse_node_map,
    parse_node_names,
)
from fetchproxy.errors import ConfigError
from fetchproxy.runtime.cooperative import READ_AT_ONCE_BYTES_MAX, at_once, in_steps
from fetchproxy.serving.session import Address

PORTS = 1 << 16
OpenListener = Callable[[int, int], Awaitable[asyncio.Server]]  # (node id, port) -> its server

log = structlog.get_logger(__name__)


class ServerNames:
    """One port for all brokers: maps server names (SNI) to them. Names are compared without regard
    to case (RFC 6066, 3).
    """

    def __init__(self, bootstrap: str, node_pattern: str) -> None:
        self._bootstrap = bootstrap.lower()
        self._node_pattern, self.port = parse_node_names(node_pattern)
        before, _, after = self._node_pattern.lower().partition("{node_id}")
        self._node = re.compile(rf"{re.escape(before)}(0|[1-9][0-9]{{0,9}}){re.escape(after)}")

    @classmethod
    def of(cls, config: GatewayConfig) -> ServerNames | None:
        """None: every broker has its own port."""
        if config.sni_bootstrap_host is None or config.sni_node_pattern is None:
            return None
        return cls(config.sni_bootstrap_host, config.sni_node_pattern)

    def host_of(self, node_id: int) -> str:
        return self._node_pattern.format(node_id=node_id)

    def node_of(self, name: str | None) -> int | None:
        """None: the bootstrap, by its name or without a name."""
        if name is None or name.lower() == self._bootstrap:
            return None
        match = self._node.fullmatch(name.lower())
        return None if match is None else int(match[1])

    def knows(self, name: str | None) -> bool:
        is_bootstrap = name is None or name.lower() == self._bootstrap
        return is_bootstrap or self.node_of(name) is not None


class AddressMap:
    """One proxy address for every broker. A node id gets its listener before any response names it,
    so a client never dials a closed port. Port 0 takes a free one.
    """

    def __init__(self, config: GatewayConfig, open_listener: OpenListener) -> None:
        self._config = config
        self.names = ServerNames.of(config)
        self._places = parse_node_map(config.node_map) if config.node_map else {}
        self._reserved = {place.listen_port for place in self._places.values()}
        self._open_listener = open_listener
        # The addresses for clients, by node id; a host may stand for all addresses.
        self.proxied: dict[int, Address] = {}
        self.brokers: dict[int, Address] = {}  # each broker's own address, as last heard
        # Without `gateway.node_port_base`, node N listens on this + N if that is free. So a
        # restarted proxy has the ports that its clients remember.
        self.default_base = 0
        self._servers: dict[int, asyncio.Server] = {}
        self._absent_since: dict[int, float] = {}  # loop time (s), of nodes that are not named
        self._opening = asyncio.Lock()

    async def open_mapped(self) -> None:
        """Open `gateway.node_map`'s listeners, before brokers are known. Raises ConfigError."""
        for node_id, place in self._places.items():
            try:
                await self._open(node_id)
            except OSError as error:
                raise ConfigError(
                    f"gateway.node_map: cannot listen on port {place.listen_port} for node "
                    f"{node_id}: {error.strerror}"
                ) from error

    async def ensure(self, nodes: Iterable[NodeAddress]) -> None:
        """Open a listener for every node. Raises OSError if a port cannot be had, or if NODES_MAX
        nodes have one.
        """
        for node_id, host, port in nodes:
            self.brokers[node_id] = (host, port)
            self._absent_since.pop(node_id, None)
            async with self._opening:
                if node_id in self.proxied:
                    continue
                if len(self.proxied) >= NODES_MAX:
                    raise OSError(f"no listener for node {node_id}: {NODES_MAX} nodes have theirs")
                await self._open(node_id)

    async def _open(self, node_id: int) -> None:
        if self.names is not None:  # one open listener serves all
            shared = self.names.port or self.default_base - 1
            self.proxied[node_id] = (self.names.host_of(node_id), shared)
            return
        server = await self._listen_for(node_id)
        port: int = server.sockets[0].getsockname()[1]
        place = self._places.get(node_id) or NodePlace(port, None, port)
        self._servers[node_id] = server
        host = (
            place.host or self._config.advertise_host or parse_host_port(self._config.listen).host
        )
        self.proxied[node_id] = (host, place.port)
        broker = self.brokers.get(node_id)
        log.info(
            "node_listener_opened",
            broker_id=node_id,
            port=port,
            broker=f"{broker[0]}:{broker[1]}" if broker else None,
        )

    async def _listen_for(self, node_id: int) -> asyncio.Server:
        if node_id in self._places:
            return await self._open_listener(node_id, self._places[node_id].listen_port)
        configured = self._config.node_port_base
        port = (configured or self.default_base) + node_id
        if configured and port >= PORTS:
            raise OSError(f"gateway.node_port_base leads to {port} for node {node_id}: not a port")
        if configured:
            return await self._open_listener(node_id, port)
        try:
            free = 0 < port < PORTS and port not in self._reserved
            return await self._open_listener(node_id, port if free else 0)
        except OSError as error:
            log.warning(
                "node_port_taken",
                broker_id=node_id,
                port=port,
                error=str(error),
                hint="free the port, or give the brokers other ports with gateway.node_port_base",
            )
            return await self._open_listener(node_id, 0)

    def heard_of(self, nodes: Collection[NodeAddress]) -> bool:
        """Whether each node has its listener. Remembers the nodes' own addresses."""
        for node_id, _, _ in nodes if self._absent_since else ():
            self._absent_since.pop(node_id, None)
        self.brokers.update((node_id, (host, port)) for node_id, host, port in nodes)
        return all(node_id in self.proxied for node_id, _, _ in nodes)

    def forget_absent(self, node_ids: Collection[int], now: float) -> None:
        """At loop time `now` (s) the cluster names the nodes `named`. Close the listeners of nodes
        that neither it nor any response has named for FORGOTTEN_AFTER_S.
        """
        absent = self.proxied.keys() - self._places.keys() - set(node_ids)
        self._absent_since = {n: self._absent_since.get(n, now) for n in absent}
        for node_id, since in list(self._absent_since.items()):
            if now - since >= BROKER_FORGOTTEN_AFTER_S:
                del self.proxied[node_id], self._absent_since[node_id]
                if (server := self._servers.pop(node_id, None)) is not None:
                    server.close()
                log.info("node_listener_closed", broker_id=node_id)

    def close(self) -> None:
        for server in self._servers.values():
            server.close()


def addresses_in_words(nodes: Mapping[int, Address]) -> list[str]:
    """The clients' addresses for the console, by node id."""
    parts = []
    for node_id, (host, port) in sorted(nodes.items()):
        reached = ", told by the address reached" if is_any_address(host) else ""
        parts.append(f"{HostPort(host, port)} (node {node_id}{reached})")
    return parts


class AdvertisedAddresses:
    """`reached`: the proxy's own address on the asking client's connection. A proxy that listens on
    all addresses and has no name to give tells the client this one: it works there.
    """

    def __init__(self, nodes: AddressMap) -> None:
        self._nodes = nodes
        self.reached: str | None = None

    def lookup(self, node_id: int, host: str, port: int) -> Address:
        """For the splicers: the client's address instead of (host, port)."""
        advertised_host, advertised_port = self._nodes.proxied.get(node_id, (host, port))
        if self.reached is not None and is_any_address(advertised_host):
            return self.reached, advertised_port
        return advertised_host, advertised_port

    def rewrite(
        self, payload: bytes, api_key: int, version: int
    ) -> Sequence[Buffer] | Awaitable[Sequence[Buffer]]:
        """The response with proxied addresses. Waits only if it is long, or if a listener must be
        opened first.
        """
        locating = locate_addresses(payload, api_key, version)
        known: LocatedAddresses | None = None
        if len(payload) <= READ_AT_ONCE_BYTES_MAX:
            known = at_once(locating)
            if self._nodes.heard_of(known.nodes):
                return [at_once(splice_addresses(payload, api_key, version, known, self.lookup))]

        async def open_and_splice() -> Sequence[Buffer]:
            located = await in_steps(locating) if known is None else known
            if not self._nodes.heard_of(located.nodes):
                await self._nodes.ensure(located.nodes)
            splicing = splice_addresses(payload, api_key, version, located, self.lookup)
            return [await in_steps(splicing)]

        return open_and_splice()

    def splice_fetch_tags(self, tags: bytes) -> bytes:
        """NodeEndpoints of a Fetch response; hidden if a node has no listener yet."""
        if tags == b"\x00":
            return tags
        unknown: list[int] = []

        def known(node_id: int, host: str, port: int) -> Address:
            if node_id not in self._nodes.proxied:
                unknown.append(node_id)
            return self.lookup(node_id, host, port)

        spliced = splice_node_endpoints_tag(tags, known)
        return hide_node_endpoints(tags) if unknown else bytes(spliced)
