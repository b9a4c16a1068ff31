"""What a session and the APIs of the relay say to each other.

A module in `apis` has one `API`, or the `APIS` that are handled alike; `apis.table` puts them
together. A request either *passes* to the broker as it arrives, without ever being whole, and only
its answer is looked at; or it is *held* until it is whole. Nothing here knows a single API, nor the
session itself.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fetchproxy_protocol.apis import PROXIED_VERSIONS, ApiKey
from fetchproxy_protocol.headers import RequestHead
from fetchproxy_protocol.primitives import Buffer

from fetchproxy.serving.relay.addresses import ToldAddresses
from fetchproxy.serving.relay.answers import Answer
from fetchproxy.serving.relay.served_archive import ServedArchive

VERSION_MAX = 32_767


# --- the session, as APIs see it ---
class Fetches(Protocol):
    """The fetches of one connection, as APIs see them (`apis.fetch`)."""

    def on_request(self, frame: bytes, body_at: int) -> bool:
        """A whole framed request. False: one is under way, come again when the session unmutes."""

    def software_is(self, name: str, version: str) -> None:
        """What the client's library calls itself."""


class Session(Protocol):
    """A client's connection with the broker behind it. `addresses`: as this client is told them."""

    archive: ServedArchive
    addresses: ToldAddresses

    @property
    def fetch(self) -> Fetches: ...

    def expect(self, answer: Answer) -> None:
        """The answer of a request whose bytes pass."""

    def send_upstream(self, request: Buffer, answer: Answer | None) -> None: ...

    def answer_in_turn(self, payload: bytes) -> None:
        """The proxy's own answer, without size prefix, behind all that are due before it."""

    def mute_while(self, work: Coroutine[None, None, object], name: str) -> None:
        """No further request is looked at before `work` is done; it may write to the client."""


class FetchingSession(Session, Protocol):
    """What fetches ask of it besides. `node_id`: None at the bootstrap address.

    `payer`: whom archived bytes count for, known once the client is there.
    """

    node_id: int | None
    client: str
    payer: str

    @property
    def client_host(self) -> str: ...

    @property
    def nothing_overtaken(self) -> bool:
        """The answer under way is the only one that is due, and no request waits behind it."""

    def spawn(self, work: Coroutine[None, None, object], name: str) -> None: ...

    async def drained(self) -> bool:
        """Until every request so far has been answered, but for a parked fetch; True: it waited."""

    def link_go_on(self) -> None:
        """An answer that was waited with may flow."""

    def write_to_client(self, data: Buffer) -> None: ...

    async def write_as_taken(self, pieces: Iterable[Buffer]) -> None:
        """No faster than the client takes them; for work that mutes, with nothing due."""


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
