"""What a session and the APIs of the relay say to each other.

A module in `apis` has one `API`, or the `APIS` that are handled alike; `apis.table` puts them
together. A request either *passes* to the broker as it arrives, without ever being whole, and only
its answer is looked at; or it is *held* until it is whole. Nothing here knows a single API.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey
from fetchproxy_protocol.headers import RequestHead
from fetchproxy_protocol.primitives import INT32, Buffer

from fetchproxy.serving.admission import Share
from fetchproxy.serving.relay.addresses import ToldAddresses
from fetchproxy.serving.relay.answers import Answer
from fetchproxy.serving.relay.broker_link import BrokerLink
from fetchproxy.serving.relay.served_archive import ServedArchive
from fetchproxy.serving.session import ClientSession, SessionOwner

VERSION_MAX = 32_767


# --- the session, as APIs see it ---
class Fetches(Protocol):
    """The fetches of one connection (`apis.fetch`)."""

    share: Share

    @property
    def parked(self) -> object | None:
        """A poll upstream waits for a fetch of the client that takes it up."""

    def on_request(self, frame: bytes, body_at: int) -> bool:
        """A whole framed request. False: one is under way, come again when the session unmutes."""

    def only_parked(self, expected: Iterable[Answer]) -> bool:
        """Nothing is due but that poll's answer."""

    async def discard_parked(self) -> None:
        """Get a parked poll out of the way."""


class Session(ClientSession):
    """A client's connection with the broker behind it. `addresses`: as this client is told them.

    `node_id` is that broker's, None at the bootstrap address.
    """

    fetch: Fetches

    def __init__(
        self,
        owner: SessionOwner,
        archive: ServedArchive,
        addresses: ToldAddresses,
        node_id: int | None,
    ) -> None:
        super().__init__(owner, archive.purgatory.steps)
        self.archive = archive
        self.addresses = addresses
        self.node_id = node_id
        self.link: BrokerLink | None = None
        self._drained = asyncio.Event()
        self._wanted = asyncio.Event()  # the broker, or nothing any more

    def want_broker(self) -> None:
        """For the first request. Whoever sends none costs no broker a connection."""
        self.muted = True  # until it is connected
        self._wanted.set()

    def link_go_on(self) -> None:
        """An answer that was waited with may flow."""
        if self.link is not None:
            self.link.go_on()

    def expect(self, answer: Answer) -> None:
        """The answer of a request whose bytes pass."""
        if self.link is not None:
            self.link.expected.append(answer)

    def send_upstream(self, request: Buffer, answer: Answer | None) -> None:
        if self.link is not None:
            self.link.send(request, answer)

    def answer_in_turn(self, payload: bytes) -> None:
        """The proxy's own answer, without size prefix, behind all that are due before it."""

        async def answer() -> None:
            await self.drained()
            self.write_to_client(INT32.pack(len(payload)) + payload)

        self.mute_while(answer(), "own-answer")

    def at_inflight_limit(self) -> bool:
        # A parked poll is the proxy's own: counted, it would keep out the fetch that takes it up.
        in_flight = len(self.link.expected) - (self.fetch.parked is not None) if self.link else 0
        return in_flight >= self._limits.inflight_requests_max

    @property
    def nothing_overtaken(self) -> bool:
        """The answer under way is the only one that is due, and no request waits behind it."""
        return self.link is not None and len(self.link.expected) == 1 and not self.muted

    async def drained(self) -> bool:
        """Until every request so far has been answered, but for a parked fetch; True: it waited."""
        assert self.link is not None
        waited = False
        while self.link.expected and not self.fetch.only_parked(self.link.expected):
            waited = True
            self._drained.clear()
            await self._drained.wait()
        return waited


# --- the APIs, as the session sees them ---
class Treatment(StrEnum):
    """In a word, for the compatibility page."""

    RELAYED = "relayed"  # request and answer pass untouched
    REWRITTEN = "rewritten"  # the broker answers, and the proxy changes its answer
    ANSWERED = "answered"  # the broker is not asked
    REFUSED = "refused"  # the connection is closed


@dataclass(frozen=True, slots=True)
class Passes:
    """`expect(session, head, view, end)` says which answer to await; None: there will be none.

    `view[head.body_position:end]` is what has arrived of the body. Raises `Truncated` where that
    is too little to tell, and is then called again with more.
    """

    expect: Callable[[Session, RequestHead, Buffer, int], Answer | None]


@dataclass(frozen=True, slots=True)
class Held:
    """`on_request(session, frame, head, body_at)`: `frame` is whole, with its size prefix.

    The body begins `body_at` bytes behind that prefix. False: look at the request again later.
    """

    on_request: Callable[[Session, bytes, RequestHead, int], bool]


@dataclass(frozen=True, slots=True)
class Behaviour:
    """Versions `first` to `last` of an API; `why` is one line for the compatibility page."""

    first: int
    last: int
    treatment: Treatment
    handling: Passes | Held
    why: str


@dataclass(frozen=True, slots=True)
class Api:
    """`behaviours` are by version, without overlaps; other versions are refused."""

    key: ApiKey
    behaviours: tuple[Behaviour, ...]


def rewritten(key: ApiKey, handling: Passes | Held, why: str) -> Api:
    """In all versions that the proxy can read."""
    versions = PROXIED_VERSIONS[key]
    return Api(key, (Behaviour(*versions, Treatment.REWRITTEN, handling, why),))


RELAY = Passes(lambda session, head, view, end: Answer(head.correlation_id))


def relayed(first: int, last: int, why: str) -> Behaviour:
    return Behaviour(first, last, Treatment.RELAYED, RELAY, why)
