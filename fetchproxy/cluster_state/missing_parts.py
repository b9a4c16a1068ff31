"""What of a state could not be read, and how a broker is asked for a part of it.

A broker that refuses a right, or has no such request, makes a hole with a name in the state. Any
other failure ends the reading: a state of a cluster in trouble would look like a smaller cluster.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from fetchproxy_protocol.apis import ErrorCode

from fetchproxy.brokers.connections import BrokerConnection
from fetchproxy.brokers.messages import RETRIABLE, body_of
from fetchproxy.cluster_state.state import MissingPart
from fetchproxy.errors import ClusterError

T = TypeVar("T")

# Between two requests of one kind, so that thousands of them leave room for clients' requests.
PAUSE_S = 0.02
_NAMES_SHOWN_MAX = 3
_DENIED = (
    ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    ErrorCode.GROUP_AUTHORIZATION_FAILED,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
)
_PASSES = RETRIABLE | {
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
}


class MissingParts:
    """The holes of one state, in the order in which they were found. There may be one for each
    topic of a cluster.
    """

    def __init__(self) -> None:
        self._parts: dict[MissingPart, None] = {}

    @property
    def parts(self) -> tuple[MissingPart, ...]:
        return tuple(self._parts)

    def note(self, what: str, error: ClusterError, right: str = "") -> None:
        """`right`: what would have to be allowed, if the broker refuses. Raises `error` itself if
        the same request may succeed later.
        """
        code = error.error_code
        if error.retriable or code is None or code in _PASSES:
            raise error
        if code == ErrorCode.UNSUPPORTED_VERSION:
            self.add(what, "the brokers do not support the request")
        else:
            self.add(what, str(error), right if code in _DENIED else "")

    def add(self, what: str, why: str, right: str = "") -> None:
        self._parts[MissingPart(what, why, right)] = None

    async def part(self, what: str, right: str, read: Awaitable[T], nothing: T) -> T:
        """The result of `read`; `nothing` if it is missing. Raises as `note`."""
        try:
            return await read
        except ClusterError as error:
            self.note(what, error, right)
            return nothing


def rights_in_words(missing: Iterable[MissingPart]) -> str:
    """Each right that is missing, with what it is for; "" if none is missing."""
    parts: dict[str, list[str]] = {}
    for one in missing:
        if one.right:
            parts.setdefault(one.right, []).append(one.what)
    return "; ".join(f"{right} (for {_few(what)})" for right, what in parts.items())


def in_words(names: Iterable[str]) -> str:
    """A few of the names, and how many more there are."""
    return _few(sorted(names))


def _few(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN_MAX
    return ", ".join(names[:_NAMES_SHOWN_MAX]) + (f" and {more:,} more" if more > 0 else "")


async def call_decoded(connection: BrokerConnection, request: Any, response: Any) -> Any:
    """As `BrokerConnection.call`, for large responses: they are decoded on a thread."""
    [decoded] = await call_all(connection, [request], response, lambda decoded: decoded)
    return decoded


async def call_all(
    connection: BrokerConnection,
    requests: Iterable[Any],
    response: Any,
    made_of: Callable[[Any], T],
) -> list[T]:
    """Sends all `requests` at once, waits for all responses, and pauses. Returns what `made_of`
    makes of each, on the thread that decodes them: the responses of a hundred groups are 20,000
    offsets, which would hold the loop, and so would freeing them. Raises ClusterError.
    """
    # `Any`: kafka-python makes its message classes at import time, without types for mypy.
    every = list(requests)
    if not every:
        return []
    key = every[0].API_KEY
    version = connection.version_of(key)
    payloads = await connection.send(
        key, version, [request.encode(version=version) for request in every]
    )
    decode: Callable[[], list[T]] = lambda: [  # noqa: E731
        made_of(body_of(response, payload, version)) for payload in payloads
    ]
    decoded = await asyncio.to_thread(decode)
    await asyncio.sleep(PAUSE_S)
    return decoded
