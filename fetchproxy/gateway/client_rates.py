"""How many archived bytes a second each client may have: `remote_fetch.client_bytes_per_s_max`.

As Kafka's consumer quota does (KIP-13, KIP-219): what went out is counted; a client that owes is
answered at once, told for how long (`throttle_time_ms`), and its connection is not looked at before
that. Whom it counts for, over all connections, is what the client cannot choose (`payer_of`): the
subject of a certificate that was verified, else the address. Who it is to the broker passes unread,
and a client id is whatever the client says.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address

from cachetools import LRUCache

from fetchproxy.observability.metrics import CLIENT_THROTTLE_SECONDS, CLIENT_THROTTLES
from fetchproxy.token_bucket import TokenBucket

# Whose turn it is to read the store: address, client id. It shares out, and limits nothing.
Client = tuple[str, str]

# Half of a Java consumer's request.timeout.ms: what is owed beyond is told in the next answer.
PAUSE_MAX_S = 15.0
# A host with IPv6 has so many bits of an address to itself (RFC 6177), and takes any of them.
_IPV6_HOST_BITS = 64
# Payers remembered; one that is forgotten owes nothing any more.
CLIENTS_MAX = 10_000


def payer_of(transport: asyncio.BaseTransport) -> str:
    """Whom archived bytes on this connection count for. Certificates count that were verified."""
    certificate = transport.get_extra_info("peercert") or {}
    names = certificate.get("subject") or certificate.get("subjectAltName")
    if names:
        return repr(names)
    peer = transport.get_extra_info("peername")
    return host_of(str(peer[0])) if peer else "unknown"


def host_of(address: str) -> str:
    """The address; of IPv6 what a host has to itself."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return address
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return str(IPv6Network((int(ip), _IPV6_HOST_BITS), strict=False))


class ClientRates:
    """`bytes_per_s_max` 0: no limit. `clock`: the running loop's time, s."""

    def __init__(self, bytes_per_s_max: int, clock: Callable[[], float]) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self._clock = clock
        self._buckets: LRUCache[str, TokenBucket] = LRUCache(CLIENTS_MAX)

    def room(self, bytes_max: int) -> int:
        """For one answer: no more than a second's worth, so that none owes for long."""
        return min(bytes_max, self._bytes_per_s_max) if self._bytes_per_s_max else bytes_max

    def owed_s(self, payer: str) -> float:
        """For so long it may have nothing of the archive; 0: it may."""
        bucket = self._buckets.get(payer)
        return 0.0 if bucket is None else min(bucket.owed_s(self._clock()), PAUSE_MAX_S)

    def spend(self, payer: str, size_bytes: int) -> float:
        """Archived bytes that go out to it now. Returns `owed_s`."""
        if not self._bytes_per_s_max or not size_bytes:
            return self.owed_s(payer)
        now = self._clock()
        bucket = self._buckets.get(payer)
        if bucket is None:
            bucket = self._buckets[payer] = TokenBucket(self._bytes_per_s_max, now)
        return min(bucket.spend(size_bytes, now), PAUSE_MAX_S)


class ConnectionPace:
    """One connection's part in its client's rate: what it was told, and whether it has waited.

    `payer()`: `payer_of` its transport, which is known when it is there.

    Who has waited as long as it was told is served, whatever other connections of the same client
    have had meanwhile: they would be first for ever.
    """

    def __init__(self, rates: ClientRates, payer: Callable[[], str]) -> None:
        self._rates = rates
        self._payer = payer
        self._pause_s = 0.0
        self._waited = False

    def owed_s(self) -> float:
        """At the begin of a fetch: for so long it may have nothing of the archive."""
        waited, self._waited = self._waited, False
        return 0.0 if waited else self._rates.owed_s(self._payer())

    def spend(self, size_bytes: int, *, told: bool) -> int:
        """Archived bytes that go out. Returns the answer's throttle_time_ms; then comes `pause`.

        `told`: the client is made to wait. Where it is not, it has nothing more until it has paid.
        """
        owed_s = self._rates.spend(self._payer(), size_bytes)
        self._pause_s = owed_s if told else 0.0
        if not self._pause_s:
            return 0
        CLIENT_THROTTLES.inc()
        CLIENT_THROTTLE_SECONDS.inc(self._pause_s)
        return int(self._pause_s * 1000) + 1

    async def pause(self) -> None:
        """When the answer has left."""
        pause_s, self._pause_s = self._pause_s, 0.0
        if pause_s:
            await asyncio.sleep(pause_s)
            self._waited = pause_s < PAUSE_MAX_S
