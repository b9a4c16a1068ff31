"""An in-memory network for the virtual-time loop: slow, with jitter, cut streams and resets.

`NetworkLoop` makes `loop.create_server` and `loop.create_connection` use a `SimulatedNetwork`
instead of sockets, so the product runs on it unmodified.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

from transport import SimulatedTransport
from virtual_loop import VirtualTimeLoop

Address = tuple[str, int]
ProtocolFactory = Callable[[], asyncio.BaseProtocol]

_FIRST_FREE_PORT = 20_000
_FIRST_CLIENT_PORT = 50_000


@dataclass(frozen=True, slots=True)
class Conditions:
    """How the network delivers bytes.

    `cutting`: "whole" keeps each write in one piece, "parts" cuts it in a few places, "bytes" also
        delivers the first bytes one by one.
    `window_bytes`: the most bytes in flight or unread on a connection, unless the listening host
        has its own window in `windows`.
    `sends_at_once`: True: as asyncio does; False: as uvloop does, which accumulates writes until
    the
        end of the turn.
    """

    latency_s_min: float = 0.0001
    latency_s_max: float = 0.002
    cutting: str = "whole"
    window_bytes: int = 64 * 1024
    sends_at_once: bool = True


class SimulatedNetwork:
    def __init__(self, rng: Random, conditions: Conditions) -> None:
        self.rng = rng
        self.conditions = conditions
        self.listeners: dict[Address, ListeningServer] = {}
        self.unreachable: set[Address] = set()
        self.windows: dict[str, int] = {}  # bytes, by listening host
        self.connections: list[Connection] = []  # those that are open, oldest first
        self.opened = self.pauses = self.pieces = self.resets = 0
        self._next_port = _FIRST_FREE_PORT
        self._next_client_port = _FIRST_CLIENT_PORT

    def listen(self, factory: ProtocolFactory, host: str, port: int) -> ListeningServer:
        if not port:
            port = self._next_port
            self._next_port += 1
        if (host, port) in self.listeners:
            raise OSError(98, f"{host}:{port} is in use")
        server = ListeningServer(self, factory, (host, port))
        self.listeners[host, port] = server
        return server

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, local_host: str = "10.9.9.9"
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        await asyncio.sleep(self.latency())
        listener = self.listeners.get((host, port))
        if listener is None or (host, port) in self.unreachable:
            await asyncio.sleep(self.latency())
            raise ConnectionRefusedError(111, f"{host}:{port} refuses")
        self._next_client_port += 1
        self.opened += 1
        connection = Connection(self, factory(), listener, (local_host, self._next_client_port))
        self.connections.append(connection)
        connection.server.made()
        try:
            await asyncio.sleep(self.latency())
            if connection.client.is_closing():
                raise ConnectionResetError(104, "reset while connecting")
            connection.client.made()
            await asyncio.sleep(0)
        except BaseException:
            connection.reset()
            raise
        return connection.client, connection.client.get_protocol()

    @property
    def smallest_window(self) -> int:
        return min([self.conditions.window_bytes, *self.windows.values()])

    def latency(self) -> float:
        c = self.conditions
        return self.rng.uniform(c.latency_s_min, c.latency_s_max)

    def cut_off(self, address: Address) -> None:
        """Make `address` unreachable and reset every connection to it."""
        self.unreachable.add(address)
        for connection in [c for c in self.connections if c.address == address]:
            connection.reset()

    def cuts(self, size: int) -> list[int]:
        """The sizes of the pieces in which `size` bytes travel."""
        c, rng = self.conditions, self.rng
        if c.cutting == "whole" or size == 1:
            return [size]
        singles = rng.randint(0, min(size - 1, 12)) if c.cutting == "bytes" else 0
        places = sorted({*range(1, singles + 1), *(rng.randrange(1, size) for _ in range(2))})
        return [b - a for a, b in zip([0, *places], [*places, size], strict=True)]


class Connection:
    """Both ends of one connection to `address`."""

    def __init__(
        self,
        network: SimulatedNetwork,
        protocol: asyncio.BaseProtocol,
        listener: ListeningServer,
        client_address: Address,
    ) -> None:
        self.network = network
        self.address = listener.address
        self.latency_s = network.latency()
        self.window = network.windows.get(self.address[0], network.conditions.window_bytes)
        server = listener.factory()
        self.client = SimulatedTransport(self, protocol, client_address, self.address)
        self.server = SimulatedTransport(self, server, self.address, client_address)
        self.client.peer, self.server.peer = self.server, self.client

    def reset(self) -> None:
        """Both ends lose the connection; bytes in flight are lost."""
        self.network.resets += 1
        for end in (self.client, self.server):
            end.wire.clear()
            end.fail(ConnectionResetError(104, "connection reset by peer"))

    def stall(self, seconds: float) -> None:
        """Bytes sent from now on arrive after `seconds` at the earliest."""
        until = asyncio.get_running_loop().time() + seconds
        for end in (self.client, self.server):
            end.last_arrival = max(end.last_arrival, until)

    def ended(self) -> None:
        if self.client.lost and self.server.lost and self in self.network.connections:
            self.network.connections.remove(self)


class ListeningServer:
    """The part of `asyncio.Server` that the product uses."""

    def __init__(
        self, network: SimulatedNetwork, factory: ProtocolFactory, address: Address
    ) -> None:
        self._network = network
        self.factory = factory
        self.address = address

    @property
    def sockets(self) -> tuple[ListeningServer]:
        return (self,)

    def getsockname(self) -> Address:
        return self.address

    def close(self) -> None:
        self._network.listeners.pop(self.address, None)

    async def wait_closed(self) -> None:
        await asyncio.sleep(0)


class NetworkLoop(VirtualTimeLoop):
    """`network` must be set before the first connection."""

    network: SimulatedNetwork

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: ProtocolFactory,
        host: str,
        port: int,
        **options: Any,
    ) -> ListeningServer:
        return self.network.listen(protocol_factory, host, port)

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: ProtocolFactory, host: str, port: int, **options: Any
    ) -> tuple[SimulatedTransport, asyncio.BaseProtocol]:
        local_host, _ = options.get("local_addr") or ("10.9.9.9", 0)
        return await self.network.connect(protocol_factory, host, port, local_host)
