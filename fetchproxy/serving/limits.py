"""How many clients may be connected, and what all their connections may hold together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import TypeVar

from fetchproxy.config.schema import GatewayConfig
from fetchproxy.observability.metrics import CONNECTIONS_REFUSED, LIMITS_REACHED
from fetchproxy.tls.acceptor import TlsAcceptor, Warn, ip_of

# How many clients may be connected, in all and from one address. Opens and closes nothing.


class ConnectionLimits:
    """`client` is `address:port`. Those that `acceptor` has still shaking hands count as well."""

    def __init__(self, config: GatewayConfig, warn: Warn) -> None:
        self._config = config
        self._warn = warn
        self._open = 0
        self._by_ip: Counter[str] = Counter()

    def admit(self, client: str, acceptor: TlsAcceptor | None) -> bool:
        """Whether one more connection may be; says so if not."""
        ip = ip_of(client)
        of_ip = self._by_ip[ip] + (acceptor.in_handshake(ip) if acceptor else 0)
        limits = (
            ("connections_max", self.count(acceptor), self._config.connections_max),
            ("connections_per_ip_max", of_ip, self._config.connections_per_ip_max),
        )
        for reason, count, limit in limits:
            if count >= limit:
                LIMITS_REACHED.labels(reason).inc()
                CONNECTIONS_REFUSED.labels("limit").inc()
                self._warn(
                    "client_connection_closed",
                    (reason, ip),
                    client=client,
                    reason=reason,
                    limit=limit,
                )
                return False
        return True

    def count(self, acceptor: TlsAcceptor | None) -> int:
        return self._open + (0 if acceptor is None else len(acceptor))

    def opened(self, client: str) -> None:
        self._open += 1
        self._by_ip[ip_of(client)] += 1

    def closed(self, client: str) -> None:
        """Of one that was `opened`, once."""
        ip = ip_of(client)
        self._open -= 1
        self._by_ip[ip] -= 1
        if not self._by_ip[ip]:
            del self._by_ip[ip]


# What all connections hold together, and which of them go when that is too much. Pure.
#
# A relay pauses the faster side, so what one connection holds is bounded by
# `gateway.buffer_bytes_max`, a read of the other side, the frames that have to be whole before
# they are looked at, and the partitions of a fetch session. A thousand connections are bounded
# here.

T = TypeVar("T")


def to_close(held: Collection[tuple[int, T]], bytes_max: int) -> list[T]:
    """Of (bytes, connection): those that hold most, as few as bring the rest within the limit."""
    above = sum(size for size, _ in held) - bytes_max
    closed: list[T] = []
    if above <= 0:
        return closed
    for size, connection in sorted(held, key=lambda pair: pair[0], reverse=True):
        if above <= 0:
            break
        closed.append(connection)
        above -= size
    return closed
