"""Which connections are open to which broker. Decides no retries and reads no answers.

Short requests share one pipelined connection per broker. A fetch may wait in the broker, and Kafka
answers a connection in order, so each fetch has a connection to itself while it lasts; there are
never more of them than fetches at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager

from fetchproxy.cluster.connection import BrokerConnection, connect
from fetchproxy.cluster.sasl import SaslCredentials
from fetchproxy.cluster.single_flight import SingleFlight
from fetchproxy.config.addresses import HostPort
from fetchproxy.config.sections import ClusterConfig
from fetchproxy.tls.upstream import UpstreamTls


class BrokerConnections:
    def __init__(
        self,
        config: ClusterConfig,
        sasl: SaslCredentials | None = None,
        tls: UpstreamTls | None = None,
    ) -> None:
        self._config = config
        self._sasl = sasl
        self._tls = tls
        self._shared: dict[HostPort, BrokerConnection] = {}
        self._connecting = SingleFlight[BrokerConnection]()
        self._idle: dict[HostPort, list[BrokerConnection]] = {}
        self._in_use: set[BrokerConnection] = set()

    async def shared(self, address: HostPort) -> BrokerConnection:
        """Raises ClusterUnavailable."""
        connection = self._shared.get(address)
        if connection is not None and connection.is_open:
            return connection
        return await self._connecting.run(address, lambda: self._open_shared(address))

    @asynccontextmanager
    async def exclusive(self, address: HostPort) -> AsyncIterator[BrokerConnection]:
        """A connection that nobody else uses inside the block. Raises ClusterUnavailable.

        One that was left in the middle of an answer (an error, a cancellation) is closed.
        """
        connection = self._take_idle(address) or await self._connect(address)
        self._in_use.add(connection)
        clean = False
        try:
            yield connection
            clean = True
        finally:
            self._in_use.discard(connection)
            if clean and connection.is_open:
                self._idle.setdefault(address, []).append(connection)
            else:
                connection.close()

    def retain(self, addresses: Collection[HostPort]) -> None:
        """Close what is open to brokers that are no longer there and is not in use."""
        for address in [a for a in self._idle if a not in addresses]:
            for connection in self._idle.pop(address):
                connection.close()
        for address in [a for a in self._shared if a not in addresses]:
            self._shared.pop(address).close()

    def close(self) -> None:
        self.retain(())
        for connection in self._in_use:
            connection.close()

    async def _open_shared(self, address: HostPort) -> BrokerConnection:
        connection = await self._connect(address)
        self._shared[address] = connection
        return connection

    async def _connect(self, address: HostPort) -> BrokerConnection:
        return await connect(address, self._config, self._sasl, self._tls)

    def _take_idle(self, address: HostPort) -> BrokerConnection | None:
        idle = self._idle.get(address, [])
        while idle:
            connection = idle.pop()  # the last one used: the others may fall idle and be closed
            if connection.is_open:
                return connection
        return None
