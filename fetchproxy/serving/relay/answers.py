"""What a connection expects from the broker, in request order: one object per answer.

A `RelayedAnswer` passes untouched. A `HeldAnswer` is gathered whole and rewritten, perhaps after
waiting for something. A `FetchAnswer` is scanned while it streams; it may be *parked*: asked for,
but not taken off the socket before a fetch of the client wants it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from fetchproxy_protocol.fetch import LogStarts, head_bytes, plain_session_id
from fetchproxy_protocol.fetch_scan import FetchResponseScan, OnError, OnHead, SpliceTags, Withhold
from fetchproxy_protocol.primitives import INT32, Buffer

# The broker's session id → the one that the client is shown; None: more is to be changed.
OnPlain = Callable[[int], int | None]
Payload = Sequence[Buffer]
Rewrite = Callable[[bytes], Payload | Awaitable[Payload]]


class Answer:
    """An answer that passes as it comes. `correlation_id` is checked against the broker's."""

    __slots__ = ("correlation_id",)

    walked_slowly = False  # what lies in it is looked at so closely that little may come at once
    on_done: Callable[[], None] | None = None  # asked of those that leave whole

    def __init__(self, correlation_id: int) -> None:
        self.correlation_id = correlation_id

    def done(self) -> None:
        """It has left whole."""
        if (on_done := self.on_done) is not None:
            self.let_go()
            on_done()

    def let_go(self) -> None:
        """Nothing of it is wanted any more."""

    def passes(self, frame: memoryview) -> bool:
        """`frame` is the whole of it, and may leave as it lies (it was patched, where need be)."""
        return True


@dataclass(eq=False, repr=False, slots=True)
class HeldAnswer(Answer):
    """`rewrite` takes the payload without size prefix and gives the payload to send instead.

    It gives an awaitable only where it must wait; most answers are rewritten on the spot.
    """

    correlation_id: int
    rewrite: Rewrite
    payload: bytearray = field(default_factory=bytearray)
    left: int = 0

    def passes(self, frame: memoryview) -> bool:
        return False


@dataclass(eq=False, repr=False, slots=True)
class FetchAnswer(Answer):
    """A Fetch answer on its way. Either attached to the client's fetch, or parked."""

    correlation_id: int
    version: int
    _splice_tags: SpliceTags
    log_starts: LogStarts | None = None
    frame_bytes: int = 0  # known from its arrival on
    _on_head: OnHead | None = None
    _on_error: OnError | None = None
    _withhold: Withhold | None = None
    any_empty: bool = False  # `withhold` is asked of any answer without records
    on_done: Callable[[], None] | None = None
    on_arrival: Callable[[], None] | None = None
    on_plain: OnPlain | None = None  # asked in place of `on_head` and `on_error`
    own_session: bool = True  # the client is shown another session than the broker's
    plain_session_id: int | None = None  # `on_plain` is to be told, once it has left
    walked_slowly: bool = False  # it may be of very many partitions
    discarded: bool = False  # scanned like any other, but nothing leaves

    @property
    def attached(self) -> bool:
        return self._on_head is not None

    def attach(
        self,
        on_head: OnHead,
        on_error: OnError,
        on_done: Callable[[], None],
        withhold: Withhold | None = None,
    ) -> None:
        """From now on the answer may flow. The link must be told to go on.

        `withhold`: see `FetchResponseScan`. An answer that it keeps is done like any other.
        """
        self._on_head, self._on_error, self.on_done = on_head, on_error, on_done
        self._withhold = withhold

    def done(self) -> None:
        if self.plain_session_id is not None and self.on_plain is not None:
            self.on_plain(self.plain_session_id)
        Answer.done(self)

    def let_go(self) -> None:
        """It is done with: what it would have called may hold it, and all of a large request."""
        self._on_head = self._on_error = self._withhold = None
        self.on_done = self.on_arrival = self.on_plain = None

    def passes(self, frame: memoryview) -> bool:
        """False: it is to be scanned."""
        if self.on_plain is None:
            return False
        session_id = plain_session_id(frame, self.version, self.log_starts)
        if session_id is None:
            return False
        if not self.own_session:
            self.plain_session_id = session_id
            return True
        shown_id = self.on_plain(session_id)
        if shown_id is None:
            return False
        if shown_id != session_id:
            INT32.pack_into(frame, head_bytes(self.version) - INT32.size, shown_id)
        return True

    def begin(self, frame_bytes: int) -> FetchResponseScan:
        assert self._on_head is not None
        assert self._on_error is not None
        return FetchResponseScan(
            self.version,
            frame_bytes,
            self._on_head,
            self._on_error,
            self._splice_tags,
            self.log_starts,
            self._withhold,
            self.any_empty,
        )
