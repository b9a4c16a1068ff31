"""What a connection expects from the broker, in request order: one object per answer.

A `RelayedAnswer` passes untouched. A `HeldAnswer` is gathered whole and rewritten, perhaps after
waiting for something. A `FetchAnswer` is scanned while it streams; it may be *parked*: asked for,
but not taken off the socket before a fetch of the client wants it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from protocol.fetch_scan import FetchResponseScan, LogStarts, OnError, OnHead, SpliceTags
from protocol.primitives import Buffer

Payload = Sequence[Buffer]
Rewrite = Callable[[bytes], Payload | Awaitable[Payload]]


class Answer:
    """An answer that passes as it comes. `correlation_id` is checked against the broker's."""

    __slots__ = ("correlation_id",)

    def __init__(self, correlation_id: int) -> None:
        self.correlation_id = correlation_id


class HeldAnswer(Answer):
    """`rewrite` takes the payload without size prefix and gives the payload to send instead.

    It gives an awaitable only where it must wait; most answers are rewritten on the spot.
    """

    __slots__ = ("left", "payload", "rewrite")

    def __init__(self, correlation_id: int, rewrite: Rewrite) -> None:
        super().__init__(correlation_id)
        self.rewrite = rewrite
        self.payload = bytearray()
        self.left = 0


class FetchAnswer(Answer):
    """A Fetch answer on its way. Either attached to the client's fetch, or parked."""

    __slots__ = (
        "_on_error",
        "_on_head",
        "_splice_tags",
        "discarded",
        "frame_bytes",
        "log_starts",
        "on_arrival",
        "on_done",
        "version",
    )

    def __init__(
        self,
        correlation_id: int,
        version: int,
        splice_tags: SpliceTags,
        log_starts: LogStarts | None = None,
    ) -> None:
        super().__init__(correlation_id)
        self.version = version
        self._splice_tags = splice_tags
        self.log_starts = log_starts
        self.frame_bytes = 0  # known from its arrival on
        self._on_head: OnHead | None = None
        self._on_error: OnError | None = None
        self.on_done: Callable[[], None] | None = None
        self.on_arrival: Callable[[], None] | None = None
        self.discarded = False  # scanned like any other, but nothing leaves

    @property
    def attached(self) -> bool:
        return self._on_head is not None

    def attach(self, on_head: OnHead, on_error: OnError, on_done: Callable[[], None]) -> None:
        """From now on the answer may flow. The link must be told to go on."""
        self._on_head, self._on_error, self.on_done = on_head, on_error, on_done

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
        )
