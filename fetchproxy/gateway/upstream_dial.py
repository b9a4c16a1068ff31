"""Reaches the broker that a client's connection is for: one certain node, or any that answers.

A broker that hangs still accepts connections (its kernel does), so of several it is asked which
*answers* before a client is given to it. It knows no sessions and caches one answer, for a moment.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, TypeVar, cast

from fetchproxy.cluster.single_flight import SingleFlight
from fetchproxy.config.sections import GatewayConfig
from fetchproxy.tls.failures import in_words

Address = tuple[str, int]
P = TypeVar("P", bound=asyncio.BaseProtocol)

# A burst of clients asks the brokers once; a broker that died a moment ago is dialed in vain.
ANSWER_AGE_MAX_S = 1.0

# ApiVersions 0 without a client id: every broker answers it, before any authentication (KIP-35).
_API_VERSIONS = Struct(">ihhih").pack(10, 18, 0, 0, -1)


class UpstreamDial:
    """`tls_for_host(host)`: what `create_connection` needs for TLS to it; {} where it has none."""

    def __init__(
        self,
        config: GatewayConfig,
        tls_for_host: Callable[[str], Mapping[str, Any]] = lambda host: {},
    ) -> None:
        self._connect_max_s = config.upstream_connect_max_ms / 1000
        self._stagger_s = config.bootstrap_stagger_ms / 1000
        self._tls_for_host = tls_for_host
        self._races = SingleFlight[Address]()
        self._answered: Address | None = None
        self._answered_at = 0.0

    async def to(self, address: Address, factory: Callable[[], P]) -> P:
        """Raises OSError within upstream_connect_max_ms."""
        host, port = address
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_max_s):
                tls = self._tls_for_host(host)
                _, link = await loop.create_connection(factory, host, port, **tls)
                return link
        except TimeoutError:
            raise OSError(f"{host}:{port} did not answer in time") from None
        except OSError as error:
            raise OSError(f"{host}:{port}: {in_words(error)}") from error

    async def to_any(self, addresses: Sequence[Address], factory: Callable[[], P]) -> P:
        """To the first that answers. Raises OSError naming a failure when none does."""
        left = list(addresses)
        while len(left) > 1:
            address = await self._answering(left)
            try:
                return await self.to(address, factory)
            except OSError:
                self._answered = None
                left.remove(address)
        return await self.to(left[0], factory)

    async def _answering(self, addresses: Sequence[Address]) -> Address:
        age = asyncio.get_running_loop().time() - self._answered_at
        if self._answered in addresses and age < ANSWER_AGE_MAX_S:
            return cast(Address, self._answered)
        return await self._races.run(tuple(addresses), lambda: self._race(addresses))

    async def _race(self, addresses: Sequence[Address]) -> Address:
        """Ask in order; the next as well when the last failed, or was silent for `stagger`."""
        waiting = deque(addresses)
        asked: set[asyncio.Task[Address | OSError]] = set()
        failure = OSError("no broker address is known")
        async with asyncio.TaskGroup() as tasks:
            while waiting or asked:
                if waiting:
                    asked.add(tasks.create_task(self._ask(waiting.popleft()), name="ask-broker"))
                pause = self._stagger_s if waiting else None
                done, asked = await asyncio.wait(
                    asked, timeout=pause, return_when=asyncio.FIRST_COMPLETED
                )
                for answer in (task.result() for task in done):
                    if isinstance(answer, OSError):
                        failure = answer
                        continue
                    self._answered = answer
                    self._answered_at = asyncio.get_running_loop().time()
                    for task in asked:
                        task.cancel()
                    return answer
        raise failure

    async def _ask(self, address: Address) -> Address | OSError:
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(self._connect_max_s):
                asking = await self.to(address, lambda: _Asking(answered))
                try:
                    await answered
                finally:
                    asking.close()
        except TimeoutError:
            return OSError(f"{address[0]}:{address[1]} did not answer in time")
        except OSError as error:
            return error
        return address


class _Asking(asyncio.Protocol):
    """Sends one ApiVersions request and tells whether anything came back."""

    def __init__(self, answered: asyncio.Future[None]) -> None:
        self._answered = answered
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.write(_API_VERSIONS)

    def data_received(self, data: bytes) -> None:
        if not self._answered.done():
            self._answered.set_result(None)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self._answered.done():
            self._answered.set_exception(exc or ConnectionResetError("closed without an answer"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()
