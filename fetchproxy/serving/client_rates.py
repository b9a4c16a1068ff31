"""Limits a client's byte rate like Kafka's consumer quota (KIP-13, KIP-219). Bytes are counted as
they are sent. A client that owes gets its response at once, with `throttle_time_ms`, and its next
request is not read before that time is over. Bytes count over all connections of a payer, which
the client cannot choose (`payer_of`): the subject of a verified certificate, else the address.
The proxy does not read the client's name at the broker, and a client id can be anything.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from ipaddress import IPv6Address, IPv6Network, ip_address

from cachetools import LRUCache

from fetchproxy.runtime.fairness import TokenBucket

# (address, client id): clients take turns at reading the store by it. It limits nothing.
Client = tuple[str, str]

# Half of a Java consumer's request.timeout.ms. The next answer tells the rest of a longer debt.
PAUSE_MAX_S = 15.0
# Leading bits of an IPv6 address that stand for one host (RFC 6177): it may use all others freely.
_IPV6_HOST_BITS = 64
# Payers remembered. A forgotten payer owes nothing any more.
CLIENTS_MAX = 10_000


def payer_of(transport: asyncio.BaseTransport) -> str:
    """The payer for archived bytes on this connection. Only a verified certificate counts."""
    certificate = transport.get_extra_info("peercert") or {}
    names = certificate.get("subject") or certificate.get("subjectAltName")
    if names:
        return repr(names)
    peer = transport.get_extra_info("peername")
    return host_of(str(peer[0])) if peer else "unknown"


def host_of(address: str) -> str:
    """The address; of an IPv6 address, the network of its host."""
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
    """`bytes_per_s_max`: `remote_fetch.client_bytes_per_s_max`; 0: no limit. `clock`: in s."""

    def __init__(self, bytes_per_s_max: int, clock: Callable[[], float]) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self._clock = clock
        self._buckets: LRUCache[str, TokenBucket] = LRUCache(CLIENTS_MAX)

    def room(self, bytes_max: int) -> int:
        """Bytes for one response: at most one second's worth, so that no client owes for long."""
        return min(bytes_max, self._bytes_per_s_max) if self._bytes_per_s_max else bytes_max

    def owed_s(self, payer: str) -> float:
        """For how long the payer may get no archived records; 0: it may have them now."""
        bucket = self._buckets.get(payer)
        return 0.0 if bucket is None else min(bucket.owed_s(self._clock()), PAUSE_MAX_S)

    def spend(self, payer: str, size_bytes: int) -> float:
        """Count archived bytes that are sent to the payer now. Returns `owed_s`."""
        if not self._bytes_per_s_max or not size_bytes:
            return self.owed_s(payer)
        now = self._clock()
        bucket = self._buckets.get(payer)
        if bucket is None:
            bucket = self._buckets[payer] = TokenBucket(self._bytes_per_s_max, now)
        return min(bucket.spend(size_bytes, now), PAUSE_MAX_S)
