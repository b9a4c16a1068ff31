"""Takes connections of load balancers that begin with a PROXY header, and hands them on.

It comes before TLS. A balancer is trusted with the address of each of its clients, so only
connections from `gateway.proxy_protocol_from` are asked for a header. All others pass unread, and a
header of theirs is refused like anything else that is not Kafka's protocol.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import cast

from fetchproxy.observability.logs import SparingWarnings
from fetchproxy.observability.metrics import LIMITS_REACHED, WIRE_ERRORS
from fetchproxy.serving.proxy_header import (
    PROXY_HEADER_BYTES_MAX,
    BadProxyHeader,
    ProxyHeader,
    read_proxy_header,
)
from fetchproxy.serving.session import CLOSE_DELAY_S
from fetchproxy.serving.transport import ReceiveBuffer
from fetchproxy.tls.acceptor import ClientAddress, ip_of

_HINT = (
    "let the balancer send the PROXY protocol (HAProxy: send-proxy-v2), or take its address out of "
    "gateway.proxy_protocol_from"
)
# Makes the protocol of a connection. It is told the client's address if that is not the socket's.
Begin = Callable[[ClientAddress | None], asyncio.BufferedProtocol]


@dataclass(eq=False, repr=False)
class ProxyAcceptor:
    """The load balancers' connections until each has named its client. Pass
    `protocol_factory(begin)` to `loop.create_server`.

    `admit()` returns False, and reports it, if there is one connection too many.
    """

    balancers: Sequence[IPv4Network | IPv6Network]
    header_max_ms: int
    receive: ReceiveBuffer
    admit: Callable[[str], bool]
    warnings: SparingWarnings
    waiting: set[_Gate] = field(default_factory=set)  # connections whose header has not come

    def protocol_factory(self, begin: Begin) -> Callable[[], asyncio.BaseProtocol]:
        return lambda: _Gate(self, begin)

    def close(self) -> None:
        """Connections that were handed on stay open."""
        for gate in list(self.waiting):
            gate.abort()

    def trusts(self, host: str) -> bool:
        address = ip_address(host.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None)
        return any((mapped or address) in balancer for balancer in self.balancers)


class _Gate(asyncio.BufferedProtocol):
    """One connection until its header is whole."""

    def __init__(self, acceptor: ProxyAcceptor, begin: Begin) -> None:
        self._acceptor = acceptor
        self._begin = begin
        self._transport: asyncio.Transport | None = None
        self._data = b""
        self._ends: asyncio.TimerHandle | None = None
        self._over = False
        self._balancer = ""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        if not peer or not self._acceptor.trusts(peer[0]):
            self._hand_on(ProxyHeader(None, 0))
            return
        self._balancer = f"{peer[0]}:{peer[1]}"
        if not self._acceptor.admit(self._balancer):
            self.abort()
            return
        self._acceptor.waiting.add(self)
        loop = asyncio.get_running_loop()
        self._ends = loop.call_later(self._acceptor.header_max_ms / 1000, self._too_late)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._acceptor.receive.view[:PROXY_HEADER_BYTES_MAX]

    def buffer_updated(self, nbytes: int) -> None:
        if self._over:
            return
        self._data += self._acceptor.receive.view[:nbytes]
        try:
            header = read_proxy_header(self._data)
        except BadProxyHeader as error:
            self._refuse(error)
            return
        if header is not None:
            self._hand_on(header)

    def connection_lost(self, exc: Exception | None) -> None:
        """Without a header, as after each health check that only connects."""
        self._leave()

    def abort(self) -> None:
        self._leave()
        if self._transport is not None:
            self._transport.abort()

    def _leave(self) -> None:
        self._over = True
        self._acceptor.waiting.discard(self)
        if self._ends is not None:
            self._ends.cancel()

    def _hand_on(self, header: ProxyHeader) -> None:
        """The next protocol gets the bytes behind the header as if they came now."""
        assert self._transport is not None
        self._leave()
        remainder, self._data = self._data[header.size :], b""
        protocol = self._begin(header.client)
        self._transport.set_protocol(protocol)
        protocol.connection_made(self._transport)
        if remainder:
            # The protocol's own tasks begin first, as with bytes from the socket.
            asyncio.get_running_loop().call_soon(_feed, self._transport, protocol, remainder)

    def _too_late(self) -> None:
        LIMITS_REACHED.labels("proxy_header_max_ms").inc()
        waited_ms = self._acceptor.header_max_ms
        self._say_closed("proxy_header_max_ms", error=f"no whole PROXY header in {waited_ms} ms")
        self.abort()

    def _refuse(self, error: BadProxyHeader) -> None:
        """The connection stays for a moment, and counts: see `ClientSession.close_late`."""
        assert self._transport is not None
        assert self._ends is not None
        WIRE_ERRORS.labels("BadProxyHeader").inc()
        self._say_closed("bad_proxy_header", error=str(error))
        self._over, self._data = True, b""
        self._transport.pause_reading()
        self._ends.cancel()
        self._ends = asyncio.get_running_loop().call_later(CLOSE_DELAY_S, self.abort)

    def _say_closed(self, reason: str, error: str) -> None:
        self._acceptor.warnings.warn(
            "client_connection_closed",
            (ip_of(self._balancer), reason),
            client=self._balancer,
            reason=reason,
            error=error,
            hint=_HINT,
        )


def _feed(transport: asyncio.Transport, protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    if not transport.is_closing():
        memoryview(protocol.get_buffer(len(data)))[: len(data)] = data
        protocol.buffer_updated(len(data))
