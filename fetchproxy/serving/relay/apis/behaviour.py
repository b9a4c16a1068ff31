"""What the gateway can do with a request. Every module here that is named after an API has one
`API`, and `table` puts them together.

A request either *passes* to the broker as it arrives, without ever being whole, and only its answer
is looked at; or it is *held* until it is whole. Nothing here knows a single API.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from fetchproxy.serving.relay.answers import Answer
from fetchproxy.serving.relay.parts import GatewayParts
from protocol.apis import ApiKey
from protocol.headers import RequestHead
from protocol.primitives import Buffer

if TYPE_CHECKING:
    from fetchproxy.serving.relay.session import ClientSession

VERSION_MAX = 32_767


class Treatment(StrEnum):
    """In a word, for the compatibility page."""

    RELAYED = "relayed"  # request and answer pass untouched
    REWRITTEN = "rewritten"  # the broker answers, and the proxy changes its answer
    ANSWERED = "answered"  # the broker is not asked
    REFUSED = "refused"  # the connection is closed


@dataclass(frozen=True, slots=True)
class Passes:
    """`expect(parts, head, view, end)` says which answer to await; None: there will be none.

    `view[head.body_position:end]` is what has arrived of the body. Raises `Truncated` where that
    is too little to tell, and is then called again with more.
    """

    expect: Callable[[GatewayParts, RequestHead, Buffer, int], Answer | None]


@dataclass(frozen=True, slots=True)
class Held:
    """`on_request(session, frame, head, body_at)`: `frame` is whole, with its size prefix.

    The body begins `body_at` bytes behind that prefix. False: look at the request again later.
    """

    on_request: Callable[[ClientSession, bytes, RequestHead, int], bool]


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


RELAY = Passes(lambda parts, head, view, end: Answer(head.correlation_id))


def relayed(first: int, last: int, why: str) -> Behaviour:
    return Behaviour(first, last, Treatment.RELAYED, RELAY, why)
