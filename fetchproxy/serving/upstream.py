"""What is behind a client's session besides the archive: a broker's connection, or nothing.

A session writes requests to it and keeps the responses that are due. So it need not ask whether
there is a broker, and the archive alone is the upstream that takes nothing and owes nothing.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from fetchproxy_protocol.primitives import Buffer


class ExpectedResponse:
    """A response that passes unchanged. `correlation_id` is checked against the broker's."""

    __slots__ = ("correlation_id",)

    walked_slowly = False  # its scan is so costly that it is received in small pieces

    def __init__(self, correlation_id: int) -> None:
        self.correlation_id = correlation_id

    def done(self) -> None:
        """The whole response has left."""

    def passes(self, frame: memoryview) -> bool:
        """True: the client may get `frame`, which is the whole response. Patches it in place if
        needed.
        """
        return True


class Upstream(Protocol):
    """`has_received`: bytes have come since the session last looked. `tells_responded`: the session
    waits for responses to leave. `expected`: the responses that are due, in the order of requests.
    `address`: the broker's, as it was dialed. `takes_requests`: False while there is no broker to
    send them to.
    """

    takes_requests: bool

    address: tuple[str, int] | None
    transport: asyncio.Transport | None
    has_received: bool
    tells_responded: bool
    expected: deque[ExpectedResponse]

    @property
    def kept_bytes(self) -> int:
        """Bytes of incomplete responses, and of requests that were not taken yet."""

    @property
    def waiting_for(self) -> ExpectedResponse | None:
        """The only response that is due, if nothing of it has come yet."""

    def send(self, data: Buffer, response: ExpectedResponse | None) -> None:
        """A whole request, or the first bytes of one."""

    def client_slow(self, slow: bool) -> None: ...

    def go_on(self) -> None:
        """Let a parked response through."""

    def rewritten(self, payload: Sequence[Buffer]) -> None:
        """Send `payload` in place of the response that the session was given to rewrite."""


@dataclass(eq=False)
class ArchiveAlone:
    """In archive-only mode, before a client's first request, and when the session is over. All
    sessions share one.
    """

    takes_requests: bool = False
    address: tuple[str, int] | None = None
    transport: asyncio.Transport | None = None
    has_received: bool = False
    tells_responded: bool = False
    expected: deque[ExpectedResponse] = field(default_factory=lambda: deque(maxlen=0))
    kept_bytes: int = 0
    waiting_for: None = None

    def send(self, data: Buffer, response: ExpectedResponse | None) -> None: ...

    def client_slow(self, slow: bool) -> None: ...

    def go_on(self) -> None: ...

    def rewritten(self, payload: Sequence[Buffer]) -> None: ...


ARCHIVE_ALONE = ArchiveAlone()
