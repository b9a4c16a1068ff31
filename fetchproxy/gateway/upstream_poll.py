"""A fetch that the proxy sends in the client's place, for the partitions that are not withheld."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from fetchproxy.gateway.answers import FetchAnswer
from fetchproxy.gateway.fetch_session import UpstreamFetch
from protocol.fetch_request import FetchRequest, encode_fetch_request


@dataclass(slots=True)
class UpstreamPoll:
    """It may outlive the client's fetch and serve the next one.

    `due_at` (loop time): so long remote data that is ready may be held back to join its answer. Not
    beyond its sending where it is a long poll, or an idle tail would slow every remote read.
    """

    answer: FetchAnswer
    due_at: float
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    done: asyncio.Event = field(default_factory=asyncio.Event)


def encode_poll(request: FetchRequest, upstream: UpstreamFetch, max_wait_ms: int) -> bytes:
    """`request` in the broker's own session; without a wait it asks for whatever is there."""
    return encode_fetch_request(
        request,
        partitions=upstream.partitions,
        forgotten=upstream.forgotten,
        session_id=upstream.session_id,
        session_epoch=upstream.session_epoch,
        max_wait_ms=max_wait_ms,
        min_bytes=request.min_bytes if max_wait_ms else 0,
        bytes_max=request.bytes_max,
    )
