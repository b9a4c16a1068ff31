"""Connects to the broker for a client's connection: to a given node, or to any broker that answers.

A broker that hangs still accepts connections, as its kernel does. So if there are several
brokers, the dialer first asks which of them *answers*. It knows no sessions, and caches one
response for a moment.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import TypeVar, cast

from fetchproxy.runtime.single_flight import SingleFlight
from fetchproxy.runtime.waits import first_success
from fetchproxy.serving.limits import ServingLimits
from fetchproxy.serving.session import Address
from fetchproxy.tls.dial import dial
from fetchproxy.tls.handshake_errors import handshake_error_in_words
from fetchproxy.tls.reloading import ReloadingContext

P = TypeVar("P", bound=asyncio.BaseProtocol)

# So a burst of clients asks the brokers once. A broker that has just died may be dialed in vain.
RESPONSE_AGE_MAX_S = 1.0

# ApiVersions 0 without a client id: every broker answers it, before any authentication (KIP-35).
_API_VERSIONS = Struct(">ihhih").pack(10, 18, 0, 0, -1)


class UpstreamDial:
    """Connects to a given broker, or to any broker that answers. `tls`: the context for TLS to
    brokers; None: plaintext.
    """

    def __init__(
        self,
        connect_max_ms: int,
        tls: ReloadingContext | None = None,
        stagger_ms: int = ServingLimits.bootstrap_stagger_ms,
    ) -> None:
        self._connect_max_s = connect_max_ms / 1000
        self._stagger_s = stagger_ms / 1000
        self._tls = tls
        self._races = SingleFlight[Address]()
        self._last_responder: Address | None = None
        self._responded_at = 0.0

    async def to(self, address: Address, factory: Callable[[], P]) -> P:
        """Raises OSError, at the latest after `connect_max_ms`."""
        _, link = await self._connect(address, factory)
        return link

    async def _connect(
        self, address: Address, factory: Callable[[], P]
    ) -> tuple[asyncio.Transport, P]:
        host, port = address
        try:
            async with asyncio.timeout(self._connect_max_s):
                return await dial(factory, host, port, self._tls)
        except TimeoutError:
            raise OSError(f"{host}:{port} did not answer in time") from None
        except OSError as error:
            raise OSError(f"{host}:{port}: {handshake_error_in_words(error)}") from error

    async def to_any(self, addresses: Sequence[Address], factory: Callable[[], P]) -> P:
        """Connect to the first broker that answers. Raises OSError with a failure if none does."""
        left = list(addresses)
        while len(left) > 1:
            address = await self._responder(left)
            try:
                return await self.to(address, factory)
            except OSError:
                self._last_responder = None
                left.remove(address)
        return await self.to(left[0], factory)

    async def _responder(self, addresses: Sequence[Address]) -> Address:
        age = asyncio.get_running_loop().time() - self._responded_at
        if self._last_responder in addresses and age < RESPONSE_AGE_MAX_S:
            return cast(Address, self._last_responder)
        return await self._races.run(tuple(addresses), lambda: self._race(addresses))

    async def _race(self, addresses: Sequence[Address]) -> Address:
        """Ask the brokers in order: the next one when one fails, or is silent for `stagger_ms`."""
        asks = [partial(self._ask, address) for address in addresses]
        responder = await first_success(asks, self._stagger_s, OSError)
        self._last_responder, self._responded_at = responder, asyncio.get_running_loop().time()
        return responder

    async def _ask(self, address: Address) -> Address:
        """Send one ApiVersions request. Returns the address if any byte comes back; else raises
        OSError.
        """
        reader = asyncio.StreamReader()
        try:
            async with asyncio.timeout(self._connect_max_s):
                transport, _ = await self._connect(
                    address, lambda: asyncio.StreamReaderProtocol(reader)
                )
                try:
                    transport.write(_API_VERSIONS)
                    if not await reader.read(1):
                        raise ConnectionResetError("closed without a response")
                finally:
                    transport.abort()
        except TimeoutError:
            raise OSError(f"{address[0]}:{address[1]} did not answer in time") from None
        return address
