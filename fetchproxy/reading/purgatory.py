"""RemoteFetchPurgatory: fetches of archived data wait here. It is the entry to the read side."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Self, TypeVar

import structlog

from fetchproxy.config.schema import RemoteFetchConfig
from fetchproxy.errors import (
    CorruptSegment,
    ObjectNotFound,
    OffsetLost,
    OffsetNotArchived,
    StorageUnavailable,
)
from fetchproxy.metadata.partition_view import PartitionView
from fetchproxy.metadata.remote_log_metadata_manager import PartitionViews
from fetchproxy.model import IsolationLevel, TopicIdPartition
from fetchproxy.observability import tracing
from fetchproxy.observability.health import Condition
from fetchproxy.observability.metrics import (
    DELAYED_REMOTE_FETCH_EXPIRES,
    LIMITS_REACHED,
    PURGATORY_COMPLETED,
    PURGATORY_ENTRIES,
)
from fetchproxy.observability.tracing import NO_SPAN, OpenSpan
from fetchproxy.reading.chunk_cache import Chunk, ChunkKey
from fetchproxy.reading.disk_cache import DiskCache
from fetchproxy.reading.fetcher_pool import FetcherPool, Load
from fetchproxy.reading.hedged_reads import HedgedReads
from fetchproxy.reading.limits import ReadingLimits
from fetchproxy.reading.read_ahead import ReadAhead, ReadAheadLoads
from fetchproxy.reading.segment_loads import SegmentLoads
from fetchproxy.reading.segment_reader import (
    FETCHED_TXNS_MAX,
    NO_CHUNKS,
    ArchiveMemory,
    CompletionReason,
    Need,
    NeedAborted,
    NeedChunk,
    NeedLayout,
    NeedView,
    RemoteReadRequest,
    RemoteReadResult,
    SegmentReader,
)
from fetchproxy.reading.timestamp_lookup import TimestampLookup
from fetchproxy.runtime.cooperative import LoopSteps
from fetchproxy.storage.index_files import LocalIndexes
from fetchproxy.storage.remote_storage import RemoteStorage
from fetchproxy.storage.store_health import StoreOperation

K = TypeVar("K", bound=Hashable)
PendingKey = tuple[TopicIdPartition, int, IsolationLevel]
NO_VIEWS: Mapping[Any, PartitionView] = {}

log = structlog.get_logger(__name__)
_COMPLETED = {reason: PURGATORY_COMPLETED.labels(reason.value) for reason in CompletionReason}


# One waiting fetch (Kafka's DelayedRemoteFetch). It completes exactly once.


@dataclass(eq=False, repr=False)
class DelayedRemoteFetch(Generic[K]):
    """Made by `RemoteFetchPurgatory.watch`. After completion, `reason` and `results()` do not
    change, and the purgatory does not refer to it any more. `K`: what its caller names requests by.
    """

    requests: Mapping[K, RemoteReadRequest]
    bytes_max: int
    deadline: float  # loop time, s
    completed: asyncio.Event  # set in the step of the event loop that completes the fetch
    _on_cancel: Callable[[DelayedRemoteFetch[K], bool], None]
    reason: CompletionReason | None = None
    # The reads that it watches.
    reads: dict[K, PendingRead] = field(default_factory=dict)
    timer: asyncio.TimerHandle | None = None
    span: OpenSpan = NO_SPAN
    _results: dict[K, RemoteReadResult] = field(default_factory=dict)

    def results(self) -> dict[K, RemoteReadResult]:
        """Requests without data yet are absent. Empty before completion.

        All records together are within `bytes_max`, except that the first batch of the first
        request with data always comes whole. A storage error (Kafka's code 56) is included only if
        no request has data, because some clients discard a whole response for one such error.
        """
        return self._results

    def cancel(self, client_gone: bool = False) -> None:
        """The client has its response from elsewhere, and its next fetch will need the reads, which
        go on. `client_gone`: it has disconnected; what no other client has asked for ends. Does
        nothing after completion.
        """
        if self.reason is None:
            self._on_cancel(self, client_gone)

    def complete(self, reason: CompletionReason, results: dict[K, RemoteReadResult]) -> None:
        """Only the purgatory calls this, once."""
        if self.reason is not None:
            raise AssertionError(f"completed twice: {self.reason}, {reason}")
        self.reason = reason
        self._results = results
        if self.timer is not None:
            self.timer.cancel()
        if self.span is not NO_SPAN:
            size_bytes = sum(result.size_bytes for result in results.values())
            self.span.end(reason=reason.value, bytes=size_bytes)
        self.completed.set()


class PendingRead:
    """A read that memory cannot answer yet. `created_at` (loop time, s): only a view this recent
    may say "not archived".
    """

    def __init__(self, request: RemoteReadRequest, now: float) -> None:
        self.request = request
        self.created_at = now
        self.needed_until = now
        self.watchers: dict[DelayedRemoteFetch[Any], None] = {}
        # Clients that were answered without it, or before they asked: they will come for it.
        self.expected_by: set[Hashable] = set()
        self.load: Load | None = None
        # Chunks that this read has loaded, so that the cache cannot evict them before their use.
        self.chunks: dict[ChunkKey, Chunk] = {}
        self.missing: Need | None = None  # its object was not found
        self.view_from = float("-inf")  # then the view has to be at least this recent
        self.is_finished = False
        self.task: asyncio.Task[None] | None = None

    @property
    def key(self) -> PendingKey:
        return self.request.tp, self.request.fetch_offset, self.request.isolation


@dataclass(eq=False, repr=False)
class PendingReads:
    """The reads that memory cannot answer yet. One task drives each read until memory can.

    There is one read per (partition, offset, isolation) for all clients, so a client's next poll
    finds the work that its last poll began. A pending read outlives the fetches that watch it. It
    ends with data in memory, with an error, when no client has asked for it for a while, or when
    the last client that has asked for it is gone.
    `_on_done` is called for each read that ends, while the read still has its watchers.
    """

    _rlmm: PartitionViews
    _reader: SegmentReader
    _loads: SegmentLoads
    _pool: FetcherPool
    _tasks: asyncio.TaskGroup
    _unwatched_max: int
    _on_done: Callable[[PendingRead], None]
    _reads: dict[PendingKey, PendingRead] = field(default_factory=dict)
    # The longest unwatched read comes first.
    _unwatched: dict[PendingKey, PendingRead] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._reads)

    def get(self, request: RemoteReadRequest) -> PendingRead | None:
        return self._reads.get((request.tp, request.fetch_offset, request.isolation))

    def start_or_join(
        self,
        request: RemoteReadRequest,
        needed_until: float,
        watcher: DelayedRemoteFetch[Any] | None = None,
    ) -> PendingRead:
        """Begin the read or join it; it is retried until `needed_until` (loop time) at least."""
        read = self.get(request) or self._begin(request)
        read.needed_until = max(read.needed_until, needed_until)
        if read.load is not None:
            self._pool.touch(read.load, read.needed_until, client=request.client)
        if watcher is None:
            read.expected_by.add(request.client)
        else:
            read.watchers[watcher] = None
            self._unwatched.pop(read.key, None)
        return read

    def leave(
        self,
        read: PendingRead,
        watcher: DelayedRemoteFetch[Any],
        client: Hashable,
        client_gone: bool,
    ) -> None:
        """The watcher has its response; the read goes on, unless all its clients are gone."""
        read.watchers.pop(watcher, None)
        if client_gone:
            read.expected_by.discard(client)
        else:
            read.expected_by.add(client)
        if read.watchers or read.is_finished:
            return
        if read.expected_by:
            self._set_unwatched(read)
        else:
            self._cancel(read)

    def cancel_all(self) -> None:
        for read in list(self._reads.values()):
            self._cancel(read)

    def _begin(self, request: RemoteReadRequest) -> PendingRead:
        now = asyncio.get_running_loop().time()
        read = PendingRead(request, now)
        self._reads[read.key] = read
        self._set_unwatched(read)
        name = f"remote read {request.tp} at {request.fetch_offset}"
        read.task = self._tasks.create_task(self._drive(read), name=name)
        # A task that is cancelled before its first step runs none of its own code.
        read.task.add_done_callback(lambda _: self._finish(read))
        return read

    def _set_unwatched(self, read: PendingRead) -> None:
        self._unwatched[read.key] = read
        if len(self._unwatched) > self._unwatched_max:
            oldest = next(iter(self._unwatched))
            self._cancel(self._unwatched.pop(oldest))

    def _cancel(self, read: PendingRead) -> None:
        if read.task is not None:
            read.task.cancel()
        self._finish(read)

    def _finish(self, read: PendingRead) -> None:
        if read.is_finished:
            return
        read.is_finished = True
        del self._reads[read.key]
        self._unwatched.pop(read.key, None)
        self._on_done(read)

    async def _drive(self, read: PendingRead) -> None:
        tp, offset = read.request.tp, read.request.fetch_offset
        try:
            with tracing.span("remote read", topic=tp.topic, partition=tp.partition, offset=offset):
                while (need := self._lacks(read)) is not None:
                    client = read.request.client
                    read.load = self._loads.begin(need, read.needed_until, client=client)
                    await self._pool.wait(read.load)
                    if not self._go_on(read, need, read.load):
                        break
        except Exception:  # a bug in one read must not end all of them
            log.exception("remote_read_crashed", read=str(read.request.tp))
        self._finish(read)

    def _lacks(self, read: PendingRead) -> Need | None:
        """The next thing to load. None: `read` has a response, which may be an error."""
        view = self._rlmm.view(read.request.tp)
        if view is not None and view.read_at < read.view_from:
            return NeedView(read.request.tp, read.view_from)
        now = asyncio.get_running_loop().time()
        outcome = self._reader.read(read.request, 1, True, read.created_at, now, read.chunks)
        return None if isinstance(outcome, RemoteReadResult) else outcome

    def _go_on(self, read: PendingRead, need: Need, load: Load) -> bool:
        """After a load. False: this read ends."""
        if load.error is None:
            if load.chunk is not None and isinstance(need, NeedChunk):
                read.chunks[need.key] = load.chunk
            return True
        if isinstance(need, NeedView):
            return False
        if isinstance(load.error, ObjectNotFound):
            return self._look_again(read, need, load.error)
        # Corrupt: another copy is read, or that is the response. Or given up: no client asks.
        return isinstance(load.error, CorruptSegment)

    def _look_again(
        self,
        read: PendingRead,
        need: NeedChunk | NeedLayout | NeedAborted,
        error: ObjectNotFound,
    ) -> bool:
        """An object is missing. Retention may have deleted the segment, so a fresh view decides. If
        the fresh view still has the segment, the object is lost: damage, not "out of range".
        """
        if read.missing is not None and read.missing.key == need.key:
            self._loads.give_up(need, CorruptSegment(f"an object of the segment is lost: {error}"))
            return True
        read.missing = need
        self._rlmm.doubt(read.request.tp)
        read.view_from = asyncio.get_running_loop().time()
        return True


# A fetch completes when one of its requests has data, at an error that a retry cannot repair, or at
# its deadline. One step of the event loop checks memory and registers the fetch, so no wake-up is
# lost between them.


class RemoteFetchPurgatory:
    """An async context manager that owns all tasks of the read side. Entering raises ConfigError
    if the disk cache's folder cannot be used.
    """

    def __init__(
        self,
        config: RemoteFetchConfig,
        rlmm: PartitionViews,
        storage: RemoteStorage,
        random: random.Random,
        local_indexes: LocalIndexes | None = None,
        *,
        skips_gaps: bool = True,
        limits: ReadingLimits = ReadingLimits(),  # noqa: B008 - frozen
    ) -> None:
        """`skips_gaps`: see `SegmentReader`."""
        self._limits = limits
        self.accounts = storage.accounts
        self._unasked_max_s = limits.unasked_read_max_ms / 1000
        self._error_after_s = config.remote_error_after_ms / 1000
        health = storage.health
        self._health = health[StoreOperation.READ]
        self._memory = memory = ArchiveMemory(config, limits)
        self._disk_cache = None if config.disk_cache_dir is None else DiskCache(config, limits)
        self._reader = reader = SegmentReader(rlmm, memory, skips_gaps)
        self._entries: dict[DelayedRemoteFetch[Any], None] = {}
        self._waiting_for_place: dict[DelayedRemoteFetch[Any], None] = {}  # in order
        self._tasks = asyncio.TaskGroup()
        self._closed = True
        self.steps = LoopSteps()
        self._pool = pool = FetcherPool(config, self._tasks, random, self._health, limits)
        hedged = HedgedReads(pool.budget, limits)
        loads = SegmentLoads(
            *(pool, rlmm, storage.rsm, health.damaged, memory, hedged, self.steps),
            local_indexes,
            self._disk_cache,
        )
        self._pending = PendingReads(
            rlmm,
            reader,
            loads,
            pool,
            self._tasks,
            limits.purgatory_entries_max,
            self._on_read_done,
        )
        streams = ReadAhead(limits.read_ahead_chunks_max)
        self._read_ahead = ReadAheadLoads(streams, reader, memory, pool, loads, self._unasked_max_s)
        self._by_time = TimestampLookup(rlmm, memory, loads, self.steps, self._unasked_max_s)

    async def __aenter__(self) -> Self:
        if self._disk_cache is not None:
            await self._disk_cache.__aenter__()
        await self._tasks.__aenter__()
        self._closed = False
        return self

    async def __aexit__(self, *_: object) -> None:
        """Fetches that still wait complete as cancelled. Every task has ended on return."""
        self._closed = True
        for fetch in [*self._waiting_for_place, *self._entries]:
            self._complete(fetch, CompletionReason.CANCELLED, {})
        self._by_time.close()
        self._pending.cancel_all()
        self._pool.cancel_all()
        await self._tasks.__aexit__(None, None, None)
        if self._disk_cache is not None:
            await self._disk_cache.__aexit__(None, None, None)

    def fetch(
        self,
        requests: Mapping[K, RemoteReadRequest],
        *,
        bytes_max: int,
        deadline: float,
        completed: asyncio.Event | None = None,
        views: Mapping[K, PartitionView] = NO_VIEWS,
    ) -> DelayedRemoteFetch[K]:
        """Begin to read all `requests`, in their order, for one fetch.

        Requests are read in parallel as far as `bytes_max` has room for them. The first requests
        may use up all of it, so the caller rotates the requests as brokers do. `deadline`: loop
        time (s) at which the fetch completes at the latest. `completed`: set at completion; several
        fetches may share it. `views`: the views of requests that the caller has just looked up; a
        fetch that waits looks them up again. Errors of the store are never raised.
        """
        completed = completed or asyncio.Event()
        fetch = DelayedRemoteFetch(requests, bytes_max, deadline, completed, self._cancel)
        if tracing.tracer is not None:  # no call on the way of each fetch from memory
            fetch.span = tracing.begin_span("archived fetch", partitions=len(requests))
        now = asyncio.get_running_loop().time()
        if self._closed:
            fetch.complete(CompletionReason.CANCELLED, {})
        elif not self._try_complete(fetch, now, views):
            if deadline <= now:
                self._register(fetch, now)  # the reads begin, although the fetch does not wait
                self._expire(fetch)
                return fetch
            fetch.timer = asyncio.get_running_loop().call_at(deadline, self._expire, fetch)
            if len(self._entries) < self._limits.purgatory_entries_max:
                self._register(fetch, now)
            else:
                LIMITS_REACHED.labels("purgatory_entries_max").inc()
                self._waiting_for_place[fetch] = None
        return fetch

    def warm(self, request: RemoteReadRequest) -> None:
        """Begin to read into memory, without a fetch that waits."""
        if not self._closed:
            now = asyncio.get_running_loop().time()
            self._start_or_join(request, now)

    async def first_offset_at_or_after(
        self, tp: TopicIdPartition, timestamp_ms: int, client: Hashable = None
    ) -> tuple[int, int, int] | None:
        """See `TimestampLookup`. Raises StorageUnavailable when closed."""
        if self._closed:
            raise StorageUnavailable("the read side is closed")
        return await self._by_time.first_offset_at_or_after(tp, timestamp_ms, client)

    def first_offset_in_memory(
        self, view: PartitionView, timestamp_ms: int
    ) -> tuple[int, int, int] | None:
        """See `TimestampLookup.in_memory`. Raises CorruptSegment."""
        return None if self._closed else self._by_time.in_memory(view, timestamp_ms)

    def conditions(self, now: float) -> Iterator[Condition]:
        """Of the look-ups by time. `Health` calls it."""
        return self._by_time.turns.conditions(now)

    def _start_or_join(self, request: RemoteReadRequest, now: float) -> None:
        outcome = self._reader.read(request, 1, True, now, now)
        if not isinstance(outcome, RemoteReadResult):
            self._pending.start_or_join(request, now + self._unasked_max_s)

    def _register(self, fetch: DelayedRemoteFetch[K], now: float) -> None:
        """Watch the reads of as many requests as could fill the response."""
        self._entries[fetch] = None
        PURGATORY_ENTRIES.set(len(self._entries))
        needed_until = max(fetch.deadline, now + self._unasked_max_s)
        with fetch.span.as_parent():
            for key in _requests_that_fit(fetch):
                fetch.reads[key] = self._pending.start_or_join(
                    fetch.requests[key], needed_until, fetch
                )

    def _try_complete(
        self, fetch: DelayedRemoteFetch[K], now: float, views: Mapping[K, PartitionView] = NO_VIEWS
    ) -> bool:
        """Complete with the results that memory has. False: it has none."""
        results, needs = self._collect(fetch, now, views)
        if not results:
            return False
        data = any(result.size_bytes for result in results.values())
        self._complete(fetch, CompletionReason.DATA if data else CompletionReason.ERROR, results)
        for key in _requests_that_fit(fetch) if needs else ():
            if key in needs:
                self._start_or_join(fetch.requests[key], now)  # ready for the client's next fetch
        return True

    def _collect(
        self, fetch: DelayedRemoteFetch[K], now: float, views: Mapping[K, PartitionView]
    ) -> tuple[dict[K, RemoteReadResult], dict[K, Need]]:
        """The results from memory within the fetch's bytes, and the needs of other requests."""
        results: dict[K, RemoteReadResult] = {}
        needs: dict[K, Need] = {}
        bytes_left, txns_left, empty = fetch.bytes_max, FETCHED_TXNS_MAX, True
        for key, request in fetch.requests.items():
            if not empty and (bytes_left <= 0 or txns_left <= 0):
                break
            read = fetch.reads.get(key)
            outcome = self._reader.read(
                request,
                bytes_left,
                empty,
                now if read is None else read.created_at,
                now,
                NO_CHUNKS if read is None else read.chunks,
                views.get(key),
            )
            if not isinstance(outcome, RemoteReadResult):
                needs[key] = outcome
            elif outcome.records:
                results[key] = outcome
                bytes_left, empty = bytes_left - outcome.size_bytes, False
                txns_left -= outcome.txns
                if not self._closed:
                    self._read_ahead.served(request, outcome, read is not None, now)
            elif isinstance(outcome.error, OffsetNotArchived | OffsetLost):
                results[key] = outcome
        return results, needs

    def _on_read_done(self, read: PendingRead) -> None:
        now = asyncio.get_running_loop().time()
        for fetch in list(read.watchers):
            if fetch.reason is None:
                self._try_complete(fetch, now)

    def _expire(self, fetch: DelayedRemoteFetch[K]) -> None:
        """At the deadline: complete with data, or else with the errors held back so far."""
        now = asyncio.get_running_loop().time()
        if fetch.reason is not None or self._try_complete(fetch, now):
            return
        DELAYED_REMOTE_FETCH_EXPIRES.inc()
        at_deadline = {key: self._at_deadline(fetch, key, now) for key in fetch.requests}
        results = {key: result for key, result in at_deadline.items() if result.error is not None}
        self._complete(fetch, CompletionReason.DEADLINE, results)

    def _at_deadline(self, fetch: DelayedRemoteFetch[K], key: K, now: float) -> RemoteReadResult:
        """Damage, or an outage that has lasted for `remote_error_after_ms`; else no error."""
        request, read = fetch.requests[key], fetch.reads.get(key)
        fresh_since = now if read is None else read.created_at
        outcome = self._reader.read(request, 1, True, fresh_since, now)
        if isinstance(outcome, RemoteReadResult):
            return outcome
        since = None if read is None else self._failing_since(read)
        if since is None or now - since < self._error_after_s:
            return RemoteReadResult()
        error = StorageUnavailable(
            f"{request.tp}: the store has been failing for {now - since:.0f} s: "
            f"{self._health.status(now).last_error}"
        )
        return RemoteReadResult(error)

    def _failing_since(self, read: PendingRead) -> float | None:
        """Loop time since which the store's failures hold up this read. None: there is no evidence
        of that. Evidence is a failure of this read, or of any read after this one was created.
        """
        load_failing_since = None if read.load is None else read.load.failing_since
        every = self._health.failing_since
        if every is not None and self._health.last_failure_at >= read.created_at:
            return every if load_failing_since is None else min(load_failing_since, every)
        return load_failing_since

    def _cancel(self, fetch: DelayedRemoteFetch[Any], client_gone: bool) -> None:
        self._complete(fetch, CompletionReason.CANCELLED, {}, client_gone)

    def _complete(
        self,
        fetch: DelayedRemoteFetch[K],
        reason: CompletionReason,
        results: dict[K, RemoteReadResult],
        client_gone: bool = False,
    ) -> None:
        _COMPLETED[reason].inc()
        was_entry = fetch in self._entries
        if was_entry:
            reads, fetch.reads = fetch.reads, {}
            for key, read in reads.items():
                self._pending.leave(read, fetch, fetch.requests[key].client, client_gone)
            del self._entries[fetch]
            PURGATORY_ENTRIES.set(len(self._entries))
        else:
            self._waiting_for_place.pop(fetch, None)
        fetch.complete(reason, results)
        if was_entry and not self._closed:
            self._promote()

    def _promote(self) -> None:
        """Places are free: check the fetches that waited for one again, and register them."""
        now = asyncio.get_running_loop().time()
        while self._waiting_for_place and len(self._entries) < self._limits.purgatory_entries_max:
            fetch = next(iter(self._waiting_for_place))
            del self._waiting_for_place[fetch]
            if not self._try_complete(fetch, now):
                self._register(fetch, now)


def _requests_that_fit(fetch: DelayedRemoteFetch[K]) -> list[K]:
    """The first requests, as many as could fill the response. Further ones would be read in
    vain.
    """
    keys: list[K] = []
    chunks = 0
    for key, request in fetch.requests.items():
        if chunks >= fetch.bytes_max and keys:
            break
        keys.append(key)
        chunks += request.bytes_max
    return keys
