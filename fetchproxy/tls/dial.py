"""Connections to a host that may stand for many addresses."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from ipaddress import ip_address
from typing import TypeVar

from fetchproxy.runtime.drills import DRILL
from fetchproxy.tls.protocol import TlsProtocol
from fetchproxy.tls.reloading import ReloadingContext

# A host name may stand for many addresses. The next one is tried after this pause, so that one dead
# address does not use up the time for all of them.
_NEXT_ADDRESS_AFTER_S = 0.25
# The caller limits the whole dial, in a shorter time.
HANDSHAKE_MAX_S = 60.0
P = TypeVar("P", bound=asyncio.BaseProtocol)


async def dial(
    factory: Callable[[], P], host: str, port: int, upstream: ReloadingContext | None
) -> tuple[asyncio.Transport, P]:
    """Connect to a broker. Raises only OSError, also for an address that nobody can dial.

    Kafka accepts host names and ports that Python refuses by other errors than OSError: a label
    that is empty or longer than 63 characters, a NUL, a port that is no port.
    """
    # With this option asyncio leaves a socket open if it is cancelled at the wrong moment, so an IP
    # address, which is alone, does without.
    pause_s = None if _is_ip_address(host) else _NEXT_ADDRESS_AFTER_S
    connect = partial(
        asyncio.get_running_loop().create_connection,
        host=host,
        port=port,
        happy_eyeballs_delay=pause_s,
    )
    DRILL.before_dial((host, port))
    try:
        if upstream is None:
            transport, protocol = await connect(factory)
        else:
            transport, protocol = await _dial_tls(connect, factory(), host, upstream)
    # A UnicodeError is a ValueError. asyncio raises IndexError if each try failed by any of these.
    except ssl.SSLError:  # one about a certificate is a ValueError, too
        raise
    except (ValueError, OverflowError, IndexError) as error:
        raise OSError(f"this address cannot be used: {error}") from error
    DRILL.dialed((host, port), transport)
    return transport, protocol


def server_name(host: str) -> str:
    """The name of a broker that is dialed as `host`, in TLS."""
    return host.rstrip(".")


async def _dial_tls(
    connect: Callable[..., Awaitable[tuple[asyncio.Transport, asyncio.BaseProtocol]]],
    app: P,
    host: str,
    upstream: ReloadingContext,
) -> tuple[asyncio.Transport, P]:
    """`host` is the name that the cluster advertises or that the bootstrap list has. The
    certificate has to be for `host`, which is also sent as server name unless it is an IP address.
    """
    waiter = asyncio.get_running_loop().create_future()
    of_app: list[asyncio.Transport] = []

    def begin() -> TlsProtocol:
        tls = upstream.protocol(app, waiter, HANDSHAKE_MAX_S, server_name(host))
        of_app.append(tls.app_transport)
        return tls

    raw_transport, _ = await connect(begin)
    try:
        await waiter
    except BaseException:
        raw_transport.abort()
        raise
    return of_app[0], app


def _is_ip_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
