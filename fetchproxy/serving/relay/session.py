"""One client connection and its own connection to one broker.

Most requests pass through untouched; the few that need a look are held until whole and given to
their API's handler. Requests go upstream in order and answers come back in order.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog
from fetchproxy_protocol.apis import WireError

from fetchproxy.observability.metrics import CONNECTIONS_REFUSED
from fetchproxy.serving.relay.addresses import ToldAddresses
from fetchproxy.serving.relay.answers import HeldAnswer, Payload
from fetchproxy.serving.relay.apis.fetch import FetchHandler
from fetchproxy.serving.relay.broker_link import BrokerLink
from fetchproxy.serving.relay.framing import RelayedRequests
from fetchproxy.serving.relay.handling import Session
from fetchproxy.serving.relay.withheld import SharedByFetches
from fetchproxy.serving.session import SessionOwner
from fetchproxy.serving.transport import RecordPipe
from fetchproxy.tls.contexts import in_words

log = structlog.get_logger(__name__)

Connect = Callable[[Callable[[], BrokerLink]], Awaitable[BrokerLink]]


@dataclass(frozen=True, slots=True)
class Relay:
    """What all sessions of the relay share. `clients_use_sasl`: brokers ask them for it."""

    fetches: SharedByFetches
    records: RecordPipe | None
    clients_use_sasl: bool


class RelaySession(Session):
    """`connect(factory)` reaches the broker that this listener stands for, or raises OSError."""

    requests: RelayedRequests
    fetch: FetchHandler

    def __init__(
        self,
        owner: SessionOwner,
        relay: Relay,
        addresses: ToldAddresses,
        connect: Connect,
        node_id: int | None = None,
    ) -> None:
        super().__init__(owner, relay.fetches.archive, addresses, node_id)
        self._relay = relay
        self._connect = connect
        self._upstream_slow = False
        self.fetch = FetchHandler(self, relay.fetches)
        self.requests = RelayedRequests(self, owner, relay.clients_use_sasl)

    # -- asyncio ---------------------------------------------------------------------------------
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._owner.tells_reached:
            local = transport.get_extra_info("sockname")
            self.addresses.reached = local[0] if local else None
        super().connection_made(transport)

    def buffer_updated(self, nbytes: int) -> None:
        if self.closing:
            return  # TLS reads on while it ends, even within close()
        self.heard = True
        self._take(self._receive.view[:nbytes])
        self._receive.release(self.link.transport if self.link else None)

    def pause_writing(self) -> None:
        self._writable.clear()
        if self.link is not None:
            self.link.client_slow(True)

    def resume_writing(self) -> None:
        self._writable.set()
        if self.link is not None:
            self.link.client_slow(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self.fetch.close()
        super().connection_lost(exc)

    # -- life ------------------------------------------------------------------------------------
    async def _may_begin(self) -> bool:
        await self._wanted.wait()
        return not self.closing and await self._reach_broker()

    async def _reach_broker(self) -> bool:
        transport, records = self._transport, self._relay.records
        frame_max = self._config.frame_bytes_max
        if transport is None:
            return False
        try:
            self.link = await self._connect(
                lambda: BrokerLink(self, self._receive, transport, frame_max, records)
            )
        except OSError as error:
            CONNECTIONS_REFUSED.labels("broker_unreachable").inc()
            log.warning("broker_unreachable", client=self.client, error=str(error))
            return False
        if self.link.transport is None:
            return False
        self.link.transport.set_write_buffer_limits(high=self._limits.buffer_bytes_max)
        return True

    def _drop(self) -> None:
        self.link = None
        self.fetch.drop()

    def _transports(self) -> list[asyncio.Transport]:
        both = self._transport, self.link.transport if self.link else None
        return [transport for transport in both if transport is not None]

    def _end(self) -> None:
        self._wanted.set()
        super()._end()

    # -- looked at by the listener, again and again ------------------------------------------------
    def silent_s(self, now: float) -> float:
        """Neither side has sent anything."""
        link = self.link
        if self.heard or (link is not None and link.heard):
            self._heard_at, self.heard = now, False
            if link is not None:
                link.heard = False
        return now - self._heard_at

    @property
    def kept_bytes(self) -> int:
        """In memory: unsent to either side, what is not whole, and the fetch session."""
        unsent = 0 if self._transport is None else self._transport.get_write_buffer_size()
        of_broker = 0 if self.link is None else self.link.kept_bytes
        return unsent + of_broker + self.requests.kept_bytes + self.fetch.kept_bytes

    # -- what the link tells (LinkOwner) -----------------------------------------------------------
    def answered(self) -> None:
        assert self.link is not None
        if not self.link.expected:
            self._drained.set()
        if self.requests.limited and not self.at_inflight_limit():
            self.requests.limited = False
            self._take(memoryview(b""))
            self._pace()
        if self.requests.ended:  # the bytes of this answer are yet to be written
            self.soon(self.requests.close_if_answered)

    def rewrite(self, answer: HeldAnswer) -> Payload | None:
        payload = answer.rewrite(bytes(answer.payload))
        if isinstance(payload, Awaitable):
            self.spawn(self._rewrite(payload), "rewrite-answer")
            return None
        return payload

    async def _rewrite(self, payload: Awaitable[Payload]) -> None:
        try:
            new = await payload
        except WireError as error:
            self._refuse(error, "broker")
        except OSError as error:
            self.close("no_listener_for_broker", error=str(error))
        else:
            if self.link is not None:
                self.link.rewritten(new)

    def link_failed(self, error: WireError) -> None:
        self._refuse(error, "broker")

    def link_closed(self, error: Exception | None) -> None:
        if error is not None:
            words = in_words(error) if isinstance(error, OSError) else str(error)
            log.info("broker_connection_lost", client=self.client, error=words)
        self.close()

    def broker_slow(self, slow: bool) -> None:
        self._upstream_slow = slow
        self._pace()

    # -- requests --------------------------------------------------------------------------------
    @property
    def _held_back(self) -> bool:
        return self.muted or self._upstream_slow or self.requests.limited
