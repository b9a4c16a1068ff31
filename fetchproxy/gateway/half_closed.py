"""Clients that have ended their sending, and those that are gone: what asyncio does not tell."""

from __future__ import annotations

import asyncio
import select
from asyncio.trsock import TransportSocket


def may_half_close(transport: asyncio.BaseTransport) -> bool:
    """Whether answers can still be sent when the other side has ended its sending.

    asyncio's TLS always ends both directions at once.
    """
    return transport.get_extra_info("sslcontext") is None


def is_reset(transport: asyncio.BaseTransport) -> bool:
    """Whether the other side is gone, of a connection that asyncio does not read, and so not watch.

    One that has only ended its sending is still there.
    """
    found: TransportSocket | None = transport.get_extra_info("socket")
    if found is None:
        return False
    look = select.poll()
    look.register(found, 0)  # what cannot be left out: an error, a hang-up of both directions
    return bool(look.poll(0))
