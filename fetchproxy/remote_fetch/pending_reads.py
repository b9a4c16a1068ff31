"""Reads that memory cannot answer yet, each driven by one task until it can.

One per (partition, offset, isolation), whoever asks and however often: the next poll of the same
client finds the work that its last one began. A pending read outlives the fetches that watch it,
and ends with data in memory, with an error, or when nobody has asked for it for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from fetchproxy.errors import CorruptSegment, ObjectNotFound
from fetchproxy.metadata.api import PartitionViews
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.remote_fetch.api import RemoteReadRequest, RemoteReadResult
from fetchproxy.remote_fetch.archive_memory import (
    Need,
    NeedAborted,
    NeedChunk,
    NeedLayout,
    NeedView,
)
from fetchproxy.remote_fetch.chunk_cache import Chunk, ChunkKey
from fetchproxy.remote_fetch.delayed_fetch import DelayedRemoteFetch
from fetchproxy.remote_fetch.fetcher_pool import FetcherPool, Load
from fetchproxy.remote_fetch.segment_loads import SegmentLoads
from fetchproxy.remote_fetch.segment_reader import SegmentReader, Served

log = structlog.get_logger(__name__)

PendingKey = tuple[TopicIdPartition, int, IsolationLevel]


class PendingRead:
    """`created_at` (loop time, s) is also how fresh a view must be that says "not archived"."""

    def __init__(self, request: RemoteReadRequest, now: float) -> None:
        self.request = request
        self.created_at = now
        self.wanted_until = now
        self.watchers: dict[DelayedRemoteFetch, None] = {}
        self.load: Load | None = None
        # What this read has loaded, so that a crowded cache cannot take it away before it is used.
        self.held: dict[ChunkKey, Chunk] = {}
        self.missing: Need | None = None  # its object was not found
        self.view_from = float("-inf")  # then the view has to be at least this recent
        self.landed = False
        self.task: asyncio.Task[None] | None = None

    @property
    def key(self) -> PendingKey:
        return self.request.tip, self.request.fetch_offset, self.request.isolation


class PendingReads:
    def __init__(
        self,
        rlmm: PartitionViews,
        reader: SegmentReader,
        loads: SegmentLoads,
        pool: FetcherPool,
        tasks: asyncio.TaskGroup,
        unwatched_max: int,
        on_done: Callable[[PendingRead], None],
    ) -> None:
        """`on_done` hears of each read that ended, while it still has its watchers."""
        self._rlmm = rlmm
        self._reader = reader
        self._loads = loads
        self._pool = pool
        self._tasks = tasks
        self._unwatched_max = unwatched_max
        self._on_done = on_done
        self._reads: dict[PendingKey, PendingRead] = {}
        self._unwatched: dict[PendingKey, PendingRead] = {}  # the longest unwatched first

    def __len__(self) -> int:
        return len(self._reads)

    def get(self, request: RemoteReadRequest) -> PendingRead | None:
        return self._reads.get((request.tip, request.fetch_offset, request.isolation))

    def ask(
        self,
        request: RemoteReadRequest,
        wanted_until: float,
        watcher: DelayedRemoteFetch | None = None,
    ) -> PendingRead:
        """Begin the read or join it; it is retried until `wanted_until` (loop time) at least."""
        read = self.get(request) or self._begin(request)
        read.wanted_until = max(read.wanted_until, wanted_until)
        if read.load is not None:
            self._pool.touch(read.load, read.wanted_until, client=request.client)
        if watcher is not None:
            read.watchers[watcher] = None
            self._unwatched.pop(read.key, None)
        return read

    def leave(self, read: PendingRead, watcher: DelayedRemoteFetch) -> None:
        """The watcher has its answer; the read goes on."""
        read.watchers.pop(watcher, None)
        if not read.watchers and not read.landed:
            self._set_unwatched(read)

    def cancel_all(self) -> None:
        for read in list(self._reads.values()):
            self._cancel(read)

    def _begin(self, request: RemoteReadRequest) -> PendingRead:
        now = asyncio.get_running_loop().time()
        read = PendingRead(request, now)
        self._reads[read.key] = read
        self._set_unwatched(read)
        name = f"remote read {request.tip} at {request.fetch_offset}"
        read.task = self._tasks.create_task(self._drive(read), name=name)
        # A task that is cancelled before its first step runs none of its own code.
        read.task.add_done_callback(lambda _: self._land(read))
        return read

    def _set_unwatched(self, read: PendingRead) -> None:
        self._unwatched[read.key] = read
        if len(self._unwatched) > self._unwatched_max:
            oldest = next(iter(self._unwatched))
            self._cancel(self._unwatched.pop(oldest))

    def _cancel(self, read: PendingRead) -> None:
        if read.task is not None:
            read.task.cancel()
        self._land(read)

    def _land(self, read: PendingRead) -> None:
        if read.landed:
            return
        read.landed = True
        del self._reads[read.key]
        self._unwatched.pop(read.key, None)
        self._on_done(read)

    async def _drive(self, read: PendingRead) -> None:
        try:
            while (need := self._lacks(read)) is not None:
                read.load = self._loads.begin(need, read.wanted_until, client=read.request.client)
                await read.load.done.wait()
                if not self._go_on(read, need, read.load):
                    break
        except Exception:  # a bug in one read must not end all of them
            log.exception("remote_read_crashed", read=str(read.request.tip))
        self._land(read)

    def _lacks(self, read: PendingRead) -> Need | None:
        """What to load next; None: `read` has an answer, be it an error."""
        view = self._rlmm.view(read.request.tip)
        if view is not None and view.read_at < read.view_from:
            return NeedView(read.request.tip, read.view_from)
        now = asyncio.get_running_loop().time()
        outcome = self._reader.read(read.request, 1, True, read.created_at, now, read.held)
        return None if isinstance(outcome, Served | RemoteReadResult) else outcome

    def _go_on(self, read: PendingRead, need: Need, load: Load) -> bool:
        """After a load: False if there is nothing more that this read could do."""
        if load.error is None:
            if load.chunk is not None and isinstance(need, NeedChunk):
                read.held[need.key] = load.chunk
            return True
        if isinstance(load.error, ObjectNotFound) and not isinstance(need, NeedView):
            return self._look_again(read, need, load.error)
        return False  # corrupt: that is the answer; else given up, since nobody asks any more

    def _look_again(
        self,
        read: PendingRead,
        need: NeedChunk | NeedLayout | NeedAborted,
        error: ObjectNotFound,
    ) -> bool:
        """An object is missing. Retention may have deleted the segment: a fresh view decides.

        If that view still has it, an object is lost; that is damage, not "out of range".
        """
        if read.missing is not None and read.missing.key == need.key:
            self._loads.give_up(need, CorruptSegment(f"an object of the segment is lost: {error}"))
            return False
        read.missing = need
        read.view_from = asyncio.get_running_loop().time()
        return True
