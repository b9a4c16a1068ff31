"""How many archived bytes a second each client may have: `remote_fetch.client_bytes_per_s_max`.

As Kafka's consumer quota does (KIP-13, KIP-219): what went out is counted; a client that owes is
answered at once, told for how long (`throttle_time_ms`), and its connection is not looked at before
that. A client is who shows one client id from one address, over all its connections: who it is to
the broker passes the proxy unread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cachetools import LRUCache

from fetchproxy.observability.metrics import CLIENT_THROTTLE_SECONDS, CLIENT_THROTTLES
from fetchproxy.token_bucket import TokenBucket

Client = tuple[str, str]  # address, client id

# Half of a Java consumer's request.timeout.ms: what is owed beyond is told in the next answer.
PAUSE_MAX_S = 15.0
# Clients remembered; one that is forgotten owes nothing any more.
CLIENTS_MAX = 10_000


class ClientRates:
    """`bytes_per_s_max` 0: no limit. `clock`: the running loop's time, s."""

    def __init__(self, bytes_per_s_max: int, clock: Callable[[], float]) -> None:
        self._bytes_per_s_max = bytes_per_s_max
        self._clock = clock
        self._buckets: LRUCache[Client, TokenBucket] = LRUCache(CLIENTS_MAX)

    def room(self, bytes_max: int) -> int:
        """For one answer: no more than a second's worth, so that none owes for long."""
        return min(bytes_max, self._bytes_per_s_max) if self._bytes_per_s_max else bytes_max

    def owed_s(self, client: Client) -> float:
        """For so long the client may have nothing of the archive; 0: it may."""
        bucket = self._buckets.get(client)
        return 0.0 if bucket is None else min(bucket.owed_s(self._clock()), PAUSE_MAX_S)

    def spend(self, client: Client, size_bytes: int) -> float:
        """Archived bytes that go out to it now. Returns `owed_s`."""
        if not self._bytes_per_s_max or not size_bytes:
            return self.owed_s(client)
        now = self._clock()
        bucket = self._buckets.get(client)
        if bucket is None:
            bucket = self._buckets[client] = TokenBucket(self._bytes_per_s_max, now)
        return min(bucket.spend(size_bytes, now), PAUSE_MAX_S)


class ConnectionPace:
    """One connection's part in its client's rate: what it was told, and whether it has waited.

    Who has waited as long as it was told is served, whatever other connections of the same client
    have had meanwhile: they would be first for ever.
    """

    def __init__(self, rates: ClientRates) -> None:
        self._rates = rates
        self._pause_s = 0.0
        self._waited = False

    def owed_s(self, client: Client) -> float:
        """At the begin of a fetch: for so long it may have nothing of the archive."""
        waited, self._waited = self._waited, False
        return 0.0 if waited else self._rates.owed_s(client)

    def spend(self, client: Client, size_bytes: int, *, told: bool) -> int:
        """Archived bytes that go out. Returns the answer's throttle_time_ms; then comes `pause`.

        `told`: the client is made to wait. Where it is not, it has nothing more until it has paid.
        """
        owed_s = self._rates.spend(client, size_bytes)
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
