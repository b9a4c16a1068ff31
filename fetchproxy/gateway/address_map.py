"""One proxy address for every broker: who listens where, as clients are told (`told_addresses`).

A node id gets its listener before the answer that names it leaves, so a client never dials a
closed port. Node ids and racks stay the brokers' own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import structlog

from fetchproxy.config.addresses import parse_host_port
from fetchproxy.config.node_map import NodePlace, parse_node_map
from fetchproxy.config.sections import GatewayConfig
from fetchproxy.errors import ConfigError
from fetchproxy.gateway.server_names import ServerNames

log = structlog.get_logger(__name__)

Address = tuple[str, int]
PORTS = 1 << 16
OpenListener = Callable[[int, int], Awaitable[asyncio.Server]]  # (node id, port) -> its server


class AddressMap:
    """`open_listener(node_id, port)` starts a listener; port 0 takes a free one."""

    def __init__(self, config: GatewayConfig, open_listener: OpenListener) -> None:
        self._config = config
        self.names = ServerNames.of(config)
        self._places = parse_node_map(config.node_map) if config.node_map else {}
        self._reserved = {place.listen_port for place in self._places.values()}
        self._open_listener = open_listener
        self._proxied: dict[int, Address] = {}
        self._brokers: dict[int, Address] = {}
        self._servers: dict[int, asyncio.Server] = {}
        self._opening = asyncio.Lock()
        self._default_base = 0

    def number_from(self, port: int) -> None:
        """Where `gateway.node_port_base` is not set, node N listens on `port` + N if that is free.

        So a proxy that is started again has the ports that its clients remember.
        """
        self._default_base = port

    def broker_address(self, node_id: int) -> Address | None:
        """Where the broker itself listens, as its cluster last said; None: not heard of yet."""
        return self._brokers.get(node_id)

    def proxied(self) -> dict[int, Address]:
        return dict(self._proxied)

    def advertised_host(self) -> str:
        return self._config.advertise_host or parse_host_port(self._config.listen).host

    async def open_mapped(self) -> None:
        """The listeners of `gateway.node_map`, before any broker is known. Raises ConfigError."""
        for node_id, place in self._places.items():
            try:
                await self._open(node_id)
            except OSError as error:
                raise ConfigError(
                    f"gateway.node_map: cannot listen on port {place.listen_port} for node "
                    f"{node_id}: {error.strerror}"
                ) from error

    async def ensure(self, nodes: Iterable[tuple[int, str, int]]) -> None:
        """A listener for every node; raises OSError where a port cannot be had."""
        for node_id, host, port in nodes:
            if node_id < 0 or not host:
                continue  # "no coordinator yet"
            self._brokers[node_id] = (host, port)
            if node_id in self._proxied:
                continue
            async with self._opening:
                if node_id not in self._proxied:
                    await self._open(node_id)

    async def _open(self, node_id: int) -> None:
        if self.names is not None:  # one listener for all, which is open
            shared = self._config.sni_port_advertised or self._default_base - 1
            self._proxied[node_id] = (self.names.host_of(node_id), shared)
            return
        server = await self._listen_for(node_id)
        port: int = server.sockets[0].getsockname()[1]
        place = self._places.get(node_id) or NodePlace(port, None, port)
        self._servers[node_id] = server
        self._proxied[node_id] = (place.host or self.advertised_host(), place.port)
        broker = self._brokers.get(node_id)
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
        port = (configured or self._default_base) + node_id
        if configured:
            return await self._open_listener(node_id, port)
        try:
            free = port < PORTS and port not in self._reserved
            return await self._open_listener(node_id, port if free else 0)
        except OSError as error:
            log.warning("node_port_taken", broker_id=node_id, port=port, error=str(error))
            return await self._open_listener(node_id, 0)

    def lookup(self, node_id: int, host: str, port: int) -> Address:
        """What clients are told instead of (host, port); a host may stand for all addresses."""
        return self._proxied.get(node_id, (host, port))

    def listens_for(self, node_id: int) -> bool:
        return node_id in self._proxied

    def heard_of(self, nodes: Sequence[tuple[int, str, int]]) -> bool:
        """Whether each has its listener; where each is, the broker says, is remembered then."""
        if not all(n[0] in self._proxied or n[0] < 0 or not n[1] for n in nodes):
            return False
        for node_id, host, port in nodes:
            if node_id >= 0 and host:
                self._brokers[node_id] = (host, port)
        return True

    async def close(self) -> None:
        for server in self._servers.values():
            server.close()
