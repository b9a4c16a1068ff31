"""Requests to the active controller, which another one may become at any moment."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Self, TypeVar

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.brokers.connections import BrokerConnection, BrokerConnections
from fetchproxy.brokers.sasl import sasl_credentials
from fetchproxy.config.schema import Config
from fetchproxy.config.values import HostPort
from fetchproxy.errors import ClusterError, ClusterUnavailable
from fetchproxy.tls.reloading import upstream_context

T = TypeVar("T")

# An election of controllers takes seconds; after this nobody is elected.
CONTROLLER_WAIT_MAX_S = 30.0
_PAUSE_S = 0.2
# A controller that is busy gives up requests in its queue.
_AGAIN = (ErrorCode.NOT_CONTROLLER, ErrorCode.REQUEST_TIMED_OUT)


class ActiveController:
    """`async with`. `ask` asks each controller until one of them is the active one."""

    def __init__(self, config: Config, controllers: Sequence[HostPort]) -> None:
        """Raises ConfigError."""
        cluster = config.cluster
        self._connections = BrokerConnections(
            cluster, sasl_credentials(cluster), upstream_context(cluster, config.tls)
        )
        self._controllers = list(controllers)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._connections.close()
        await asyncio.sleep(0)  # the transports report their end in the loop's next turn

    async def ask(self, ask: Callable[[BrokerConnection], Awaitable[T]]) -> T:
        """`ask` raises ClusterError with the controller's code. It may be called again after a
        request that was lost, so that it must be right to do twice. Raises ClusterError.
        """
        deadline = asyncio.get_running_loop().time() + CONTROLLER_WAIT_MAX_S
        while True:
            failure: ClusterError | None = None
            for address in list(self._controllers):
                try:
                    response = await ask(await self._connections.shared(address))
                except ClusterError as error:
                    if not _is_elsewhere(error):
                        raise
                    failure = error
                    continue
                self._controllers.remove(address)
                self._controllers.insert(0, address)
                return response
            if asyncio.get_running_loop().time() > deadline:
                raise failure or ClusterUnavailable("no controller is known")
            await asyncio.sleep(_PAUSE_S)


def _is_elsewhere(error: ClusterError) -> bool:
    """Whether another controller, or the same one later, may respond."""
    return isinstance(error, ClusterUnavailable) or error.error_code in _AGAIN
