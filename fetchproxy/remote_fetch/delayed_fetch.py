"""One waiting fetch (Kafka's DelayedRemoteFetch): completes exactly once, whoever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from fetchproxy.remote_fetch.api import CompletionReason, RemoteReadRequest, RemoteReadResult

if TYPE_CHECKING:
    from fetchproxy.remote_fetch.pending_reads import PendingRead


class DelayedRemoteFetch:
    """Made by `RemoteFetchPurgatory.watch`; everything else about it is the purgatory's.

    States: waiting → completed (`reason` is set, `results()` stays the same from then on). The
    purgatory keeps nothing of a completed fetch: its results live as long as the caller holds it.
    """

    def __init__(
        self,
        requests: Sequence[RemoteReadRequest],
        bytes_max: int,
        deadline: float,
        on_cancel: Callable[[DelayedRemoteFetch], None],
    ) -> None:
        self.requests = requests
        self.bytes_max = bytes_max
        self.deadline = deadline  # loop time, s
        self.reason: CompletionReason | None = None
        self.reads: dict[int, PendingRead] = {}  # those it watches, by index of request
        self.timer: asyncio.TimerHandle | None = None
        self._on_cancel = on_cancel
        self._results: dict[int, RemoteReadResult] = {}
        self._done: asyncio.Event | None = None  # made by the first that waits
        self._callbacks: list[Callable[[DelayedRemoteFetch], None]] = []

    async def wait(self) -> None:
        """Return when completed. A cancelled wait cancels the fetch, but not the reads."""
        if self.reason is not None:
            return
        self._done = self._done or asyncio.Event()
        try:
            await self._done.wait()
        except asyncio.CancelledError:
            self.cancel()
            raise

    def results(self) -> dict[int, RemoteReadResult]:
        """By index of request; those with nothing yet are absent. Empty before completion.

        All records together are within `bytes_max`, except that the first batch of the first
        request with data comes whole in any case. A storage error (Kafka's code 56) is there only
        where no request has data: some clients throw a whole answer away for one such error.
        """
        return self._results

    def on_completion(self, callback: Callable[[DelayedRemoteFetch], None]) -> None:
        """Call back once, in the step of the loop that completes it; at once if it is complete."""
        if self.reason is not None:
            callback(self)
        else:
            self._callbacks.append(callback)

    def cancel(self) -> None:
        """The client is gone. Does nothing after completion."""
        if self.reason is None:
            self._on_cancel(self)

    def complete(self, reason: CompletionReason, results: dict[int, RemoteReadResult]) -> None:
        """For the purgatory alone, once."""
        if self.reason is not None:
            raise AssertionError(f"completed twice: {self.reason}, {reason}")
        self.reason = reason
        self._results = results
        if self.timer is not None:
            self.timer.cancel()
        if self._done is not None:
            self._done.set()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(self)
