"""Bytes to requests: cuts what a client sends into frames. It does no I/O.

What cannot be right is refused by its first bytes. Nothing is looked at while the session is muted;
what has arrived by then is kept. What becomes of a request is each server's own matter (`_accept`,
`_consume`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from fetchproxy_protocol.apis import FrameTooLarge, MalformedMessage, Truncated
from fetchproxy_protocol.headers import (
    REQUEST_HEADER_BYTES_MAX,
    REQUEST_HEADER_BYTES_MIN,
    RequestHead,
    peek_request_header,
)
from fetchproxy_protocol.primitives import INT32

from fetchproxy.runtime.loop import MESSAGES_A_TURN
from fetchproxy.tls.contexts import looks_like_tls

Handling = TypeVar("Handling")  # what a server does with a request


class Reads(Protocol):
    """The session, as framing sees it."""

    muted: bool  # no further request is to be looked at

    def soon(self, callback: Callable[[], None]) -> None:
        """Call it in the loop's next turn."""

    def take_more(self) -> None:
        """Give `take` what was left for a later turn."""

    def close(self) -> None: ...


class RequestFraming(ABC, Generic[Handling]):
    """One client's requests. `begun_at` is loop time while a frame is under way, else None.

    `bytes_max`: of a request, without its size prefix.
    """

    def __init__(self, session: Reads, clock: Callable[[], float], bytes_max: int) -> None:
        self._reads = session
        self._clock = clock
        self.bytes_max = bytes_max
        self._carry = bytearray()
        self._whole_at = 0  # bytes of `_carry` with which the request is whole that it begins with
        self._left = 0  # of a request that leaves as it comes
        self.limited = False  # as many requests are in flight as may be
        self._left_in_turn = 0  # of MESSAGES_A_TURN
        self._goes_on = False  # with the next requests, in the loop's next turn
        self.ended = False  # the client sends no more
        self.begun_at: float | None = None

    @abstractmethod
    def _consume(self, view: memoryview) -> int:
        """Work through `view`; returns the position up to which it is done with."""

    @abstractmethod
    def _is_full(self) -> bool:
        """As many requests are in flight as may be: `limited` says so until there is room."""

    @abstractmethod
    def _accept(self, size: int, head: RequestHead) -> Handling | None:
        """What becomes of a request by its header; None: it is to be looked at again later."""

    @abstractmethod
    def _check_size(self, size: int) -> None:
        """Of a request that is larger than `bytes_max`: raises WireError, or lets it pass."""

    @property
    def kept_bytes(self) -> int:
        """Of requests that are not whole, or not to be looked at yet."""
        return len(self._carry)

    def drop(self) -> None:
        """Nobody wants the rest any more."""
        self._carry = bytearray()

    def end(self) -> bool:
        """The client sends no more. True: some of what it asked for is still to be answered."""
        self.ended = True
        self.begun_at = None
        return not self._all_answered

    def close_if_answered(self) -> None:
        """The session, if the client sends no more and has nothing to wait for."""
        if self.ended and self._all_answered:
            self._reads.close()

    @property
    def _all_answered(self) -> bool:
        """All that has come whole: what was cut off has no other part to come."""
        return not (self._reads.muted or self.limited or self._goes_on)

    def take(self, view: memoryview) -> None:
        """Raises WireError; what is not to be looked at yet is kept."""
        carry = self._carry
        if carry:
            carry += view  # in place: a large request is neither copied nor read at every packet
        if len(carry or view) >= self._whole_at and not self._reads.muted:
            self._whole_at = 0
            view, self._carry = memoryview(carry or view), bytearray()
            self._left_in_turn = MESSAGES_A_TURN
            rest = self._consume(view)
            if rest < len(view):
                self._carry = bytearray(view[rest:])
        elif not carry:
            self._carry = bytearray(view)
        waits = self._reads.muted or self.limited or self.ended
        if not (self._carry or self._left) or waits:
            self.begun_at = None
        elif self.begun_at is None:
            self.begun_at = self._clock()

    def _next(
        self, view: memoryview, pos: int, end: int
    ) -> tuple[int, RequestHead, Handling] | None:
        """(size, header, handling) of the request at `pos`; None: not to be looked at yet."""
        if end - pos < 4:
            return None
        size: int = INT32.unpack_from(view, pos)[0]
        if size < REQUEST_HEADER_BYTES_MIN:
            raise self._not_a_size(size, self.bytes_max)
        if size > self.bytes_max:
            self._check_size(size)
        if end - pos < 4 + REQUEST_HEADER_BYTES_MIN:
            return None
        if not self._left_in_turn:
            self._go_on_soon()
            return None
        if self._is_full():
            return None
        try:
            head = peek_request_header(view, pos + 4, min(end, pos + 4 + size))
        except Truncated as error:
            self._wait_for_more(error, end - pos, size + 4)
            return None
        handling = self._accept(size, head)
        if handling is None:
            return None
        self._left_in_turn -= 1
        return size, head, handling

    def _go_on_soon(self) -> None:
        """The others' requests come first."""
        if not self._goes_on:
            self._goes_on = True
            self._reads.soon(self._take_more)

    def _take_more(self) -> None:
        self._goes_on = False
        self._reads.take_more()

    @staticmethod
    def _wait_for_more(error: Truncated, there: int, whole: int) -> None:
        """Raises where what is still to come of a request, `whole` bytes in all, would not help."""
        if there >= whole:
            raise error
        if there >= REQUEST_HEADER_BYTES_MAX:
            raise MalformedMessage(
                f"the beginning of a request is longer than {REQUEST_HEADER_BYTES_MAX} bytes"
            )

    @staticmethod
    def _not_a_size(size: int, bytes_max: int, limit: str = "frame_bytes_max") -> FrameTooLarge:
        tls = ": it speaks TLS, and this listener plaintext" if looks_like_tls(size) else ""
        return FrameTooLarge(
            f"size prefix {size} is not within {REQUEST_HEADER_BYTES_MIN} … {bytes_max}{tls}",
            limit,
        )
